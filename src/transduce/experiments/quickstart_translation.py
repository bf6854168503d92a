"""Section 6.1 on the sentences of the built-in grammar."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from transduce.data.corpus_files import CorpusFiles
from transduce.decoding.translator import load
from transduce.device import Hardware
from transduce.errors import ConfigError
from transduce.experiments.observation import RunObserver
from transduce.experiments.pipeline import train
from transduce.experiments.presets import PRESETS
from transduce.experiments.run_folder import PICTURE
from transduce.files import atomic_directory
from transduce.grammar.corpus import Grammar, Pair
from transduce.metrics.bleu import BleuScore, corpus_bleu
from transduce.metrics.tokenization import choose_tokenization
from transduce.text.corpus import read_text, write_lines

NUM_TRAINING, NUM_DEV, NUM_TEST = 30_000, 300, 500
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A test sentence with what was made of it."""

    source: str
    translation: str
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartResult:
    """What the quickstart shows."""

    picture: Path
    """The learning curve."""
    bleu: BleuScore
    """On sentences with combinations of words never seen in training."""
    examples: tuple[Example, ...]


def write_corpus(folder: Path, pair: Pair) -> CorpusFiles:
    """Write training, dev and test sentences of the built-in grammar of a pair.

    Dev and test hold combinations of words that the training sentences never have.
    """
    grammar = Grammar.built_in(pair)
    source, target = (f".{language}" for language in pair.split("-"))
    held_out = grammar.held_out_sentences(SEED)

    with atomic_directory(folder) as new:
        training = islice(grammar.training_sentences(SEED), NUM_TRAINING)
        for name, sentences in (
            ("train", training),
            ("dev", islice(held_out, NUM_DEV)),
            ("test", islice(held_out, NUM_TEST)),
        ):
            written = list(sentences)
            write_lines(new / (name + source), (s.source for s in written))
            write_lines(new / (name + target), (s.target for s in written))
    return CorpusFiles(
        source=(folder / f"train{source}",),
        target=(folder / f"train{target}",),
        dev_source=(folder / f"dev{source}",),
        dev_target=(folder / f"dev{target}",),
    )


def run_quickstart(
    out: Path, pair: Pair, hardware: Hardware, observer: RunObserver
) -> QuickstartResult:
    """Train on the built-in corpus, translate its test sentences and score them."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out}: the output folder must be new or empty, but is not; choose "
            "another by --out, or overwrite it with --force."
        )
    files = write_corpus(out / "corpus", pair)
    train(files, PRESETS["quickstart"], out / "run", hardware, observer)
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
            sources[:5], translations[:5], references[:5], strict=True
        )
    )
    return QuickstartResult(
        picture=out / "run" / PICTURE,
        bleu=corpus_bleu(translations, references, tokenization=tokenization),
        examples=examples,
    )
