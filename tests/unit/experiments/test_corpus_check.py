"""Reports on a corpus, compared with how training uses it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from transduce.data.batches import Batcher
from transduce.data.corpus_files import CorpusFiles
from transduce.data.corpus_mixture import CorpusConfig, StageConfig
from transduce.data.dataset import open_dataset
from transduce.data.prepared_corpus import prepare
from transduce.data.treebank import TreebankFiles
from transduce.errors import ConfigError, DataError
from transduce.experiments import corpus_check
from transduce.experiments.corpus_check import (
    REMEDIES,
    CorpusReport,
    EpochReport,
    _fitting_preset,
    advise,
    advise_on_treebank,
    check_corpus,
    check_prepared,
    check_treebank,
    require_fitting,
)
from transduce.experiments.corpus_survey import LOPSIDED_TOKENS, MARKS, NUM_EXAMPLES
from transduce.experiments.presets import PRESETS, RunConfig
from transduce.grammar.corpus import training_trees
from transduce.text import tokenizer as tokenizer_module
from transduce.text.vocabulary import PAD, TokenizerConfig

Lines = Sequence[bytes]
Check = Callable[..., CorpusReport]

TINY = PRESETS["tiny"]
GOOD = ([b"one", b"two three", b"four"], [b"eins", b"zwei drei", b"vier"])


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., CorpusFiles]:
    """Write the given lines to files named by their side."""

    def write(
        source: Lines, target: Lines, dev_source: Lines = (), dev_target: Lines = ()
    ) -> CorpusFiles:
        sides = {
            "source": source,
            "target": target,
            "dev_source": dev_source,
            "dev_target": dev_target,
        }
        for name, lines in sides.items():
            (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in lines))
        names = [
            "source",
            "target",
            *(["dev_source", "dev_target"] if dev_source else []),
        ]
        return CorpusFiles(**{name: (tmp_path / name,) for name in names})

    return write


@pytest.fixture
def check(files: Callable[..., CorpusFiles], monkeypatch: pytest.MonkeyPatch) -> Check:
    """Check a corpus of the given lines; places are bare file names."""

    def run(*sides: Lines, config: RunConfig = TINY) -> CorpusReport:
        corpus = files(*sides)
        monkeypatch.chdir(corpus.source[0].parent)
        return check_corpus(
            CorpusFiles(
                source=_bare(corpus.source),
                target=_bare(corpus.target),
                dev_source=_bare(corpus.dev_source),
                dev_target=_bare(corpus.dev_target),
            ),
            config,
        )

    return run


def _bare(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(Path(path.name) for path in paths)


def _problems(report: CorpusReport) -> str:
    return "\n".join(map(str, advise(report)))


def _at_most(config: RunConfig, max_length: int) -> RunConfig:
    return replace(config, batching=replace(config.batching, max_length=max_length))


def test_the_report_has_the_counts_of_a_prepared_corpus(corpus_files, tmp_path):
    files = CorpusFiles(source=(corpus_files[0],), target=(corpus_files[1],))
    config = _at_most(TINY, 5)
    report = check_corpus(files, config)
    prepared = prepare(files, config.tokenizer, config.batching.max_length, tmp_path)
    dataset = open_dataset(tmp_path / "corpus" / "training")
    assert report.vocab_size == prepared.vocab_size
    assert report.training.pairs.kept == prepared.training.kept
    assert report.training.pairs.overlong.count == prepared.training.overlong > 0
    assert report.training.source.tokens > dataset.source.offsets[-1]


@pytest.fixture
def mixture(tmp_path: Path) -> CorpusFiles:
    """Two corpora in different letters, of which the second has a tag."""
    corpora = []
    for name, letters, tag in (("a", "a b c d", None), ("b", "w x y z", "bt")):
        path = tmp_path / name
        path.write_text(f"{letters}\n" * 80)
        corpora.append(
            CorpusConfig(name=name, source=str(path), target=str(path), tag=tag)
        )
    return CorpusFiles.of(corpora)


def test_the_epochs_of_a_mixture_are_of_what_its_stages_draw(tmp_path):
    corpora = []
    for name, number in (("a", 100), ("b", 1_000)):
        path = tmp_path / name
        path.write_text("".join(f"{i} {name}\n" for i in range(number)))
        corpora.append(CorpusConfig(name=name, source=str(path), target=str(path)))
    files = CorpusFiles.of(corpora)
    training = replace(TINY.training, steps=400)
    batching = replace(TINY.batching, source_tokens=50, target_tokens=50)
    config = replace(TINY, training=training, batching=batching, corpora=tuple(corpora))

    def epoch_of(*stages: StageConfig) -> EpochReport:
        return check_corpus(files, replace(config, stages=stages)).epoch

    every, small = epoch_of(), epoch_of(StageConfig(weights={"a": 1}))
    assert every.updates == pytest.approx(11 * small.updates, rel=0.2)
    assert small.epochs == pytest.approx(400 / small.updates, rel=0.01)
    half = epoch_of(StageConfig(steps=200, weights={"a": 1}), StageConfig())
    assert half.epochs == pytest.approx((every.epochs + small.epochs) / 2, rel=0.01)
    (tmp_path / "run").mkdir()
    prepared = prepare(files, config.tokenizer, 100, tmp_path / "run")
    for stages in ((), (StageConfig(weights={"a": 1}),)):
        staged = replace(config, stages=stages)
        found = check_prepared(tmp_path / "run", prepared, staged, "translation").epoch
        assert found.updates == pytest.approx(epoch_of(*stages).updates, rel=0.1)


def test_the_tags_of_a_mixture_count_in_its_lengths(mixture, tmp_path):
    config = _at_most(TINY, 5)
    assert check_corpus(mixture, config).useless_corpora == ("b",)
    with pytest.raises(DataError, match="0 of 80 pairs kept"):
        prepare(mixture, config.tokenizer, 5, tmp_path)


def test_the_language_of_the_dev_corpus_counts_in_its_lengths(mixture, tmp_path):
    languages = ("de", "fr")
    corpora = [
        replace(corpus, tag=None, target_language=language)
        for corpus, language in zip(mixture.corpora, languages, strict=True)
    ]
    dev = (tmp_path / "dev.en", tmp_path / "dev.de")
    for path in dev:
        path.write_text("a b c d\n" * 5)
    files = replace(CorpusFiles.of(corpora), dev_source=dev[:1], dev_target=dev[1:])
    report = check_corpus(files, _at_most(TINY, 5))
    assert report.dev is not None
    assert report.dev.pairs.kept == 0
    assert check_corpus(files, _at_most(TINY, 6)).dev.pairs.kept == 5


def test_the_vocabulary_of_a_mixture_is_that_of_training(
    mixture, tmp_path, monkeypatch
):
    monkeypatch.setattr(tokenizer_module, "ALPHABET_CHARACTERS", 100)
    report = check_corpus(mixture, TINY)
    prepared = prepare(mixture, TINY.tokenizer, TINY.batching.max_length, tmp_path)
    assert report.vocab_size == prepared.vocab_size
    assert report.training.source.byte_tokens == 0


def test_the_epoch_is_the_one_that_training_begins_with(corpus_files, tmp_path):
    files = CorpusFiles(source=(corpus_files[0],), target=(corpus_files[1],))
    batching = replace(
        TINY.batching, source_tokens=60, target_tokens=60, batch_tokens=40
    )
    config = replace(TINY, batching=batching)
    epoch = check_corpus(files, config).epoch
    prepare(files, config.tokenizer, config.batching.max_length, tmp_path)
    dataset = open_dataset(tmp_path / "corpus" / "training")
    batcher = Batcher(dataset, batching, config.training.seed)
    updates = list(batcher.epoch(0))
    batches = [
        batcher.dataset.load(batch) for update in updates for batch in update.batches
    ]
    sides = [side for batch in batches for side in (batch.source, batch.target_in)]
    is_padding = [(side == PAD).sum().item() for side in sides]
    assert epoch is not None
    assert epoch.updates == len(updates) > 1
    assert epoch.epochs == config.training.steps / len(updates)
    assert epoch.padding == pytest.approx(
        sum(is_padding) / sum(side.numel() for side in sides)
    )


REFUSED = {
    "invalid UTF-8": ([b"one", b"caf\xe9"], [b"eins", b"zwei"]),
    "a NUL byte": ([b"one", b"two"], [b"eins", b"z\0wei"]),
    "a shorter source": ([b"one"], [b"eins", b"zwei"]),
    "a shorter target": ([b"one", b"two"], [b"eins"]),
    "no line": ([], []),
    "nothing but space": ([b" ", b""], [b"", b"\xe2\x80\xa8"]),
    "nothing short enough": ([b"word " * 300], [b"wort"]),
    "an empty dev side": (*GOOD, [b"one"], [b" "]),
    "an invalid dev line": (*GOOD, [b"one\xff"], [b"eins"]),
}
ACCEPTED = {
    "sound lines": GOOD,
    "an empty line among others": ([*GOOD[0], b""], [*GOOD[1], b"x"]),
    "a dev corpus": (*GOOD, [b"one"], [b"eins"]),
    "odd characters": (["a\u2028b\ufffd\x07".encode(), b"two"], [b"c\rd", b"zwei"]),
}


@pytest.mark.parametrize("sides", REFUSED.values(), ids=REFUSED)
def test_a_file_that_training_refuses_is_refused(sides, check, files, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(DataError):
        prepare(files(*sides), TINY.tokenizer, 256, tmp_path / "run")
    assert advise(check(*sides))[0].is_refusal


@pytest.mark.parametrize("sides", ACCEPTED.values(), ids=ACCEPTED)
def test_a_file_that_training_accepts_is_accepted(sides, check, files, tmp_path):
    (tmp_path / "run").mkdir()
    prepare(files(*sides), TINY.tokenizer, 256, tmp_path / "run")
    assert not any(advice.is_refusal for advice in advise(check(*sides)))


def test_a_faulty_pair_is_left_out_and_reading_continues(check):
    report = check(
        [b"one", b"caf\xe9", b"two", b"a\0b", b"three four"],
        [b"eins", b"x", b"\xffzwei", b"y", b"drei vier"],
    )
    training = report.training
    assert training.source.invalid.count == 2
    assert training.source.invalid.examples == (
        "source:2 (byte 4 is 0xe9)",
        "source:4 (byte 2 is 0x00)",
    )
    assert training.target.invalid.examples == ("target:3 (byte 1 is 0xff)",)
    assert (training.pairs.total, training.pairs.invalid, training.pairs.kept) == (
        5,
        3,
        2,
    )
    assert (training.source.lines, training.source.words) == (5, 3)
    assert "not UTF-8 text, or above 1,000,000 bytes: 3; convert" in _problems(report)


def test_all_faults_are_counted_but_only_the_first_are_named(check):
    report = check([b"good", *[b"\xff"] * 20], [b"gut", *[b"x"] * 20])
    assert report.training.source.invalid.count == 20
    assert len(report.training.source.invalid.examples) == NUM_EXAMPLES


def test_unequal_files_are_named_with_both_counts(check):
    report = check([b"one", b"two", b"three"], [b"eins"])
    (unequal,) = report.training.unequal
    assert (unequal.source_lines, unequal.target_lines) == (3, 1)
    assert report.training.pairs.total == 1
    assert "source has 3 lines, but target has 1" in _problems(report)


def test_lines_are_numbered_in_each_file(tmp_path):
    paths = [tmp_path / name for name in ("a.en", "a.de", "b.en", "b.de")]
    contents = [b"one\ntwo\n", b"eins\n", b"three\n\n", b"drei\nvier\n"]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    a_en, a_de, b_en, b_de = paths
    report = check_corpus(CorpusFiles(source=(a_en, b_en), target=(a_de, b_de)), TINY)
    assert report.training.pairs.empty_source.examples == (f"{b_en}:2",)
    assert [files.source for files in report.training.unequal] == [a_en]
    assert report.training.source.lines == 4


def test_an_unequal_number_of_files_cannot_be_read(corpus_files):
    source, target = corpus_files
    files = CorpusFiles(source=(source, source), target=(target,))
    with pytest.raises(DataError, match="equally many files, but have 2 and 1"):
        check_corpus(files, TINY)


@pytest.mark.parametrize(
    ("source", "target", "side"),
    [
        (b"", b"eins", "empty_source"),
        (b"one", b" \t", "empty_target"),
        (b"", b"", "empty_both"),
        (b"one two three four five six seven", b"eins", "overlong"),
        (b"one", b"eins zwei drei vier sechs sieben acht", "overlong"),
    ],
)
def test_a_pair_that_is_left_out_is_named_under_its_reason(source, target, side, check):
    lines = [b"one"] * 30, [b"eins"] * 30
    config = _at_most(TINY, 5)
    report = check([*lines[0], source], [*lines[1], target], config=config)
    name = "target" if side == "empty_target" else "source"
    assert getattr(report.training.pairs, side).examples == (f"{name}:31",)
    assert report.training.pairs.kept == 30


@pytest.mark.parametrize(
    ("source_words", "target_words", "is_lopsided"),
    [(1, 1, False), (1, 8, False), (10, 20, False), (10, 30, False), (10, 31, True),
     (31, 10, True), (1, 1 + LOPSIDED_TOKENS, True), (1, LOPSIDED_TOKENS, False)],
)  # fmt: skip
def test_a_pair_is_lopsided_by_ratio_and_difference(
    source_words, target_words, is_lopsided, check
):
    # Each letter with its space has become one token.
    pair = [b" ".join([b"a"] * source_words)], [b" ".join([b"b"] * target_words)]
    filler = [b"a a"] * 40, [b"b b"] * 40
    report = check([*pair[0], *filler[0]], [*pair[1], *filler[1]])
    assert report.training.pairs.lopsided.count == is_lopsided
    assert report.training.pairs.kept == 41


def test_sides_are_compared_after_normalization(check):
    source = ["cafe\u0301  noir", "same", "other"]
    target = ["caf\u00e9 noir ", "same", "anders"]
    pairs = check(
        [s.encode() for s in source], [t.encode() for t in target]
    ).training.pairs
    assert pairs.identical.examples == ("source:1", "source:2")


def test_repeats_are_named_with_the_first_of_them(check):
    source = [b"one", b"two", b"one ", b"one", b"two", b"one"]
    target = [b"eins", b"zwei", b"eins", b"ein", b"zwei", b"eins"]
    pairs = check(source, target).training.pairs
    assert pairs.repeated.count == 3
    assert pairs.repeated.examples == (
        "source:3 repeats source:1",
        "source:5 repeats source:2",
        "source:6 repeats source:1",
    )
    assert pairs.ambiguous_sources == 1


def test_omitted_pairs_do_not_count_as_repeats(check):
    pairs = check([b"one", b"", b""], [b"eins", b"x", b"x"]).training.pairs
    assert (pairs.repeated.count, pairs.empty_source.count) == (0, 2)


def test_dev_pairs_and_dev_sources_in_training_are_distinguished(check):
    report = check(*GOOD, [b"new", b"four", b"one"], [b"neu", b"VIER", b"eins"])
    assert report.overlap is not None
    assert report.overlap.pairs.examples == ("dev_source:3 is source:1",)
    assert report.overlap.sources.examples == (
        "dev_source:2 is source:3",
        "dev_source:3 is source:1",
    )
    assert "dev sources that are also in training: 2 (1 with" in _problems(report)


def test_a_dev_corpus_of_its_own_has_no_overlap(check):
    report = check(*GOOD, [b"new"], [b"neu"])
    assert report.overlap is not None
    assert report.overlap.sources.count == report.overlap.pairs.count == 0
    assert "dev" not in _problems(report)


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("a\u2028b", "line separator", "U+2028"),
        ("a\u0085b", "line separator", "U+0085"),
        ("a\fb", "line separator", "U+000C"),
        ("a\rb", "line separator", "U+000D"),
        ("a\x07b", "control character", "U+0007"),
        ("a\x9fb", "control character", "U+009F"),
        ("a\ufffdb", "replacement character", "U+FFFD"),
        ("\u00c3\u00bcber", "doubly encoded letter", "U+00C3 U+00BC"),
    ],
    ids=ascii,
)
def test_suspicious_lines_are_counted_by_their_kind(text, kind, code, check):
    report = check([b"one", text.encode()], [b"eins", b"zwei"])
    met = {k: f for k, f in report.training.source.suspicious.items() if f.count}
    assert list(met) == [kind]
    assert met[kind].examples == (f"source:2 ({code})",)
    assert f"corpus with a {kind}: 1" in _problems(report)


def test_every_suspicious_mark_has_a_remedy():
    assert REMEDIES.keys() == MARKS.keys()


def _with_training(**changes: int) -> RunConfig:
    return replace(TINY, training=replace(TINY.training, **changes))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (_with_training(steps=5_000), "5,000 steps make 5,000 epochs of the corpus"),
        (_with_training(steps=5_000), "set `training.steps` to 100 for 100 epochs."),
        (TINY, "of the 400 pieces of `tokenizer.vocab_size`"),
    ],
)
def test_settings_that_do_not_fit_the_corpus_get_advice(config, problem, check):
    assert problem in _problems(check(*GOOD, config=config))


def test_too_few_steps_for_one_epoch_get_advice(check):
    batching = replace(
        TINY.batching, source_tokens=10, target_tokens=10, batch_tokens=10
    )
    config = replace(_with_training(steps=2), batching=batching)
    report = check([b"one"] * 80, [b"eins"] * 80, config=config)
    assert report.epoch is not None
    problems = _problems(report)
    assert f"2 steps read only {2 / report.epoch.updates:.0%} of" in problems
    remedy = f"set `training.steps` to {report.epoch.updates} to read all of it once."
    assert remedy in problems


def test_epochs_of_a_weighted_mixture_do_not_read_the_corpus_once(check):
    batching = replace(
        TINY.batching, source_tokens=10, target_tokens=10, batch_tokens=10
    )
    corpus = CorpusConfig(name="a", source="a.en", target="a.de")
    config = replace(_with_training(steps=2), batching=batching, corpora=(corpus,))
    for changed, is_read in (
        (config, True),
        (replace(config, corpora=(replace(corpus, weight=1),)), False),
        (replace(config, stages=(StageConfig(),)), False),
    ):
        problems = _problems(check([b"one"] * 80, [b"eins"] * 80, config=changed))
        assert ("read only" in problems) == is_read


def test_much_padding_gets_advice(check):
    source = [b"a"] * 20 + [b" ".join([b"a"] * 40)]
    batching = replace(TINY.batching, batch_tokens=5_000)
    report = check(source, [b"b"] * 21, config=replace(TINY, batching=batching))
    assert "padding takes" in _problems(report)


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ((b"", b"x"), "pairs with an empty side: 1 (10.0%)"),
        ((b"w " * 300, b"x"), "pairs too long: 1 (10.0%)"),
        ((b"same", b"same"), "pairs with the same text on both sides: 1 (10.0%)"),
        ((b"w " * 30, b"x"), "pairs of very different length: 1 (10.0%)"),
        ((b"a0", b"b0"), "pairs that repeat an earlier one: 1 (10.0%)"),
    ],
)
def test_many_unusual_pairs_get_advice(pair, problem, check):
    sides = [[f"{side}{n}".encode() for n in range(9)] for side in "ab"]
    assert problem in _problems(check([*sides[0], pair[0]], [*sides[1], pair[1]]))


def test_a_few_unusual_pairs_get_no_advice(check):
    odd = [(b"", b"x"), (b"same", b"same"), (b"a0", b"b0")]
    source = [*(f"a{n}".encode() for n in range(400)), *(pair[0] for pair in odd)]
    target = [*(f"b{n}".encode() for n in range(400)), *(pair[1] for pair in odd)]
    report = check(source, target)
    assert report.training.pairs.repeated.count == 1
    assert "pairs" not in _problems(report)


def test_advice_lists_refusals_first_and_settings_last(check):
    sides = ([b"one", b"\xff", "a\u2028".encode()], [b"eins", b"x", b"y"])
    advice = advise(check(*sides, [b"one"], [b"eins"]))
    told = [str(each).split()[0] for each in advice]
    assert advice[0].is_refusal
    assert [each.is_refusal for each in advice] == [True] + [False] * (len(advice) - 1)
    assert told[:3] == ["lines", "dev", "lines"]
    assert "vocab_size" in str(advice[-1])


def test_missing_spaces_between_words_are_reported(check):
    line = b"thecatsatonthematandthedogslept"
    report = check([line] * 3, [b"die Katze"] * 3)
    assert "the training source has a space only every 31 characters" in _problems(
        report
    )
    assert "the training target" not in _problems(report)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [("我们 喜欢 这 只 猫", True), ("我们喜欢这只猫", False), ("กินข้าว แล้วนอน", False)],
)
def test_spaces_in_a_script_without_spaces_are_reported(line, is_told, check):
    problems = _problems(check([b"a cat"] * 3, [line.encode()] * 3))
    assert ("has spaces between the words of a script" in problems) is is_told


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("Wald@@ lauf im Som@@ mer", True),
        ("W@@ al@@", True),
        ("▁Wald lauf ▁im ▁Sommer", True),
        ("an den Kanal @@wald und x@@y", False),
        ("ein Zeichen @@ allein", False),
        ("▁▂▃▄▅▆▇█", False),
    ],
)
def test_words_that_were_cut_into_sub_words_are_reported(line, is_told, check):
    report = check([b"a run"] * 3, [line.encode()] * 3)
    problem = "training target with words that another program has cut into sub-words"
    assert (problem in _problems(report)) is is_told
    places = ("target:1", "target:2", "target:3") if is_told else ()
    assert report.training.target.cut.examples == places


def test_a_few_marks_of_sub_words_are_no_sign_of_them(check):
    report = check([b"a run"] * 300, [b"ein@@ Lauf", *[b"ein Lauf"] * 299])
    assert report.training.target.cut.count == 1
    assert "sub-words" not in _problems(report)


def test_columns_in_one_file_are_reported(check, files, tmp_path):
    sides = [b"a run\tein Lauf"] * 3, [b"ein Lauf"] * 3
    problem = "100.0% of the training source's lines hold a tab"
    assert problem in _problems(check(*sides))
    written = files(*sides)
    (tmp_path / "run").mkdir()
    prepared = prepare(written, TINY.tokenizer, 256, tmp_path / "run")
    found = check_prepared(tmp_path / "run", prepared, TINY, "translation")
    assert problem in _problems(found)
    [advice] = [each for each in advise(found) if each.problem == problem]
    assert "two files, such as by cut -f1" in advice.remedy


def test_a_few_tabs_are_no_columns(check):
    report = check([b"a run"] * 300, [b"ein\tLauf", *[b"ein Lauf"] * 299])
    assert report.training.target.tabbed == pytest.approx(1 / 300)
    assert "hold a tab" not in _problems(report)


def test_a_vocabulary_too_small_for_the_characters_is_reported(check):
    han = [chr(0x4E00 + 9 * i) * 3 for i in range(300)]
    report = check([b"one"] * 300, [text.encode() for text in han])
    assert report.training.target.byte_tokens > 0
    assert "tokens are bytes of characters that are not in the" in _problems(report)
    assert "raise `tokenizer.vocab_size`" in _problems(report)


ODD = (
    [b"one", b"two", b"", b"same", b"one  two", b"one", b"w " * 300, b"w " * 30],
    [b"eins", "\ufffd\u2028".encode(), b"x", b"same", b"c", b"eins", b"y", b"z"],
)


@pytest.mark.parametrize(
    "sides",
    [GOOD, ODD, (*GOOD, *GOOD), (*ODD, *GOOD), (*GOOD, *ODD), (*ODD, *ODD)],
    ids=["sound", "odd", "dev", "odd, dev", "odd dev", "both odd"],
)
def test_a_prepared_corpus_gets_the_advice_of_its_files(
    sides: tuple[Lines, ...], files: Callable[..., CorpusFiles], tmp_path: Path
) -> None:
    written = files(*sides)
    expected = check_corpus(written, TINY)
    (tmp_path / "run").mkdir()
    prepared = prepare(written, TINY.tokenizer, 256, tmp_path / "run")
    found = check_prepared(tmp_path / "run", prepared, TINY, "translation")
    assert advise(found) == advise(expected)
    assert found.epoch == expected.epoch
    for split in ("training", "dev"):
        ours, theirs = getattr(found, split), getattr(expected, split)
        if theirs is not None:
            assert ours.pairs.kept == theirs.pairs.kept
            assert ours.pairs.repeated.count == theirs.pairs.repeated.count
            assert ours.pairs.ambiguous_sources == theirs.pairs.ambiguous_sources


def test_pairs_that_differ_in_unknown_words_are_no_copies(
    files: Callable[..., CorpusFiles], tmp_path: Path
) -> None:
    names = [f"name{letter}".encode() for letter in "abcdefghijklmnopqrst"]
    sources = [b"here is " + each for each in names] + [b"here it is"] * 2
    targets = [b"hier ist " + each for each in names] + [b"hier ist er"] * 2
    written = files(sources[10:], targets[10:], sources[:10], targets[:10])
    config = replace(TINY, tokenizer=TokenizerConfig(kind="word", vocab_size=12))
    (tmp_path / "run").mkdir()
    prepared = prepare(written, config.tokenizer, 256, tmp_path / "run")
    found = check_prepared(tmp_path / "run", prepared, config, "translation")
    expected = check_corpus(written, config)
    assert found.training.pairs.repeated.count == 1
    assert found.training.pairs.identical.count == 0
    assert found.overlap is not None
    assert found.overlap.sources.count == 0
    assert advise(found) == advise(expected)


def test_a_tag_before_sources_hides_no_overlap(
    files: Callable[..., CorpusFiles], tmp_path: Path
) -> None:
    written = files(*GOOD, GOOD[0][:2], GOOD[1][:2])
    corpora = [
        CorpusConfig(
            name="back",
            source=str(written.source[0]),
            target=str(written.target[0]),
            tag="bt",
        )
    ]
    mixture = CorpusFiles.of(corpora, written.dev_source, written.dev_target)
    config = replace(TINY, corpora=mixture.corpora)
    (tmp_path / "run").mkdir()
    prepared = prepare(mixture, config.tokenizer, 256, tmp_path / "run")
    found = check_prepared(tmp_path / "run", prepared, config, "translation")
    expected = check_corpus(mixture, config)
    assert found.overlap is not None
    assert expected.overlap is not None
    assert found.overlap.pairs.count == expected.overlap.pairs.count == 2
    assert advise(found) == advise(expected)


def test_a_shared_corpus_gets_advice_too(
    files: Callable[..., CorpusFiles], tmp_path: Path
) -> None:
    written = files(*ODD)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = prepare(written, TINY.tokenizer, 256, tmp_path / "one")
    shared = prepare(written, TINY.tokenizer, 256, tmp_path / "two", [tmp_path / "one"])
    assert shared.shared_with == tmp_path / "one"
    assert advise(
        check_prepared(tmp_path / "two", shared, TINY, "translation")
    ) == advise(check_prepared(tmp_path / "one", first, TINY, "translation"))


def test_settings_for_larger_corpora_are_refused_with_those_that_fit(
    check: Check,
) -> None:
    report = check(*GOOD, config=PRESETS["base"])
    with pytest.raises(ConfigError) as refused:
        require_fitting(report, "translation")
    assert str(refused.value) == (
        "A preset must be chosen for a corpus of 3 pairs; the preset multi30k with "
        "`training.steps` set to 3000 fits it: `transduce train --preset multi30k "
        "--set training.steps=3000`. (The paper's preset base would train 100,000 "
        "epochs; `transduce train --preset base --however-long` chooses it all the "
        "same.)"
    )
    training = replace(PRESETS["base"].training, steps=20)
    require_fitting(
        check(*GOOD, config=replace(PRESETS["base"], training=training)), "translation"
    )
    require_fitting(check(*GOOD, config=PRESETS["multi30k"]), "translation")


@pytest.mark.parametrize(
    ("preset", "remedy"),
    [
        (
            "base",
            "choose the preset multi30k with `training.steps` set to 3000, which "
            "fits it, or set `training.steps` to 8000 for 8,000 epochs.",
        ),
        (
            "multi30k",
            "; set `training.steps` to 3000 for 3,000 epochs.",
        ),
    ],
)
def test_the_fitting_preset_is_proposed_unless_it_is_used(
    preset: str, remedy: str, check: Check
) -> None:
    assert remedy in _problems(check(*GOOD, config=PRESETS[preset]))


@pytest.mark.parametrize(
    ("preset", "proposed"),
    [
        ("gnmt-en-de", "gnmt-multi30k"),
        ("gnmt-rl-en-de", "gnmt-rl-multi30k"),
        ("rnnsearch-multi30k", None),
        ("bytenet-en-de", "bytenet-multi30k"),
    ],
)
def test_the_proposed_preset_has_the_same_architecture(
    preset: str, proposed: str | None, check: Check
) -> None:
    epoch = check(*GOOD, config=PRESETS[preset]).epoch
    assert epoch is not None
    assert epoch.fitting_preset == proposed


@pytest.mark.parametrize("preset", ["moe-en-de", "bytenet-en-de"])
def test_no_preset_of_another_architecture_is_proposed(preset: str) -> None:
    rows = np.zeros(300_000, dtype=[("target_length", np.int64)])
    rows["target_length"] = 130 if preset == "bytenet-en-de" else 26
    config = PRESETS[preset]
    assert _fitting_preset(rows, config, "translation") is None
    small = preset.replace("en-de", "multi30k")
    assert _fitting_preset(rows[:100_000], config, "translation") == small


@pytest.mark.parametrize(("steps", "is_advised_on"), [(3_000, False), (3_001, True)])
def test_the_advised_steps_get_no_advice(
    steps: int, is_advised_on: bool, check: Check
) -> None:
    small = PRESETS["multi30k"]
    config = replace(small, training=replace(small.training, steps=steps))
    problems = _problems(check(*GOOD, config=config))
    assert ("set `training.steps` to 3000 " in problems) == is_advised_on


@pytest.fixture
def few_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let presets fit a tenth of the text that they are for."""
    monkeypatch.setattr(corpus_check, "MANY_EPOCHS", 1_000)


@pytest.mark.usefixtures("few_suffice")
def test_a_proposal_keeps_the_steps_of_a_preset_that_fits(
    check: Check,
) -> None:
    lines = [" ".join(f"{n}" for n in range(k, k + 99)).encode() for k in range(300)]
    epoch = check(lines, lines, config=PRESETS["base"]).epoch
    assert epoch is not None
    assert epoch.proposal == "the preset multi30k"


@pytest.mark.usefixtures("few_suffice")
def test_a_proposal_for_trees_counts_the_variants_of_the_preset(
    tmp_path: Path,
) -> None:
    treebank = tmp_path / "my.trees"
    trees = islice(training_trees(seed=1), 150)
    treebank.write_text("".join(f"{tree}\n" for tree in trees), encoding="utf-8")
    files = TreebankFiles(trees=(treebank,))

    fitting = check_treebank(files, PRESETS["parsing-small"])
    assert "set `training.steps` to " not in "".join(
        map(str, advise_on_treebank(fitting))
    )
    large = PRESETS["parsing-wsj"]
    for copies in (0, 2):
        augmentation = replace(large.treebank.augmentation, copies=copies)
        config = replace(
            large,
            treebank=replace(large.treebank, augmentation=augmentation),
            tokenizer=PRESETS["parsing-small"].tokenizer,
        )
        epoch = check_treebank(files, config).epoch
        assert epoch is not None
        assert epoch.proposal == "the preset parsing-small"
