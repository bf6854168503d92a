"""Text in, text out, or trees.

On a CPU the native library computes all of it; PyTorch is imported only where that
cannot: on a GPU, in bf16, or for attention by additive scores.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import chain, count, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

from transduce.architectures.config import ArchitectureConfig, architecture_of
from transduce.decoding.native_search import start_search
from transduce.decoding.parser import PAPER_SEARCH, Parse, Parser
from transduce.decoding.processes import (
    Beginning,
    SearchProcesses,
    SearchTask,
    default_processes,
)
from transduce.decoding.ready_model import (
    DecodingPrecision,
    ReadyModel,
)
from transduce.decoding.sampling import Sampling
from transduce.decoding.scoring import score_pairs
from transduce.decoding.search import (
    Coverage,
    Decoding,
    Ensemble,
    JoinableDecoder,
    require_numbers,
)
from transduce.decoding.streaming import Pace, StepRows, batch_positions, in_order
from transduce.decoding.translations import (
    EMPTY,
    Part,
    Translation,
    distinct,
    joined,
    lines_of,
    paired,
    parts_of,
    require_lists,
    require_strings,
    spelt,
)
from transduce.errors import RequestError, counted, packages_for
from transduce.machine import free_memory, may_have_gpu
from transduce.metrics.perplexity import TargetScore
from transduce.model.config import ModelConfig
from transduce.model_folder import ModelAtRest, open_model
from transduce.search_config import SamplingConfig, SearchConfig
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import BOS, EOS, PAD

if TYPE_CHECKING:
    import torch

EXCLUDED = (PAD, BOS)
"""Ids that are never put out."""
DRAWN_BYTES = 48
"""Bytes of memory per draw and token of the vocabulary: logits and probabilities, and
the sorted and the cumulative ones."""
COVERAGE = "transduce.decoding.torch_decoder"


class _Asked(NamedTuple):
    """How the parts of lines are searched for."""

    begin: "Beginning[Translator, Part]"
    group_size: int
    """Hypotheses of each."""
    least_steps: int = 0


class Translator:
    """A model, or several that decide together, to translate raw text."""

    def __init__(
        self,
        checkpoint: ModelAtRest,
        device: "str | torch.device",
        *others: ModelAtRest,
        precision: DecodingPrecision = "fp32",
        num_processes: int = 1,
    ) -> None:
        """`RequestError` if the others have not the tokenizer of the first.

        Or if the device cannot compute in the precision, or in several processes.
        """
        if any(other.tokenizer != checkpoint.tokenizer for other in others):
            raise RequestError(
                "Models that translate together must have one tokenizer, but have "
                "different ones; train them on the same text with the same settings."
            )
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        self.device = "cpu" if str(device).startswith("cpu:") else str(device)
        """As PyTorch calls it; there is but one CPU, whatever its number."""
        self.precision: DecodingPrecision = precision
        self.config: ArchitectureConfig = checkpoint.config
        """Config of the first model."""
        self.models = [
            ReadyModel(each, precision, self.device) for each in (checkpoint, *others)
        ]
        self._loaded = set[str]()  # modules, by copies of this process too
        if num_processes > 1:
            self.get_ready()  # once, not in each copy of this process
        self.symbols = checkpoint.symbols
        usual = SearchConfig() if self.symbols is None else PAPER_SEARCH
        self.search: SearchConfig = checkpoint.search or usual
        """How it searches unless it is told otherwise: as its run did."""
        self.source_language = checkpoint.source_language
        """BCP 47 tag of the language that it reads; None if unknown."""
        self.target_language = checkpoint.target_language
        """BCP 47 tag of the language that it writes; None if unknown."""
        self._parser = self._as_parser(num_processes)
        for_translation = num_processes if self._parser is None else 1
        self._processes = SearchProcesses(self, for_translation, self.device)

    def __repr__(self) -> str:
        """Short description: task, size, device and precision."""
        does = "translates" if self.symbols is None else "parses"
        several = f", {len(self.models)} models" if len(self.models) > 1 else ""
        config = self.config
        layers = f"{architecture_of(config)} architecture"
        if isinstance(config, ModelConfig):
            layers = counted(config.num_layers, "layer")
        return (
            f"<{type(self).__name__}: {does}, {layers}, d_model "
            f"{config.d_model}, {self.tokenizer.vocab_size:,} pieces"
            f"{several}, on {self.device} ({self.precision})>"
        )

    def get_ready(self) -> None:
        """Read weights, and all that translating needs; else the first one does."""
        for model in self.models:
            model.get_ready()

    # For type checkers, a string is a sequence of strings, too.
    @overload
    def parse(  # type: ignore[overload-overlap]
        self, texts: str, *, constrained: bool = False
    ) -> Parse: ...

    @overload
    def parse(
        self, texts: Sequence[str], *, constrained: bool = False
    ) -> list[Parse]: ...

    def parse(
        self, texts: str | Sequence[str], *, constrained: bool = False
    ) -> Parse | list[Parse]:
        """Parse raw English sentences by the model's own search.

        A list gives one parse per sentence, in order; a string, one sentence, gives its
        parse.
        """
        parser = self.parser()
        if isinstance(texts, str):
            return parser.parse([texts], constrained=constrained)[0]
        return parser.parse(texts, constrained=constrained)

    def parser(self) -> Parser:
        """What parses with the first model; `RequestError` if it translates."""
        if self._parser is None:
            raise RequestError(
                "A model that parses must be trained on trees (train --trees), but "
                "this one translates; use `transduce translate`."
            )
        return self._parser

    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        sources: str,
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        min_length: int | None = None,
        extra_length: int | None = None,
        max_length: int | None = None,
        prefixes: str | None = None,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        sources: Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        min_length: int | None = None,
        extra_length: int | None = None,
        max_length: int | None = None,
        prefixes: Sequence[str] | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        sources: str | Sequence[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        min_length: int | None = None,
        extra_length: int | None = None,
        max_length: int | None = None,
        prefixes: str | Sequence[str] | None = None,
    ) -> Translation | list[Translation]:
        """Translate sentences by beam search (section 6.1).

        A list gives one translation per sentence, in order; a string, one sentence
        whatever its line breaks, gives its translation.

        The settings are those of `SearchConfig`, by default the model's own, and
        `translate_stream` takes all of them: the n best, too, while here the best is
        all that search is for. If there are prefixes, each translation begins with the
        tokens of its own, unless its source is empty. Of an over-long source each part
        has `min_length`, the first has the prefix, and only the best translation is
        known.
        """
        settings = {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "min_length": min_length,
            "extra_length": extra_length,
            "max_length": max_length,
        }
        config = self.search.given(settings)
        if not isinstance(sources, str):
            return list(self.translate_stream(sources, config, prefixes))
        begun = None
        if prefixes is not None:
            require_strings(prefixes)
            begun = [str(prefixes)]
        return next(self.translate_stream([sources], config, begun))

    def translate_stream(
        self,
        sources: Iterable[str],
        config: SearchConfig | None = None,
        prefixes: Iterable[str] | None = None,
        pace: Pace | None = None,
    ) -> Iterator[Translation]:
        """Translate without end, each as soon as it and all before it are done.

        `RequestError` if there are prefixes, but not one for each source, or if either
        is a single string.
        """
        self.require_translation()
        require_lists(sources, prefixes)
        config = self.search.given({}) if config is None else config
        if config.coverage_penalty > 0:
            self._require_one_to_watch()
        begin = partial(Translator._search, config=config)
        pairs = paired(sources, prefixes)
        asked = _Asked(begin, config.beam_size, least_steps=config.min_length + 1)
        return map(distinct, self._in_windows(pairs, pace or Pace(), asked))

    @overload
    def sample(  # type: ignore[overload-overlap]
        self, sources: str, config: SamplingConfig
    ) -> Translation: ...

    @overload
    def sample(
        self, sources: Sequence[str], config: SamplingConfig
    ) -> list[Translation]: ...

    def sample(
        self, sources: str | Sequence[str], config: SamplingConfig
    ) -> Translation | list[Translation]:
        """Draw translations at random, seeded by the source's place and the seed.

        A list gives one `Translation` per source, in order, whose hypotheses are the
        draws; a string, one sentence, gives its own.
        """
        if isinstance(sources, str):
            return next(self.sample_stream([sources], config))
        return list(self.sample_stream(sources, config))

    def sample_stream(
        self,
        sources: Iterable[str],
        config: SamplingConfig,
        pace: Pace | None = None,
    ) -> Iterator[Translation]:
        """Draw like `sample` from an endless stream, yielding each as soon as done."""
        self.require_translation()
        require_lists(sources)
        self._require_memory_for(config.number)
        begin = partial(Translator._sample, config=config)
        pairs = paired(sources, None)
        asked = _Asked(begin, config.number)
        return self._in_windows(pairs, pace or Pace(), asked)

    @overload
    def score(  # type: ignore[overload-overlap]
        self, sources: str, targets: str
    ) -> TargetScore: ...

    @overload
    def score(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> list[TargetScore]: ...

    def score(
        self, sources: str | Sequence[str], targets: str | Sequence[str]
    ) -> TargetScore | list[TargetScore]:
        """Score given translations by the model's log-probability.

        Lists give one score per pair, in order; two strings, one pair, give its score.

        `RequestError` if they are not as many as the sources, or several models are
        to decide; `CheckpointError` if the model puts out NaN.
        """
        if isinstance(sources, str):
            require_strings(targets)
            return next(self.score_stream([sources], [str(targets)]))[1]
        found = sorted(self.score_stream(sources, targets), key=itemgetter(0))
        return [score for _, score in found]

    def score_stream(
        self, sources: Sequence[str], targets: Sequence[str]
    ) -> Iterator[tuple[int, TargetScore]]:
        """Yield scores with the numbers of their pairs, by batches of similar lengths.

        Raises what `score` does.
        """
        self.require_translation()
        require_lists(sources, targets)
        if len(self.models) > 1:
            raise RequestError(
                f"Translations must be scored by one model, but {len(self.models)} "
                "are loaded."
            )
        if len(sources) != len(targets):
            raise RequestError(
                "Sources and targets must be equally many, but are "
                f"{len(sources)} and {len(targets)}."
            )
        source_ids = self.tokenizer.encode_sources(sources)
        target_ids = self.tokenizer.encode_targets(targets)
        for number, score in score_pairs(
            self.models[0],
            list(zip(source_ids, target_ids, strict=True)),
            batch_positions(self.device),
        ):
            require_numbers([score.log_probability])
            yield number, score

    def close(self) -> None:
        """End the other processes; they also end with this one."""
        self._processes.close()
        if self._parser is not None:
            self._parser.close()

    def require_translation(self) -> None:
        """`RequestError` if the first model parses."""
        if self.symbols is not None:
            raise RequestError(
                "A model that translates must be trained on text, but this one parses; "
                "use `transduce parse`."
            )

    def _require_one_to_watch(self) -> None:
        """Prepare for coverage; `RequestError` if there are several models."""
        if len(self.models) > 1:
            raise RequestError(
                "A coverage penalty must be used with one model, whose attention it "
                f"counts, but {len(self.models)} are loaded."
            )
        if self.models[0].needs_torch:
            self._load_for_all(COVERAGE)

    def _require_memory_for(self, draws: int) -> None:
        """Raise `RequestError` if the draws of one sentence do not fit in memory."""
        symbols = self.tokenizer if self.symbols is None else self.symbols
        needed, free = draws * symbols.vocab_size * DRAWN_BYTES, free_memory(1)
        if self.device == "cpu" and needed > free:
            raise RequestError(
                f"{draws:,} draws of a sentence need {needed / 2**30:,.1f} GiB, but "
                f"{free / 2**30:,.1f} GiB are free; draw fewer at a time."
            )

    def _load_for_all(self, part: str) -> None:
        """Load what needs PyTorch, once, not in each copy of this process."""
        import_module(part)
        if part not in self._loaded:
            self._processes.close()  # later copies have it, and what there is by now
            self._loaded.add(part)

    def _as_parser(self, num_processes: int) -> Parser | None:
        if self.symbols is None:
            return None
        return Parser(
            self.models[0],
            self.tokenizer,
            self.symbols,
            self.device,
            self.search,
            num_processes=num_processes,
        )

    def _in_windows(
        self,
        pairs: Iterable[tuple[str, str]],
        pace: Pace,
        asked: _Asked,
    ) -> Iterator[Translation]:
        for window in pace.windows(zip(count(pace.first_line), pairs)):
            encoded = lines_of(window, self.tokenizer)
            lines = [
                parts_of(line, self.tokenizer, self.source_language) for line in encoded
            ]
            found = in_order(self._translations(lines, asked, pace))
            for parts in lines:
                yield joined(parts, list(islice(found, len(parts))))

    def _translations(
        self,
        lines: Sequence[Sequence[Part]],
        asked: _Asked,
        pace: Pace,
    ) -> Iterator[tuple[int, Translation]]:
        """Those of all parts by their number, as soon as they are done."""
        parts = list(chain.from_iterable(lines))
        missing = Counter(part.line for part in parts)
        for number, translation in self._found(parts, asked, pace.on_step):
            line = parts[number].line
            missing[line] -= 1
            if not missing[line]:
                pace.on_line()
            yield number, translation

    def _found(
        self,
        parts: Sequence[Part],
        asked: _Asked,
        on_step: Callable[[], object] | None,
    ) -> Iterator[tuple[int, Translation]]:
        filled = [i for i, part in enumerate(parts) if part.source]
        yield from ((i, EMPTY) for i, part in enumerate(parts) if not part.source)
        task = SearchTask(
            sentences=[parts[i] for i in filled],
            lengths=[len(parts[i].source) + 1 for i in filled],
            room=batch_positions(self.device) // asked.group_size,
            step_rows=StepRows(asked.group_size, self.models[0].rows_of_any_step),
            begin=asked.begin,
            least_steps=asked.least_steps,
        )
        for i, hypotheses in self._processes.found(task, on_step):
            yield filled[i], spelt(hypotheses, self.tokenizer)

    def _search(self, parts: Sequence[Part], config: SearchConfig) -> Decoding:
        limits = [
            config.limit(part.length, least=len(part.prefix) + 1) for part in parts
        ]
        prefixes = [part.prefix for part in parts]
        # Several hypotheses may have the same text, so more than `num_best` are needed.
        most = 1 if config.num_best == 1 else None
        coverage: Coverage | None = None
        if config.coverage_penalty > 0:
            watched = self.models[0].read_watched(_sources(parts))
            decoder: JoinableDecoder = watched
            coverage = watched.coverage
        else:
            decoder = self._read(parts)
        search = start_search(limits, config, EOS, EXCLUDED, prefixes, coverage, most)
        return Decoding(decoder, search, BOS)

    def _sample(self, parts: Sequence[Part], config: SamplingConfig) -> Decoding:
        limits = [part.length + config.extra_length for part in parts]
        names = [(part.line, part.number) for part in parts]
        search = Sampling(limits, names, config, EOS, EXCLUDED)
        return Decoding(self._read(parts), search, BOS)

    def _read(self, parts: Sequence[Part]) -> JoinableDecoder:
        """What has read the sources, and is asked for the next tokens."""
        sources = _sources(parts)
        members = [each.read(sources) for each in self.models]
        if len(members) == 1:
            return members[0]
        return Ensemble(members)


def _sources(parts: Sequence[Part]) -> list[list[int]]:
    """Source ids of parts as a model reads them, each with the end token."""
    return [[*part.source, EOS] for part in parts]


def load(
    path: str | Path,
    *others: str | Path,
    device: str = "auto",
    precision: DecodingPrecision = "fp32",
    num_processes: int | None = 1,
) -> Translator:
    """A translator from a model or run folder, or from several that decide together.

    In precision "bf16" or "int8" it is faster, where the processor is made for it, and
    no longer exact. In several processes, copies of this one with a thread each, it is
    faster where there are many sentences; only under Linux and on a CPU, where None is
    as many as PyTorch has threads, but sixteen at most. `CheckpointError` if a model is
    damaged, `RequestError` if the device is not there or cannot compute so, or the
    models have not one tokenizer.
    """
    first, *rest = (open_model(Path(each)) for each in (path, *others))
    on = choose_device(device)
    number = default_processes(on) if num_processes is None else num_processes
    return Translator(first, on, *rest, precision=precision, num_processes=number)


def choose_device(asked: str) -> str:
    """Name of the device for "auto", "cpu" or "cuda", as PyTorch has it.

    PyTorch is loaded only if there may be a GPU. `RequestError` if the device is not
    there.
    """
    if asked == "cpu" or (asked == "auto" and not may_have_gpu()):
        return "cpu"
    with packages_for(f"Device {asked}"):
        from transduce.device import choose_hardware
    return str(choose_hardware(asked).device)
