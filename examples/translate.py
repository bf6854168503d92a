"""Translate standard input line by line, with the three best translations of each.

python examples/translate.py runs/mine < test.en
"""

import sys

import transduce


def main() -> None:
    """Print each line's translations and their scores as soon as they are found."""
    translator = transduce.load(sys.argv[1])
    config = transduce.SearchConfig(beam_size=4, length_penalty=0.6, num_best=3)
    lines = (line.rstrip("\n") for line in sys.stdin)
    for translation in translator.translate_stream(lines, config):
        for hypothesis in translation.hypotheses:
            print(f"{hypothesis.score:.2f}\t{hypothesis.text}")


if __name__ == "__main__":
    main()
