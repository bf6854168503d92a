"""Sentences of a refilled batch have the results of sentences decoded alone."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from beam_kinds import (
    beam_search,
    greedy_search,
    kind_of_beam,  # noqa: F401
    start_beam_search,
    start_greedy_search,
)
from transduce.checkpoint import Checkpoint
from transduce.decoding import backend, search
from transduce.decoding.sampling import Sampling, sample
from transduce.decoding.search import (
    Hypothesis,
    RunningSearch,
    SearchTask,
    search_in_batches,
)
from transduce.decoding.translations import in_order
from transduce.decoding.translator import Translator
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SamplingConfig, SearchConfig

BOS, EOS, VOCAB_SIZE = 1, 2, 11
CPU = torch.device("cpu")


def all_done(
    lengths: Sequence[int], room: int, begin: Callable[[list[int]], RunningSearch]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    task = SearchTask(
        sentences=range(len(lengths)),
        lengths=lengths,
        capacity=room,
        start=lambda _, numbers: begin(numbers),
    )
    return chain.from_iterable(search_in_batches(task, None))


class RandomModel:
    """Model whose next token depends on the sentence and all earlier tokens."""

    def __init__(self, names: Sequence[int]) -> None:
        self.paths: list[list[tuple[int, ...]]] = [[(name,)] for name in names]
        self.most = len(names)

    def step(self, last_ids: np.ndarray) -> Tensor:
        self.paths = [
            [(*path, last) for path, last in zip(group, lasts, strict=True)]
            for group, lasts in zip(self.paths, last_ids.tolist(), strict=True)
        ]
        rows = [[_logits(path) for path in group] for group in self.paths]
        return torch.from_numpy(np.array(rows))

    def reorder(self, rows: np.ndarray) -> None:
        flat = [path for group in self.paths for path in group]
        self.paths = [[flat[row] for row in group] for group in rows.tolist()]

    def join(self, other: "RandomModel") -> None:
        assert {len(group) for group in self.paths + other.paths} == {
            len(self.paths[0])
        }
        self.paths += other.paths
        self.most = max(self.most, len(self.paths))


@cache
def _logits(path: tuple[int, ...]) -> np.ndarray:
    digest = hashlib.sha256(repr(path).encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8]))
    return 3 * random.standard_normal(VOCAB_SIZE)


CASES = {
    "beam": SearchConfig(beam_size=3, extra_length=4),
    "wide": SearchConfig(beam_size=12, length_penalty=1.0),
    "n-best": SearchConfig(beam_size=4, num_best=4),
    "patience": SearchConfig(beam_size=3, patience=1.4, length_penalty=1.0),
    "min": SearchConfig(beam_size=2, min_length=3),
    "greedy": SearchConfig(beam_size=1),
}


def _begun(lengths: Sequence[int], config: SearchConfig, numbers: list[int]):
    is_greedy = config.beam_size == 1
    kind = start_greedy_search if is_greedy else start_beam_search
    limits = [lengths[i] + 3 for i in numbers]
    prefixes = [[5, 6] if i % 4 == 3 else [] for i in numbers]
    started = kind(limits, config, EOS, (0, BOS), prefixes)
    return RunningSearch(RandomModel(numbers), started, BOS)


def _alone(number: int, length: int, config: SearchConfig) -> list[Hypothesis]:
    return _found_alone(number, length, config, backend.has_native_search())


@cache
def _found_alone(
    number: int, length: int, config: SearchConfig, _is_native: bool
) -> list[Hypothesis]:
    kind = greedy_search if config.beam_size == 1 else beam_search
    prefix = [5, 6] if number % 4 == 3 else []
    [found] = kind(
        RandomModel([number]),
        [length + 3],
        config,
        bos=BOS,
        eos=EOS,
        excluded=(0, BOS),
        prefixes=[prefix],
    )
    return found


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
@settings(deadline=None, max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 12), max_size=12),
    room=st.integers(1, 60),
)
def test_neither_capacity_nor_order_changes_the_hypotheses(
    config: SearchConfig, lengths: list[int], room: int
) -> None:
    done = all_done(lengths, room, lambda numbers: _begun(lengths, config, numbers))
    found = list(in_order(done))
    expected = [_alone(i, length, config) for i, length in enumerate(lengths)]
    assert found == expected


@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(1, 9), max_size=9), room=st.integers(1, 40))
def test_the_capacity_does_not_change_the_samples(
    lengths: list[int], room: int
) -> None:
    config = SamplingConfig(number=3, seed=4)

    def begin(numbers: list[int]) -> RunningSearch:
        limits = [lengths[i] + 3 for i in numbers]
        names = [(i, 0) for i in numbers]
        return RunningSearch(
            RandomModel(numbers), Sampling(limits, names, config, EOS), BOS
        )

    expected = [
        sample(RandomModel([i]), [length + 3], [(i, 0)], config, bos=BOS, eos=EOS)[0]
        for i, length in enumerate(lengths)
    ]
    assert list(in_order(all_done(lengths, room, begin))) == expected


def test_waiting_sentences_replace_finished_ones() -> None:
    lengths = [4] * 20
    begun: list[RandomModel] = []

    def begin(numbers: list[int]) -> RunningSearch:
        model = RandomModel(numbers)
        begun.append(model)
        return RunningSearch(
            model, start_greedy_search([9] * len(numbers), CASES["greedy"], 2), 1
        )

    assert len(list(all_done(lengths, 32, begin))) == 20
    first, *others = begun
    assert first.most == 8
    # They joined while others were decoded, at least a quarter of the batch at a time.
    assert 1 < len(others) <= 6


def test_a_sentence_is_returned_as_soon_as_it_is_finished() -> None:
    lengths = [9, 5, 5, 3]
    going_on: list[int] = []

    class Watched(RandomModel):
        def step(self, last_ids: np.ndarray) -> Tensor:
            going_on.append(len(self.paths))
            return super().step(last_ids)

    def begin(numbers: list[int]) -> RunningSearch:
        limits = [lengths[i] for i in numbers]
        return RunningSearch(
            Watched(numbers), start_greedy_search(limits, CASES["greedy"], EOS), BOS
        )

    steps = [len(going_on) for _ in all_done(lengths, 99, begin)]
    assert steps[0] < steps[-1] == len(going_on)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    room=st.integers(30, 90),
)
@settings(deadline=None, max_examples=20)
def test_a_batch_with_its_padding_never_exceeds_the_capacity(
    lengths: list[int], room: int
) -> None:
    """The longest sentence comes first, so the first live one sets the padded width."""

    class Watched(RandomModel):
        def step(self, last_ids: np.ndarray) -> Tensor:
            widest = max(lengths[group[0][0]] for group in self.paths)
            assert len(self.paths) * widest <= room
            return super().step(last_ids)

    def begin(numbers: list[int]) -> RunningSearch:
        limits = [lengths[i] for i in numbers]
        return RunningSearch(
            Watched(numbers), start_greedy_search(limits, CASES["greedy"], EOS), BOS
        )

    assert len(list(all_done(lengths, room, begin))) == len(lengths)


def _translators(
    trained: Checkpoint, tiny: ModelConfig
) -> dict[str, Callable[[], Translator]]:
    def untrained(**variant: object) -> Checkpoint:
        torch.manual_seed(3)
        size = trained.tokenizer.vocab_size
        config = replace(tiny, vocab_size=size, **variant)
        weights = Transformer(config).state_dict()
        return replace(trained, config=config, weights=weights)

    return {
        "trained": lambda: Translator(trained, CPU),
        "together": lambda: Translator(trained, CPU, untrained(num_layers=1)),
        "neighbourhood": lambda: Translator(untrained(neighbourhood=1), CPU),
        "few positions": lambda: Translator(
            untrained(positions="learned", max_positions=4), CPU
        ),
    }


@pytest.mark.parametrize(
    "kind", ["trained", "together", "neighbourhood", "few positions"]
)
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize(
    "config",
    [
        SearchConfig(beam_size=1, extra_length=5),
        SearchConfig(num_best=4, extra_length=5),
        SearchConfig(beam_size=3, min_length=4, extra_length=5, diversity=0.3),
    ],
    ids=str,
)
def test_translations_do_not_depend_on_the_batch(
    trained_checkpoint: Checkpoint,
    tiny: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    config: SearchConfig,
    share: float,
    kind: str,
) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
    random = np.random.default_rng(5)
    sources = [" ".join(random.choice(words, n)) for n in random.integers(1, 9, 12)]
    prefixes = ["acht" if i % 3 == 0 else "" for i in range(len(sources))]
    own = _translators(trained_checkpoint, tiny)[kind]()
    apart = [
        next(own.translate_stream([source], config, [prefix]))
        for source, prefix in zip(sources, prefixes, strict=True)
    ]
    monkeypatch.setattr(search, "REFILL_SHARE", share)
    own.batch_positions = 100
    together = own.translate_stream(sources, config, prefixes)
    for found, expected in zip(together, apart, strict=True):
        assert [h.score for h in found.hypotheses] == pytest.approx(
            [h.score for h in expected.hypotheses], abs=1e-4
        )
        assert found.text == expected.text
