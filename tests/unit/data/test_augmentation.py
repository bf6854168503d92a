"""Parts of a corpus are changed as the seed determines, and nothing is lost."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from transduce import processes
from transduce.data import augmentation, batches
from transduce.data.augmentation import (
    Augmentation,
    AugmentedPart,
    PairAugmenter,
    largest_length,
    require_suitable,
)
from transduce.data.batches import Batcher, BatchingConfig
from transduce.data.corpus_mixture import CorpusConfig, CorpusMixture, StageConfig
from transduce.data.dataset import Dataset, EncodedSide
from transduce.errors import ConfigError
from transduce.grammar.corpus import Grammar
from transduce.text.corpus import SentencePair
from transduce.text.languages import LanguagesConfig
from transduce.text.pair_changes import TextAugmentationConfig
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.tokenizer import SubwordTokenizer, Tokenizer, learn_tokenizer
from transduce.text.vocabulary import SPECIAL_PIECES, TokenizerConfig

NUM_PAIRS = 1_000
SEED = (1, 0, 0)
BATCHING = BatchingConfig(
    source_tokens=500, target_tokens=500, batch_tokens=200, max_length=100
)
ALL = TextAugmentationConfig(
    upper=0.1, title=0.1, lower=0.1, typos=0.2, no_end=0.2, joined=0.2,
    subword_dropout=0.1,
)  # fmt: skip


@pytest.fixture(scope="module")
def pairs() -> list[SentencePair]:
    sentences = Grammar.built_in().training_sentences(seed=5)
    return [
        SentencePair(source=each.source, target=each.target)
        for each in islice(sentences, NUM_PAIRS)
    ]


@pytest.fixture(scope="module")
def tokenizer(pairs: list[SentencePair]) -> Tokenizer:
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    return learn_tokenizer(texts, TokenizerConfig(vocab_size=900))


@pytest.fixture(scope="module")
def part(pairs: list[SentencePair], tokenizer: Tokenizer) -> Dataset:
    return encoded(pairs, tokenizer)


def encoded(pairs: list[SentencePair], tokenizer: Tokenizer) -> Dataset:
    return Dataset(
        source=EncodedSide.of(
            tokenizer.encode_sources([pair.source for pair in pairs])
        ),
        target=EncodedSide.of(
            tokenizer.encode_targets([pair.target for pair in pairs])
        ),
    )


def augmenter(
    config: TextAugmentationConfig, tokenizer: Tokenizer, max_length: int = 100
) -> PairAugmenter:
    return PairAugmenter(config, tokenizer, LanguagesConfig(), max_length)


def texts(dataset: Dataset, tokenizer: Tokenizer) -> list[SentencePair]:
    return [
        SentencePair(
            source=tokenizer.decode(dataset.source[i]),
            target=tokenizer.decode(dataset.target[i]),
        )
        for i in range(len(dataset))
    ]


def assert_equal(first: Dataset, second: Dataset) -> None:
    for one, other in ((first.source, second.source), (first.target, second.target)):
        assert np.array_equal(one.offsets, other.offsets)
        assert np.array_equal(one.ids, other.ids)


def is_upper(pair: SentencePair, before: SentencePair) -> bool:
    return pair.source == before.source.upper() and pair.source != before.source


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("name", ["upper", "title", "lower", "typos", "no_end"])
def test_a_change_is_made_in_its_share_of_the_pairs(
    name, share, part, pairs, tokenizer
):
    changed = augmenter(TextAugmentationConfig(**{name: share}), tokenizer)(part, SEED)
    assert len(changed.pairs) == NUM_PAIRS
    found = texts(changed.pairs, tokenizer)
    number = sum(
        new.source != old.source for new, old in zip(found, pairs, strict=True)
    )
    # All of these sentences change, but for a few in lower case, or without a mark.
    deviation = 4 * (NUM_PAIRS * share * (1 - share)) ** 0.5
    assert number == pytest.approx(NUM_PAIRS * share, abs=deviation)
    both = sum(
        (new.source != old.source) == (new.target != old.target)
        for new, old in zip(found, pairs, strict=True)
    )
    assert both == (NUM_PAIRS - number if name == "typos" else NUM_PAIRS)


def test_joined_pairs_take_the_place_of_the_first(part, pairs, tokenizer):
    config = TextAugmentationConfig(joined=0.4)
    changed = augmenter(config, tokenizer)(part, SEED)
    number = NUM_PAIRS - len(changed.pairs)
    assert number == pytest.approx(0.2 * NUM_PAIRS, abs=30)
    sources = {pair.source for pair in pairs}
    for i, new in zip(changed.numbers, texts(changed.pairs, tokenizer), strict=True):
        old = pairs[i]
        if new != old:
            assert new.source.startswith(f"{old.source} ")
            assert new.target.startswith(f"{old.target} ")
            assert new.source.removeprefix(f"{old.source} ") in sources
    whole = sum(len(new.source.split()) for new in texts(changed.pairs, tokenizer))
    assert whole == sum(len(pair.source.split()) for pair in pairs)


def test_pairs_without_a_change_keep_their_ids(part, pairs, tokenizer):
    changed = augmenter(TextAugmentationConfig(upper=0.3), tokenizer)(part, SEED)
    for i, (new, old) in enumerate(
        zip(texts(changed.pairs, tokenizer), pairs, strict=True)
    ):
        if new == old:
            assert np.array_equal(changed.pairs.source[i], part.source[i])
            assert np.array_equal(changed.pairs.target[i], part.target[i])
        else:
            assert is_upper(new, old)
            assert changed.pairs.source[i].tolist() == tokenizer.encode(new.source)


def test_the_seed_alone_determines_the_changes(part, tokenizer):
    part = part.picked(np.arange(200))
    first = augmenter(ALL, tokenizer)
    expected = first(part, SEED)
    first(part, (1, 0, 1))
    assert_equal(first(part, SEED).pairs, expected.pairs)
    assert_equal(augmenter(ALL, tokenizer)(part, SEED).pairs, expected.pairs)
    for other in ((2, 0, 0), (1, 1, 0), (1, 0, 1), (1, 0)):
        ids = first(part, other).pairs.source.ids
        assert not np.array_equal(ids, expected.pairs.source.ids)


def test_targets_are_sampled_from_the_pieces_of_targets():
    """The union of two vocabularies has pieces that no target may have."""
    model = UnigramModel(
        pieces=tuple((piece, -1.0) for piece in ("\u2581", "a", "b", "\u2581ab", "ab")),
        character_map=b"",
        adds_space=True,
        removes_spaces=True,
    )
    targets = (*SPECIAL_PIECES, "<unk>", "\u2581", "a", "b", "\u2581ab")
    tokenizer = SentencePieceTokenizer(
        vocabulary=(*targets, "ab"),
        source=model,
        target=model,
        target_vocab_size=len(targets),
    )
    pairs = [SentencePair(source="ab ab", target="ab ab")] * 200
    config = TextAugmentationConfig(subword_alpha=0.2)
    changed = augmenter(config, tokenizer)(encoded(pairs, tokenizer), SEED).pairs
    assert set(changed.source.ids.tolist()) == {4, 5, 6, 7, 8}
    assert set(changed.target.ids.tolist()) == {4, 5, 6, 7}
    assert {pair.target for pair in texts(changed, tokenizer)} == {"ab ab"}


@pytest.mark.parametrize("sides", ["both", "source", "target"])
def test_only_the_chosen_sides_are_sampled(sides, part, tokenizer):
    config = TextAugmentationConfig(subword_dropout=0.5, subword_sides=sides)
    changed = augmenter(config, tokenizer)(part, SEED).pairs
    same = [
        np.array_equal(new.ids, old.ids)
        for new, old in (
            (changed.source, part.source),
            (changed.target, part.target),
        )
    ]
    assert same == [sides == "target", sides == "source"]
    assert texts(changed, tokenizer) == texts(part, tokenizer)


@pytest.mark.parametrize(
    "settings", [{"subword_dropout": 1.0}, {"upper": 1.0}, {"joined": 1.0}]
)
def test_pairs_that_would_be_too_long_stay_as_they_are(
    settings, part, pairs, tokenizer
):
    most = largest_length(part, 10**6) // 4
    changed = augmenter(TextAugmentationConfig(**settings), tokenizer, most)(part, SEED)
    for side, before in (
        (changed.pairs.source, part.source),
        (changed.pairs.target, part.target),
    ):
        assert np.diff(side.offsets).max() + 1 <= most
        longest = int(np.diff(before.offsets).argmax())
        ids = [side[i].tolist() for i in range(len(changed.pairs))]
        assert before[longest].tolist() in ids


def test_changed_sentences_are_at_most_four_times_as_long_as_the_longest(make_dataset):
    dataset = make_dataset([([5] * 9, [5] * 3), ([5], [5] * 4)])
    assert largest_length(dataset, 256) == 40
    assert largest_length(dataset, 15) == 15


def test_pairs_whose_text_has_other_ids_keep_them(tokenizer, make_dataset):
    usual = tokenizer.encode("the dog runs.")
    letters = [*map(tokenizer.pieces(range(900)).index, " the")]
    dataset = make_dataset([(letters, usual), (usual, letters)])
    config = TextAugmentationConfig(upper=1.0)
    assert tokenizer.encode(tokenizer.decode(letters)) != letters
    assert_equal(augmenter(config, tokenizer)(dataset, SEED).pairs, dataset)


def imported() -> SentencePieceTokenizer:
    """Tokenizer with tags that are tokens of their own."""
    letters = [("\u2581", -3.0), *((letter, -4.0) for letter in "abcdABCD.")]
    pieces = [*letters, ("\u2581ab", -2.0), ("cd", -2.0), ("\u2581abcd", -5.0)]
    model = UnigramModel(
        pieces=tuple(pieces), character_map=b"", adds_space=True, removes_spaces=True
    )
    tags = ("<bt>", ">>de<<", ">>fr<<")
    vocabulary = (*SPECIAL_PIECES, "<unk>", *tags, *(piece for piece, _ in pieces))
    return SentencePieceTokenizer(vocabulary=vocabulary, source=model, target=model)


def learned_with_tags() -> SubwordTokenizer:
    texts = ["ab abcd cd. AB ABCD CD. ac bd dc"] * 3
    return learn_tokenizer(
        texts, TokenizerConfig(vocab_size=320), tags=["<bt>", ">>de<<", ">>fr<<"]
    )


@pytest.mark.parametrize(
    ("make", "sampling"),
    [(imported, "subword_alpha"), (learned_with_tags, "subword_dropout")],
)
def test_tags_stay_before_changed_sources(make, sampling, make_dataset):
    tokenizer = make()
    back, german, french = (
        tokenizer.tag_id(tag) for tag in ("<bt>", ">>de<<", ">>fr<<")
    )
    text = tokenizer.encode_sources(["ab abcd cd."])[0]
    tags = [(back, german), (german,), (), (french,)]
    dataset = make_dataset([([*tags[i % 4], *text], text) for i in range(400)])
    config = TextAugmentationConfig(
        upper=0.3, typos=0.3, joined=0.5, no_end=0.2, **{sampling: 0.3}
    )
    changed = augmenter(config, tokenizer)(dataset, SEED)
    assert len(changed.pairs) < 330
    for i, number in enumerate(changed.numbers.tolist()):
        source = changed.pairs.source[i].tolist()
        before = list(tags[number % 4])
        assert source[: len(before)] == before
        assert not {back, german, french} & set(source[len(before) :])
        assert "unk" not in tokenizer.decode(source)


def test_a_target_changes_its_case_by_the_rules_of_its_own_language(make_dataset):
    lines = ["it is IT IS İ I ı"] * 3
    config = TokenizerConfig(vocab_size=300)
    tokenizer = learn_tokenizer(lines, config, tags=[">>tr<<", ">>de<<"])
    turkish, german = map(tokenizer.tag_id, (">>tr<<", ">>de<<"))
    [text] = tokenizer.encode_sources(["it is"])
    tags = [(turkish,), (german,), ()]
    dataset = make_dataset([([*each, *text], text) for each in tags])
    languages = LanguagesConfig(source="en", target="tr")
    augment = PairAugmenter(
        TextAugmentationConfig(upper=1.0), tokenizer, languages, max_length=100
    )
    changed = texts(augment(dataset, SEED).pairs, tokenizer)
    assert [pair.target for pair in changed] == ["İT İS", "IT IS", "İT İS"]
    assert {pair.source.split(maxsplit=1)[-1] for pair in changed[:2]} == {"IT IS"}


def test_unknown_words_of_an_imported_tokenizer_keep_a_pair_as_it_is(make_dataset):
    tokenizer = imported()
    [known, unknown] = tokenizer.encode_sources(["ab cd.", "ab xyz cd."])
    dataset = make_dataset([(unknown, known), (known, known), (known, unknown)])
    changed = augmenter(TextAugmentationConfig(upper=1.0), tokenizer)(dataset, SEED)
    assert [t.source for t in texts(changed.pairs, tokenizer)] == [
        "ab cd.", "AB CD.", "ab cd.",
    ]  # fmt: skip
    assert changed.pairs.source[0].tolist() == unknown


@pytest.mark.parametrize(
    ("settings", "kind", "message"),
    [
        (
            {"upper": 0.1},
            "word",
            "`augmentation.upper` needs a vocabulary of sub-words",
        ),
        ({"subword_dropout": 0.1}, "word", "needs a vocabulary of sub-words"),
        ({"subword_dropout": 0.1}, "word-piece", "drops merges of byte-pair encoding"),
        ({"subword_dropout": 0.1}, "character", "drops merges of byte-pair encoding"),
        ({"subword_alpha": 0.1}, "bpe", "samples from the unigram models of a Sent"),
    ],
)
def test_settings_that_a_tokenizer_does_not_allow_are_refused(settings, kind, message):
    config = TextAugmentationConfig(**settings)
    to_be_learned = TokenizerConfig(kind=kind, vocab_size=400)
    learned = learn_tokenizer(iter(["the dog runs"]), to_be_learned)
    for tokenizer in (to_be_learned, learned):
        with pytest.raises(ConfigError, match=message):
            require_suitable(config, tokenizer)


def test_dropout_of_merges_is_refused_for_an_imported_tokenizer():
    config = TextAugmentationConfig(subword_dropout=0.1)
    with pytest.raises(ConfigError, match="none; set `augmentation.subword_alpha`"):
        require_suitable(config, imported())
    require_suitable(TextAugmentationConfig(subword_alpha=0.1, upper=0.1), imported())


@pytest.fixture
def in_one_process(tokenizer: Tokenizer) -> Iterator[Augmentation]:
    with Augmentation(augmenter(ALL, tokenizer), 1, pytest.fail) as process:
        yield process


@pytest.fixture
def in_two_processes(tokenizer: Tokenizer) -> Iterator[Augmentation]:
    with Augmentation(augmenter(ALL, tokenizer), 2, pytest.fail) as processes:
        yield processes


def test_processes_make_the_same_changes(
    part, tokenizer, in_two_processes, monkeypatch
):
    monkeypatch.setattr(augmentation, "CHUNK_PAIRS", 300)
    expected = Augmentation(augmenter(ALL, tokenizer), 0, pytest.fail).augmented(
        part, SEED
    )
    in_two_processes.begin(part.picked(np.arange(9)), SEED)  # other pairs
    found = in_two_processes.augmented(part, SEED)
    assert_equal(found.pairs, expected.pairs)
    in_two_processes.begin(part, SEED)
    assert_equal(in_two_processes.augmented(part, SEED).pairs, expected.pairs)
    assert np.array_equal(found.numbers, expected.numbers)
    assert set(found.numbers) <= set(range(NUM_PAIRS))
    assert len(set(found.numbers)) == len(found.numbers) == len(found.pairs)


def test_another_process_takes_the_place_of_one_that_was_killed(
    part, tokenizer, started
):
    part, warnings = part.picked(np.arange(200)), list[str]()
    expected = Augmentation(augmenter(ALL, tokenizer), 0, pytest.fail)
    with Augmentation(augmenter(ALL, tokenizer), 1, warnings.append) as process:
        process.augmented(part, (1, 0, 1))
        (first,) = started
        first.kill()
        first.wait()
        for seed in (SEED, (1, 0, 2)):
            found = process.augmented(part, seed)
            assert_equal(found.pairs, expected.augmented(part, seed).pairs)
        assert len(started) == 2
    assert warnings == [
        "A process that augments was killed, as happens when memory runs out; "
        "another takes its place."
    ]


def test_training_augments_itself_if_a_process_cannot(part, tokenizer, monkeypatch):
    part, warnings = part.picked(np.arange(200)), list[str]()
    monkeypatch.setattr(processes, "__name__", "json")  # has nothing to import
    expected = Augmentation(augmenter(ALL, tokenizer), 0, pytest.fail)
    with Augmentation(augmenter(ALL, tokenizer), 1, warnings.append) as process:
        for seed in (SEED, (1, 0, 2)):
            found = process.augmented(part, seed)
            assert_equal(found.pairs, expected.augmented(part, seed).pairs)
    assert warnings == [
        "A process that augments ended with exit code 1; the training process does its "
        "work, which takes longer."
    ]


def test_processes_do_not_import_modules_in_the_current_folder(
    part, in_one_process, started, tmp_path, monkeypatch
):
    (tmp_path / "random.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    in_one_process.augmented(part.picked(np.arange(20)), SEED)  # without a warning
    assert len(started) == 1


def test_an_error_of_a_process_is_raised(in_one_process, started, make_dataset):
    with pytest.raises(IndexError):
        in_one_process.augmented(make_dataset([([10**6], [5])] * 20), SEED)
    in_one_process.close()
    assert [process.poll() for process in started] == [-signal.SIGKILL]


class Counting(Augmentation):
    """Augmentation in this process that counts the parts it is given."""

    def __init__(self, augment: PairAugmenter) -> None:
        super().__init__(augment, 0, pytest.fail)
        self.begun: list[tuple[int, ...]] = []
        self.next: Dataset | None = None
        self.made: list[tuple[int, ...]] = []

    def begin(self, part: Dataset, seed: tuple[int, ...]) -> None:
        self.begun.append(seed)
        self.next = part

    def augmented(self, part: Dataset, seed: tuple[int, ...]) -> AugmentedPart:
        self.made.append(seed)
        if self.begun:
            assert self.begun[-1] == seed
            assert self.next is not None
            assert_equal(part, self.next)
        return super().augmented(part, seed)


@pytest.fixture
def in_parts(monkeypatch) -> None:
    """Plan epochs in parts of 400 pairs: three of them."""
    monkeypatch.setattr(batches, "AUGMENTED_PAIRS", 400)


def ids_of(updates: list[batches.Update]) -> list[list[int]]:
    return [
        [*update.dataset.source[i].tolist(), -1, *update.dataset.target[i].tolist()]
        for update in updates
        for batch in update.batches
        for i in batch.tolist()
    ]


@pytest.mark.usefixtures("in_parts")
def test_an_augmented_epoch_has_every_pair_once(part, pairs, tokenizer):
    config = TextAugmentationConfig(upper=0.2, subword_dropout=0.2)
    made = Augmentation(augmenter(config, tokenizer), 0, pytest.fail)
    batching = replace(BATCHING, batch_tokens=50)
    updates = list(Batcher(part, batching, 1, augmentation=made).epoch(0))
    rows = [tokenizer.decode(row[: row.index(-1)]) for row in ids_of(updates)]
    assert sorted(map(str.lower, rows)) == sorted(p.source.lower() for p in pairs)
    assert 0.1 < sum(row.isupper() for row in rows) / len(rows) < 0.3
    usual = len(list(Batcher(part, BATCHING, 1).epoch(0)))
    assert len(updates) == pytest.approx(usual, rel=0.1)
    sizes = [update.num_target_tokens for update in updates]
    assert max(sizes) < 1.25 * min(sizes)


@pytest.mark.usefixtures("in_parts")
def test_an_augmented_epoch_goes_on_in_the_middle_without_earlier_parts(
    part, tokenizer
):
    whole = Counting(augmenter(ALL, tokenizer))
    expected = list(Batcher(part, BATCHING, 1, augmentation=whole).epoch(2))
    assert whole.made == [(1, 2, 0), (1, 2, 1), (1, 2, 2)]
    assert whole.begun == [(1, 2, 1), (1, 2, 2), (1, 3, 0)]
    for first in (1, len(expected) // 2, len(expected) - 1, len(expected)):
        resumed = Counting(augmenter(ALL, tokenizer))
        batcher = Batcher(part, BATCHING, 1, augmentation=resumed)
        found = list(batcher.epoch(2, first))
        assert ids_of(found) == ids_of(expected[first:])
        assert resumed.made == whole.made[3 - len(resumed.made) :]
        assert len(resumed.made) <= 3 - 2 * first // len(expected)


@pytest.mark.usefixtures("in_parts")
def test_changes_differ_between_epochs_and_parts(part, tokenizer):
    made = Augmentation(augmenter(ALL, tokenizer), 0, pytest.fail)
    batcher = Batcher(part, BATCHING, 1, augmentation=made)
    first, second = (ids_of(list(batcher.epoch(epoch))) for epoch in range(2))
    assert len({*map(tuple, first)} & {*map(tuple, second)}) < 0.5 * len(first)


@pytest.mark.parametrize(
    "batching",
    [
        BatchingConfig(source_tokens=1, target_tokens=1, batch_tokens=1),
        BatchingConfig(source_tokens=20, target_tokens=20, batch_tokens=5_000),
        BatchingConfig(source_tokens=10**6, target_tokens=10**6, batch_tokens=1),
    ],
)
def test_the_number_of_updates_does_not_depend_on_the_changes(
    batching, part, tokenizer
):
    small = part.picked(np.arange(41))
    numbers = set()
    for name in ("lower", "upper", "joined"):
        config = TextAugmentationConfig(**{name: 1.0})
        made = Augmentation(augmenter(config, tokenizer), 0, pytest.fail)
        updates = list(Batcher(small, batching, 1, augmentation=made).epoch(0))
        numbers.add(len(updates))
        assert all(update.batches for update in updates)
        indices = np.concatenate([np.concatenate(u.batches) for u in updates])
        assert sorted(indices.tolist()) == [*range(len(updates[0].dataset))]
    assert len(numbers) == 1


def test_a_corpus_of_one_pair_can_be_augmented(part, tokenizer):
    made = Augmentation(augmenter(ALL, tokenizer), 0, pytest.fail)
    batcher = Batcher(part.picked(np.arange(1)), BATCHING, 1, augmentation=made)
    assert [len(list(batcher.epoch(epoch))) for epoch in range(3)] == [1, 1, 1]


@pytest.mark.usefixtures("in_parts")
def test_the_pairs_of_each_corpus_are_counted_before_they_change(make_dataset):
    tokenizer = imported()
    corpora = [
        CorpusConfig(name=name, source=name, target=name, weight=weight)
        for name, weight in (("a", 3.0), ("b", 1.0))
    ]
    stages = [
        StageConfig(steps=30),
        StageConfig(steps=8, weights={"b": 1.0}),
        StageConfig(weights={"a": 1.0}),
    ]
    mixture = CorpusMixture(corpora, stages, [200, 800])
    [first, second] = tokenizer.encode_sources(["ab.", "d d."])
    dataset = make_dataset([(first, first)] * 200 + [(second, second)] * 800)
    config = TextAugmentationConfig(joined=0.5)
    made = Counting(augmenter(config, tokenizer))
    batching = BatchingConfig(source_tokens=90, target_tokens=90, batch_tokens=50)
    batcher = Batcher(dataset, batching, 1, mixture, made)
    updates = list(batcher.epoch(0))
    assert len(updates) == 30
    for update in updates:
        starts = [row[0] for row in ids_of([update])]
        assert update.corpus_pairs == (
            starts.count(first[0]),
            starts.count(second[0]),
        )
    shares = np.sum([update.corpus_pairs for update in updates], axis=0)
    assert shares[0] / shares.sum() == pytest.approx(0.75, abs=0.1)
    second_stage = list(batcher.epoch(1, steps_before=30))
    assert len(second_stage) == 8
    assert all(update.corpus_pairs[0] == 0 for update in second_stage)


def test_memory_is_tried_with_the_longest_pairs_that_may_result(part, tokenizer):
    made = Augmentation(augmenter(ALL, tokenizer, max_length=60), 0, pytest.fail)
    plain = Batcher(part, BATCHING, 1)
    assert plain.longest_possible() is plain
    longest = Batcher(part, BATCHING, 1, augmentation=made).longest_possible()
    batch = longest.dataset.load(longest.longest_batch())
    assert batch.source.shape == batch.target_out.shape == (200 // 60, 60)
    assert batch.source.max() < tokenizer.vocab_size
