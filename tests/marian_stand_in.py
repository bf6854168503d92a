"""Stand-ins for Marian's programs, which speak as these do and translate by transduce.

`marian-decoder` reads a mini-batch of lines before it translates them; `marian-conv`
copies files. They show that lines, batches, lengths and files fit together, not that
Marian computes the same: tests with Marian itself do that where it is on the PATH.
"""

import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # programs start faster without them
    from transduce.checkpoint import Checkpoint

FIRST_ROWS = ["</s>", "<unk>"]
END = 2
"""Id of the end token here."""
NATIVE = {"BUILD_ARCH": "native", "AVX2_FOUND": "true", "AVX512_FOUND": "true"}
VERSION = "v1.9.56 0123456 2024-05-12 09:38:56 +0100"
MODEL, BUILD, CALLS = "model", "build.json", "calls.txt"


def write_programs(
    folder: Path,
    checkpoint: "Checkpoint | None" = None,
    build: Mapping[str, str] = NATIVE,
    *,
    help_text: str = "--gemm-precision: int8shiftAlphaAll",
) -> Path:
    """Write both programs into a new folder, with the model that they translate by."""
    folder.mkdir(parents=True)
    about = {"build": dict(build), "help": help_text}
    (folder / BUILD).write_text(json.dumps(about))
    if checkpoint is not None:
        from transduce.checkpoint import save_model

        save_model(checkpoint, folder / MODEL)
    for name in ("marian-decoder", "marian-conv"):
        write_script(
            folder / name,
            "import sys\n"
            f"sys.path[:0] = {[str(Path(__file__).parent), *sys.path]}\n"
            "from marian_stand_in import main\n"
            "main()\n",
        )
    return folder


def write_script(path: Path, content: str) -> None:
    """Write a program in Python."""
    path.write_text(f"#!{sys.executable}\n{content}")
    path.chmod(0o755)


def calls(folder: Path) -> list[str]:
    """Return the command line of each call of a program that was not a question."""
    path = folder / CALLS
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    """Do what the program of this name does."""
    folder = Path(sys.argv[0]).parent
    about = json.loads((folder / BUILD).read_text())
    if "--version" in sys.argv:
        print(VERSION, file=sys.stderr)
    elif "--build-info" in sys.argv:
        for name, value in about["build"].items():
            print(f"{name}={value}", file=sys.stderr)
    elif "--help" in sys.argv:
        print(about["help"])
    else:
        with (folder / CALLS).open("a") as file:
            print(*sys.argv, file=file)
        given = _options(sys.argv[1:])
        if sys.argv[0].endswith("conv"):
            _convert(given)
        else:
            _decode(folder, given)


def _options(arguments: Iterable[str]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    for argument in arguments:
        if argument.startswith("--"):
            values = options.setdefault(argument.removeprefix("--"), [])
        else:
            values.append(argument)
    return options


def _convert(options: Mapping[str, list[str]]) -> None:
    if "shortlist" in options:
        shutil.copy(options["shortlist"][0], options["dump"][0])
    else:
        assert options["gemm-type"] == ["intgemm8"]
        shutil.copy(options["from"][0], options["to"][0])


def _decode(folder: Path, options: Mapping[str, list[str]]) -> None:
    for path in options["models"] + options["vocabs"] + options.get("shortlist", []):
        assert Path(path).exists(), path
    import transduce

    translator = transduce.load(folder / MODEL, device="cpu", precision="fp32")
    tokenizer = translator.tokenizer
    ids = {p: i for i, p in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    for lines in _batches(int(options["mini-batch"][0])):
        sources = [_ids_of(line) for line in lines]
        assert sources
        width = max(map(len, sources)) + 1
        limit = math.ceil(float(options["max-length-factor"][0]) * width)
        is_endless = "endless" in options["models"][0]
        search = transduce.SearchConfig(
            beam_size=int(options["beam-size"][0]),
            patience=1,
            penalty="power",
            length_penalty=float(options["normalize"][0]),
            min_length=limit - 1 if is_endless else 0,
            max_length=limit,
            shortlist="shortlist" in options,
        )
        texts = [tokenizer.decode(source) for source in sources]
        for found in translator.translate_stream(texts, search):
            target = [ids[piece] for piece in found.hypotheses[0].tokens]
            if is_endless:
                target += target[-1:] * (limit - len(target))
            print(_line_of(target))
        sys.stdout.flush()
        if "dump-quantmult" in options:
            for number in (2, 4):
                numbers = f"MeanAbs: 1 stddevAbs: 1 Mean: 0 stddev: 1 MaxAbs: {number}"
                print(f"Name: F0::Wemb_QuantMultA {numbers}", file=sys.stderr)
                print(f"Name: none_QuantMultA {numbers}", file=sys.stderr)


def _batches(size: int) -> Iterator[list[str]]:
    """Read a batch of lines, and no line beyond it; the last may be smaller."""
    lines = iter(sys.stdin.readline, "")
    while batch := list(islice(lines, size)):
        yield batch


def _ids_of(line: str) -> list[int]:
    rows = (FIRST_ROWS.index(n) if n in FIRST_ROWS else int(n) for n in line.split())
    return [row + END for row in rows]


def _line_of(ids: Iterable[int]) -> str:
    return " ".join(FIRST_ROWS[i - END] if i < END + 2 else str(i - END) for i in ids)
