"""Attention and beam search of a sentence are those of its translation."""

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.cells import cell_len
from torch import Tensor

from callers_modes import MODES
from transduce.analysis.sentence_attention import (
    SearchTree,
    as_page,
    as_record,
    attend,
    draw_tree,
    look_into,
    record_search,
)
from transduce.architectures.config import ConvolutionalConfig
from transduce.checkpoint import Checkpoint, build
from transduce.decoding.torch_model import TorchModel, prepare_model
from transduce.decoding.translations import EXCLUDED
from transduce.decoding.translator import Translator
from transduce.errors import (
    ConfigError,
    DataError,
    RequestError,
    TooLongError,
    TransduceWarning,
)
from transduce.model.config import AttentionKind
from transduce.search_config import SearchConfig
from transduce.text.shortlist import encode_pairs, learn_shortlist
from transduce.text.vocabulary import BOS, EOS

SOURCE, TARGET = "one two three", "eins zwei"


@pytest.fixture
def translator(trained_checkpoint: Checkpoint) -> Translator:
    return Translator(trained_checkpoint, torch.device("cpu"))


def by_hand(attention: Any, query: Tensor, memory: Tensor, is_causal: bool) -> Tensor:
    """Compute equation 1 for each head from the parameters."""
    d_k, heads = attention.d_k, []
    q = query @ attention.project_query.weight.T + attention.project_query.bias
    kv = memory @ attention.project_key_value.weight.T
    k = kv + attention.project_key_value.bias
    for h in range(attention.num_heads):
        columns = slice(h * d_k, (h + 1) * d_k)
        scores = q[:, columns] @ k[:, columns].T / math.sqrt(d_k)
        if is_causal:
            later = torch.ones_like(scores).triu(1).bool()
            scores[later] = -math.inf
        heads.append(scores.softmax(-1))
    return torch.stack(heads)


@pytest.mark.parametrize(
    ("kind", "side", "name"),
    [
        ("encoder", "encoder_layers", "self_attention"),
        ("decoder", "decoder_layers", "self_attention"),
        ("encoder-decoder", "decoder_layers", "cross_attention"),
    ],
)
@torch.no_grad()
def test_weights_follow_from_the_parameters(
    trained_checkpoint: Checkpoint,
    translator: Translator,
    kind: AttentionKind,
    side: str,
    name: str,
) -> None:
    found = attend(translator, SOURCE, TARGET)
    model: Any = trained_checkpoint.build()
    attention = getattr(getattr(model, side)[0], name)
    seen: list[tuple[Tensor, ...]] = []
    handle = attention.register_forward_pre_hook(
        lambda _, given: seen.append((given[0][0], given[1][0]))
    )
    encode = translator.tokenizer.encode
    model(
        torch.tensor([[*encode(SOURCE), EOS]]), torch.tensor([[BOS, *encode(TARGET)]])
    )
    handle.remove()
    expected = by_hand(attention, *seen[0], is_causal=kind == "decoder")
    [weights] = found.maps.of(kind)
    assert weights == pytest.approx(expected, abs=1e-5)
    assert expected.shape[1:] == tuple(len(axis.pieces) for axis in found.axes(kind))


def test_axes_are_labelled_with_input_and_output_tokens(
    translator: Translator,
) -> None:
    found = attend(translator, "one", "eins")
    assert found.source.pieces == (" one", " </s>")
    assert found.target_in.pieces == (" <s>", " eins")
    assert found.target_out.pieces == (" eins", " </s>")


def test_no_hook_is_left(translator: Translator) -> None:
    attend(translator, SOURCE, TARGET)
    model = translator.torch_model.model
    hooks = [module._forward_hooks for module in model.modules()]
    assert not any(hooks)


@pytest.mark.parametrize("side", ["source", "target"])
def test_an_empty_or_long_text_is_refused(translator: Translator, side: str) -> None:
    texts = {"source": "one", "target": "one", side: "x " * 129}
    with pytest.raises(TooLongError, match=f"The {side} must have at most 128 tokens"):
        attend(translator, texts["source"], texts["target"])
    texts[side] = ""
    with pytest.raises(RequestError, match=f"The {side} must have at least one word"):
        attend(translator, texts["source"], texts["target"])


def test_a_parser_reads_a_tree(parsing_checkpoint: Checkpoint) -> None:
    parser = Translator(parsing_checkpoint, torch.device("cpu"))
    found = attend(parser, "It (is)", "(TOP (S (NP-SBJ (PRP It)) (VP (VBZ is))))")
    assert found.source_text == "It -LRB- is -RRB-"
    assert found.target_text == "(S (NP XX )NP (VP XX )VP )S"
    with pytest.raises(DataError, match="a tree must begin with `\\(`, but here is"):
        attend(parser, "It is", "It is")
    with pytest.raises(RequestError, match="The target must have at least one word"):
        attend(parser, "It is", "(S (NP (-NONE- *)))")


def test_a_tree_may_be_far_longer_than_its_sentence(
    parsing_checkpoint: Checkpoint,
) -> None:
    own = SearchConfig(beam_size=2, extra_length=120, min_length=100)
    checkpoint = replace(parsing_checkpoint, search=own)
    parser = Translator(checkpoint, torch.device("cpu"))
    assert len(look_into(parser, "It is", None).pair.target_out.pieces) > 100


def test_the_search_of_a_page_is_that_of_parse(parsing_checkpoint: Checkpoint) -> None:
    """Both leave room for some tree over the words, whatever the length limit."""
    search = SearchConfig(beam_size=2, max_length=2, length_penalty=4.0)
    parser = Translator(parsing_checkpoint, "cpu")
    found = look_into(parser, "It is", None, search)
    [parse] = parser.parser().parse_stream([["It", "is"]], search)
    assert found.search.hypotheses[0].score == pytest.approx(parse.score, rel=1e-5)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_modes_of_the_caller_do_not_change_the_attention(
    trained_checkpoint: Checkpoint, mode: Callable[[], AbstractContextManager[object]]
) -> None:
    search = SearchConfig(beam_size=2, max_length=4, coverage_penalty=0.1)

    def record() -> object:
        translator = Translator(trained_checkpoint, "cpu")
        found = look_into(translator, SOURCE, None, search)
        return as_record(found, "words")

    expected = record()
    with mode():
        assert record() == expected


TEXT = "one two three"
SEVERAL = SearchConfig(num_best=4)


def decoded(checkpoint: Checkpoint) -> TorchModel:
    return prepare_model(checkpoint.build(), "fp32", torch.device("cpu"))


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


@pytest.mark.parametrize(
    "search",
    [
        SearchConfig(shortlist=True),
        SearchConfig(beam_size=1),
        SearchConfig(beam_size=1, shortlist=True, length_penalty=4.0),
        SearchConfig(coverage_penalty=0.2, shortlist=True),
    ],
    ids=str,
)
def test_the_search_of_a_page_is_that_of_translate(
    trained_checkpoint: Checkpoint, search: SearchConfig
) -> None:
    tokenizer = trained_checkpoint.tokenizer
    # Such a small shortlist changes the translation.
    few = encode_pairs([(TEXT, "acht sieben")], tokenizer)
    shortlist = learn_shortlist(few, tokenizer, frequent=0, per_piece=1)
    checkpoint = replace(trained_checkpoint, shortlist=shortlist)
    translator = Translator(checkpoint, "cpu")
    found = look_into(translator, TEXT, None, search)
    [translation] = translator.translate_stream([TEXT], search)
    best = found.search.hypotheses[0]
    assert best.score == pytest.approx(translation.score, rel=1e-5)
    assert found.found[0] == translation.text
    path = found.search.path(best)
    assert len(path) == min(len(best.ids), len(found.search.steps))


def test_the_branches_of_a_search_have_its_repetition_penalty(
    trained_checkpoint: Checkpoint,
) -> None:
    config = SearchConfig(
        beam_size=3, repetition_penalty=3.0, min_length=4, max_length=8
    )
    search = look_into(Translator(trained_checkpoint, "cpu"), TEXT, None, config).search
    assert any(len(set(each.ids)) < len(each.ids) for each in search.hypotheses)
    for each in search.hypotheses:
        path = zip(search.steps, search.path(each), strict=False)
        branches = [step[number] for step, number in path]
        assert branches[-1].total == pytest.approx(
            sum(each.token_log_probabilities[: len(branches)]), abs=1e-4
        )


def test_a_page_refuses_a_search_that_translate_refuses(
    trained_checkpoint: Checkpoint,
) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    for word in (translator.tokenizer.vocab_size, 10**6):
        config = SearchConfig(bad_words=((word,),))
        with pytest.raises(ConfigError, match="must hold token ids below"):
            look_into(translator, TEXT, None, config)


def test_a_page_without_its_shortlist_warns(trained_checkpoint: Checkpoint) -> None:
    translator = Translator(trained_checkpoint, "cpu")
    with pytest.warns(TransduceWarning, match="the model has no shortlist"):
        look_into(translator, TEXT, None, SearchConfig(shortlist=True))


@pytest.mark.parametrize("alpha", [0.0, 4.0])
def test_greedy_search_does_not_depend_on_the_length_penalty(
    trained_checkpoint: Checkpoint, alpha: float
) -> None:
    """A beam of one would go on for a longer hypothesis of a better score."""
    translator = Translator(trained_checkpoint, "cpu")
    found = [
        look_into(translator, TEXT, None, SearchConfig(beam_size=1, **penalty))
        for penalty in ({}, {"length_penalty": alpha})
    ]
    [usual], [other] = [each.search.hypotheses for each in found]
    assert other.ids == usual.ids


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


@pytest.mark.parametrize(
    "piece", [" a", " responsibilities", " 中华人民共和国", "x" * 99]
)
def test_a_line_begins_behind_its_token(tree: SearchTree, piece: str) -> None:
    tokens = {b.token: piece for step in tree.steps for b in step}
    svg = draw_tree(tree, tokens)
    starts = {int(x) for x in re.findall(r'<text x="(\d+)"', svg)}
    ends = {int(x) for x in re.findall(r'<line x1="(\d+)"', svg)}
    [shown] = {
        text
        for text in re.findall(r'\d">([^<]*)</text>', svg)
        if text[:1] == piece.strip()[0]
    }
    width = 6 * cell_len(shown)  # at least, in letters of 13 pixels
    for end in ends:
        nearest = max(x for x in starts if x < end)
        assert end - nearest >= width
        assert min(x for x in starts if x > end) - end > 30


def test_the_drawing_has_no_characters_that_xml_lacks(tree: SearchTree) -> None:
    tokens = {b.token: "a\x01\ud800b" for step in tree.steps for b in step}
    assert b">a\xef\xbf\xbd\xef\xbf\xbdb</text>" in draw_tree(tree, tokens).encode()


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


def test_a_page_of_another_architecture_shows_its_cross_attention(
    trained_checkpoint: Checkpoint,
) -> None:
    size = trained_checkpoint.config.vocab_size
    config = ConvolutionalConfig(
        vocab_size=size, encoder_blocks="2x16k3", d_embedding=16
    )
    checkpoint = replace(
        trained_checkpoint, config=config, weights=build(config).state_dict()
    )
    found = look_into(Translator(checkpoint, torch.device("cpu")), SOURCE, TARGET)
    assert found.pair.maps.kinds == ["encoder-decoder"]
    page = as_page(found)
    assert '"maps": {"encoder-decoder": {"shape": [2, 1, ' in page
    assert "Statistics of the heads" in page
