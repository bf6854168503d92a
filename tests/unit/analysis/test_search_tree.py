import pytest
import torch

from transduce.analysis.search_tree import SearchTree, draw_tree, record_search
from transduce.checkpoint import Checkpoint
from transduce.decoding.torch_model import TorchModel, prepared
from transduce.decoding.translator import EXCLUDED, Translator
from transduce.search_config import SearchConfig
from transduce.text.vocabulary import EOS

TEXT = "one two three"
SEVERAL = SearchConfig(num_best=4)


def decoded(checkpoint: Checkpoint) -> TorchModel:
    return prepared(checkpoint.build(), "fp32", torch.device("cpu"))


@pytest.fixture(scope="module")
def tree(trained_checkpoint: Checkpoint) -> SearchTree:
    source = torch.tensor([[*trained_checkpoint.tokenizer.encode(TEXT), EOS]])
    return record_search(decoded(trained_checkpoint), source, SEVERAL, EXCLUDED)


def test_a_recorded_search_finds_the_same_translations(
    tree: SearchTree, trained_checkpoint: Checkpoint
) -> None:
    translator = Translator(trained_checkpoint, torch.device("cpu"))
    (translation,) = translator.translate_stream([TEXT], SEVERAL)
    # Both are in fp32 but sum in different orders.
    assert [h.score for h in tree.hypotheses] == [
        pytest.approx(h.score, rel=1e-5) for h in translation.hypotheses
    ]


def test_the_path_of_a_hypothesis_has_its_tokens_and_score(tree: SearchTree) -> None:
    for hypothesis in tree.hypotheses:
        path = tree.path(hypothesis)
        branches = [
            step[number] for step, number in zip(tree.steps, path, strict=False)
        ]
        assert tuple(branch.token for branch in branches) == hypothesis.ids
        assert [branch.log_probability for branch in branches] == [
            pytest.approx(gain, abs=1e-4)
            for gain in hypothesis.token_log_probabilities[: len(branches)]
        ]
        assert branches[-1].total == pytest.approx(
            sum(branch.log_probability for branch in branches)
        )


def test_the_drawing_has_every_branch_and_every_end(tree: SearchTree) -> None:
    tokens = {b.token: f"<{b.token}>" for step in tree.steps for b in step}
    svg = draw_tree(tree, tokens)
    for branch in tree.steps[0]:
        assert f">&lt;{branch.token}&gt;</text>" in svg
    for hypothesis in tree.hypotheses:
        assert f"score {hypothesis.score:.3f}" in svg
    # The best path and its end.
    assert svg.count("class=best") == len(tree.hypotheses[0].ids) + 1


def test_a_truncated_hypothesis_has_a_path(
    trained_checkpoint: Checkpoint,
) -> None:
    source = torch.tensor([[*trained_checkpoint.tokenizer.encode("one"), EOS]])
    config = SearchConfig(beam_size=2, extra_length=4)
    without_end = (*EXCLUDED, EOS)
    tree = record_search(decoded(trained_checkpoint), source, config, without_end)
    assert not tree.hypotheses[0].is_finished
    assert len(tree.path(tree.hypotheses[0])) == len(tree.steps)
    assert "cut short" in draw_tree(
        tree, {b.token: "x" for step in tree.steps for b in step}
    )
