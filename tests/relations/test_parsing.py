"""Parses do not depend on the batch, and constrained search finds only trees."""

from functools import partial
from itertools import islice

import pytest
import torch

from learned_symbols import learn_symbols
from transduce.checkpoint import Checkpoint
from transduce.decoding.parser import Parse, Parser
from transduce.decoding.translations import Pace
from transduce.decoding.translator import Translator
from transduce.grammar.corpus import training_trees
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.text.corpus import full_windows
from transduce.text.tokenizer import Tokenizer
from transduce.trees.linearization import STYLES, Repairs, StyleName
from transduce.trees.trees import NOTHING, parse_tree

CPU = torch.device("cpu")
SENTENCES = [
    line.split()
    for line in (
        "one two three",
        "",
        "four",
        "eight seven six five four three two one",
        "seven eight",
        "five ( six )",
        "三 <s> </s>",
    )
]
TREES = list(islice(training_trees(seed=4), 20))


def untrained(
    tokenizer: Tokenizer, style: StyleName, seed: int = 3, num_processes: int = 1
) -> Translator:
    torch.manual_seed(seed)
    symbols = learn_symbols(TREES, style)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, target_vocab_size=symbols.vocab_size,
        num_layers=1, d_model=16, d_ff=20, num_heads=2, d_k=8, d_v=8,
    )  # fmt: skip
    model = Transformer(config)
    for parameter in model.parameters():
        # Large, so that likelihoods differ much.
        torch.nn.init.normal_(parameter, std=0.4)
    checkpoint = Checkpoint(
        config=config,
        weights=model.state_dict(),
        tokenizer=tokenizer,
        step=0,
        symbols=symbols,
    )
    return Translator(checkpoint, CPU, num_processes=num_processes)


def parse(
    parser: Parser,
    sentences: list[list[str]],
    beam_size: int,
    constrained: bool,
    pace: Pace | None = None,
) -> list[Parse]:
    search = SearchConfig(beam_size=beam_size, length_penalty=0.3, extra_length=12)
    return list(
        parser.parse_stream(sentences, search, constrained=constrained, pace=pace)
    )


@pytest.fixture(params=STYLES)
def translator(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Translator:
    return untrained(tokenizer, request.param)


@pytest.fixture
def parser(translator: Translator) -> Parser:
    return translator.parser()


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_the_parse_of_a_sentence_does_not_depend_on_its_batch(
    translator: Translator, parser: Parser, beam_size: int, constrained: bool
) -> None:
    alone = [parse(parser, [words], beam_size, constrained)[0] for words in SENTENCES]
    translator.batch_positions = 25 * beam_size
    together = parse(parser, SENTENCES, beam_size, constrained)
    assert [each.tree for each in together] == [each.tree for each in alone]
    assert [each.repairs for each in together] == [each.repairs for each in alone]
    assert [each.score for each in together] == pytest.approx(
        [each.score for each in alone], abs=1e-4
    )


@pytest.mark.parametrize("beam_size", [1, 4])
def test_every_parse_is_a_tree_over_the_words(parser: Parser, beam_size: int) -> None:
    for constrained in (False, True):
        parses = parse(parser, SENTENCES, beam_size, constrained)
        for words, found in zip(SENTENCES, parses, strict=True):
            assert list(found.tree.words) == words
    assert parses[1].tree == NOTHING


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(3))
def test_only_unconstrained_search_needs_repairs(
    tokenizer: Tokenizer, style: StyleName, seed: int, beam_size: int
) -> None:
    parser = untrained(tokenizer, style, seed).parser()
    plain, constrained = (
        parse(parser, SENTENCES, beam_size, constrained)
        for constrained in (False, True)
    )
    assert all(each.repairs == Repairs() for each in constrained)
    assert any(each.repairs != Repairs() for each in plain)


@pytest.mark.parametrize("constrained", [False, True])
def test_several_processes_find_the_parses_of_one(
    tokenizer: Tokenizer, constrained: bool
) -> None:
    sentences = SENTENCES * 16
    expected = parse(untrained(tokenizer, "xx").parser(), sentences, 3, constrained)
    parser = untrained(tokenizer, "xx", num_processes=2).parser()
    try:
        found = parse(parser, sentences, 3, constrained)
    finally:
        parser.close()
    assert [each.tree for each in found] == [each.tree for each in expected]


def test_a_bracket_in_the_text_is_escaped_as_in_treebanks(parser: Parser) -> None:
    [written, typed] = parse(
        parser, [["(", "one", ")"], ["-LRB-", "one", "-RRB-"]], 2, True
    )
    assert written.score == typed.score
    assert str(written.tree) == str(typed.tree)
    assert parse_tree(str(written.tree)).words == ("-LRB-", "one", "-RRB-")


def test_escapes_of_the_penn_treebank_do_not_change_a_parse(parser: Parser) -> None:
    treebank, raw = parse(parser, [["1\\/2", "\\*"], ["1/2", "*"]], 2, True)
    assert treebank.score == raw.score
    assert treebank.tree.words == ("1\\/2", "\\*")


@pytest.mark.parametrize("beam_size", [1, 3])
def test_words_that_the_model_reads_as_spaces_have_a_tree_of_the_model(
    parser: Parser, beam_size: int
) -> None:
    spaces = ["\u00a0", "\u3000"]
    alone, _ = parse(parser, [spaces, ["one"]], beam_size, constrained=True)
    assert alone.tree.words == tuple(spaces)
    assert alone.repairs == Repairs()
    assert alone.score < 0


def test_a_sentence_that_is_too_long_has_a_flat_tree(parser: Parser) -> None:
    words = ["one"] * 1_001
    for constrained in (False, True):
        long, short = parse(parser, [words, words[:1]], 2, constrained)
        assert str(long.tree) == f"(TOP (S {' '.join(['(XX one)'] * 1_001)}))"
        assert (long.is_overlong, short.is_overlong) == (True, False)
        assert long.repairs.missing == 1_001


def test_windows_do_not_change_the_parses(parser: Parser) -> None:
    expected = parse(parser, SENTENCES, 2, True)
    pace = Pace(windows=partial(full_windows, size=2))
    found = parse(parser, SENTENCES, 2, True, pace)
    assert [each.tree for each in found] == [each.tree for each in expected]
