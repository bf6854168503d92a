"""Options that several commands share."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from transduce.data.corpus_files import CorpusFiles, DevSet, require_files
from transduce.data.corpus_mixture import CorpusConfig
from transduce.data.treebank import TreebankFiles
from transduce.errors import ConfigError
from transduce.experiments.presets import FITTING, RunConfig, changed, preset
from transduce.experiments.run_corpus import RunFiles
from transduce.settings import apply_assignments, apply_file, apply_mapping
from transduce.text.corpus import read_lines

Assignments = Annotated[tuple[str, ...], Parameter(name="--set")]
"""Settings as key=value."""
LEFT_TO_DATA = ("model.vocab_size", "model.target_vocab_size")
"""Settings that the tokenizer and the trees determine, not the user."""
TREE_BEGINNING = re.compile(r"\s*\((?:\s*|[^\s()]+\s+)\([^\s()]+(?:\s|$)")
"""Pattern of the beginning of a tree, such as `(S (NP ` or `( (S `."""
LINES_LOOKED_AT = 20
"""Number of lines inspected; a file without text in them is left to its reader."""
REPLAY_SHARE = 0.2
"""Default share of the text of --replay in the training pairs."""
SETTING = re.compile("[a-z_]+=")
"""Beginning of a setting in the values of --corpus."""
MAX_SHOWN = 20
"""Maximum number of characters of a word in a message."""
NO_CORPUS = (
    "A corpus must be given: --source FILE... --target FILE..., or --trees FILE..., or "
    "--corpus NAME SOURCE TARGET."
)


def corpora_of(words: tuple[str, ...]) -> tuple[CorpusConfig, ...]:
    """Return the corpora that the values of all `--corpus` options describe.

    After name, source and target come, in any order, a weight and other settings of the
    corpus as `key=value`.
    """
    rest, corpora = list(words), list[CorpusConfig]()
    while rest:
        described, rest = rest[:3], rest[3:]
        if len(described) < 3 or "=" in described[0] or _is_number(described[0]):
            raise ConfigError(
                "--corpus must have NAME SOURCE TARGET [WEIGHT], and a name that is no "
                f"number, but one has only `{' '.join(described)}`."
            )
        given: dict[str, Any] = dict(
            zip(("name", "source", "target"), described, strict=True)
        )
        while rest and (_is_number(rest[0]) or SETTING.match(rest[0])):
            _add_setting(given, rest.pop(0))
        mixture = apply_mapping(RunConfig(), {"corpora": [given]}, "--corpus: ")
        corpora += mixture.corpora
    return tuple(corpora)


def _add_setting(corpus: dict[str, Any], word: str) -> None:
    """Add a word such as `tag=bt`, or a weight, to the settings of a corpus."""
    key, value = word.split("=", 1) if "=" in word else ("weight", word)
    if key in corpus:
        number = "" if "=" in word else "; no number can be a corpus's name"
        raise ConfigError(
            f"--corpus {corpus['name']}: `{key}` must be given once, but `{word}` "
            f"gives it again{number}."
        )
    is_weight = key == "weight" and _is_number(value)
    corpus[key] = float(value) if is_weight else value


def dev_sets_of(words: tuple[str, ...]) -> tuple[DevSet, ...]:
    """Return the dev sets that the values of all `--dev` options describe.

    Raises `ConfigError` if one is not a name and two files of text.
    """
    if len(words) % 3:
        raise ConfigError(
            "--dev must have NAME SOURCE TARGET, but one has only "
            f"`{' '.join(words[-(len(words) % 3) :])}`."
        )
    triples = zip(words[::3], words[1::3], words[2::3], strict=True)
    sets = tuple(
        DevSet(name=name, source=Path(source), target=Path(target))
        for name, source, target in triples
    )
    for each in sets:
        require_files((each.source, each.target))
        refuse_trees(each.source, each.target, option="--dev-trees")
    return sets


def with_dev_sets(files: RunFiles | None, sets: tuple[DevSet, ...]) -> RunFiles | None:
    """Return the files of a run with further dev sets.

    Raises `ConfigError` if there is no text to train on beside them.
    """
    if not sets:
        return files
    if isinstance(files, TreebankFiles):
        raise ConfigError(
            "--dev names text and its translation, but the corpus has trees; give "
            "--dev-trees in its place."
        )
    if files is None:
        raise ConfigError(
            "--dev needs text to train on; a resumed run has the dev sets that it was "
            "started with, so leave it out."
        )
    return files.with_dev_sets(sets)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def replayed(
    files: RunFiles | None, replay: tuple[Path, Path] | None, share: float | None
) -> tuple[CorpusConfig, ...]:
    """Return the corpora of a run that repeats earlier text beside its own; or none.

    Raises `ConfigError` if the share is impossible, or either text is missing.
    """
    if replay is None:
        if share is not None:
            raise ConfigError(
                "--replay-share needs the text of which it is the share; name it by "
                "--replay SOURCE TARGET."
            )
        return ()
    share = REPLAY_SHARE if share is None else share
    if not 0 < share < 1:
        raise ConfigError(
            f"--replay-share must be above 0 and below 1, but is {share:g}."
        )
    if not isinstance(files, CorpusFiles) or not files.source:
        raise ConfigError(
            "--replay adds general text to that of --source and --target, but these "
            "are missing; add them, or give all by --corpus with weights."
        )
    source, target = replay
    return (
        CorpusConfig(
            name="text",
            source=tuple(map(str, files.source)),
            target=tuple(map(str, files.target)),
            weight=1 - share,
        ),
        CorpusConfig(
            name="replay", source=str(source), target=str(target), weight=share
        ),
    )


def with_corpora(
    files: RunFiles | None, corpora: tuple[CorpusConfig, ...]
) -> RunFiles | None:
    """Return the files of a run with those of a mixture, if there is one.

    Raises `ConfigError` if text or trees are given beside a mixture.
    """
    if not corpora:
        return files
    if isinstance(files, TreebankFiles) or (files is not None and files.source):
        raise ConfigError(
            "Either a mixture of corpora (--corpus, or `corpora` in --config) or one "
            "corpus must be given, but both are; leave one out."
        )
    dev_source, dev_target = (files.dev_source, files.dev_target) if files else ((), ())
    mixture = CorpusFiles.of(corpora, dev_source, dev_target)
    return text_files(mixture.source, mixture.target, dev_source, dev_target, corpora)


def run_config(
    name: str, config_file: Path | None, assignments: tuple[str, ...]
) -> RunConfig:
    """Return a preset, changed by a file and then by single settings."""
    return changed_by_options(preset(name), config_file, assignments)


def changed_by_options(
    config: RunConfig, config_file: Path | None, assignments: tuple[str, ...]
) -> RunConfig:
    """Return settings, changed by a file and then by assignments."""

    def change(config: RunConfig) -> RunConfig:
        if config_file is not None:
            config = apply_file(config, config_file)
        return apply_assignments(config, assignments, "--set: ")

    return changed(config, change)


def require_distinct(option: str, values: Sequence[object]) -> None:
    """Raise `ConfigError` if an option, or an argument, has the same value twice."""
    for value, count in Counter(values).items():
        if count > 1:
            words = value if isinstance(value, tuple) else (value,)
            raise ConfigError(
                f"{option} must have no value twice, but "
                f"{' '.join(map(str, words))} is given more than once; leave out the "
                "others."
            )


def require_both(
    source: tuple[Path, ...], target: tuple[Path, ...], part: str = ""
) -> None:
    """Raise `ConfigError` if only one side of a corpus is given.

    Its options are --source and --target, or those with the prefix of a part, "dev-".
    """
    if bool(source) != bool(target):
        missing = "target" if source else "source"
        raise ConfigError(
            "Both sides of a corpus must be given, but only "
            f"{(source or target)[0]} is; add --{part}{missing}."
        )


def text_files(
    source: tuple[Path, ...],
    target: tuple[Path, ...],
    dev_source: tuple[Path, ...],
    dev_target: tuple[Path, ...],
    corpora: tuple[CorpusConfig, ...] = (),
) -> CorpusFiles:
    """Return the text files of a run; `ConfigError` if a side is missing."""
    require_both(source, target)
    require_both(dev_source, dev_target, "dev-")
    require_files((*source, *target, *dev_source, *dev_target))
    refuse_trees(*source, *target)
    refuse_trees(*dev_source, *dev_target, option="--dev-trees")
    return CorpusFiles(
        source=source,
        target=target,
        dev_source=dev_source,
        dev_target=dev_target,
        corpora=corpora,
    )


def refuse_trees(*paths: Path, option: str = "--trees") -> None:
    """Raise `ConfigError` if a text file begins with a tree in brackets."""
    for path in paths:
        if TREE_BEGINNING.match(_beginning(path)):
            raise ConfigError(
                f"{path}: text must be sentences, but these are trees in brackets; "
                f"give them by {option}, in place of text, to train a parser (--preset "
                f"{FITTING['parsing'][1]})."
            )


def _refuse_text(*paths: Path) -> None:
    """Raise `ConfigError` if a treebank begins with anything but a bracket."""
    for path in paths:
        if (words := _beginning(path).split()) and not words[0].startswith("("):
            raise ConfigError(
                f"{path}: a treebank must begin with `(`, but begins with "
                f"`{words[0][:MAX_SHOWN]}`; remove lines that are no trees, or give "
                "text and its translation by --source and --target (--preset "
                f"{FITTING['translation'][1]})."
            )


def _beginning(path: Path) -> str:
    """Return the first lines of a file; empty if it cannot be inspected."""
    if not path.is_file():  # a pipe can be read only once
        return ""
    lines = islice(read_lines(path), LINES_LOOKED_AT)
    try:
        return "\n".join(line.content.decode() for line in lines)
    except UnicodeDecodeError:  # reading it will report line and byte
        return ""


def run_files(text: CorpusFiles, treebanks: TreebankFiles) -> RunFiles | None:
    """Return the given files of text or trees, or None."""
    require_files((*treebanks.trees, *treebanks.dev_trees))
    if text.source or text.dev_source:
        if treebanks.trees or treebanks.dev_trees:
            raise ConfigError(
                "Either text or trees must be given, but both are; leave out --trees "
                "and --dev-trees, or the others."
            )
        return text
    if treebanks.dev_trees and not treebanks.trees:
        raise ConfigError(
            "Trees to train on must be given, but only --dev-trees are; add --trees."
        )
    _refuse_text(*treebanks.trees, *treebanks.dev_trees)
    return treebanks if treebanks.trees else None


def required_files(
    text: CorpusFiles, treebanks: TreebankFiles, corpora: tuple[CorpusConfig, ...]
) -> RunFiles:
    """Return the given files, or those of corpora; `ConfigError` if there are none."""
    files = with_corpora(run_files(text, treebanks), corpora)
    if files is None:
        raise ConfigError(NO_CORPUS)
    return files
