"""Steps that are recorded and run again are those that are not."""

from dataclasses import replace

import pytest
import torch

from recorded_run import OnOtherMemory, tensors
from step_sequence import SOURCE, SOURCES, steps
from transduce.decoding.beam_search import beam_search
from transduce.decoding.hypotheses import Hypothesis
from transduce.decoding.next_token_models.flat_step import FlatStep, plain_linear
from transduce.decoding.next_token_models.graphed.cuda_graphs import CudaGraphs
from transduce.decoding.next_token_models.graphed.graphed_decoder import GraphedDecoder
from transduce.decoding.next_token_models.graphed.standing_step import StandingStep
from transduce.decoding.next_token_models.incremental import IncrementalDecoder
from transduce.decoding.next_token_models.prepared_model import PreparedModel
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.special_ids import BOS, EOS

VARIANTS = [
    {},
    {"positions": "learned", "max_positions": 3},
    {"norm": "pre"},
    {"neighbourhood": 2},
    {"d_k": 4, "d_v": 6},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@torch.no_grad()
def test_both_have_the_same_logits(tiny: ModelConfig, variant: dict[str, object]):
    model = Transformer(replace(tiny, **variant)).eval()
    memory = model.encode(SOURCE)
    flat = FlatStep(model, plain_linear)
    recorder = OnOtherMemory()
    graphed = [GraphedDecoder(model, memory, flat, recorder) for _ in range(2)]
    found = steps(*graphed)
    expected = steps(*(IncrementalDecoder(model, memory, flat) for _ in range(2)))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert 1 < len(recorder.records) < len(found) / 4


def test_search_finds_the_same_while_sentences_leave(tiny: ModelConfig):
    model = Transformer(tiny).eval()
    plain = PreparedModel(model=model, step=FlatStep(model, plain_linear))
    recorder = OnOtherMemory()
    graphed = replace(plain, recorder=recorder)
    sources, limits = SOURCES * 3, [3, 12, 5, 9, 7, 7, 30, 1, 20]
    config = SearchConfig(beam_size=3, num_best=3)

    def found(model: PreparedModel) -> list[list[Hypothesis]]:
        memory = model.encode(sources)
        return beam_search(model.start(memory), limits, config, bos=BOS, eos=EOS)

    found_so, expected = found(graphed), found(plain)
    assert len({len(best.ids) for best, *_ in expected}) > 4
    assert [[each.ids for each in of_one] for of_one in found_so] == [
        [each.ids for each in of_one] for of_one in expected
    ]
    assert len(recorder.records) > 1


@torch.inference_mode()
def test_nothing_is_asked_of_the_device(tiny: ModelConfig):
    # Where there are no numbers, whoever asks for one fails.
    model = Transformer(tiny).eval().to("meta")
    flat = FlatStep(model, plain_linear, torch.bfloat16)
    model = model.to(torch.bfloat16)
    state = model.start(model.encode(SOURCE.to("meta")))
    recorder = OnOtherMemory()
    ids = torch.zeros(3, 1, dtype=torch.int64, device="meta")
    x, seen = model.enter(ids, state)
    step = StandingStep(flat, x, state, recorder)
    for _ in range(3):
        assert step(x, seen).shape == (3, 1, tiny.vocab_size)
        x, seen = model.enter(ids, state)
    [record] = recorder.records
    made = [out for *_, result in record.calls for out in tensors(result)]
    assert {each.device.type for each in made} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@torch.no_grad()
def test_a_gpu_replays_the_same(tiny: ModelConfig):
    device = torch.device("cuda", 0)
    model = Transformer(tiny).eval().to(device)
    memory = model.encode(SOURCE.to(device))
    flat, graphs = FlatStep(model, plain_linear), CudaGraphs(device)
    found = steps(*(GraphedDecoder(model, memory, flat, graphs) for _ in range(2)))
    expected = steps(*(IncrementalDecoder(model, memory, flat) for _ in range(2)))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
