"""Systems of the benchmark of decoding: transduce and others, with the same model.

All get text, and tokenize it the same way.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch

from transduce.benchmark.measurement import peer_environment
from transduce.checkpoint import Checkpoint, save_model
from transduce.data.tensors import pad_rows
from transduce.decoding.native_decoder import DecodingPrecision
from transduce.decoding.torch_model import available_precisions
from transduce.decoding.translations import MAX_SOURCE_TOKENS
from transduce.decoding.translator import load
from transduce.decoding.worker_pool import default_processes
from transduce.errors import ConfigError, RequestError, missing_package
from transduce.interop import marian_program
from transduce.interop.export import ProofError
from transduce.interop.marian_program import (
    Decoder,
    Form,
    Programs,
    Search,
    find_programs,
    ids_of,
    line_of,
    quantize,
)
from transduce.interop.portable_tokenizer import portable_pieces
from transduce.search_config import MAX_BEAM_SIZE, MAX_TOKENS, SearchConfig
from transduce.settings import require_between
from transduce.text.sentence_pieces import SPACE
from transduce.text.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD, SPECIAL_PIECES

SENTENCES_OF_ONE = 12
"""Sentences per turn with a batch size of 1."""
SENTENCES_OF_SEVERAL = 256
"""Approximate sentences per turn with larger batches, rounded to whole batches."""
MAX_SENTENCES = 100_000
"""Largest batch in sentences, as the text is held in memory."""
MAX_BATCHES = 8
"""Most batches per turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Batch size and search settings of one measurement."""

    batch_size: int
    """Sentences per batch."""
    beam_size: int
    forced_length: int | None = None
    """Length that every translation is forced to, with the end token; None for the
    model's own lengths."""

    def __post_init__(self) -> None:
        require_between("batch_size", self.batch_size, 1, MAX_SENTENCES)
        require_between("beam_size", self.beam_size, 1, MAX_BEAM_SIZE)
        require_between("length", self.forced_length, 2, MAX_TOKENS)

    @property
    def num_sentences(self) -> int:
        """Sentences per turn."""
        if self.batch_size == 1:
            return SENTENCES_OF_ONE
        batches = SENTENCES_OF_SEVERAL // self.batch_size
        return min(max(batches, 1), MAX_BATCHES) * self.batch_size

    def __str__(self) -> str:
        length = f", {self.forced_length} tokens" if self.forced_length else ""
        return f"batch {self.batch_size}, beam {self.beam_size}{length}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingTask:
    """Sentences and settings that every system translates."""

    models: Path
    """Folder with a folder of the model for each library."""
    sentences: tuple[str, ...]
    settings: tuple[Setting, ...]
    rounds: int
    """Rounds over all settings; the first is a warm-up."""
    device: torch.device

    def jobs(self) -> Iterator[Setting]:
        """Setting of each turn."""
        for _ in range(self.rounds):
            yield from self.settings

    def batches(self, setting: Setting) -> list[list[str]]:
        """Batches of a turn; the sentences are repeated if there are too few."""
        tokenizer = load_tokenizer(self.models / "ours" / TOKENIZER_FILE)
        chosen = fitting(self.sentences, setting, tokenizer)
        texts = [chosen[i % len(chosen)] for i in range(setting.num_sentences)]
        starts = range(0, len(texts), setting.batch_size)
        return [texts[start : start + setting.batch_size] for start in starts]


def fitting(
    sentences: Sequence[str], setting: Setting, tokenizer: Tokenizer
) -> list[str]:
    """Sentences that no system truncates or translates in parts.

    With a forced length, only shorter ones, as our translations may be as long as the
    source. Raises `ConfigError` if there are none.
    """
    longest = (setting.forced_length or MAX_SOURCE_TOKENS) - 1
    ids = tokenizer.encode_sources(sentences)
    chosen = [
        text
        for text, source in zip(sentences, ids, strict=True)
        if 0 < len(source) <= longest
    ]
    if not chosen:
        raise ConfigError(
            f"At least one sentence must have at most {longest} tokens, but none has."
        )
    return chosen


LENGTH_PENALTY = 0.6
EXTRA_LENGTH = 50
"""Most tokens of a translation beyond the length of its source."""

Translate = Callable[[list[str], Setting], list[list[int]]]
"""Translates texts to token ids without special tokens."""


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class LoadedSystem:
    """System whose model is loaded."""

    translate: Translate
    get_ready: Callable[[list[str], Setting], None] = _nothing
    """Prepares a batch before its translation; the time does not count."""
    close: Callable[[], None] = _nothing
    """Ends its programs."""


Prepare = Callable[[DecodingTask], LoadedSystem]
"""Loads a system's model."""


OURS = "transduce"
REFERENCE = f"{OURS} fp32"
CTRANSLATE2, HUGGING_FACE, MARIAN = "CTranslate2", "Hugging Face", "Marian"
MARIAN_INT8 = f"{MARIAN} int8"
CT2_MODULE, HF_MODULE = "ctranslate2", "transformers.models.marian.modeling_marian"
CT2_TYPES = (
    "float32", "int8", "bfloat16", "float16", "int8_bfloat16", "int8_float16",
)  # fmt: skip
"""Compute types of CTranslate2; a device supports some of them."""
NUM_PROVEN = 4
"""Sentences with which the exported model is compared with ours."""
MARIAN_BATCH = 32
"""Largest mini-batch of Marian: with 128 sentences it takes up to a sixth longer."""
ONE_GREEDY = Setting(batch_size=1, beam_size=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A library that translates, in one precision and form."""

    library: str
    form: str
    """Precision, and other differences from other systems of the same library."""
    prepare: Prepare
    module: str
    """Module that is imported before the model is loaded."""
    has_shortlist: bool = False
    """Whether it chooses among a shortlist's candidates."""

    @property
    def name(self) -> str:
        """Name in tables."""
        return f"{self.library} {self.form}"

    @property
    def is_ours(self) -> bool:
        """Whether it is transduce."""
        return self.library == OURS

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of its process."""
        return {} if self.is_ours else peer_environment()


def ours(
    precision: DecodingPrecision, shortlist: bool, task: DecodingTask
) -> LoadedSystem:
    """Translate as `transduce translate` does, with or without the shortlist."""
    translator = load(
        task.models / "ours",
        device=task.device.type,
        precision=precision,
        num_processes=None,
    )
    translator.get_ready()
    pieces = translator.tokenizer.pieces(range(translator.tokenizer.vocab_size))
    ids = {piece: i for i, piece in enumerate(pieces)}

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        forced = setting.forced_length
        search = SearchConfig(
            beam_size=setting.beam_size,
            # As the peers search.
            patience=1,
            penalty="power",
            length_penalty=LENGTH_PENALTY,
            min_length=forced - 1 if forced else 0,
            extra_length=0 if forced else EXTRA_LENGTH,
            shortlist=shortlist,
        )
        found = translator.translate_stream(texts, search)
        return [[ids[piece] for piece in each.hypotheses[0].tokens] for each in found]

    return LoadedSystem(translate)


def parts_of_batch(sources: Sequence[list[int]], num_workers: int) -> list[list[int]]:
    """Divide a batch among workers; return the places of each one's sources.

    Each worker gets short and long ones, in order of length; a worker that would get
    none is left out.
    """
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    return [order[i::num_workers] for i in range(min(num_workers, len(order)))]


def ctranslate2(
    compute_type: str, num_workers: int, use_vmap: bool, task: DecodingTask
) -> LoadedSystem:
    """`ctranslate2.Translator` on all cores, with our search settings.

    Its workers share the cores. Each gets a part of every batch with short and long
    sentences, as CTranslate2 does not split a batch by itself. `use_vmap` is its form
    of a shortlist: all sentences of a batch choose among the candidates of all.
    """
    import ctranslate2 as library

    translator = library.Translator(
        str(task.models / "ctranslate2"),
        device=task.device.type,
        compute_type=compute_type,
        inter_threads=num_workers,
        intra_threads=max(torch.get_num_threads() // num_workers, 1),
    )
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)
    pieces = portable_pieces(tokenizer, SPACE)
    ids = {piece: i for i, piece in enumerate(pieces)}
    never = [[SPECIAL_PIECES[PAD]], [SPECIAL_PIECES[BOS]]]

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        sources = tokenizer.encode_sources(texts)
        forced = setting.forced_length
        texts_of_pieces = [[pieces[i] for i in source] for source in sources]
        shares = parts_of_batch(sources, num_workers)
        running = [
            translator.translate_batch(
                [texts_of_pieces[i] for i in share],
                asynchronous=True,
                beam_size=setting.beam_size,
                length_penalty=LENGTH_PENALTY,
                min_decoding_length=forced or 0,
                max_decoding_length=forced or max(map(len, sources)) + 1 + EXTRA_LENGTH,
                suppress_sequences=never,
                use_vmap=use_vmap,
            )
            for share in shares
        ]
        found: list[list[int]] = [[] for _ in sources]
        for share, results in zip(shares, running, strict=True):
            for i, result in zip(share, results, strict=True):
                found[i] = [ids[piece] for piece in result.result().hypotheses[0]]
        return found

    return LoadedSystem(translate)


def hugging_face(dtype: torch.dtype, task: DecodingTask) -> LoadedSystem:
    """`MarianMTModel.generate` of Hugging Face."""
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model: Any = MarianMTModel.from_pretrained(
        task.models / "hugging_face", dtype=dtype
    )
    model.to(task.device).eval()
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        source = pad_rows([[*ids, EOS] for ids in tokenizer.encode_sources(texts)])
        source = source.to(task.device)
        forced = setting.forced_length
        with torch.inference_mode():
            found = model.generate(
                source,
                attention_mask=(source != PAD).long(),
                num_beams=setting.beam_size,
                length_penalty=LENGTH_PENALTY,
                early_stopping=True,
                max_length=None,
                min_new_tokens=forced or 0,
                max_new_tokens=forced or source.size(1) + EXTRA_LENGTH,
            )
        return [[i for i in row if i > EOS] for row in found.tolist()]

    return LoadedSystem(translate)


def marian(
    programs: Programs, form: Form, num_workers: int, task: DecodingTask
) -> LoadedSystem:
    """`marian-decoder` on all cores, with our search settings.

    Each worker is a program with one thread, and gets a part of every batch with short
    and long sentences, as Marian does not split a batch by itself. It translates its
    part in mini-batches of at most `MARIAN_BATCH` sentences of similar length, its
    fastest way. The time of a batch is that from its first line to its last
    translation. Programs are started and translate the batch once before that, as
    Marian cannot change its settings.
    """
    workers = _MarianWorkers(programs, task.models / "marian", form, num_workers)
    tokenizer = load_tokenizer(task.models / "ours" / TOKENIZER_FILE)
    workers.start(tokenizer.encode_sources(task.sentences[:1]), ONE_GREEDY)

    def get_ready(texts: list[str], setting: Setting) -> None:
        workers.start(tokenizer.encode_sources(texts), setting)

    def translate(texts: list[str], setting: Setting) -> list[list[int]]:
        return workers.translate(tokenizer.encode_sources(texts), setting)

    return LoadedSystem(translate, get_ready, workers.close)


ProgramOptions = tuple[Form, Search]
"""Options of a program of Marian, which it has until it ends."""


class _MarianWorkers:
    """Workers that translate by programs of Marian, each by one at a time.

    A worker has a program for each set of options that its mini-batches need: several
    with a forced length, otherwise one.
    """

    def __init__(
        self, programs: Programs, folder: Path, form: Form, number: int
    ) -> None:
        self._programs = programs
        self._folder = folder
        self._form = form
        self._running: list[dict[ProgramOptions, Decoder]] = [{} for _ in range(number)]
        self._threads = ThreadPoolExecutor(number)

    def start(self, sources: Sequence[list[int]], setting: Setting) -> None:
        """Start the programs that a batch needs, and let new ones translate it."""
        for running, parts in zip(
            self._running, self._parts(sources, setting), strict=False
        ):
            needed = dict(parts)
            for options in running.keys() - needed.keys():
                running.pop(options).close()
            for options in needed.keys() - running.keys():
                decoder = Decoder(self._programs, self._folder, *options)
                running[options] = decoder
                try:
                    decoder.translate([line_of(sources[i]) for i in needed[options]])
                except RequestError:
                    self.close()
                    raise

    def translate(
        self, sources: Sequence[list[int]], setting: Setting
    ) -> list[list[int]]:
        """Translate a batch, all workers at once."""
        self.start(sources, setting)
        found: list[list[int]] = [[] for _ in sources]

        def work(
            running: Mapping[ProgramOptions, Decoder],
            parts: Sequence[tuple[ProgramOptions, list[int]]],
        ) -> None:
            for options, places in parts:
                lines = running[options].translate(
                    [line_of(sources[i]) for i in places]
                )
                for i, line in zip(places, lines, strict=True):
                    found[i] = ids_of(line)

        # `list` raises the exception of a worker.
        list(self._threads.map(work, self._running, self._parts(sources, setting)))
        return found

    def close(self) -> None:
        """End all programs."""
        self._threads.shutdown()
        for running in self._running:
            while running:
                running.popitem()[1].close()

    def _parts(
        self, sources: Sequence[list[int]], setting: Setting
    ) -> list[list[tuple[ProgramOptions, list[int]]]]:
        """Return each worker's mini-batches: their options, and places of sources."""
        number = len(self._running)
        parts = []
        for worker, places in enumerate(parts_of_batch(sources, number)):
            # A warm-up has fewer sentences than a batch, and the same options.
            share = len(range(worker, setting.batch_size, number))
            size = math.ceil(share / math.ceil(share / MARIAN_BATCH))
            batches = [places[i : i + size] for i in range(0, len(places), size)]
            parts.append(
                [
                    (self._options([sources[i] for i in batch], size, setting), batch)
                    for batch in batches
                ]
            )
        return parts

    def _options(
        self, sources: Sequence[list[int]], size: int, setting: Setting
    ) -> ProgramOptions:
        """Return the form and search of the program for a mini-batch."""
        forced = setting.forced_length
        search = Search(
            beam_size=setting.beam_size,
            batch_size=size,
            length_penalty=LENGTH_PENALTY,
        )
        if forced:
            # Its limit of length depends on the longest source, with its end token.
            width = max(map(len, sources)) + 1
            search = replace(search, length_factor=(forced - 0.5) / width)
        return replace(self._form, may_end=not forced), search


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Other systems that have the model."""

    proofs: Mapping[str, str]
    """Sentence on the evidence that a system has the same model, by its name."""
    left_out: tuple[str, ...]
    """Sentences on those that cannot take part."""
    programs: Programs | None = None
    """Marian's own, if they are on the PATH."""


def convert(
    checkpoint: Checkpoint,
    folder: Path,
    sentences: Sequence[str],
    settings: Sequence[Setting],
    device: torch.device,
) -> Peers:
    """Export the model to each peer; raise `RequestError` if none can have it."""
    # All systems must search alike, but only some read the model's search settings.
    checkpoint = replace(checkpoint, search=None)
    save_model(checkpoint, folder / "ours")
    sample = fitting(sentences, ONE_GREEDY, checkpoint.tokenizer)
    peers = _convert_to_packages(checkpoint, folder, sample[:NUM_PROVEN])
    if device.type == "cpu":
        endless = any(each.forced_length for each in settings)
        own = _convert_to_marian(checkpoint, folder / "marian", sample, endless)
        peers = Peers(
            proofs={**peers.proofs, **own.proofs},
            left_out=peers.left_out + own.left_out,
            programs=own.programs,
        )
    if not peers.proofs:
        raise RequestError(" ".join(peers.left_out))
    return peers


def _convert_to_packages(
    checkpoint: Checkpoint, folder: Path, sample: Sequence[str]
) -> Peers:
    """Export the model to the peers that are Python packages."""
    proofs: dict[str, str] = {}
    left_out: list[str] = []
    for peer, target, package, module in (
        (CTRANSLATE2, "ctranslate2", "ctranslate2", "ctranslate2"),
        (HUGGING_FACE, "hugging_face", "transformers", "marian_export"),
    ):
        if find_spec(package) is None:
            left_out.append(missing_package(peer, package, "benchmark"))
            continue
        export = import_module(f"transduce.interop.{module}").export
        model = checkpoint
        # Its library has no shortlists, and the export would warn of the lost one.
        if peer == HUGGING_FACE:
            model = replace(checkpoint, shortlist=None)
        try:
            proofs[peer] = str(export(model, folder / target, sample))
        except RequestError as error:
            left_out.append(f"{peer} is left out: {error}")
    return Peers(proofs=proofs, left_out=tuple(left_out))


def _convert_to_marian(
    checkpoint: Checkpoint, folder: Path, sample: Sequence[str], endless: bool
) -> Peers:
    """Export the model to Marian's own programs, if they are on the PATH."""
    try:
        programs = find_programs()
    except RequestError as error:
        return Peers(proofs={}, left_out=(str(error),))
    proofs: dict[str, str] = {}
    left_out: list[str] = []
    name = MARIAN
    try:
        proofs[name] = marian_program.export(
            programs, checkpoint, folder, sample[:NUM_PROVEN], endless=endless
        )
        name = MARIAN_INT8
        proofs[name] = quantize(programs, folder, checkpoint.tokenizer, sample)
    except (RequestError, ProofError) as error:
        left_out.append(f"{name} is left out: {error}")
    return Peers(proofs=proofs, left_out=tuple(left_out), programs=programs)


def systems_on(
    device: torch.device, peers: Peers, *, has_shortlist: bool
) -> Iterator[System]:
    """Systems that a device has, with the peers that have the model.

    A model with a shortlist is measured both with it and without it, on a CPU.
    """
    ready = available_precisions(device)
    shortlists = (False, True) if has_shortlist and device.type == "cpu" else (False,)
    for precision, shortlist in product(ready, shortlists):
        yield System(
            library=OURS,
            form=f"{precision}, shortlist" if shortlist else precision,
            prepare=partial(ours, precision, shortlist),
            module="transduce",
            has_shortlist=shortlist,
        )
    if CTRANSLATE2 in peers.proofs:
        yield from _ctranslate2_systems(device, shortlists)
    if HUGGING_FACE in peers.proofs:
        for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            if precision in ready:
                yield System(
                    library=HUGGING_FACE,
                    form=precision,
                    prepare=partial(hugging_face, dtype),
                    module=HF_MODULE,
                )
    if peers.programs is not None:
        yield from _marian_systems(device, peers, peers.programs, shortlists)


def _ctranslate2_systems(
    device: torch.device, shortlists: Sequence[bool]
) -> Iterator[System]:
    known = import_module(CT2_MODULE).get_supported_compute_types(device.type)
    numbers = sorted({1, default_processes(str(device))})
    kinds = [kind for kind in CT2_TYPES if kind in known]
    for kind, number, use_vmap in product(kinds, numbers, shortlists):
        yield System(
            library=CTRANSLATE2,
            form=f"{kind}{_workers(number)}{', vmap' if use_vmap else ''}",
            prepare=partial(ctranslate2, kind, number, use_vmap),
            module=CT2_MODULE,
            has_shortlist=use_vmap,
        )


def _marian_systems(
    device: torch.device,
    peers: Peers,
    programs: Programs,
    shortlists: Sequence[bool],
) -> Iterator[System]:
    number = default_processes(str(device))
    for name, precision in ((MARIAN, "fp32"), (MARIAN_INT8, "int8")):
        for shortlist in shortlists if name in peers.proofs else ():
            form = Form(is_int8=name == MARIAN_INT8, has_shortlist=shortlist)
            yield System(
                library=MARIAN,
                form=f"{precision}{_workers(number)}{', shortlist' * shortlist}",
                prepare=partial(marian, programs, form, number),
                module="transduce",
                has_shortlist=shortlist,
            )


def _workers(number: int) -> str:
    return f", {number} workers" if number > 1 else ""
