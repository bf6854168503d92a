"""Quickstart: train, search and score on the built-in corpus, in minutes.

`run_quickstart` translates (section 6.1), `run_parsing_quickstart` parses (section
6.3). The dev and test sentences have combinations of words that training never has.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transduce.data.corpus_files import CorpusFiles
from transduce.data.treebank import TreebankFiles, read_treebank
from transduce.decoding.parser import ParseScore, score_parses
from transduce.decoding.translator import load
from transduce.device import Hardware
from transduce.errors import CheckpointError, ConfigError
from transduce.experiments.pipeline import Consent, RunObserver, train
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import (
    PICTURE,
    RunFolder,
    require_replaceable_run,
)
from transduce.files import (
    LEFTOVERS,
    atomic_directory,
    folder_in_use,
    maker_of,
    require_new_folder,
)
from transduce.grammar.corpus import Grammar, Pair, held_out_trees, training_trees
from transduce.metrics.scores import BleuScore, choose_tokenization, corpus_bleu
from transduce.text.corpus import read_text, write_lines
from transduce.trees.trees import Tree

NUM_TRAINING, NUM_DEV, NUM_TEST = 30_000, 300, 500
"""Sentences for translation."""
NUM_TRAINING_TREES, NUM_DEV_TREES, NUM_TEST_TREES = 10_000, 100, 300
"""Trees for parsing."""
NUM_EXAMPLES = 5
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A test sentence with the model's translation and the reference."""

    source: str
    translation: str
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartResult:
    """Results of the translation quickstart."""

    picture: Path
    """Learning curve as PNG."""
    bleu: BleuScore
    """BLEU on the test sentences."""
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsingResult:
    """Results of the parsing quickstart."""

    picture: Path
    """Learning curve as PNG."""
    score: ParseScore
    """Bracket scores on the test sentences."""
    examples: tuple[Tree, ...]
    """Parses of the first test sentences."""


def run_quickstart(
    out: Path,
    pair: Pair,
    hardware: Hardware,
    observer: RunObserver,
    *,
    overwrite: bool = False,
) -> QuickstartResult:
    """Train on the built-in corpus, translate its test sentences and score them.

    Raises `ConfigError` if `out` is neither new nor empty, nor with `overwrite` an
    older quickstart, whose run stays until the new one begins to train.
    """
    require_new_quickstart(out, overwrite=overwrite)
    write_corpus(out / "corpus", pair, overwrite=overwrite)
    files = quickstart_files(out / "corpus", pair)
    consent = Consent(overwrites=overwrite)
    preset = PRESETS["quickstart"]
    train(files, preset, out / "run", hardware, observer, consent=consent)
    sources, references = (
        list(read_text([out / "corpus" / f"test.{language}"]))
        for language in pair.split("-")
    )
    translator = load(out / "run", device=hardware.device.type)
    language = translator.target_language
    tokenization = choose_tokenization("auto", language, references)
    translations = [t.text for t in translator.translate(sources)]
    examples = tuple(
        Example(source=source, translation=translation, reference=reference)
        for source, translation, reference in zip(
            sources[:NUM_EXAMPLES], translations, references, strict=False
        )
    )
    return QuickstartResult(
        picture=out / "run" / PICTURE,
        bleu=corpus_bleu(translations, references, tokenization=tokenization),
        examples=examples,
    )


def run_parsing_quickstart(
    out: Path, hardware: Hardware, observer: RunObserver, *, overwrite: bool = False
) -> ParsingResult:
    """Train on the built-in grammar's trees, parse its test sentences and score them.

    `out` and `overwrite` are as in `run_quickstart`.
    """
    require_new_quickstart(out, overwrite=overwrite)
    with atomic_directory(out / "corpus", "quickstart", overwrite=overwrite) as corpus:
        _write_trees(corpus)
    files = TreebankFiles(
        trees=(out / "corpus" / "train.trees",),
        dev_trees=(out / "corpus" / "dev.trees",),
    )
    preset = PRESETS["parsing-quickstart"]
    consent = Consent(overwrites=overwrite)
    train(files, preset, out / "run", hardware, observer, consent=consent)
    gold = read_treebank([out / "corpus" / "test.trees"])
    parser = load(out / "run", device=hardware.device.type).parser()
    parses = list(parser.parse_stream((tree.words for tree in gold), preset.search))
    return ParsingResult(
        picture=out / "run" / PICTURE,
        score=score_parses(gold, parses),
        examples=tuple(parse.tree for parse in parses[:NUM_EXAMPLES]),
    )


def write_corpus(folder: Path, pair: Pair, *, overwrite: bool = False) -> None:
    """Write training, dev and test sentences of a language pair into a new folder."""
    grammar = Grammar.built_in(pair)
    source, target = (f".{language}" for language in pair.split("-"))
    held_out = grammar.held_out_sentences(SEED)

    with atomic_directory(folder, "quickstart", overwrite=overwrite) as new:
        training = islice(grammar.training_sentences(SEED), NUM_TRAINING)
        for name, sentences in (
            ("train", training),
            ("dev", islice(held_out, NUM_DEV)),
            ("test", islice(held_out, NUM_TEST)),
        ):
            written = list(sentences)
            write_lines(new / (name + source), (s.source for s in written))
            write_lines(new / (name + target), (s.target for s in written))


def quickstart_files(folder: Path, pair: Pair) -> CorpusFiles:
    """Return the files of training and dev text that `write_corpus` writes."""
    source, target = (f".{language}" for language in pair.split("-"))
    return CorpusFiles(
        source=(folder / f"train{source}",),
        target=(folder / f"train{target}",),
        dev_source=(folder / f"dev{source}",),
        dev_target=(folder / f"dev{target}",),
    )


def _write_trees(folder: Path) -> None:
    held_out = held_out_trees(SEED)
    for name, trees in (
        ("train", islice(training_trees(SEED), NUM_TRAINING_TREES)),
        ("dev", islice(held_out, NUM_DEV_TREES)),
        ("test", islice(held_out, NUM_TEST_TREES)),
    ):
        write_lines(folder / f"{name}.trees", map(str, trees))


def require_new_quickstart(out: Path, *, overwrite: bool) -> None:
    """Raise `ConfigError` if the folder holds more than a quickstart to overwrite."""
    if not out.exists() or (out.is_dir() and not _entries(out)):
        return
    try:
        _require_quickstart(out)
    except ConfigError:
        if overwrite:
            raise
        raise folder_in_use(out) from None
    if not overwrite:
        raise folder_in_use(out, is_own=True)


def _require_quickstart(out: Path) -> None:
    """Raise `ConfigError` unless the path is a quickstart's folder."""
    corpus, run = out / "corpus", out / "run"
    if not out.is_dir():
        raise ConfigError(
            f"{out}: the output must be a folder, but is a file; choose another name."
        )
    if not _entries(out) <= {corpus, run}:
        raise ConfigError(
            f"{out}: only a quickstart can be overwritten by another, but the folder "
            "holds something else; choose another."
        )
    require_new_folder(corpus, overwrite=True, made_by="quickstart")
    if not run.exists():
        return
    if not _is_trained_on(run, corpus):
        raise ConfigError(
            f"{run}: only the run of a quickstart can be overwritten by another, but "
            f"this one was not trained on {corpus}; choose another folder, or remove "
            "the run yourself."
        )
    require_replaceable_run(run)


def _entries(out: Path) -> set[Path]:
    """Entries of a folder, except leftovers of interrupted writes."""
    return set(out.iterdir()) - set(out.glob(LEFTOVERS))


def _is_trained_on(run: Path, corpus: Path) -> bool:
    """Return whether a run's record names files of the corpus of a quickstart."""
    if maker_of(corpus) != "quickstart":
        return False
    try:
        files = RunFolder(run).files()
        names = files.get("source") or files.get("trees", [])
        return bool(names) and all(Path(n).parent.samefile(corpus) for n in names)
    except (CheckpointError, OSError, ValueError):
        return False
