"""An ensemble has the mean probabilities of its members."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from beam_kinds import beam_search
from transduce.checkpoint import Checkpoint
from transduce.decoding.search import Decoder, Ensemble
from transduce.decoding.torch_decoder import TorchDecoder
from transduce.decoding.translator import Translator
from transduce.errors import CheckpointError
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import BOS, EOS, PAD

SOURCE = torch.tensor([[5, 9, 4, 17, 2], [8, 2, PAD, PAD, PAD], [3, 12, 20, 2, PAD]])


@pytest.fixture
def models(tiny: ModelConfig) -> list[Transformer]:
    return [Transformer(tiny).eval() for _ in range(3)]


def decoder(model: Transformer) -> TorchDecoder:
    return TorchDecoder(model, model.encode(SOURCE))


def search(steps: Decoder) -> list[list[tuple[int, ...]]]:
    found = beam_search(
        steps, [9, 7, 8], SearchConfig(), bos=BOS, eos=EOS, excluded=(PAD, BOS)
    )
    return [[h.ids for h in beam] for beam in found]


@torch.no_grad()
def test_an_ensemble_of_a_model_with_itself_equals_the_model(
    models: list[Transformer],
) -> None:
    model = models[0]
    alone = search(decoder(model))
    assert search(Ensemble([decoder(model)])) == alone
    assert search(Ensemble([decoder(model), decoder(model)])) == alone


@torch.no_grad()
def test_probabilities_are_the_mean_over_the_members(models: list[Transformer]) -> None:
    together = Ensemble([decoder(model) for model in models])
    apart = [decoder(model) for model in models]
    first, rows = np.full((3, 1), BOS), np.array([[2, 2], [0, 0]])
    for steps in (together, *apart):
        steps.step(first)
        steps.reorder(rows)
    last_ids = np.array([[4, 5], [6, 7]])
    mean = sum(m.step(last_ids).softmax(-1) for m in apart) / 3
    torch.testing.assert_close(together.step(last_ids).exp(), mean)


@pytest.fixture
def members(trained_checkpoint: Checkpoint) -> list[Checkpoint]:
    """A trained model, and two with other weights."""
    torch.manual_seed(4)
    weights = trained_checkpoint.weights
    return [
        replace(
            trained_checkpoint,
            weights={
                name: each + size * torch.randn_like(each)
                for name, each in weights.items()
            },
        )
        for size in (0, 0.1, 0.2)
    ]


@pytest.mark.usefixtures("is_native")
@torch.no_grad()
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_token_of_a_target_has_the_mean_of_the_members_probabilities(
    members: list[Checkpoint], number: int
) -> None:
    members = members[:number]
    sources = ["one two three", "", "four"]
    targets = ["eins", "zwei drei vier fünf", ""]
    found = Translator(members[0], "cpu", *members[1:]).score(sources, targets)
    tokenizer = members[0].tokenizer
    for source, target, score in zip(sources, targets, found, strict=True):
        [ids] = tokenizer.encode_targets([target])
        given = torch.tensor([[*tokenizer.encode(source), EOS]])
        read, written = torch.tensor([[BOS, *ids]]), [*ids, EOS]
        logits = [each.build().eval()(given, read)[0].double() for each in members]
        mean = sum(each.softmax(-1) for each in logits) / number
        expected = mean[range(len(written)), written].log().tolist()
        assert score.token_log_probabilities == pytest.approx(expected, abs=1e-4)
        assert score.log_probability == pytest.approx(sum(expected), abs=1e-3)
        assert score.tokens == tuple(tokenizer.pieces(ids))


@pytest.mark.usefixtures("is_native")
def test_an_ensemble_scores_its_translation_as_its_search_did(
    members: list[Checkpoint], corpus: tuple[list[str], list[str]]
) -> None:
    translator = Translator(members[0], "cpu", *members[1:])
    sources = sorted(set(corpus[0]), key=len)[:20]
    best = [each.hypotheses[0] for each in translator.translate(sources)]
    scores = translator.score(sources, [each.text for each in best])

    def differences(wanted: Sequence[float]) -> list[float]:
        pairs = zip(scores, wanted, strict=True)
        return [abs(score.log_probability - each) for score, each in pairs]

    # The same text in other pieces has another probability.
    same = [each < 1e-4 for each in differences([h.log_probability for h in best])]
    assert sum(same) >= 15
    alone = Translator(members[0], "cpu").score(sources, [each.text for each in best])
    assert min(differences([each.log_probability for each in alone])) > 1e-3


def test_a_member_that_outputs_nan_is_refused(members: list[Checkpoint]) -> None:
    name = "embedding.weight"
    damaged = {name: torch.full_like(members[1].weights[name], torch.nan)}
    other = replace(members[1], weights={**members[1].weights, **damaged})
    for several in ([members[0], other], [other, members[0]]):
        with pytest.raises(CheckpointError, match="outputs NaN"):
            Translator(several[0], "cpu", several[1]).score("one", "eins")


@pytest.mark.usefixtures("is_native")
def test_coverage_is_the_mean_of_the_members_coverages(
    members: list[Checkpoint], corpus: tuple[list[str], list[str]]
) -> None:
    translator = Translator(members[0], "cpu", *members[1:])
    config = SearchConfig(coverage_penalty=0.2)
    sources = sorted(set(corpus[0]), key=len)[:10]
    found = translator.translate_stream(sources, config)
    readers = [Translator(each, "cpu").cross_attention for each in members]
    num_compared = 0
    for ids, translation in zip(translator.source_ids(sources), found, strict=True):
        best = translation.hypotheses[0]
        [target] = translator.tokenizer.encode_targets([best.text])
        if tuple(translator.tokenizer.pieces(target)) != best.tokens:
            continue  # the same text in other pieces
        num_compared += 1
        coverages = []
        for read in readers:
            assert read is not None
            [weights] = read([[*ids, EOS]], [[*target, EOS]])
            received = weights[-1].sum(axis=0)  # of the last layer
            coverages.append(np.log(np.minimum(received, 1)).sum())
        length = len(best.token_log_probabilities)
        mean = float(np.mean(coverages))
        expected = config.score(best.log_probability, length, mean)
        assert best.score == pytest.approx(expected, abs=1e-3)
        assert best.score != pytest.approx(
            config.score(best.log_probability, length, float(coverages[0])), abs=1e-3
        )
    assert num_compared > 0
