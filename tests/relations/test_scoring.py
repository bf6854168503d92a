"""The score of a target equals the score that search gave it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from beam_kinds import beam_search, greedy_search
from transduce.checkpoint import Checkpoint
from transduce.decoding.search import Hypothesis
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.torch_model import score_targets
from transduce.decoding.translator import Translator
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

SOURCE = torch.tensor(
    [
        [5, 6, 7, 8, 9, 10, EOS],
        [11, 12, EOS, PAD, PAD, PAD, PAD],
        [13, 14, 15, 16, EOS, PAD, PAD],
    ]
)
EXCLUDED = (PAD, BOS)
ALPHA = 0.6
VARIANTS: list[dict[str, Any]] = [
    {},
    {"positions": "learned", "max_positions": 5},
    {"norm": "pre"},
    {"neighbourhood": 2},
    {"scores": "additive"},
    {"d_k": 4, "d_v": 5},
]


def likely_to_end(config: ModelConfig) -> Transformer:
    """Random model in which the end is as likely as several words together."""
    model = Transformer(config).eval()
    end = model.embedding.weight[EOS].detach()
    last_layer = model.decoder_layers[-1]
    norm = {"post": last_layer.after_feed_forward.norm, "pre": model.decoder_norm}
    with torch.no_grad():
        norm[config.norm].bias.add_(2 * end / end.square().sum())
    return model


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_hypotheses_of_beam_search_have_the_same_score(
    tiny: ModelConfig, variant: dict[str, Any]
) -> None:
    model = likely_to_end(replace(tiny, **variant))
    with torch.no_grad():
        decoder = TorchDecoder(model, model.encode(SOURCE))
        found = beam_search(
            decoder,
            [30, 20, 25],
            SearchConfig(beam_size=4, length_penalty=ALPHA),
            bos=BOS,
            eos=EOS,
            excluded=EXCLUDED,
        )
    finished = [(i, h) for i, beam in enumerate(found) for h in beam if h.is_finished]
    assert len(finished) >= 3
    sentences = torch.tensor([i for i, _ in finished])
    scores = score_targets(model, SOURCE[sentences], [list(h.ids) for _, h in finished])
    assert [s.log_probability for s in scores] == pytest.approx(
        [h.log_probability for _, h in finished], abs=1e-4
    )
    assert [
        s.log_probability / SearchConfig(length_penalty=ALPHA).divisor(s.num_tokens)
        for s in scores
    ] == pytest.approx([h.score for _, h in finished], abs=1e-4)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_greedy_hypothesis_has_the_same_score(
    tiny: ModelConfig, variant: dict[str, Any]
) -> None:
    model = likely_to_end(replace(tiny, **variant))
    found = [greedy(model, sentence) for sentence in range(len(SOURCE))]
    scores = score_targets(model, SOURCE, [list(h.ids) for h in found])
    ends = [
        0.0 if h.is_finished else end_after(model, sentence, h)
        for sentence, h in enumerate(found)
    ]
    expected = [h.log_probability + end for h, end in zip(found, ends, strict=True)]
    assert [s.log_probability for s in scores] == pytest.approx(expected, abs=1e-4)


def greedy(model: Transformer, sentence: int) -> Hypothesis:
    with torch.no_grad():
        memory = model.encode(SOURCE[sentence : sentence + 1])
        [[found]] = greedy_search(
            TorchDecoder(model, memory),
            [12],
            SearchConfig(length_penalty=ALPHA),
            bos=BOS,
            eos=EOS,
            excluded=EXCLUDED,
        )
    return found


def end_after(model: Transformer, sentence: int, hypothesis: Hypothesis) -> float:
    """Log-probability of an end after a cut hypothesis."""
    target_in = torch.tensor([[BOS, *hypothesis.ids]])
    with torch.no_grad():
        logits = model(SOURCE[sentence : sentence + 1], target_in)
    return float(logits[0, -1].log_softmax(-1)[EOS])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_that_keeps_its_ids_has_the_same_score(
    trained_checkpoint: Checkpoint, corpus: tuple[list[str], list[str]], beam_size: int
) -> None:
    translator = Translator(trained_checkpoint, torch.device("cpu"))
    sources = sorted(set(corpus[0]), key=len)[:20]
    translations = translator.translate(sources, beam_size=beam_size)
    scores = translator.score(sources, [t.text for t in translations])
    differences = [
        abs(score.log_probability - translation.hypotheses[0].log_probability)
        for score, translation in zip(scores, translations, strict=True)
    ]
    # The same text in other pieces has another probability.
    assert sum(difference < 1e-4 for difference in differences) >= 15
