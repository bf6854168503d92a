"""What training would make of a corpus, found out before it (section 5.1).

The corpus goes through the tokenizer, the filter and the batcher that training would
use. The report is plain numbers and strings; showing it is not done here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from jaxtyping import Bool, Integer

from transduce.data.batches import Batcher, Update
from transduce.data.corpus_files import CorpusFiles, num_characters
from transduce.data.dataset import ID_TYPE, Dataset, EncodedSide, open_dataset
from transduce.data.prepared_corpus import (
    DEV,
    TRAINING,
    PreparedCorpus,
    learning_texts,
)
from transduce.data.treebank import (
    TreebankFiles,
    prepare_treebank,
    read_treebank,
)
from transduce.errors import ConfigError, counted
from transduce.experiments.corpus_survey import (
    FATES,
    NUM_EXAMPLES,
    FilePair,
    Finding,
    LengthBin,
    SideReport,
    Survey,
    sound_pairs,
    survey_corpus,
    survey_prepared,
)
from transduce.experiments.presets import (
    FITTING,
    MOST_EPOCHS,
    PRESETS,
    RunConfig,
    Task,
    fitting_preset,
)
from transduce.text.tokenizer import learn_tokenizer

LOPSIDED_RATIO, LOPSIDED_TOKENS = 3, 10
"""A pair is lopsided if one side is longer by more than this factor and by at least so
many tokens: a word or two may well take three times as many in another language."""

REMEDIES = {
    "replacement character": "letters were lost there: fetch the text again",
    "doubly encoded letter": "undo one encoding, or fetch the text again",
    "line separator": "it ends no line here, so see that the lines match; make it a "
    "space",
    "control character": "remove it",
}
"""What to do about each of the survey's marks, worst first."""

NOTEWORTHY = 0.01
"""A smaller share of odd pairs is in every corpus, and no reason to warn."""
CHARACTERS_PER_TOKEN, SYMBOLS_PER_WORD = 5, 3
"""Rough numbers to estimate a corpus' tokens before it has a tokenizer."""
MANY_EPOCHS = 100
MUCH_PADDING = 0.25
LONG_WORD, SHORT_WORD = 20, 4
"""Characters between spaces, on average: above the first, text of a spaced script lacks
spaces; below the second, text of an unspaced script has them."""
MANY_BYTES = 0.03
"""Share of byte tokens above which a larger vocabulary is needed."""

DIGEST_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that digests of two sides are mixed into one without loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """What becomes of the pairs; from `lopsided` on, of those that are kept."""

    total: int
    """Lines that have one on the other side."""
    invalid: int
    """With a line that training refuses to read."""
    kept: int
    empty_source: Finding
    empty_target: Finding
    empty_both: Finding
    overlong: Finding
    lopsided: Finding
    identical: Finding
    """Both sides are the same text."""
    repeated: Finding
    """Both sides have stood together before."""
    ambiguous_sources: int
    """Sources that stand with several targets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReport:
    """The training or the dev corpus."""

    source: SideReport
    target: SideReport
    pairs: PairReport
    unequal: tuple[FilePair, ...]
    """Files whose line counts differ."""
    lengths: tuple[LengthBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """What of the dev corpus stands in training."""

    pairs: Finding
    sources: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReport:
    """The first pass over the corpus, cut as training would."""

    updates: int
    padding: float
    """The share of positions of all batches that hold no token."""
    steps: int
    epochs: float
    """That the steps make."""
    fewer_steps: int
    """The steps to take if these make too many epochs."""
    fitting_preset: str | None
    """Preset for corpora of this size; None if the settings fit it."""
    fitting_steps: int | None
    """Steps to take with that preset; None if its own suit the corpus."""

    @property
    def proposal(self) -> str:
        """The options that choose what fits the corpus."""
        steps = self.fitting_steps
        fewer = "" if steps is None else f" --set training.steps={steps}"
        return f"--preset {self.fitting_preset}{fewer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReport:
    """All that was found out about a corpus."""

    training: SplitReport
    dev: SplitReport | None
    overlap: Overlap | None
    """None without a dev corpus."""
    epoch: EpochReport | None
    """None if no pair is kept."""
    vocab_size: int
    asked_vocab_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BankReport:
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

    training: BankReport
    dev: BankReport | None
    copies: int
    """Variants made of each training tree."""
    prepared: int
    """Trees and variants that are trained on."""
    overlong: int
    """Trees and variants that are left out as too long."""
    overlap: Overlap | None
    """Dev trees that are in training, too; None without dev trees."""
    epoch: EpochReport | None
    vocab_size: int
    asked_vocab_size: int
    num_symbols: int
    """Size of the target's vocabulary, in which trees are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is wrong, and what to do about it."""

    problem: str
    remedy: str
    is_refusal: bool = False
    """Training would not start."""

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}."


def check_corpus(files: CorpusFiles, config: RunConfig) -> CorpusReport:
    """Read a corpus as training would, but to its end.

    `DataError` only where a file cannot be read at all. Faults of its lines are in the
    report.
    """
    max_length = config.batching.max_length
    total = sum(map(num_characters, sound_pairs(files.source, files.target)))
    texts = learning_texts(sound_pairs(files.source, files.target), total)
    tokenizer = learn_tokenizer(texts, config.tokenizer)
    training = survey_corpus(files.source, files.target, tokenizer, max_length)
    dev = None
    if files.dev_source or files.dev_target:
        dev = survey_corpus(files.dev_source, files.dev_target, tokenizer, max_length)
    return CorpusReport(
        training=_split_report(training),
        dev=_split_report(dev) if dev else None,
        overlap=_overlap(training.kept(), dev.kept()) if dev else None,
        epoch=_epoch_report(training.kept(), config, "translation"),
        vocab_size=tokenizer.vocab_size,
        asked_vocab_size=config.tokenizer.vocab_size,
    )


def preset_for(files: CorpusFiles | TreebankFiles) -> str:
    """Preset that fits the size of some files, estimated by their characters."""
    if isinstance(files, TreebankFiles):
        words = sum(len(tree.leaves) for tree in read_treebank(files.trees))
        return fitting_preset(SYMBOLS_PER_WORD * words, files.task)
    total = sum(map(num_characters, sound_pairs(files.source, files.target)))
    return fitting_preset(total // (2 * CHARACTERS_PER_TOKEN), files.task)


def check_treebank(files: TreebankFiles, config: RunConfig) -> TreebankReport:
    """Read treebanks as training would; `DataError` at the first fault."""
    with TemporaryDirectory(prefix="transduce-") as name:
        folder = Path(name)
        prepared = prepare_treebank(
            files, config.treebank, config.tokenizer, config.batching.max_length, folder
        )
        report = check_prepared(folder, prepared, config, files.task)
    return TreebankReport(
        training=_bank_report(files.trees),
        dev=_bank_report(files.dev_trees) if files.dev_trees else None,
        copies=config.treebank.augmentation.copies,
        prepared=report.training.pairs.kept,
        overlong=report.training.pairs.overlong.count,
        overlap=report.overlap,
        epoch=report.epoch,
        vocab_size=report.vocab_size,
        asked_vocab_size=report.asked_vocab_size,
        num_symbols=prepared.target_vocab_size or 0,
    )


def _bank_report(paths: Sequence[Path]) -> BankReport:
    trees = read_treebank(paths)
    lengths = [len(tree.leaves) for tree in trees]
    constituents = [each for tree in trees for each in tree.constituents]
    return BankReport(
        files=tuple(paths),
        trees=len(trees),
        words=sum(lengths),
        longest=max(lengths),
        constituents=len(constituents),
        labels=len({each.label for each in constituents}),
        tags=len({leaf.tag for tree in trees for leaf in tree.leaves}),
    )


def check_prepared(
    folder: Path, corpus: PreparedCorpus, config: RunConfig, task: Task
) -> CorpusReport:
    """Report like `check_corpus` on a prepared corpus, without places and words.

    It is fast, as it reads ids, not texts.
    """
    splits = {
        name: survey_prepared(
            open_dataset(folder / where), counts, corpus.readings[name]
        )
        for name, where, counts in (
            ("training", TRAINING, corpus.training),
            ("dev", DEV, corpus.dev),
        )
        if counts is not None
    }
    training, dev = splits["training"], splits.get("dev")
    return CorpusReport(
        training=_split_report(training),
        dev=_split_report(dev) if dev else None,
        overlap=_overlap(training.kept(), dev.kept()) if dev else None,
        epoch=_epoch_report(training.kept(), config, task),
        vocab_size=corpus.vocab_size,
        asked_vocab_size=config.tokenizer.vocab_size,
    )


def require_fitting(report: CorpusReport, task: Task) -> None:
    """Raise `ConfigError` if default settings are for much larger corpora."""
    epoch = report.epoch
    if epoch is None or epoch.epochs <= MOST_EPOCHS or epoch.fitting_preset is None:
        return
    large, _ = FITTING[task]
    noun = "tree" if task == "parsing" else "pair"
    pairs = counted(report.training.pairs.kept, noun)
    raise ConfigError(
        f"A preset must be chosen for a corpus of {pairs}: add {epoch.proposal}, "
        f"which fits it. (The paper's, {large}, makes "
        f"{epoch.epochs:,.0f} epochs of it; --preset {large} trains that all the same.)"
    )


def advise_on_treebank(report: CorpusReport | TreebankReport) -> tuple[Advice, ...]:
    """Advice that applies to trees; repeated trees are no fault."""
    return (
        *(_overlap_advice(report.overlap) if report.overlap else ()),
        *(_training_advice(report, report.epoch) if report.epoch else ()),
    )


def advise(report: CorpusReport) -> tuple[Advice, ...]:
    """What to do before training, worst first; refusals come before all else."""
    splits = {"training": report.training, "dev": report.dev}
    named = [(name, split) for name, split in splits.items() if split is not None]
    return (
        *(advice for name, split in named for advice in _refusals(name, split)),
        *(_overlap_advice(report.overlap) if report.overlap else ()),
        *(advice for name, split in named for advice in _text_advice(name, split)),
        *_word_advice("source", report.training.source),
        *_word_advice("target", report.training.target),
        *_pair_advice(report.training.pairs),
        *(_training_advice(report, report.epoch) if report.epoch else ()),
    )


def _split_report(survey: Survey) -> SplitReport:
    return SplitReport(
        source=survey.side("source"),
        target=survey.side("target"),
        pairs=_pair_report(survey),
        unequal=tuple(f for f in survey.files if f.source_lines != f.target_lines),
        lengths=survey.length_bins(),
    )


def _pair_report(survey: Survey) -> PairReport:
    rows, kept = survey.rows, survey.kept()
    has_source, has_target = rows["source_length"] > 0, rows["target_length"] > 0
    total = sum(min(f.source_lines, f.target_lines) for f in survey.files)
    return PairReport(
        total=total,
        invalid=total - len(rows),
        kept=len(kept.rows),
        empty_source=survey.finding(~has_source & has_target, "source"),
        empty_target=survey.finding(has_source & ~has_target, "target"),
        empty_both=survey.finding(~has_source & ~has_target),
        overlong=survey.finding(rows["fate"] == FATES.index("overlong")),
        lopsided=kept.finding(_is_lopsided(kept)),
        identical=kept.finding(
            kept.rows["source_digest"] == kept.rows["target_digest"]
        ),
        repeated=_repeated(kept),
        ambiguous_sources=_num_ambiguous_sources(kept),
    )


def _is_lopsided(survey: Survey) -> Bool[np.ndarray, " pairs"]:
    source, target = survey.rows["source_length"], survey.rows["target_length"]
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    return (longer > LOPSIDED_RATIO * shorter) & (longer - shorter >= LOPSIDED_TOKENS)


def _repeated(survey: Survey) -> Finding:
    first = _first_rows(_pair_digests(survey))
    repeats = np.flatnonzero(first != np.arange(len(first)))
    return Finding(
        count=len(repeats),
        examples=tuple(
            f"{survey.place(row)} repeats {survey.place(int(first[row]))}"
            for row in repeats[:NUM_EXAMPLES].tolist()
        ),
    )


def _num_ambiguous_sources(survey: Survey) -> int:
    _, distinct = np.unique(_pair_digests(survey), return_index=True)
    sources = survey.rows["source_digest"][distinct]
    _, num_targets = np.unique(sources, return_counts=True)
    return int((num_targets > 1).sum())


def _overlap(training: Survey, dev: Survey) -> Overlap:
    return Overlap(
        pairs=_standing_in(training, dev, _pair_digests(training), _pair_digests(dev)),
        sources=_standing_in(
            training, dev, training.rows["source_digest"], dev.rows["source_digest"]
        ),
    )


def _standing_in(
    training: Survey,
    dev: Survey,
    known: Integer[np.ndarray, " training"],
    asked: Integer[np.ndarray, " dev"],
) -> Finding:
    rows = np.flatnonzero(np.isin(asked, known))
    return Finding(
        count=len(rows),
        examples=tuple(
            f"{dev.place(row)} is {training.place(int(np.argmax(known == asked[row])))}"
            for row in rows[:NUM_EXAMPLES].tolist()
        ),
    )


def _pair_digests(survey: Survey) -> Integer[np.ndarray, " pairs"]:
    return survey.rows["source_digest"] * DIGEST_FACTOR + survey.rows["target_digest"]


def _first_rows(
    digests: Integer[np.ndarray, " pairs"],
) -> Integer[np.ndarray, " pairs"]:
    """For each row, the one in which its digest stands first."""
    _, first, which = np.unique(digests, return_index=True, return_inverse=True)
    return first[which]


def _epoch_report(kept: Survey, config: RunConfig, task: Task) -> EpochReport | None:
    if not len(kept.rows):
        return None
    dataset = Dataset(
        source=_only_lengths(kept.rows["source_length"]),
        target=_only_lengths(kept.rows["target_length"]),
    )
    updates = tokens = positions = 0
    for update in _first_epoch(dataset, config):
        updates += 1
        tokens += update.num_source_tokens + update.num_target_tokens
        positions += update.num_positions
    fitting = _fitting_preset(kept, config, task)
    fewer = None
    if fitting is not None:
        updates_then = sum(1 for _ in _first_epoch(dataset, PRESETS[fitting]))
        fewer = _fewer_steps(PRESETS[fitting], updates_then)
        fewer = fewer if fewer < PRESETS[fitting].training.steps else None
    return EpochReport(
        updates=updates,
        padding=1 - tokens / positions,
        steps=config.training.steps,
        epochs=config.training.steps / updates,
        fewer_steps=_fewer_steps(config, updates),
        fitting_preset=fitting,
        fitting_steps=fewer,
    )


def _first_epoch(dataset: Dataset, config: RunConfig) -> Iterator[Update]:
    return Batcher(dataset, config.batching, config.training.seed).epoch(0)


def _fewer_steps(config: RunConfig, updates: int) -> int:
    """Steps that make enough epochs, at least twice as many as those of the warmup."""
    return max(MANY_EPOCHS * updates, 2 * config.training.warmup_steps)


def _fitting_preset(kept: Survey, config: RunConfig, task: Task) -> str | None:
    """Preset for a corpus of this size; None if the settings fit it."""
    name = fitting_preset(int(kept.rows["target_length"].sum()), task)
    asked, fitting = config.batching.target_tokens, PRESETS[name].batching.target_tokens
    return name if asked > fitting else None


def _only_lengths(lengths: Integer[np.ndarray, " sentences"]) -> EncodedSide:
    """A side of such sentences without their ids, since batches are cut by length."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return EncodedSide(ids=np.empty(0, ID_TYPE), offsets=np.insert(ends, 0, 0))


def _refusals(name: str, split: SplitReport) -> Iterator[Advice]:
    invalid = split.source.invalid.count + split.target.invalid.count
    if invalid:
        yield Advice(
            problem=f"lines of the {name} corpus that are not UTF-8 text: {invalid:,}",
            remedy="convert the files to UTF-8 and remove NUL bytes",
            is_refusal=True,
        )
    for files in split.unequal:
        yield Advice(
            problem=f"{files.source} has {counted(files.source_lines, 'line')}, but "
            f"{files.target} has {files.target_lines:,}",
            remedy="find where a line was lost or broken: all after it are mismatched",
            is_refusal=True,
        )
    if not split.pairs.kept:
        yield Advice(
            problem=f"pairs of the {name} corpus to keep: 0 of {split.pairs.total:,}",
            remedy="give files with text on both sides, or raise batching.max_length",
            is_refusal=True,
        )


def _overlap_advice(overlap: Overlap) -> Iterator[Advice]:
    if overlap.sources.count:
        yield Advice(
            problem=f"dev sources that stand in training: {overlap.sources.count:,} "
            f"({overlap.pairs.count:,} with the same target)",
            remedy="take them out of the training files, or dev scores are too good",
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
    """Advice on missing or unusual spaces, and on characters outside the vocabulary."""
    letters = side.characters / max(side.words, 1)
    is_unspaced = side.unspaced_letters > side.characters / 2
    if not is_unspaced and letters > LONG_WORD:
        yield Advice(
            problem=f"the training {name} has a space only every {letters:.0f} "
            "characters, so that a piece of the vocabulary may be a whole clause",
            remedy="restore the spaces between its words",
        )
    if is_unspaced and letters < SHORT_WORD:
        yield Advice(
            problem=f"the training {name} has spaces between the words of a script "
            f"that writes none (one every {letters:.1f} characters)",
            remedy="remove them, unless translations should have them too",
        )
    if side.byte_tokens > MANY_BYTES * side.tokens:
        yield Advice(
            problem=f"{side.byte_tokens / side.tokens:.1%} of the training {name}'s "
            "tokens are bytes of characters that are not in the vocabulary",
            remedy="raise tokenizer.vocab_size",
        )


def _pair_advice(pairs: PairReport) -> Iterator[Advice]:
    empty = sum(
        finding.count
        for finding in (pairs.empty_source, pairs.empty_target, pairs.empty_both)
    )
    odd = (
        (empty, "with an empty side", "see that the files belong together"),
        (pairs.overlong.count, "too long", "split them or raise batching.max_length"),
        (pairs.identical.count, "of twice the same text", "take them out"),
        (pairs.lopsided.count, "of very unlike length", "see that the lines match"),
        (pairs.repeated.count, "that repeat an earlier one", "keep one of each"),
    )
    for number, description, remedy in odd:
        if number and number >= NOTEWORTHY * pairs.total:
            share = number / pairs.total
            yield Advice(
                problem=f"pairs {description}: {number:,} ({share:.1%})", remedy=remedy
            )


def _training_advice(
    report: CorpusReport | TreebankReport, epoch: EpochReport
) -> Iterator[Advice]:
    if epoch.epochs < 1:
        yield Advice(
            problem=f"{counted(epoch.steps, 'step')} read only {epoch.epochs:.0%} of "
            "the corpus",
            remedy=f"see all of it once by --set training.steps={epoch.updates}",
        )
    if epoch.steps > epoch.fewer_steps:
        is_other = epoch.fitting_preset is not None
        other = f"choose {epoch.proposal}, which fits it, or " if is_other else ""
        yield Advice(
            problem=f"{counted(epoch.steps, 'step')} make {epoch.epochs:,.0f} epochs "
            "of the corpus",
            remedy=f"{other}take fewer steps: --set training.steps="
            f"{epoch.fewer_steps} makes "
            + counted(round(epoch.fewer_steps / epoch.updates), "epoch"),
        )
    if epoch.padding > MUCH_PADDING:
        yield Advice(
            problem=f"padding takes {epoch.padding:.0%} of the positions computed",
            remedy="lower batching.batch_tokens, so that lengths in a batch are alike",
        )
    if report.vocab_size < report.asked_vocab_size:
        yield Advice(
            problem=f"the corpus gives only {report.vocab_size:,} of the "
            f"{report.asked_vocab_size:,} pieces of tokenizer.vocab_size",
            remedy="nothing is lost, and the model has fewer parameters",
        )
