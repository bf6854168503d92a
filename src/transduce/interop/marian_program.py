"""Marian's own programs on the PATH: how they are built, and models that they run.

Marian (Junczys-Dowmunt et al., 2018) is a program that reads sentences line by line and
writes their translations. Here a line has the rows of its pieces in the embedding, as
numbers, so that a model may have any tokenizer.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np

from transduce.checkpoint import Checkpoint
from transduce.errors import RequestError, counted
from transduce.interop.export import prove_choices, require, require_text
from transduce.interop.marian_conventions import ACTIVATION_SCALE
from transduce.interop.marian_npz_export import (
    model_arrays,
    model_npz,
    model_options,
    require_weights,
)
from transduce.machine import processor_flags
from transduce.text.shortlist import Shortlist
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import EOS

DECODER, CONVERTER = "marian-decoder", "marian-conv"
ABSENT = (
    f"Marian takes part if `{DECODER}` and `{CONVERTER}`, built for this machine, are "
    "on the PATH."
)
PLAIN = re.compile(r"x86-64(-v[12])?|generic", re.ASCII)
"""Architectures without the instructions that fast products need."""
INSTRUCTIONS = {"avx2": "AVX2_FOUND", "avx512f": "AVX512_FOUND"}
"""Instructions that a native build must have where the processor has them, and the
variable of the build that tells."""
ANSWER_S, CONVERSION_S = 60.0, 600.0
"""Limits in seconds for a program to describe itself, and to convert a model."""

FIRST_ROWS = ("</s>", "<unk>")
"""Names that Marian needs for the first two rows; the others are numbers."""
ROWS, SOURCE_ROWS, TARGET_ROWS = "rows.txt", "source_rows.txt", "target_rows.txt"
"""Lists of the rows' names: one for both sides, or one for each."""
SHORTLIST, SHORTLIST_TEXT = "shortlist.bin", "shortlist.txt"
MULTIPLE = 8
"""The number of rows is a multiple of this, as 8-bit products need."""
NEVER = -1e9
"""Bias of tokens that are never chosen."""
TABLES = ("Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_Wt")
OUTPUT_BIAS = "decoder_ff_logit_out_b"
OUTPUTS = ("Wemb", "decoder_Wemb", "decoder_ff_logit_out_Wt", "none")
"""Possible names of the output matrix: Marian calls it "none" once a shortlist has cut
it."""

FASTEST = "int8shiftAlphaAll"
"""Fastest 8-bit products of the Marian of the project browsermt: unsigned activations,
whose scales are stored with the model."""
LARGEST = re.compile(
    rf"^Name: (?:\w+::)?(\w+){ACTIVATION_SCALE} .*MaxAbs: (\S+)$", re.MULTILINE
)
"""Line with the largest activation of a product."""
SCALE_SENTENCES, SCALE_BATCH = 256, 32
"""Sentences whose activations are measured, and their batch size."""
MANY = 10**6
"""Length above that of every source."""
USUAL_FACTOR = 3.0
"""Marian's default of `length_factor`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Programs of Marian that are built for this machine."""

    decoder: str
    converter: str
    build: str
    """Version, and the architecture of the build."""
    has_scales: bool
    """Whether 8-bit products take stored scales of activations."""


def find_programs() -> Programs:
    """Find the programs on the PATH.

    Raises `RequestError` if one is missing, or is not built for this machine: a build
    for all of x86-64 is several times slower, and would not show Marian's speed.
    """
    decoder, converter = shutil.which(DECODER), shutil.which(CONVERTER)
    if decoder is None or converter is None:
        raise RequestError(ABSENT)
    version = _run((decoder, "--version"), limit_s=ANSWER_S).strip().partition("\n")[0]
    answer = _run((decoder, "--build-info", "all"), limit_s=ANSWER_S)
    built = dict(re.findall(r"^\s*(\w+)=(.*?)\s*$", answer, re.MULTILINE))
    architecture = built.get("BUILD_ARCH", "an unknown processor")
    lacking = [
        name
        for name, variable in INSTRUCTIONS.items()
        if architecture == "native"
        and name in processor_flags()
        and built.get(variable) != "true"
    ]
    if "BUILD_ARCH" not in built or PLAIN.fullmatch(architecture) or lacking:
        without = f" without {' and '.join(lacking)}" if lacking else ""
        raise RequestError(
            f"Marian is left out: {decoder} ({version}) is built for "
            f"{architecture}{without}, and is several times slower than one that is "
            "built for this machine; build it here with `cmake -DBUILD_ARCH=native`."
        )
    return Programs(
        decoder=decoder,
        converter=converter,
        build=f"{version}, built for {architecture}",
        has_scales=FASTEST in _run((decoder, "--help"), limit_s=ANSWER_S),
    )


def _run(
    command: Sequence[str], lines: Iterable[str] = (), limit_s: float = CONVERSION_S
) -> str:
    """Run a program until it ends; return all that it writes."""
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in lines),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RequestError(f"{command[0]} did not run to its end: {error}.") from None
    if done.returncode:
        raise RequestError(_end(command[0], done.returncode, done.stdout))
    return done.stdout


def _end(program: str, code: int, output: str) -> str:
    """Describe the end of a program, with the error that it wrote."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line] or lines[-1:] or ["none"]
    reason = errors[0].rpartition("Error: ")[2].rstrip(".")
    return f"{program} ended with exit code {code}; its message: {reason}."


# ---- Files -----------------------------------------------------------------------


def line_of(ids: Iterable[int]) -> str:
    """Return the line of a source."""
    return " ".join(_name(i - EOS) for i in ids)


def ids_of(line: str) -> list[int]:
    """Return the ids of a translation's line."""
    rows = {name: row for row, name in enumerate(FIRST_ROWS)}
    return [EOS + (rows[name] if name in rows else int(name)) for name in line.split()]


def _name(row: int) -> str:
    return FIRST_ROWS[row] if row < len(FIRST_ROWS) else str(row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Form of a model that a decoder runs."""

    is_int8: bool = False
    has_shortlist: bool = False
    may_end: bool = True
    """Whether the end token may be chosen; if not, the limit of length ends all
    translations."""

    def weights(self, folder: Path) -> Path:
        """Return the file of the weights."""
        ending = "bin" if self.is_int8 else "npz"
        return folder / f"model{'' if self.may_end else '_endless'}.{ending}"


def export(
    programs: Programs,
    checkpoint: Checkpoint,
    folder: Path,
    sentences: Sequence[str],
    *,
    endless: bool,
) -> str:
    """Write a new folder in fp32, and prove that Marian translates as this package.

    `endless` also writes the form that may not end. Returns a sentence about the proof.
    Raises `RequestError` if Marian cannot have the model or its program fails, and
    `ProofError` if it translates otherwise.
    """
    require_text("Marian", checkpoint)
    require_weights(checkpoint)
    config = checkpoint.transformer_config
    # The program computes norms before sub-layers otherwise than Marian's training.
    require(f"`{DECODER}`", config, norm="post")
    folder.mkdir()
    sizes = (config.vocab_size, config.target_vocab_size or config.vocab_size)
    num_rows = [_padded(size - EOS) for size in sizes]
    is_shared = config.target_vocab_size is None
    for name, number in zip(
        (ROWS, ROWS) if is_shared else (SOURCE_ROWS, TARGET_ROWS), num_rows, strict=True
    ):
        (folder / name).write_text("".join(f"{_name(row)}\n" for row in range(number)))
    arrays = {
        name: _with_rows(name, array)
        for name, array in model_arrays(checkpoint).items()
    }
    options = {**model_options(config), "dim-vocabs": num_rows}
    Form().weights(folder).write_bytes(model_npz(arrays, options))
    if endless:
        bias = arrays[OUTPUT_BIAS].copy()
        bias[:, 0] = NEVER
        content = model_npz({**arrays, OUTPUT_BIAS: bias}, options)
        Form(may_end=False).weights(folder).write_bytes(content)
    if checkpoint.shortlist is not None:
        write_shortlist(programs, checkpoint.shortlist, folder)
    num_tokens = _prove(programs, checkpoint, folder, sentences)
    return (
        f"{programs.build}: {counted(num_tokens, 'token')} of "
        f"{counted(len(sentences), 'sentence')} are the same by greedy search"
    )


def quantize(
    programs: Programs, folder: Path, tokenizer: Tokenizer, sentences: Sequence[str]
) -> str:
    """Write an exported folder's weights in 8 bits, in the form that is fastest.

    Scales of activations are measured on the first sentences. Returns a sentence about
    it. Raises `RequestError` if a program fails.
    """
    sources = tokenizer.encode_sources(sentences[:SCALE_SENTENCES])
    lines = [line_of(source) for source in sources]
    scales = _activation_scales(programs, folder, lines) if programs.has_scales else {}
    for form in (Form(), Form(may_end=False)):
        if form.weights(folder).exists():
            _convert(programs, folder, form, scales)
    search = Search(beam_size=1)
    with Decoder(programs, folder, Form(is_int8=True), search) as decoder:
        decoder.translate(lines[:1])  # it fails now if at all
    measured = counted(len(lines), "sentence")
    how = f"{FASTEST}, scaled on {measured}" if scales else "intgemm8"
    return f"converted by `{CONVERTER}` ({how})"


def _convert(
    programs: Programs, folder: Path, form: Form, scales: dict[str, np.ndarray]
) -> None:
    """Convert the weights of a form in fp32 to 8 bits."""
    with np.load(form.weights(folder)) as stored:
        arrays = {**stored, **scales}
    to = Form(is_int8=True, may_end=form.may_end).weights(folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        scaled = Path(temporary) / "scaled.npz"
        np.savez(scaled, **arrays)
        _run(
            (programs.converter, "--from", str(scaled), "--to", str(to))
            + ("--gemm-type", "intgemm8")
        )


def _padded(size: int) -> int:
    return -(-size // MULTIPLE) * MULTIPLE


def _with_rows(name: str, array: np.ndarray) -> np.ndarray:
    """Append rows that are never chosen, up to a multiple of `MULTIPLE`."""
    if name in TABLES:
        return np.pad(array, [(0, -len(array) % MULTIPLE), (0, 0)])
    if name == OUTPUT_BIAS:
        missing = -array.shape[1] % MULTIPLE
        return np.pad(array, [(0, 0), (0, missing)], constant_values=NEVER)
    return array


def _row_files(folder: Path) -> tuple[str, str]:
    """Return the lists of the rows' names, of sources and of targets."""
    is_shared = (folder / ROWS).exists()
    names = (ROWS, ROWS) if is_shared else (SOURCE_ROWS, TARGET_ROWS)
    return str(folder / names[0]), str(folder / names[1])


def write_shortlist(programs: Programs, shortlist: Shortlist, folder: Path) -> None:
    """Write a shortlist in Marian's binary form.

    Candidates of all sentences become candidates of the end token, which all sources
    have.
    """
    starts = [0, *shortlist.ends.tolist()]
    candidates = {
        piece: shortlist.targets[starts[piece] : starts[piece + 1]].tolist()
        for piece in range(EOS + 1, shortlist.vocab_size)
    }
    candidates[EOS] = [*shortlist.frequent.tolist(), *shortlist.always.tolist()]
    # Marian refuses a file in which the last row has no candidates.
    last = EOS + _padded(shortlist.vocab_size - EOS) - 1
    candidates[last] = candidates.get(last) or [EOS]
    with (folder / SHORTLIST_TEXT).open("w") as file:
        for piece, targets in candidates.items():
            file.writelines(
                f"{_name(target - EOS)} {_name(piece - EOS)} 1\n"
                for target in targets
                if target >= EOS
            )
    longest = max(map(len, candidates.values()))
    _run(
        (programs.converter, "--dump", str(folder / SHORTLIST))
        + ("--shortlist", str(folder / SHORTLIST_TEXT), "1", str(longest), "0")
        + ("--vocabs", *_row_files(folder))
    )


def _candidates(shortlist: Shortlist, source: Sequence[int]) -> list[int]:
    """Return Marian's candidates of a sentence.

    It adds the first rows, so that the number is a multiple of `MULTIPLE`.
    """
    ids = shortlist.candidates(source).tolist()
    others = (i for i in range(EOS + 1, shortlist.target_vocab_size) if i not in ids)
    return [*ids, *islice(others, -len(ids) % MULTIPLE)]


def _activation_scales(
    programs: Programs, folder: Path, lines: Sequence[str]
) -> dict[str, np.ndarray]:
    """Measure the scales of activations on sentences.

    As Marian's project does: 127 over the mean of a product's largest activations plus
    1.1 of their standard deviations.
    """
    search = Search(beam_size=1, batch_size=SCALE_BATCH)
    command = decoder_command(programs, folder, Form(), search)
    output = _run((*command, "--dump-quantmult"), lines)
    largest: dict[str, list[float]] = {}
    for name, value in LARGEST.findall(output):
        largest.setdefault(name, []).append(float(value))
    scales = {
        name: 127 / (np.mean(found) + 1.1 * np.std(found))
        for name, found in largest.items()
    }
    if not scales.keys() & set(OUTPUTS):
        raise RequestError(
            f"{programs.decoder} must tell the size of activations, but does not; "
            "build its newest version."
        )
    output_scale = next(scales[name] for name in OUTPUTS if name in scales)
    scales = {**dict.fromkeys(OUTPUTS, output_scale), **scales}
    return {
        f"{name}{ACTIVATION_SCALE}": np.array([scale], dtype=np.float32)
        for name, scale in scales.items()
    }


def _prove(
    programs: Programs, checkpoint: Checkpoint, folder: Path, sentences: Sequence[str]
) -> int:
    """Return the number of tokens that are the same; `ProofError` if some are not."""
    shortlist = checkpoint.shortlist

    def num_alike(
        form: Form, candidates: Callable[[list[int]], list[int]] | None = None
    ) -> int:
        with Decoder(programs, folder, form, Search(beam_size=1)) as decoder:

            def greedy_ids(source: list[int]) -> list[int]:
                [line] = decoder.translate([line_of(source)])
                return ids_of(line)

            return prove_choices(greedy_ids, checkpoint, sentences, candidates)

    if shortlist is not None:
        num_alike(Form(has_shortlist=True), partial(_candidates, shortlist))
    return num_alike(Form())


# ---- Decoder ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Search of a decoder."""

    beam_size: int
    batch_size: int = 1
    """Lines that are read before they are translated."""
    length_penalty: float = 0.0
    """Exponent of the length by which the score is divided."""
    length_factor: float = USUAL_FACTOR
    """Limit of the length of translations, as a multiple of the longest source of a
    batch, both with their end tokens."""


def decoder_command(
    programs: Programs, folder: Path, form: Form, search: Search
) -> tuple[str, ...]:
    """Return the command of a decoder with one thread."""
    options: dict[str, object] = {
        "--models": form.weights(folder),
        "--beam-size": search.beam_size,
        "--normalize": search.length_penalty,
        "--max-length-factor": search.length_factor,
        "--max-length": MANY,
        "--mini-batch": search.batch_size,
        "--maxi-batch": 1,
        "--cpu-threads": 1,
        "--log-level": "error",
    }
    if form.is_int8 and programs.has_scales:
        options["--gemm-precision"] = FASTEST
    if form.has_shortlist:
        options["--shortlist"] = folder / SHORTLIST
    flags = ["--allow-unk", "--quiet-translation"]
    if search.beam_size == 1:
        flags.append("--skip-cost")  # logits have the order of probabilities
    pairs = map(str, chain.from_iterable(options.items()))
    return (programs.decoder, *pairs, "--vocabs", *_row_files(folder), *flags)


class Decoder:
    """Running `marian-decoder`: it reads a batch of lines, and then writes as many."""

    def __init__(
        self, programs: Programs, folder: Path, form: Form, search: Search
    ) -> None:
        """Start the program; it loads the model before its first answer."""
        self._batch_size = search.batch_size
        self._program = programs.decoder
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            decoder_command(programs, folder, form, search),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
        )

    def __enter__(self) -> "Decoder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Translate at most a batch of lines; they are repeated up to a whole one.

        Raises `RequestError` if the program has ended.
        """
        batch = islice(cycle(lines), self._batch_size)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # its end is noticed below
            self._process.stdin.write("".join(f"{each}\n" for each in batch).encode())
            self._process.stdin.flush()
        found = [self._process.stdout.readline() for _ in range(self._batch_size)]
        if not found[-1].endswith(b"\n"):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ANSWER_S)
            self._process.kill()
            code = self._process.wait()
            self._messages.seek(0)
            output = self._messages.read().decode(errors="replace")
            raise RequestError(_end(self._program, code, output))
        return [line.decode() for line in found[: len(lines)]]

    def close(self) -> None:
        """End the program."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.kill()
        self._process.wait()
        self._messages.close()
