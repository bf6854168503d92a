"""Check of a corpus before training, with advice (section 5.1).

The corpus goes through the tokenizer, the filter and the batcher of training;
`corpus_survey` counts its lines and pairs. The report is plain numbers and strings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from transduce.data.augmentation import require_suitable
from transduce.data.batches import Batcher, Update
from transduce.data.corpus_files import CorpusFiles, num_characters
from transduce.data.corpus_mixture import CorpusMixture
from transduce.data.dataset import ID_TYPE, Dataset, EncodedSide, open_dataset
from transduce.data.prepared_corpus import (
    DEV,
    TRAINING,
    PairEncoder,
    PreparedCorpus,
    corpus_sizes,
    encoder_of,
    interleaved,
    learning_texts,
)
from transduce.data.treebank import (
    TreebankFiles,
    prepare_treebank,
    treebank,
)
from transduce.errors import ConfigError, DataError, RequestError, counted, percent
from transduce.experiments.corpus_survey import (
    Overlap,
    PairReport,
    SideReport,
    SpecialIds,
    SplitReport,
    Survey,
    overlap_of,
    survey_corpora,
    survey_prepared,
    valid_pairs,
)
from transduce.experiments.presets import (
    FITTING,
    MAX_EPOCHS,
    PRESETS,
    RunConfig,
    Task,
    fitting_preset,
    small_rival,
)
from transduce.experiments.run_corpus import languages_of_dev_sets, require_scoring
from transduce.model.config import ModelConfig
from transduce.text.corpus import MAX_LINE_BYTES
from transduce.text.tokenizer import (
    TOKENIZER_FILE,
    Tokenizer,
    learn_tokenizer,
    load_tokenizer,
    require_possible_bad_words,
    tag_ids,
    unknown_ids,
)
from transduce.text.vocabulary import language_tags
from transduce.trees.linearization import UNKNOWN

DROP = "drop these pairs by `transduce clean`"
REMEDIES = {
    "replacement character": "letters were lost there: download the text again, or "
    f"{DROP}",
    "doubly encoded letter": f"undo one encoding, download the text again, or {DROP}",
    "line separator": "it does not end a line here, so check that the lines match; "
    f"replace it by a space, or {DROP}",
    "control character": f"remove it, or {DROP}",
}
"""Remedy for each kind of suspicious character, worst first."""
NOTEWORTHY = 0.01
"""Share of unusual pairs or lines above which a warning is given: every corpus has a
few."""
CHARACTERS_PER_TOKEN, SYMBOLS_PER_WORD = 5, 3
"""Rough numbers to estimate a corpus's tokens before it has a tokenizer."""
MANY_EPOCHS = 100
"""Number of epochs above which fewer steps are advised."""
MUCH_PADDING = 0.25
"""Share of padding above which smaller batches are advised."""
LONG_WORD, SHORT_WORD = 20, 4
"""Mean distance of spaces in characters: above the first, text of a spaced script lacks
spaces; below the second, text of an unspaced script has them."""
MANY_BYTES = 0.03
"""Share of byte tokens above which a larger vocabulary is advised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """Updates and padding of the first epoch, batched as in training."""

    updates: int
    """Updates per epoch; of a mixture with stages, the mean."""
    padding: float
    """Share of positions in all batches that hold no token."""
    steps: int
    """Updates of the training."""
    epochs: float
    """Number of epochs of the training."""
    fewer_steps: int
    """Advised updates if these make too many epochs."""
    fitting_preset: str | None
    """Preset for corpora of this size; None if the settings fit it."""
    fitting_steps: int | None
    """Advised updates with that preset; None if its own fit the corpus."""
    is_weighted: bool = False
    """Whether a mixture has weights or stages, so that an epoch has other pairs than
    each once."""

    @property
    def proposal(self) -> str:
        """Name of the fitting preset, with the setting that makes it fit, or an empty
        string."""
        if self.fitting_preset is None:
            return ""
        steps = self.fitting_steps
        fewer = "" if steps is None else f" with `training.steps` set to {steps}"
        return f"the preset {self.fitting_preset}{fewer}"

    @property
    def command(self) -> str:
        """Command that trains with the fitting preset."""
        name, steps = self.fitting_preset, self.fitting_steps
        if steps is None:
            return f"`transduce train --preset {name}`"
        return f"`transduce train --preset {name} --set training.steps={steps}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReport:
    """Report on a parallel corpus."""

    training: SplitReport
    dev: SplitReport | None
    overlap: Overlap | None
    """None without a dev corpus."""
    epoch: EpochReport | None
    """None if no pair is kept."""
    vocab_size: int
    """Size of the learned vocabulary."""
    asked_vocab_size: int
    """Size by the setting `tokenizer.vocab_size`."""
    useless_corpora: tuple[str, ...] = ()
    """Names of the corpora of a mixture that keep no pair."""
    missing_package: str | None = None
    """Message about a package that scores of dev text need; None if none is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreesReport:
    """Report on the training or the dev trees."""

    files: tuple[Path, ...]
    trees: int
    words: int
    longest: int
    """Words of the longest sentence."""
    constituents: int
    labels: int
    """Number of different constituent labels, without traces and functions."""
    tags: int
    """Number of different tags of words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreebankReport:
    """Report on treebanks."""

    training: TreesReport
    dev: TreesReport | None
    copies: int
    """Number of variants of each training tree."""
    prepared: int
    """Trees and variants that training uses."""
    overlong: int
    """Trees and variants left out as too long."""
    overlap: Overlap | None
    """Dev trees that also occur in training; None without dev trees."""
    epoch: EpochReport | None
    vocab_size: int
    """Size of the learned source vocabulary."""
    asked_vocab_size: int
    """Size by the setting `tokenizer.vocab_size`."""
    num_symbols: int
    """Size of the target vocabulary, the symbols of linearized trees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Problem of a corpus with its remedy."""

    problem: str
    remedy: str
    is_refusal: bool = False
    """Whether training would refuse to start."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}."


def check_corpus(files: CorpusFiles, config: RunConfig) -> CorpusReport:
    """Check a parallel corpus as training would use it.

    Faults of lines are in the report. Raises `DataError` only if a file cannot be read
    at all, and `ConfigError` if the settings of the augmentation do not fit the
    vocabulary.
    """
    max_length = config.batching.max_length
    sizes, characters = [0] * len(files.sides), 0
    for number, sides in enumerate(files.sides):
        for pair in valid_pairs(*sides):
            sizes[number] += 1
            characters += num_characters(pair)
    pairs = interleaved([valid_pairs(*sides) for sides in files.sides], sizes)
    texts = learning_texts(pairs, characters)
    tokenizer = learn_tokenizer(texts, config.tokenizer, files.tags)
    require_suitable(config.augmentation, tokenizer)
    default = config.languages.target if language_tags(files.tags) else None
    encoders = [
        encoder_of(corpus, tokenizer, corpus.target_language or default)
        for corpus in files.corpora
    ] or [PairEncoder(tokenizer=tokenizer)]
    corpora = zip(files.sides, encoders, strict=True)
    training = survey_corpora(corpora, max_length)
    pairs_kept = _pairs_kept(files, training.kept())
    mixture = None
    if pairs_kept and all(pairs_kept.values()):
        mixture = CorpusMixture(files.corpora, config.stages, [*pairs_kept.values()])
    dev = _survey_dev_corpus(files, config, tokenizer)
    return CorpusReport(
        training=training.report(),
        dev=dev.report() if dev else None,
        overlap=overlap_of(training.kept(), dev.kept()) if dev else None,
        epoch=_epoch_report(training.kept(), config, "translation", mixture),
        vocab_size=tokenizer.vocab_size,
        asked_vocab_size=_asked_size(config, tokenizer.vocab_size),
        useless_corpora=tuple(
            name for name, number in pairs_kept.items() if not number
        ),
        missing_package=_missing_package(files, config),
    )


def _survey_dev_corpus(
    files: CorpusFiles, config: RunConfig, tokenizer: Tokenizer
) -> Survey | None:
    """Survey the dev corpus as training would encode it; None if there is none."""
    if not (files.dev_source or files.dev_target):
        return None
    sides = files.dev_source, files.dev_target
    language, *_ = languages_of_dev_sets(files, config)
    has_tags = bool(language_tags(files.tags))
    encoder = encoder_of(None, tokenizer, language if has_tags else None)
    return survey_corpora([(sides, encoder)], config.batching.max_length)


def _missing_package(files: CorpusFiles, config: RunConfig) -> str | None:
    if find_spec("torch") is None:
        return None  # no training starts here, whatever the corpus
    try:
        require_scoring(files, config)
    except RequestError as error:
        return str(error)
    except DataError:
        return None  # lines that are no text are reported elsewhere
    return None


def _pairs_kept(files: CorpusFiles, kept: Survey) -> dict[str, int]:
    """Numbers of pairs kept of the corpora of a mixture, by their names."""
    starts = [file.position for file in kept.files]
    file_of_row = np.searchsorted(starts, kept.rows["position"], side="right") - 1
    # The files of the corpora follow one another.
    rows_by_file = iter(np.bincount(file_of_row, minlength=len(starts)).tolist())
    return {
        corpus.name: sum(islice(rows_by_file, len(corpus.source_files)))
        for corpus in files.corpora
    }


def preset_for(files: CorpusFiles | TreebankFiles) -> str:
    """Preset that fits the size of a corpus, estimated from its characters."""
    if isinstance(files, TreebankFiles):
        words = sum(len(tree.leaves) for tree in treebank(files.trees))
        return fitting_preset(SYMBOLS_PER_WORD * words, files.task)
    total = sum(map(num_characters, valid_pairs(files.source, files.target)))
    return fitting_preset(total // (2 * CHARACTERS_PER_TOKEN), files.task)


def check_treebank(files: TreebankFiles, config: RunConfig) -> TreebankReport:
    """Check treebanks as training would use them; `DataError` at the first fault."""
    with TemporaryDirectory(prefix="transduce-") as name:
        folder = Path(name)
        prepared = prepare_treebank(
            files, config.treebank, config.tokenizer, config.batching.max_length, folder
        )
        report = check_prepared(folder, prepared, config, files.task)
    return TreebankReport(
        training=_trees_report(files.trees),
        dev=_trees_report(files.dev_trees) if files.dev_trees else None,
        copies=config.treebank.augmentation.copies,
        prepared=report.training.pairs.kept,
        overlong=report.training.pairs.overlong.count,
        overlap=report.overlap,
        epoch=report.epoch,
        vocab_size=report.vocab_size,
        asked_vocab_size=report.asked_vocab_size,
        num_symbols=prepared.target_vocab_size or 0,
    )


def _trees_report(paths: Sequence[Path]) -> TreesReport:
    num_trees = num_words = num_constituents = longest = 0
    labels, tags = set[str](), set[str]()
    for tree in treebank(paths):
        num_trees += 1
        num_words += len(tree.leaves)
        num_constituents += len(tree.constituents)
        longest = max(longest, len(tree.leaves))
        labels.update(each.label for each in tree.constituents)
        tags.update(leaf.tag for leaf in tree.leaves)
    return TreesReport(
        files=tuple(paths),
        trees=num_trees,
        words=num_words,
        longest=longest,
        constituents=num_constituents,
        labels=len(labels),
        tags=len(tags),
    )


def check_prepared(
    folder: Path,
    corpus: PreparedCorpus,
    config: RunConfig,
    task: Task,
    *,
    has_bytes: bool = True,
) -> CorpusReport:
    """Check a prepared corpus like `check_corpus`, without file names and lines.

    This is fast, as ids are read instead of texts. Bytes are counted only with
    `has_bytes`, and in a vocabulary that has them. Raises `ConfigError` if the settings
    of a translator's search or augmentation do not fit its vocabulary.
    """
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    if task == "translation":
        require_possible_bad_words(config.search, tokenizer)
        require_suitable(config.augmentation, tokenizer)
    unknown = unknown_ids(tokenizer)
    special = SpecialIds(
        tags=tag_ids(tokenizer),
        unknown_sources=unknown,
        unknown_targets=unknown if task == "translation" else [UNKNOWN],
    )
    splits = {
        name: survey_prepared(
            name,
            open_dataset(folder / where),
            counts,
            corpus.statistics[name],
            special,
            has_bytes=has_bytes and config.tokenizer.has_bytes,
        )
        for name, where, counts in (
            ("training", TRAINING, corpus.training),
            ("dev", DEV, corpus.dev),
        )
        if counts is not None
    }
    training, dev = splits["training"], splits.get("dev")
    mixture = None
    if config.corpora and task == "translation":
        names = [each.name for each in config.corpora]
        sizes = corpus_sizes(folder, names, corpus.training.kept)
        mixture = CorpusMixture(config.corpora, config.stages, sizes)
    return CorpusReport(
        training=training.report(),
        dev=dev.report() if dev else None,
        overlap=overlap_of(training.kept(), dev.kept()) if dev else None,
        epoch=_epoch_report(training.kept(), config, task, mixture),
        vocab_size=corpus.vocab_size,
        asked_vocab_size=_asked_size(config, corpus.vocab_size),
    )


def _asked_size(config: RunConfig, actual: int) -> int:
    """Return the size that the settings ask for; one that is given is as it is."""
    tokenizer = config.tokenizer
    return tokenizer.vocab_size if tokenizer.model is None else actual


def require_fitting(report: CorpusReport, task: Task) -> None:
    """Raise `ConfigError` if default settings are for much larger corpora.

    The message proposes a preset that fits.
    """
    epoch = report.epoch
    if epoch is None or epoch.epochs <= MAX_EPOCHS or epoch.fitting_preset is None:
        return
    large, _ = FITTING[task]
    noun = "tree" if task == "parsing" else "pair"
    pairs = counted(report.training.pairs.kept, noun)
    raise ConfigError(
        f"A preset must be chosen for a corpus of {pairs}; {epoch.proposal} fits it: "
        f"{epoch.command}. (The paper's preset {large} would train "
        f"{epoch.epochs:,.0f} epochs; `transduce train --preset {large} "
        "--however-long` chooses it all the same.)"
    )


def fitting_proposal(report: CorpusReport) -> str:
    """Return the name of a fitting preset; "" if the settings fit."""
    return "" if report.epoch is None else report.epoch.proposal


def without_preset(report: CorpusReport) -> CorpusReport:
    """Return the report of a run from a model, without a preset or a vocabulary to
    choose."""
    epoch = report.epoch and replace(report.epoch, fitting_preset=None)
    return replace(report, epoch=epoch, asked_vocab_size=report.vocab_size)


def advise_on_treebank(report: CorpusReport | TreebankReport) -> tuple[Advice, ...]:
    """Advice about treebanks, in which repeated trees are no fault."""
    return (*_overlap_advice(report.overlap, "parsing"), *_training_advice(report))


def advise(report: CorpusReport) -> tuple[Advice, ...]:
    """Advice about a parallel corpus, worst first, beginning with refusals."""
    splits = {"training": report.training, "dev": report.dev}
    named = [(name, split) for name, split in splits.items() if split is not None]
    return (
        *(advice for name, split in named for advice in _refusals(name, split)),
        *_refusals_of_mixture(report.useless_corpora),
        *_package_advice(report.missing_package),
        *_overlap_advice(report.overlap, "translation"),
        *(advice for name, split in named for advice in _text_advice(name, split)),
        *_word_advice("source", report.training.source),
        *_word_advice("target", report.training.target),
        *_pair_advice(report.training.pairs),
        *_training_advice(report),
    )


def _epoch_report(
    kept: Survey, config: RunConfig, task: Task, mixture: CorpusMixture | None = None
) -> EpochReport | None:
    """Report on epochs, in which a mixture draws pairs by its weights and stages."""
    if not len(kept.rows):
        return None
    steps, seed = config.training.steps, config.training.seed
    rows, rows_of_stages, steps_of_stages = kept.rows, [kept.rows], [steps]
    if mixture is not None:
        stages, steps_of_stages = mixture.stages_of(range(steps))
        rows_of_stages = [rows[mixture.draw(0, stage, seed)] for stage in stages]
        rows = rows[mixture.used_in(stages)]
    counts = [_count_epoch(_only_dataset(each), config) for each in rows_of_stages]
    epochs = [
        number / count.updates
        for number, count in zip(steps_of_stages, counts, strict=True)
    ]
    tokens = float(np.array(epochs) @ [count.tokens for count in counts])
    positions = float(np.array(epochs) @ [count.positions for count in counts])
    updates = max(round(steps / sum(epochs)), 1)
    fitting = _fitting_preset(rows, config, task)
    return EpochReport(
        updates=updates,
        padding=1 - tokens / positions,
        steps=steps,
        epochs=sum(epochs),
        fewer_steps=_fewer_steps(config, updates),
        fitting_preset=fitting,
        fitting_steps=None
        if fitting is None
        else _fitting_steps(_only_dataset(rows), config, fitting, task),
        is_weighted=bool(config.stages)
        or any(corpus.weight is not None for corpus in config.corpora),
    )


class _EpochCounts(NamedTuple):
    """Counts of one epoch."""

    updates: int
    tokens: int
    positions: int


def _count_epoch(dataset: Dataset, config: RunConfig) -> _EpochCounts:
    updates = tokens = positions = 0
    for update in _first_epoch(dataset, config):
        updates += 1
        tokens += update.num_source_tokens + update.num_target_tokens
        positions += update.num_positions
    return _EpochCounts(updates, tokens, positions)


def _only_dataset(rows: Shaped[np.ndarray, " pairs"]) -> Dataset:
    """Dataset without ids of some pairs of a survey: batching needs only lengths."""
    source, target = (
        EncodedSide(
            ids=np.empty(0, ID_TYPE),
            offsets=np.insert(np.cumsum(rows[name], dtype=np.int64), 0, 0),
        )
        for name in ("source_length", "target_length")
    )
    return Dataset(source=source, target=target)


def _fitting_steps(
    dataset: Dataset, config: RunConfig, preset: str, task: Task
) -> int | None:
    """Updates to advise with a preset instead of the config; None if its own fit."""
    fitting = PRESETS[preset]
    # Variants are as long as their trees here, so this is an estimate.
    growth = _num_copies(fitting, task) / _num_copies(config, task)
    updates = round(growth * sum(1 for _ in _first_epoch(dataset, fitting)))
    fewer = _fewer_steps(fitting, updates)
    return fewer if fewer < fitting.training.steps else None


def _first_epoch(dataset: Dataset, config: RunConfig) -> Iterator[Update]:
    return Batcher(dataset, config.batching, config.training.seed).epoch(0)


def _fewer_steps(config: RunConfig, updates: int) -> int:
    """Updates of `MANY_EPOCHS` epochs, but at least twice those of the warm-up."""
    return max(MANY_EPOCHS * updates, 2 * config.training.warmup_steps)


def _num_copies(config: RunConfig, task: Task) -> int:
    """Number of times that a pair is in an epoch; a tree also has its variants."""
    return 1 + config.treebank.augmentation.copies if task == "parsing" else 1


def _fitting_preset(
    rows: Shaped[np.ndarray, " pairs"], config: RunConfig, task: Task
) -> str | None:
    """Preset of the same architecture for a corpus of these pairs.

    None if the settings fit it, or if there is no such preset.
    """
    num_tokens = int(rows["target_length"].sum()) // _num_copies(config, task)
    if config.tokenizer.kind == "character":
        num_tokens //= CHARACTERS_PER_TOKEN
    name = fitting_preset(num_tokens, task)
    if not isinstance(config.model, ModelConfig):
        _, small = FITTING["translation"]
        if name != small:
            return None
        name = small_rival(config)
    ours, fitting = config.batching.target_tokens, PRESETS[name].batching.target_tokens
    return name if ours > fitting else None


def _refusals(name: str, split: SplitReport) -> Iterator[Advice]:
    invalid = split.source.invalid.count + split.target.invalid.count
    if invalid:
        yield Advice(
            problem=f"lines of the {name} corpus that are not UTF-8 text, or above "
            f"{MAX_LINE_BYTES:,} bytes: {invalid:,}",
            remedy=f"convert the files to UTF-8, remove NUL bytes and split long "
            f"lines, or {DROP}",
            is_refusal=True,
        )
    for files in split.unequal:
        yield Advice(
            problem=f"{files.source} has {counted(files.source_lines, 'line')}, but "
            f"{files.target} has {files.target_lines:,}",
            remedy="find where a line was lost or split: all lines after it mismatch",
            is_refusal=True,
        )
    if not split.pairs.kept:
        yield Advice(
            problem=f"usable pairs of the {name} corpus: 0 of {split.pairs.total:,}",
            remedy="give files with text on both sides, or raise `batching.max_length`",
            is_refusal=True,
        )


def _refusals_of_mixture(useless_corpora: Sequence[str]) -> Iterator[Advice]:
    for corpus in useless_corpora:
        yield Advice(
            problem=f"usable pairs of the corpus {corpus}: 0",
            remedy="give files with text on both sides, or leave the corpus out",
            is_refusal=True,
        )


def _package_advice(message: str | None) -> Iterator[Advice]:
    """Yield the message of a missing package, `PROBLEM; REMEDY.`, as advice."""
    if message is not None:
        problem, _, remedy = message.removesuffix(".").partition("; ")
        yield Advice(problem=problem, remedy=remedy, is_refusal=True)


def _overlap_advice(overlap: Overlap | None, task: Task) -> Iterator[Advice]:
    if overlap is None or not overlap.sources.count:
        return
    if task == "parsing":
        kind, target = "sentences", "tree"
        files, means = "treebank", ""  # `transduce clean` does not read trees
    else:
        kind, target = "sources", "target"
        files, means = "files", " by `transduce clean`"
    yield Advice(
        problem=f"dev {kind} that are also in training: "
        f"{overlap.sources.count:,} ({overlap.pairs.count:,} with the same {target})",
        remedy=f"remove them from the training {files}{means}, or dev scores are too "
        "high",
    )


def _text_advice(name: str, split: SplitReport) -> Iterator[Advice]:
    for kind, remedy in REMEDIES.items():
        lines = (
            split.source.suspicious[kind].count + split.target.suspicious[kind].count
        )
        if lines:
            yield Advice(
                problem=f"lines of the {name} corpus with a {kind}: {lines:,}",
                remedy=remedy,
            )


def _word_advice(name: str, side: SideReport) -> Iterator[Advice]:
    """Advice about tabs, missing or unusual spaces, and unknown characters."""
    if side.tabbed >= NOTEWORTHY:
        yield Advice(
            problem=f"{percent(side.tabbed, 1)} of the training {name}'s lines hold a "
            "tab",
            remedy="if tabs separate columns, give the source and the target as two "
            "files, such as by cut -f1 and cut -f2; otherwise replace them by spaces",
        )
    letters = side.characters / max(side.words, 1)
    is_unspaced = side.unspaced_letters > side.characters / 2
    if not is_unspaced and letters > LONG_WORD:
        yield Advice(
            problem=f"the training {name} has a space only every {letters:.0f} "
            "characters, so a sub-word of the vocabulary may be a whole clause",
            remedy="restore the spaces between words",
        )
    if is_unspaced and letters < SHORT_WORD:
        yield Advice(
            problem=f"the training {name} has spaces between the words of a script "
            f"that is written without (one every {letters:.1f} characters)",
            remedy="remove them, unless translations should have them too",
        )
    if side.cut.count and side.cut.count >= NOTEWORTHY * side.lines:
        yield Advice(
            problem=f"lines of the training {name} with words that another program has "
            f"cut into sub-words (@@ or \u2581): {side.cut.count:,}",
            remedy="join them first, such as by sed 's/@@ //g', since the tokenizer "
            "here cuts words itself",
        )
    if side.byte_tokens > MANY_BYTES * side.tokens:
        yield Advice(
            problem=f"{percent(side.byte_tokens / side.tokens, 1)} of the training "
            f"{name}'s tokens are bytes of characters that are not in the vocabulary",
            remedy="raise `tokenizer.vocab_size`",
        )


def _pair_advice(pairs: PairReport) -> Iterator[Advice]:
    is_empty = pairs.empty_source, pairs.empty_target, pairs.empty_both
    for kind, number, remedy in (
        (
            "with an empty side",
            sum(finding.count for finding in is_empty),
            f"check that the files belong together, or {DROP}",
        ),
        (
            "too long",
            pairs.overlong.count,
            "split them or raise `batching.max_length`",
        ),
        ("with the same text on both sides", pairs.identical.count, DROP),
        (
            "of very different length",
            pairs.lopsided.count,
            f"check the alignment, or {DROP}",
        ),
        (
            "that repeat an earlier one",
            pairs.repeated.count,
            "keep one of each by `transduce clean`",
        ),
    ):
        if number and number >= NOTEWORTHY * pairs.total:
            share = percent(number / pairs.total, 1)
            yield Advice(problem=f"pairs {kind}: {number:,} ({share})", remedy=remedy)


def _training_advice(report: CorpusReport | TreebankReport) -> Iterator[Advice]:
    epoch = report.epoch
    if epoch is None:
        return
    if epoch.epochs < 1 and not epoch.is_weighted:
        yield Advice(
            problem=f"{counted(epoch.steps, 'step')} read only {percent(epoch.epochs)} "
            "of the corpus",
            remedy=f"set `training.steps` to {epoch.updates} to read all of it once",
        )
    if epoch.steps > epoch.fewer_steps:
        other = f"choose {epoch.proposal}, which fits it, or " if epoch.proposal else ""
        yield Advice(
            problem=f"{counted(epoch.steps, 'step')} make {epoch.epochs:,.0f} epochs "
            "of the corpus",
            remedy=f"{other}set `training.steps` to {epoch.fewer_steps} for "
            + counted(round(epoch.fewer_steps / epoch.updates), "epoch"),
        )
    if epoch.padding > MUCH_PADDING:
        yield Advice(
            problem=f"padding takes {percent(epoch.padding)} of the positions computed",
            remedy="lower `batching.batch_tokens`, so that a batch has similar lengths",
        )
    if report.vocab_size < report.asked_vocab_size:
        yield Advice(
            problem=f"the corpus gives only {report.vocab_size:,} of the "
            f"{report.asked_vocab_size:,} pieces of `tokenizer.vocab_size`",
            remedy="nothing is lost, and the model has fewer parameters",
        )
