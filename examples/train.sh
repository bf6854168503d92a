#!/bin/sh
# Train on two text files that are line by line translations of each other, and score
# the model on pairs that it has not been trained on.
#     sh examples/train.sh my.en my.de runs/mine --preset multi30k
# The preset multi30k suits tens of thousands of pairs, base and big suit millions. The
# files are plain text, and their endings name the languages; further options are those
# of `transduce train`.
set -eu
source=$1 target=$2 run=$3
shift 3
from=${source##*.} to=${target##*.}
parts=$run.parts

transduce split --source "$source" --target "$target" --test "${TEST_PAIRS:-1000}" \
    --out "$parts"
transduce train --source "$parts/train.$from" --target "$parts/train.$to" \
    --dev-source "$parts/dev.$from" --dev-target "$parts/dev.$to" --out "$run" "$@"
transduce evaluate "$run" --source "$parts/test.$from" --reference "$parts/test.$to"
head -n 3 "$parts/test.$from" | transduce translate "$run"
