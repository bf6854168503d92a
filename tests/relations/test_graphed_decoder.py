"""Decoding by replayed CUDA graphs equals decoding without them."""

from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from beam_kinds import beam_search
from recorded_run import OperatorRecorder, tensors
from step_sequence import SOURCE, SOURCES, steps
from transduce.decoding import graphed_decoder
from transduce.decoding.cache import DecodingState, RecurrentCache
from transduce.decoding.graphed_decoder import (
    CudaGraphs,
    GraphedDecoder,
    Run,
    StaticStep,
    StepGraphs,
    StepSize,
)
from transduce.decoding.search import Hypothesis
from transduce.decoding.torch_decoder import FusedStep, TorchDecoder, plain_linear
from transduce.decoding.torch_model import TorchModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Memory, Transformer
from transduce.nn.fuse import fuse
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS

MEMORY_ERRORS = [
    torch.OutOfMemoryError("short"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `create`"),
]
VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 3},
    {"norm": "pre"},
    {"neighbourhood": 2},
    {"d_k": 4, "d_v": 6},
    {"decoder_self_attention": "ssru"},
]


def assert_steps_as_without_graphs(
    graphs: StepGraphs, flat: FusedStep, memory: Memory
) -> None:
    found = steps(*(GraphedDecoder(flat, memory, graphs) for _ in range(2)))
    expected = steps(*(TorchDecoder(flat, memory) for _ in range(2)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_replayed_steps_have_the_logits_of_plain_steps(
    tiny: ModelConfig, variant: dict[str, object]
):
    model = Transformer(replace(tiny, **variant)).eval()
    memory = model.encode(SOURCE)
    flat = FusedStep(model, plain_linear)
    recorder = OperatorRecorder()
    graphed = [
        GraphedDecoder(flat, memory, StepGraphs(flat, recorder)) for _ in range(2)
    ]
    found = steps(*graphed)
    expected = steps(*(TorchDecoder(flat, memory) for _ in range(2)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert 1 < len(recorder.records) < len(found) / 4


def test_search_finds_the_same_translations_while_sentences_leave(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    plain = TorchModel(model=model, stepper=FusedStep(model))
    recorder = OperatorRecorder()
    graphed = replace(plain, graphs=StepGraphs(FusedStep(model), recorder))
    sources, limits = SOURCES * 3, [3, 12, 5, 9, 7, 7, 30, 1, 20]
    config = SearchConfig(beam_size=3, num_best=3)

    def found(model: TorchModel) -> list[list[Hypothesis]]:
        memory = model.encode(sources)
        return beam_search(model.start(memory), limits, config, bos=BOS, eos=EOS)

    found_so, expected = found(graphed), found(plain)
    assert len({len(best.ids) for best, *_ in expected}) > 4
    assert [[each.ids for each in of_one] for of_one in found_so] == [
        [each.ids for each in of_one] for of_one in expected
    ]
    assert len(recorder.records) > 1


@torch.no_grad()
def test_a_hook_gets_the_weights_of_each_step_that_it_watches(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    memory, flat = model.encode(SOURCE), FusedStep(model, plain_linear)
    plain = TorchDecoder(flat, memory)
    graphed = GraphedDecoder(flat, memory, StepGraphs(flat, OperatorRecorder()))
    tap = model.decoder_layers[-1].cross_attention.weights_tap
    seen: list[Tensor] = []
    for number in range(80):
        ids = np.arange(number, number + 3)[:, None] % tiny.vocab_size
        expected = plain.step(ids)
        if number in (0, 5, 6, 64):
            hook = tap.register_forward_hook(lambda *given: seen.append(given[2]))
            found = graphed.step(ids)
            hook.remove()
        else:
            found = graphed.step(ids)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert len(seen) == 4


@torch.no_grad()
def test_a_decoder_replays_what_an_earlier_one_of_its_size_has_recorded(
    tiny: ModelConfig,
):
    model = Transformer(tiny).eval()
    flat, recorder = FusedStep(model), OperatorRecorder()
    graphs = StepGraphs(flat, recorder)

    assert_steps_as_without_graphs(graphs, flat, model.encode(SOURCE))
    num_records = len(recorder.records)
    assert_steps_as_without_graphs(graphs, flat, model.encode(SOURCE.flip(0)))
    assert len(recorder.records) == num_records


@torch.no_grad()
def test_decoders_at_the_same_time_have_memory_of_their_own(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    flat = FusedStep(model)
    graphs = StepGraphs(flat, OperatorRecorder())
    memories = [model.encode(each) for each in (SOURCE, SOURCE.flip(0))]
    graphed = [GraphedDecoder(flat, each, graphs) for each in memories]
    plain = [TorchDecoder(flat, each) for each in memories]
    for number in range(6):
        ids = np.full((3, 1), number + 3)
        found, expected = ([each.step(ids) for each in all] for all in (graphed, plain))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_decoder_finds_nothing_of_the_one_that_had_its_memory(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    flat = FusedStep(model)
    graphs = StepGraphs(flat, OperatorRecorder())
    memory = model.encode(SOURCE)
    ids = np.full((3, 1), BOS)
    spoilt = replace(memory, states=torch.full_like(memory.states, torch.nan))
    first = GraphedDecoder(flat, spoilt, graphs)
    for _ in range(4):
        assert first.step(ids).isnan().all()
    del first
    second = GraphedDecoder(flat, memory, graphs)
    assert not second.step(ids).isnan().any()


@torch.no_grad()
def test_idle_memory_is_bounded_and_the_oldest_goes_first(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    flat = FusedStep(model)
    states = [flat.start(model.encode(SOURCE[:rows])) for rows in (1, 2, 3)]
    unbounded = StepGraphs(flat, OperatorRecorder())
    sizes = [unbounded.borrow(each).num_bytes for each in states]
    graphs = StepGraphs(flat, OperatorRecorder(), float(sizes[1]))
    first, second = (graphs.borrow(each) for each in states[:2])
    graphs.give_back([first, second])
    graphs.borrow(states[2])  # both together are too large
    assert graphs.borrow(states[1]) is second
    assert graphs.borrow(states[0]) is not first


@torch.no_grad()
@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=["PyTorch", "library"])
def test_without_memory_for_a_step_idle_memory_is_freed(
    tiny: ModelConfig, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
):
    model = Transformer(tiny).eval()
    flat = FusedStep(model)
    graphs = StepGraphs(flat, OperatorRecorder())
    small, large = (flat.start(model.encode(SOURCE[:rows])) for rows in (1, 3))
    idle = graphs.borrow(small)
    graphs.give_back([idle])
    number = count()

    class Short(StaticStep):
        """A step for which there is memory the second time."""

        def __init__(self, *given: Any) -> None:
            if next(number) == 0:
                raise error
            super().__init__(*given)

    monkeypatch.setattr(graphed_decoder, "StaticStep", Short)
    assert isinstance(graphs.borrow(large), Short)
    assert graphs.borrow(small) is not idle


@torch.no_grad()
@pytest.mark.parametrize("error", MEMORY_ERRORS, ids=["PyTorch", "library"])
def test_without_memory_for_a_step_a_decoder_goes_on_without_graphs(
    tiny: ModelConfig, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
):
    model = Transformer(tiny).eval()
    memory, flat = model.encode(SOURCE), FusedStep(model)
    graphs, fitting = StepGraphs(flat, OperatorRecorder()), StepGraphs.borrow
    numbers = count()

    def borrow(self: StepGraphs, state: Any) -> StaticStep:
        if next(numbers) % 3 != 1:
            raise error
        return fitting(self, state)

    monkeypatch.setattr(StepGraphs, "borrow", borrow)
    assert_steps_as_without_graphs(graphs, flat, memory)
    assert next(numbers) > 3


@torch.no_grad()
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_translations_may_be_longer_than_a_step_is_for(
    tiny: ModelConfig, variant: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(graphed_decoder, "MIN_TOKENS", 4)
    model = Transformer(replace(tiny, **variant)).eval()
    memory, flat = model.encode(SOURCE), FusedStep(model)
    graphs = StepGraphs(flat, OperatorRecorder())
    assert_steps_as_without_graphs(graphs, flat, memory)


def test_a_recording_that_fails_once_is_tried_again(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    memory, flat = model.encode(SOURCE), FusedStep(model)
    recorder = OperatorRecorder()

    class ShortOnce(OperatorRecorder):
        asked = 0

        def record(self, run: Run) -> Run:
            self.asked += 1
            return run if self.asked == 1 else recorder.record(run)

    short = ShortOnce()
    decoder = GraphedDecoder(flat, memory, StepGraphs(flat, short))
    for _ in range(5):
        decoder.step(np.full((3, 1), BOS))
    assert (short.asked, len(recorder.records)) == (2, 1)


@torch.no_grad()
def test_few_sizes_of_steps_occur(tiny: ModelConfig):
    model = Transformer(replace(tiny, num_layers=1)).eval()
    flat = FusedStep(model)
    memory = model.encode(torch.full((32, 32), 5))

    def part(rows: int, width: int) -> Memory:
        mask = memory.mask[:rows, ..., :width]
        return replace(memory, states=memory.states[:rows, :width], mask=mask)

    sizes = {
        StepSize.fitting(flat.start(part(rows, width)))
        for rows in range(1, 33)
        for width in range(1, 33)
    }
    assert {size.source for size in sizes} == {32}
    assert {size.sentences for size in sizes} == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}
    assert {size.slots for size in sizes} == {64}


def test_many_short_sentences_take_little_more_memory_than_they_need(
    tiny: ModelConfig,
):
    model = Transformer(tiny).eval()
    flat = FusedStep(model)
    size = StepSize.fitting(flat.start(model.encode(torch.full((2_048, 2), 5))))
    assert (size.sentences, size.source, size.slots) == (2_048, 16, 16)


@torch.no_grad()
def test_finished_sentences_leave_once_half_have_finished(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    memory, flat = model.encode(SOURCE.repeat(2, 1)), FusedStep(model, plain_linear)
    decoder = GraphedDecoder(flat, memory, StepGraphs(flat, OperatorRecorder()))
    num_live, places = 6, []
    for kept in ([0, 1, 2, 3, 4], [0, 2, 3, 4], [1, 2, 3], [0, 2]):
        decoder.step(np.full((num_live, 1), BOS))
        decoder.reorder(np.array(kept)[:, None])
        num_live = len(kept)
        places.append(len(decoder.state.memory_mask))
    assert places == [6, 6, 3, 3]


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_step_does_not_synchronise_with_the_device(
    tiny: ModelConfig, variant: dict[str, object]
):
    # On the meta device, reading a value fails.
    model = Transformer(replace(tiny, **variant)).eval().to("meta")
    flat = FusedStep(model, plain_linear, torch.bfloat16)
    model = model.to(torch.bfloat16)
    state = flat.start(model.encode(SOURCE.to("meta")))
    recorder = OperatorRecorder()
    step = StepGraphs(flat, recorder).borrow(state)
    step.load(state)
    ids = np.zeros((3, 1), dtype=np.int64)
    for number in range(3):
        assert step(ids, ids, number).shape == (3, 1, tiny.vocab_size)
    [record] = recorder.records
    made = [out for *_, result in record.calls for out in tensors(result)]
    assert {each.device.type for each in made} == {"meta"}


@torch.no_grad()
def test_cells_of_a_model_in_bf16_stay_in_fp32_from_step_to_step(tiny: ModelConfig):
    model = fuse(Transformer(replace(tiny, decoder_self_attention="ssru"))).eval()
    flat = FusedStep(model, plain_linear, torch.bfloat16)
    decoder = TorchDecoder(flat, model.to(torch.bfloat16).encode(SOURCE))
    for _ in range(3):
        decoder.step(np.full((len(SOURCE), 1), BOS))
        state = decoder.state
        assert isinstance(state, DecodingState)
        cells = [each.cell for each in state.layers if isinstance(each, RecurrentCache)]
        assert len(cells) == len(state.layers) > 0
        assert {each.dtype for each in cells} == {torch.float32}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 5e-2)]
)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_graphs_on_a_gpu_have_the_logits_of_plain_steps(
    tiny: ModelConfig, variant: dict[str, object], dtype: torch.dtype, tolerance: float
):
    device = torch.device("cuda", 0)
    model = Transformer(replace(tiny, **variant)).eval().to(device)
    flat = FusedStep(model, plain_linear, dtype)
    graphs = StepGraphs(flat, CudaGraphs(device))
    memory = model.to(dtype).encode(SOURCE.to(device))
    expected = steps(*(TorchDecoder(flat, memory) for _ in range(2)))
    for _ in range(2):
        found = steps(*(GraphedDecoder(flat, memory, graphs) for _ in range(2)))
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        torch.cuda.empty_cache()  # memory of later replays must stay allocated
