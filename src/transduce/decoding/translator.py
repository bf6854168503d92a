"""Translation and parsing of text: `load` a model, then call its `Translator`.

`backend` chooses between the native library and PyTorch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, count
from operator import itemgetter
from os import PathLike
from typing import TYPE_CHECKING, Any, cast, overload

from transduce.architectures.config import (
    ArchitectureConfig,
    architecture_of,
    num_positions,
)
from transduce.decoding.backend import (
    choose_device,
    choose_precision,
    decodes_natively,
    prepare_for_decoding,
    require_ensemble,
)
from transduce.decoding.native_decoder import (
    DecodingPrecision,
    NativeModel,
    PrecisionChoice,
)
from transduce.decoding.search import (
    DecodingModel,
    Hypothesis,
    SearchResult,
    SearchTask,
    StepRows,
    batch_positions,
    require_numbers,
    score_pairs,
    search_in_batches,
)
from transduce.decoding.translations import (
    EMPTY,
    Pace,
    Part,
    PartSearch,
    Translation,
    detokenize,
    encode_lines,
    join_lines,
    listed,
    max_source_tokens,
    pair_up,
    require_lists,
    require_strings,
    start_sampling,
    start_translating,
    with_available_shortlist,
    with_best,
)
from transduce.decoding.unknown_words import CrossAttention, replaced_texts
from transduce.decoding.worker_pool import MAX_PROCESSES, WorkerPool, default_processes
from transduce.errors import (
    ConfigError,
    RequestError,
    VersionError,
    counted,
    packages_for,
    shortened,
    warn_caller,
)
from transduce.files import path_of
from transduce.machine import (
    free_memory,
    keep_freed_memory,
    require_number_of_processes,
)
from transduce.metrics.scores import TargetScore
from transduce.model.config import ModelConfig
from transduce.model_folder import ModelFolder, open_model
from transduce.search_config import SamplingConfig, SearchConfig, default_search
from transduce.settings import (
    MAX_WHOLE,
    require_between,
    require_config,
    require_one_of,
    shown,
)
from transduce.text.corpus import WINDOW_LINES
from transduce.text.glossary import Glossary
from transduce.text.languages import best_match, without_invisible
from transduce.text.shortlist import Shortlist
from transduce.text.tokenizer import (
    Tokenizer,
    WordTokenizer,
    encode_with_tag,
    require_possible_bad_words,
    tagged,
)
from transduce.text.vocabulary import (
    UNKNOWN_IDS,
    find_corpus_tag,
    find_language_tag,
    languages_of,
    own_language_tag,
)

if TYPE_CHECKING:
    import torch

    import transduce.checkpoint
    import transduce.decoding.alignment
    import transduce.decoding.documents
    import transduce.decoding.parser
    import transduce.decoding.torch_model

LONGEST_SCORED = 4_000
"""Maximum length of a source or target that is scored: time and memory grow with the
square of the length, and no part of a pair can be scored alone."""
SAMPLE_BYTES = 48
"""Bytes of memory per sample and token of the vocabulary: logits, probabilities, and
their sorted and cumulative copies."""
VERSION_KEY = "version of transduce"
"""Key of the version in a pickled translator, which no attribute has."""
UNPICKLED = {"models", "torch_model", "_pool"}
"""Attributes of a translator that are made again when it is unpickled."""


class Translator:
    """A model, or an ensemble of models, that translates or parses raw text.

    `load` returns one:

        import transduce

        translator = transduce.load("runs/en-de/averaged")
        translator.translate("A man sleeps.").text

    Several threads may use one translator at the same time. A copy shares the weights.
    A pickled translator holds the paths of its model folders and all attributes, but no
    weights: the process that unpickles it loads them again. It raises `CheckpointError`
    if the weights have changed, and `VersionError` in another version of transduce.

    As a context manager, a translator ends its processes at the end of the block:

        with transduce.load("runs/en-de", num_processes=None) as translator:
            found = translator.translate(lines)
    """

    language_tag: str = ""
    """Tag of a target language before each source, such as >>de<<; empty for none. See
    `load` and `into`."""
    corpus_tag: str = ""
    """Tag of a corpus before each source, such as `<bt>`; empty for none. See
    `with_tag`."""

    glossary: Glossary | None = None
    """Terms and the words in which they are translated; None for none. See
    `with_glossary`."""

    def __init__(
        self,
        checkpoint: "ModelFolder | transduce.checkpoint.Checkpoint",
        device: "str | torch.device",
        *others: "ModelFolder | transduce.checkpoint.Checkpoint",
        precision: PrecisionChoice = "auto",
        num_processes: int = 1,
    ) -> None:
        """Prepare models for decoding; with `others` they form an ensemble.

        `load` describes the arguments. Raises `RequestError` if the models have
        different tokenizers or languages, or if the device cannot compute in the
        precision or be used by several processes.
        """
        require_ensemble(checkpoint, others)
        require_number_of_processes(num_processes, MAX_PROCESSES)
        require_one_of("precision", precision, PrecisionChoice)
        self.tokenizer: Tokenizer = checkpoint.tokenizer
        """Tokenizer of all models."""
        self.device = "cpu" if str(device).startswith("cpu:") else str(device)
        """Name of the device in PyTorch, such as "cpu" or "cuda"."""
        self._stored_models = (checkpoint, *others)
        self.precision: DecodingPrecision = choose_precision(
            precision, self.device, self._stored_models
        )
        """Precision of matrix products."""
        self.config: ArchitectureConfig = checkpoint.config
        """Config of the first model."""
        self.symbols = checkpoint.symbols
        """Target vocabulary of a parser; None if the model translates."""
        self.search: SearchConfig = checkpoint.search or default_search(
            is_parser=self.symbols is not None
        )
        """Default search settings: those of the model's run."""
        self.source_language = checkpoint.source_language
        """BCP 47 tag of the source language; None if unknown."""
        self.target_language = checkpoint.target_language
        """BCP 47 tag of the target language; None if unknown."""
        if self.device == "cpu":
            keep_freed_memory()  # each step allocates the logits of all hypotheses
        if num_processes > 1 or not self.is_native:
            self.get_ready()  # to raise errors now, and once for all processes
        self.batch_positions = batch_positions(self.device)
        """Largest number of source positions of a batch, padding included, times the
        beam size; smaller values use less memory."""
        self._pool: WorkerPool[Sequence[DecodingModel]] | None = None
        if num_processes != 1:
            self._pool = WorkerPool(self.models, num_processes, self.device)

    def __repr__(self) -> str:
        """Return a description: task, size, device and precision."""
        does = "translates" if self.symbols is None else "parses"
        number = len(self._stored_models)
        several = f", {number} models" if number > 1 else ""
        config = self.config
        layers = f"{architecture_of(config)} architecture"
        if isinstance(config, ModelConfig):
            layers = counted(config.num_layers, "layer")
        return (
            f"<{type(self).__name__}: {does}, {layers}, d_model "
            f"{config.d_model}, {self.tokenizer.vocab_size:,} pieces"
            f"{several}, on {self.device} ({self.precision})>"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; raise `ConfigError` for a setting that cannot be used."""
        match name:
            case "search":
                require_config(name, value, SearchConfig)
            case "glossary" if value is not None:
                require_config(name, value, Glossary)
            case "language_tag" if value != "":
                _require_tag(name, value, self.tokenizer.language_tags, "into")
            case "corpus_tag" if value != "":
                _require_tag(name, value, self.tokenizer.corpus_tags, "with_tag")
            case "batch_positions":
                require_between(name, value, 1, MAX_WHOLE)
        object.__setattr__(self, name, value)

    def __enter__(self) -> "Translator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> "Translator":
        """Copy the settings; weights and processes are shared."""
        self.get_ready()
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo: object) -> "Translator":
        """Copy as `copy.copy` does, since weights never change."""
        return copy(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes but loaded weights and processes.

        A `Checkpoint`, which has no folder, is pickled with its weights.
        """
        kept = {
            name: each for name, each in vars(self).items() if name not in UNPICKLED
        }
        return {
            **kept,
            "num_processes": self.num_processes,
            VERSION_KEY: _version(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Prepare the models as `load` does, then set all attributes."""
        kept = dict(state)
        _require_this_version(kept.pop(VERSION_KEY, None))
        num_processes = kept.pop("num_processes")
        device, (first, *others) = kept["device"], kept["_stored_models"]
        choose_device(device.partition(":")[0])  # prepares this process
        # The constructor of a subclass may take other arguments.
        Translator.__init__(
            self,
            first,
            device,
            *others,
            precision=kept["precision"],
            num_processes=num_processes,
        )
        vars(self).update(kept)

    @property
    def is_native(self) -> bool:
        """Whether the native library decodes all models, and not PyTorch."""
        return all(
            decodes_natively(each, self.device, self.precision)
            for each in self._stored_models
        )

    @property
    def num_processes(self) -> int:
        """Number of processes that translate."""
        return 1 if self._pool is None else self._pool.number

    @property
    def target_languages(self) -> list[str]:
        """Target languages that `into` accepts, as BCP 47 tags where possible; empty if
        the model has only one."""
        return languages_of(self.tokenizer.language_tags)

    def into(self, language: str) -> "Translator":
        """Return a translator into one of several target languages of the model.

            transduce.load("opus-mt-en-roa").into("fr").translate("A man sleeps.")

        The new translator shares the weights, and puts the language's tag (>>fr<<)
        before each source that does not begin with such a tag. A model with only one
        language accepts its name. Raises `RequestError`, which lists the model's
        languages, for any other language.
        """
        _require_string("language", language)
        tags = self.tokenizer.language_tags
        known = self.target_language
        if not tags and known is not None and best_match(language, [known]):
            return self
        other = copy(self)
        other.language_tag = find_language_tag(language, tags)
        [other.target_language] = languages_of([other.language_tag])
        return other

    def with_tag(self, tag: str) -> "Translator":
        """Return a translator that puts the tag of a corpus before each source.

            transduce.load("runs/mixed").with_tag("law").translate("The court sits.")

        The model then translates as it learned from the corpora with this tag
        (`tokenizer.corpus_tags` lists the tags). The new translator shares the weights.
        Raises `RequestError`, which lists the model's tags, for any other tag.
        """
        _require_string("tag", tag)
        found = find_corpus_tag(tag, self.tokenizer.corpus_tags)
        other = copy(self)
        other.corpus_tag = found
        return other

    def with_glossary(
        self, terms: Mapping[str, str | Iterable[str]] | Glossary
    ) -> "Translator":
        """Return a translator whose translations contain the terms of a glossary.

            terms = {"lamp": ["Leuchte", "Leuchten"], "transduce": "transduce"}
            transduce.load("runs/mine").with_glossary(terms).translate("A lamp falls.")

        Where a source has *lamp*, as a whole word, its translation has one of the words
        for it; the likeliest one is chosen. The new translator shares the weights. It
        cannot `sample`. `terms` may also be another translator's `glossary`.

        Raises `RequestError` if a term or a translation has no words, or if the model
        parses or has no cross-attention.
        """
        require_translation(self)
        if not self.config.has_cross_attention:
            raise RequestError(
                "A model that uses a glossary must have cross-attention, which shows "
                "the places of terms, but this one has none; use a model of another "
                "architecture."
            )
        other = copy(self)
        other.glossary = terms if isinstance(terms, Glossary) else Glossary(terms)
        return other

    @property
    def shortlist(self) -> Shortlist | None:
        """Candidates of source pieces for `SearchConfig.shortlist`, of the first model;
        None if it has none."""
        return self._stored_models[0].shortlist

    def get_ready(self) -> None:
        """Load the weights now; otherwise the first translation loads them."""
        _ = self.models

    @cached_property
    def models(self) -> list[DecodingModel]:
        """Models prepared for decoding, loaded at the first use."""
        return [
            prepare_for_decoding(each, self.device, self.precision)
            for each in self._stored_models
        ]

    @cached_property
    def torch_model(self) -> "transduce.decoding.torch_model.TorchModel":
        """The first model in PyTorch, whose attention weights can be read.

        It is loaded at the first use. Raises `RequestError` if PyTorch is not
        installed.
        """
        first = self._stored_models[0]
        if not decodes_natively(first, self.device, self.precision):
            return cast(Any, self.models[0])
        with packages_for("A look into the model"):
            from transduce.decoding.torch_model import prepare
        return prepare(first, self.precision, self.device)

    @property
    def cross_attention(self) -> CrossAttention | None:
        """Function that returns cross-attention; None if the model has none.

        Its arguments are source ids with end tokens, and target ids. For each pair it
        returns the weights [layers, target, source] at the steps that predict the
        target tokens, as means over the heads of a layer. In an ensemble they are those
        of the first model.
        """
        model = self.models[0]
        if isinstance(model, NativeModel):
            return model.cross_attention
        if self.torch_model.model.cross_attention_taps:
            return self.torch_model.cross_attention
        return None

    # For type checkers, a string is a sequence of strings, too.
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
        sources: Iterable[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        min_length: int | None = None,
        extra_length: int | None = None,
        max_length: int | None = None,
        prefixes: Iterable[str] | None = None,
    ) -> list[Translation]: ...

    def translate(
        self,
        sources: str | Iterable[str],
        *,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        min_length: int | None = None,
        extra_length: int | None = None,
        max_length: int | None = None,
        prefixes: str | Iterable[str] | None = None,
    ) -> Translation | list[Translation]:
        """Translate sentences by beam search (section 6.1).

        A list of sources gives a list of translations in the same order. A string is
        one sentence, whatever line breaks it has, and gives one translation. A source
        of more than 250 tokens (600 of a vocabulary of characters) is split into
        sentences that are translated one by one.

            translator.translate("A man sleeps.").text
            translator.translate(["A man sleeps.", "Two dogs run."], beam_size=1)

        Settings that are None are the model's own, `Translator.search`.
        `translate_stream` takes all settings of `SearchConfig` and can return several
        hypotheses of each source.

        Parameters
        ----------
        sources
            Sentences in the source language.
        beam_size
            Hypotheses kept at each step; 1 is greedy search.
        length_penalty
            Alpha of the length penalty; 0 for none.
        min_length
            Minimum number of tokens of a translation, without the end token.
        extra_length
            Maximum length of a translation minus that of its source, in tokens.
        max_length
            Maximum number of tokens of a translation, with the end token.
        prefixes
            One text for each source, with which its translation must begin.

        Raises
        ------
        ConfigError
            A setting is out of its range, or contradicts another.
        RequestError
            The model parses, or sources and prefixes do not correspond.
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
        if prefixes is not None:
            require_strings(prefixes)
            prefixes = [str(prefixes)]
        return next(self.translate_stream([sources], config, prefixes))

    def translate_stream(
        self,
        sources: Iterable[str],
        config: SearchConfig | None = None,
        prefixes: Iterable[str] | None = None,
        pace: Pace | None = None,
    ) -> Iterator[Translation]:
        """Translate a stream of sentences, which may be endless.

        Yields translations in order, each as soon as it and all before it are done. Up
        to 2,048 sources are read ahead.

            config = transduce.SearchConfig(beam_size=8, num_best=5)
            for translation in translator.translate_stream(lines, config):
                print([each.text for each in translation.hypotheses])

        Parameters
        ----------
        sources
            Sentences in the source language.
        config
            Search settings; the model's own if None.
        prefixes
            One text for each source, with which its translation must begin.
        pace
            How the stream is read, and callbacks for its progress.

        Raises
        ------
        RequestError
            The model parses, sources and prefixes are not equally many, or one of them
            is a single string.
        """
        require_translation(self)
        require_lists(sources, () if prefixes is None else prefixes)
        config = self.search.given({}) if config is None else config
        require_config("config", config, SearchConfig)
        pace = Pace() if pace is None else pace
        require_config("pace", pace, Pace)
        config = possible_search(self, config)
        if config.shortlist and prefixes is not None:
            warn_caller(
                "Lines with a prefix are translated with the whole vocabulary, not "
                "with the shortlist."
            )
        search = PartSearch(
            start=partial(start_translating, config=config),
            group_size=config.beam_size,
            min_steps=config.min_length + 1,
            config=config,
        )
        pairs = pair_up(sources, prefixes, pace.first_line)
        found = self._in_windows(pairs, search, pace)
        return (with_best(each, config.num_best) for each in found)

    def translate_document(
        self,
        document: str,
        config: SearchConfig | None = None,
        *,
        format: "transduce.decoding.documents.Format" = "text",
    ) -> str:
        """Translate a text of several sentences, HTML or subtitles.

        Its sentences end by the rules of the source language, and are translated one by
        one; lines and markup stay. Tags within a sentence go around the words that
        attention links to theirs.

            translator.translate_document("A man sleeps. Two dogs run.")
            translator.translate_document("<p>A <b>man</b> sleeps.", format="html")

        Parameters
        ----------
        document
            Text, HTML or subtitles in the source language.
        config
            Search settings; the model's own if None.
        format
            "text"; "html", which needs the extra `serve`; or "srt" or "vtt", subtitles
            of SubRip or WebVTT, whose times stay.

        Raises
        ------
        RequestError
            The model parses, the document is not valid Unicode, subtitles have no line
            of times, or a package that reads HTML is missing.
        """
        from transduce.decoding.documents import Format, translate_document

        _require_string("document", document)
        require_one_of("format", format, Format)
        return "".join(translate_document(self, document, format, config))

    def token_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the target tokens of words or phrases, for `SearchConfig.bad_words`.

        Empty texts have none, and are left out. Raises `RequestError` for a word
        outside a vocabulary of words: its token stands for all unknown words.
        """
        texts = listed(texts)
        found = self.tokenizer.encode_targets(texts)
        if isinstance(self.tokenizer, WordTokenizer):
            for text, ids in zip(texts, found, strict=True):
                if not set(UNKNOWN_IDS).isdisjoint(ids):
                    raise RequestError(
                        "Bad words must be in the model's vocabulary, "
                        f"but {text!r} has a word outside it; leave it out."
                    )
        return [ids for ids in found if ids]

    @overload
    def sample(  # type: ignore[overload-overlap]
        self, sources: str, config: SamplingConfig | None = None
    ) -> Translation: ...

    @overload
    def sample(
        self, sources: Iterable[str], config: SamplingConfig | None = None
    ) -> list[Translation]: ...

    def sample(
        self, sources: str | Iterable[str], config: SamplingConfig | None = None
    ) -> Translation | list[Translation]:
        """Draw translations at random, token by token.

        Sources are as in `translate`. Each result has `config.number` samples as its
        hypotheses, likeliest first, and one without a config. Random numbers depend
        only on `config.seed` and on the number of the source.

            config = transduce.SamplingConfig(number=3, temperature=0.8, seed=1)
            for each in translator.sample("A man sleeps.", config).hypotheses:
                print(each.text)

        Raises
        ------
        RequestError
            The model parses, or the samples of one sentence do not fit into memory.
        """
        if isinstance(sources, str):
            return next(self.sample_stream([sources], config))
        return list(self.sample_stream(sources, config))

    def sample_stream(
        self,
        sources: Iterable[str],
        config: SamplingConfig | None = None,
        pace: Pace | None = None,
    ) -> Iterator[Translation]:
        """Draw translations like `sample` for a stream of sentences, in order."""
        require_translation(self)
        if self.glossary is not None:
            raise RequestError(
                "A glossary applies to search, but samples are drawn without one; use "
                "a translator that has no glossary."
            )
        require_lists(sources)
        config = SamplingConfig() if config is None else config
        require_config("config", config, SamplingConfig)
        pace = Pace() if pace is None else pace
        require_config("pace", pace, Pace)
        self._require_memory_for(config.number)
        search = PartSearch(
            start=partial(start_sampling, config=config), group_size=config.number
        )
        pairs = pair_up(sources, None, pace.first_line)
        return self._in_windows(pairs, search, pace)

    @overload
    def score(  # type: ignore[overload-overlap]
        self, sources: str, targets: str
    ) -> TargetScore: ...

    @overload
    def score(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> list[TargetScore]: ...

    def score(
        self, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> TargetScore | list[TargetScore]:
        """Return the log-probability of given translations.

        Two lists give one score for each pair, in order; two strings give one score. A
        score has the log-probability (natural logarithm) of each token, their sum over
        all tokens and the end token, the number of tokens, and the perplexity per
        token. The sum is not divided by a length penalty. Under an ensemble, the
        probability of each token is the mean over the models.

        The sum equals that of the search that found the translation, unless the search
        chose other sub-words for the same text, cut it short, translated the source in
        parts, or had a repetition penalty, a shortlist or another precision.

            translator.score("A man sleeps.", "Ein Mann schläft.").perplexity

        Raises
        ------
        RequestError
            Sources and targets are not equally many, one has more than 4,000 tokens, or
            the model parses.
        CheckpointError
            The model outputs NaN.
        """
        if isinstance(sources, str):
            require_strings(targets)
            return next(self.score_stream([sources], [str(targets)]))[1]
        found = sorted(self.score_stream(sources, targets), key=itemgetter(0))
        return [score for _, score in found]

    def score_stream(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> Iterator[tuple[int, TargetScore]]:
        """Yield the number and the score of each pair, in batches of similar lengths.

        Raises the exceptions of `score`.
        """
        require_translation(self)
        sources, targets = listed(sources), listed(targets)
        _require_equally_many(sources, targets)
        source_ids = self.source_ids(sources)
        target_ids = self.tokenizer.encode_targets(targets)
        _require_scorable([*sources, *targets], [*source_ids, *target_ids])
        scores = score_pairs(self.models, source_ids, target_ids, self.batch_positions)
        for number, score in scores:
            require_numbers([score.log_probability])
            tokens = self.tokenizer.pieces(target_ids[number])
            yield number, replace(score, tokens=tuple(tokens))

    @overload
    def align(  # type: ignore[overload-overlap]
        self, sources: str, targets: str
    ) -> "transduce.decoding.alignment.WordAlignment": ...

    @overload
    def align(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> "list[transduce.decoding.alignment.WordAlignment]": ...

    def align(
        self, sources: str | Iterable[str], targets: str | Iterable[str]
    ) -> (
        "transduce.decoding.alignment.WordAlignment | "
        "list[transduce.decoding.alignment.WordAlignment]"
    ):
        """Link the words of given translations to those of their sources.

        Two lists give one alignment for each pair, in order; two strings give one. The
        links are those of cross-attention, in an ensemble that of the first model; the
        layer is the one that aligns the first 256 pairs best.

            translator.align("A man sleeps.", "Ein Mann schläft.").links

        Raises
        ------
        RequestError
            Sources and targets are not equally many, or the model parses or has no
            cross-attention.
        CheckpointError
            The model outputs NaN.
        """
        from transduce.decoding.alignment import align_pairs  # only to align

        require_translation(self)
        if isinstance(sources, str):
            require_strings(targets)
            return next(align_pairs(self, [(sources, str(targets))]))
        sources, targets = listed(sources), listed(targets)
        _require_equally_many(sources, targets)
        return list(align_pairs(self, zip(sources, targets, strict=True)))

    @overload
    def parse(  # type: ignore[overload-overlap]
        self, texts: str, *, constrained: bool = False
    ) -> "transduce.decoding.parser.Parse": ...

    @overload
    def parse(
        self, texts: Iterable[str], *, constrained: bool = False
    ) -> "list[transduce.decoding.parser.Parse]": ...

    def parse(
        self, texts: str | Iterable[str], *, constrained: bool = False
    ) -> "transduce.decoding.parser.Parse | list[transduce.decoding.parser.Parse]":
        """Parse raw English sentences with the model's own search (section 6.3).

        A list gives one parse for each sentence, in order; a string is one sentence and
        gives its parse. Constrained search generates only trees over the words.

            translator.parse("John has a dog.").tree

        Raises
        ------
        RequestError
            The model translates.
        """
        parser = self.parser()
        if isinstance(texts, str):
            return parser.parse([texts], constrained=constrained)[0]
        return parser.parse(texts, constrained=constrained)

    def parser(self) -> "transduce.decoding.parser.Parser":
        """Return the models as a parser; raise `RequestError` if they translate."""
        from transduce.decoding.parser import Parser  # only to parse

        if self.symbols is None:
            raise RequestError(
                "A model that parses must be trained on trees, but this one "
                "translates; use `transduce translate`."
            )
        return Parser(self, self.symbols, self._run)

    def source_ids(self, sources: Iterable[str]) -> list[list[int]]:
        """Encode sources, with the tags that `load`, `into` and `with_tag` have set.

        Raises `RequestError` if they are a single string.
        """
        texts = list(map(self._prepared_source, listed(sources)))
        return encode_with_tag(texts, self.corpus_tag, self.tokenizer)

    def _prepared_source(self, source: str) -> str:
        """Return a source as the model reads it, with the tag of a target language."""
        # Unlike the paper: soft hyphens, zero-width spaces and marks of direction are
        # removed from a source. They are invisible, but cut words into rare pieces.
        # Training text keeps them. The paper does not mention them. On by default.
        prepared = tagged(without_invisible(source), self.language_tag, self.tokenizer)
        tags = self.tokenizer.language_tags
        if tags and prepared.strip() and not self.tokenizer.language(prepared):
            warn_caller(
                "A source has no tag of a target language, and nothing else tells this "
                "model into which of several to translate: choose the target language, "
                f"or begin the source with a tag such as {tags[0]}."
            )
        return prepared

    def close(self) -> None:
        """End the other processes; they also end with this process.

        The translator stays usable: a later call starts new ones.
        """
        if self._pool is not None:
            self._pool.close()

    def _run(
        self,
        task: SearchTask[Sequence[DecodingModel], Any],
        on_step: Callable[[], object] | None = None,
    ) -> Iterator[list[SearchResult]]:
        """Search for the sentences of a task in this process, or in all of them."""
        if self._pool is None:
            return search_in_batches(task, self.models, on_step)
        return self._pool.search(task, on_step)

    def _require_memory_for(self, samples: int) -> None:
        """Raise `RequestError` if the samples of one sentence do not fit in memory."""
        symbols = self.tokenizer if self.symbols is None else self.symbols
        needed, free = samples * symbols.vocab_size * SAMPLE_BYTES, free_memory(1)
        if self.device == "cpu" and needed > free:
            raise RequestError(
                f"{samples:,} draws of a sentence need {needed / 2**30:,.1f} GiB, but "
                f"{free / 2**30:,.1f} GiB are free; draw fewer at a time."
            )

    def _in_windows(
        self, pairs: Iterable[tuple[str, str]], search: PartSearch, pace: Pace
    ) -> Iterator[Translation]:
        """Yield the translation of each source and prefix, window by window."""
        numbered = zip(
            count(pace.first_line),
            ((self._prepared_source(source), prefix) for source, prefix in pairs),
        )
        for window in pace.windows(numbered):
            lines = encode_lines(
                window,
                self.tokenizer,
                self.source_language,
                self.corpus_tag,
                longest_source(self),
            )
            parts = list(chain.from_iterable(lines))
            found = self._translated_parts(parts, search, pace.on_step)
            if self.glossary is not None and search.config is not None:
                from transduce.decoding.terms import with_terms  # only with a glossary

                found = with_terms(
                    self, self.glossary, parts, found, search.config, pace
                )
            yield from join_lines(lines, found, pace.on_line)

    def _translated_parts(
        self,
        parts: Sequence[Part],
        search: PartSearch,
        on_step: Callable[[], object] | None,
    ) -> Iterator[tuple[int, Translation]]:
        """Yield the number and the translation of each part as soon as it is done."""
        yield from ((i, EMPTY) for i, part in enumerate(parts) if not part.source)
        filled = [i for i, part in enumerate(parts) if part.source]
        task = SearchTask(
            sentences=[parts[i] for i in filled],
            lengths=[len(parts[i].source) + 1 for i in filled],
            capacity=self.batch_positions // search.group_size,
            start=search.start,
            step_rows=StepRows(search.group_size, self.models[0].step_overhead),
            min_steps=search.min_steps,
        )
        for found in self._run(task, on_step):
            several = [(parts[filled[i]], hypotheses) for i, hypotheses in found]
            bad_words = () if search.config is None else search.config.bad_words
            replaced = self._texts_without_unknown(several, bad_words)
            for (i, hypotheses), texts in zip(found, replaced, strict=True):
                yield filled[i], detokenize(hypotheses, self.tokenizer, texts)

    def _texts_without_unknown(
        self,
        found: Sequence[tuple[Part, Sequence[Hypothesis]]],
        bad_words: Sequence[Sequence[int]],
    ) -> Sequence[Sequence[str] | None]:
        """Return the texts of each part's hypotheses, with unknown words replaced.

        Cross-attention, in an ensemble that of the first model, shows which source word
        an unknown word translates. If the model has none, or if no word of any part is
        unknown, returns None for each part: its texts are those of its tokens.
        """
        ids = (each.ids for _, several in found for each in several)
        if not isinstance(self.tokenizer, WordTokenizer) or all(
            map(set(UNKNOWN_IDS).isdisjoint, ids)
        ):
            return [None] * len(found)
        attention = self.cross_attention
        if attention is None:
            return [None] * len(found)
        dictionary = self._stored_models[0].dictionary
        return replaced_texts(found, self.tokenizer, dictionary, attention, bad_words)


def _require_this_version(version: object) -> None:
    """Raise `VersionError` for a translator that another version has pickled.

    Its parts have other attributes, or the same ones in another order.
    """
    if version != (ours := _version()):
        made = "an earlier version" if version is None else f"version {version}"
        raise VersionError(
            f"A pickled translator must be of this version of transduce, {ours}, but "
            f"is of {made}; load the model from its folder, and pickle it again."
        )


def _version() -> str:
    from transduce import __version__  # looked up among the installed packages

    return __version__


def _require_tag(name: str, value: object, tags: Sequence[str], method: str) -> None:
    """Raise `ConfigError` unless a setting is one of the tags of a model."""
    if value not in tags:
        raise ConfigError(
            f"`{name}` must be empty or one of the model's tags, but is "
            f"{shown(value)}; choose one by `{method}`."
        )


def _require_string(name: str, value: object) -> None:
    """Raise `RequestError` unless an argument is a string."""
    if not isinstance(value, str):
        raise RequestError(f"`{name}` must be a string, but is {shown(value)}.")


def _require_equally_many(sources: Sequence[str], targets: Sequence[str]) -> None:
    """Raise `RequestError` if a source or a target is missing."""
    if len(sources) != len(targets):
        raise RequestError(
            "Sources and targets must be equally many, but are "
            f"{len(sources)} and {len(targets)}."
        )


def _require_scorable(texts: Sequence[str], ids: Sequence[list[int]]) -> None:
    """Raise `RequestError` for a text that is too long to be scored."""
    for text, own in zip(texts, ids, strict=True):
        if len(own) > LONGEST_SCORED:
            raise RequestError(
                f"A source or target must have at most {LONGEST_SCORED:,} tokens to "
                f"be scored, but {shortened(text)} has {len(own):,}; divide it, and "
                "its counterpart in the same way."
            )


def require_translation(translator: Translator) -> None:
    """Raise `RequestError` if the first model of a translator parses."""
    if translator.symbols is not None:
        raise RequestError(
            "A model that translates must be trained on text, but this one parses; "
            "use `transduce parse`."
        )


def possible_search(translator: Translator, config: SearchConfig) -> SearchConfig:
    """Check a search config against a model, and return the config to use.

    A shortlist that the model lacks is left out, with a warning. Raises `ConfigError`
    if bad words are outside the vocabulary, or leave no token.
    """
    require_possible_bad_words(config, translator.tokenizer)
    return with_available_shortlist(config, translator.shortlist)


def longest_source(translator: Translator) -> int:
    """Return the number of tokens above which a source is translated in parts."""
    tables = (num_positions(each.config) for each in translator._stored_models)
    learned = [number for number in tables if number is not None]
    # The tag of a corpus takes a position, too.
    shortest = min(learned) - bool(translator.corpus_tag) if learned else None
    return max_source_tokens(translator.tokenizer, shortest)


def interdependent_lines(translator: Translator, *, with_scores: bool) -> int:
    """Return the number of lines whose results may depend on each other by rounding.

    It is 1 where the native library decodes in fp32, or in int8 if scores do not
    matter. They do with a glossary, where scores choose the forms of terms. PyTorch's
    results depend on the batch in every precision.
    """
    has_scores = with_scores or translator.glossary is not None
    is_exact = translator.precision == "fp32" or not has_scores
    return 1 if translator.is_native and is_exact else WINDOW_LINES


def load(
    path: str | PathLike[str],
    *others: str | PathLike[str],
    device: str = "auto",
    precision: PrecisionChoice = "auto",
    num_processes: int | None = 1,
    target_language: str | None = None,
    tag: str | None = None,
) -> Translator:
    """Load a translator or a parser from a model folder or a run folder.

        translator = transduce.load("runs/en-de", device="cpu", precision="int8")

    The files are checked now; the weights are prepared at the first translation, or by
    `Translator.get_ready`.

    Parameters
    ----------
    path
        A model folder, or a run folder: its averaged model is loaded, or else its best
        one, or else its newest one.
    *others
        More such folders. The models form an ensemble, which averages their
        probabilities; they must have the same tokenizer.
    device
        "auto" (a GPU if there is one), "cpu" or "cuda".
    precision
        Precision of matrix products. "fp32" is exact; "int8" (on a CPU) and "bf16" are
        faster on processors made for them, and approximate. "auto" is "int8" if all
        models are quantized, the device is a CPU and the native library is there;
        otherwise "fp32".
    num_processes
        Processes that translate, forks of this one with one thread each; faster if
        there are many sentences. Only under Linux and on a CPU. None: one for each
        core within affinity and CPU quota, at most OMP_NUM_THREADS and 16.
    target_language
        Language to translate into, of a model with several (`Translator.into`). By
        default the model's own, if it has one. Without a tag, a source is unlike all
        that the model was trained on.
    tag
        Tag of a corpus before each source (`Translator.with_tag`).

    Raises
    ------
    CheckpointError
        A model is missing or damaged.
    ConfigError
        `device`, `precision` or `num_processes` is not one of the values above.
    RequestError
        The device is not available or cannot compute in the precision, the models have
        different tokenizers or languages, or they have no such target language or tag.
    """
    first = open_model(path_of("path", path))
    rest = [open_model(path_of("others", each)) for each in others]
    on = choose_device(device)
    number = default_processes(on) if num_processes is None else num_processes
    translator = Translator(first, on, *rest, precision=precision, num_processes=number)
    if target_language is not None:
        translator = translator.into(target_language)
    else:
        translator.language_tag = own_language_tag(
            translator.target_language, translator.tokenizer.language_tags
        )
    return translator if tag is None else translator.with_tag(tag)
