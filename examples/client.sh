#!/bin/sh
# Translate by a server that runs: transduce serve en-de=runs/mine
#     sh examples/client.sh "A dog runs." en de
# TRANSDUCE_URL is its address, TRANSDUCE_KEY a key if it was started with --api-keys.
set -eu
curl --fail-with-body --silent --show-error \
    ${TRANSDUCE_KEY:+--header "Authorization: Bearer $TRANSDUCE_KEY"} \
    --data-urlencode "q=$1" --data source="$2" --data target="$3" \
    "${TRANSDUCE_URL:-http://127.0.0.1:5000}/translate"
echo
