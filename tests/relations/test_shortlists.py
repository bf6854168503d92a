"""Translations among a shortlist depend on their own source only, bit for bit."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from instruction_sets import chosen_isa
from transduce.checkpoint import Checkpoint
from transduce.decoding import translations
from transduce.decoding.native_decoder import DecodingPrecision
from transduce.decoding.search import MaskedDecoder
from transduce.decoding.translations import Translation
from transduce.decoding.translator import Translator
from transduce.errors import TransduceWarning
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.native import api
from transduce.search_config import SearchConfig
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.shortlist import Shortlist, encode_pairs, learn_shortlist
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import EOS, SPECIAL_PIECES

LINES = [
    "three",
    "one two three four five six seven eight",
    "two one",
    "eight seven six five four three",
    "four",
    "Grüße, 東京!",
    " ".join(["eight five"] * 6),
    "seven seven one",
    "six",
    "five four three two",
]
Found = tuple[str, float, tuple[tuple[tuple[str, ...], float, tuple[float, ...]], ...]]


@pytest.fixture(scope="module")
def shortlist(corpus: tuple[list[str], list[str]], tokenizer: Tokenizer) -> Shortlist:
    pairs = encode_pairs(zip(*corpus, strict=True), tokenizer)
    return learn_shortlist(pairs, tokenizer, frequent=5, per_piece=4)


@pytest.fixture(params=["trained", "random"], scope="module")
def checkpoint(
    request: pytest.FixtureRequest, trained_checkpoint: Checkpoint, shortlist: Shortlist
) -> Checkpoint:
    """A trained model, and a random one, whose hypotheses differ less."""
    if request.param == "trained":
        return replace(trained_checkpoint, shortlist=shortlist)
    torch.manual_seed(2)
    config = ModelConfig(
        vocab_size=trained_checkpoint.tokenizer.vocab_size, num_layers=1, d_model=64,
        d_ff=32, num_heads=2, d_k=8, d_v=8,
    )  # fmt: skip
    return replace(
        trained_checkpoint,
        config=config,
        weights=Transformer(config).state_dict(),
        shortlist=shortlist,
    )


@pytest.fixture(params=["fp32", "int8"])
def precision(request: pytest.FixtureRequest) -> DecodingPrecision:
    precision: DecodingPrecision = request.param
    return precision


def config_of(beam_size: int, **settings: float) -> SearchConfig:
    return SearchConfig(beam_size=beam_size, extra_length=4, shortlist=True, **settings)


def found(translations: Iterator[Translation]) -> list[Found]:
    return [
        (
            each.text,
            each.score,
            tuple(
                (h.tokens, h.log_probability, h.token_log_probabilities)
                for h in each.hypotheses
            ),
        )
        for each in translations
    ]


def near(results: list[Found]) -> list[object]:
    """Texts, and scores as far as rounding does not matter."""
    return [(text, pytest.approx(score, abs=1e-4)) for text, score, _ in results]


needs_library = pytest.mark.skipif(
    api() is None, reason="PyTorch's products depend on the number of rows"
)


@needs_library
@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("num_best", [1, 4])
def test_a_line_is_translated_the_same_alone_and_in_any_batch(
    checkpoint: Checkpoint,
    precision: DecodingPrecision,
    beam_size: int,
    num_best: int,
) -> None:
    translator = Translator(checkpoint, "cpu", precision=precision)
    config = config_of(beam_size, num_best=min(num_best, beam_size))
    together = found(translator.translate_stream(LINES, config))
    alone = [next(iter(found(translator.translate_stream([x], config)))) for x in LINES]
    assert together == alone
    turned = found(translator.translate_stream(LINES[::-1], config))
    assert turned[::-1] == alone
    # So small that sentences join others that have begun.
    translator.batch_positions = 20 * beam_size
    refilled = found(translator.translate_stream(LINES * 2, config))
    assert refilled == alone * 2


@needs_library
def test_a_recurrent_decoder_chooses_among_a_lines_own_candidates(
    trained_checkpoint: Checkpoint,
    shortlist: Shortlist,
    precision: DecodingPrecision,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(4)
    config = replace(trained_checkpoint.config, decoder_self_attention="ssru")
    weights = Transformer(config).state_dict()
    recurrent = replace(
        trained_checkpoint, config=config, weights=weights, shortlist=shortlist
    )
    translator, search = Translator(recurrent, "cpu", precision=precision), config_of(4)
    alone = [next(iter(found(translator.translate_stream([x], search)))) for x in LINES]
    # So small that sentences join others that have begun.
    translator.batch_positions = 80
    assert found(translator.translate_stream(LINES[::-1], search))[::-1] == alone
    monkeypatch.setattr(translations, "with_shortlists", MaskedDecoder)
    reference = found(translator.translate_stream(LINES, search))
    assert alone == near_all(reference)


@needs_library
def test_processes_find_the_same(
    checkpoint: Checkpoint, precision: DecodingPrecision
) -> None:
    lines, config = LINES * 2, config_of(4)
    one = Translator(checkpoint, "cpu", precision=precision)
    two = Translator(checkpoint, "cpu", precision=precision, num_processes=2)
    try:
        expected = found(one.translate_stream(lines, config))
        assert found(two.translate_stream(lines, config)) == expected
    finally:
        two.close()


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"coverage_penalty": 0.2},
        {"diversity": 0.1},
        {"no_repeat_ngram": 1},
        {"repetition_penalty": 0.7},
    ],
    ids=str,
)
def test_the_native_decoder_equals_the_reference(
    checkpoint: Checkpoint,
    precision: DecodingPrecision,
    beam_size: int,
    settings: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_for_beams = {"coverage_penalty", "diversity"} & set(settings)
    config = config_of(
        beam_size, **({} if beam_size == 1 and is_for_beams else settings)
    )
    translator = Translator(checkpoint, "cpu", precision=precision)
    native = found(translator.translate_stream(LINES, config))
    monkeypatch.setattr(translations, "with_shortlists", MaskedDecoder)
    reference = found(translator.translate_stream(LINES, config))
    assert native == near_all(reference)


def near_all(results: list[Found]) -> list[object]:
    return [
        (
            text,
            pytest.approx(score, abs=1e-4),
            tuple(
                (tokens, pytest.approx(total, abs=1e-4), pytest.approx(gains, abs=1e-4))
                for tokens, total, gains in hypotheses
            ),
        )
        for text, score, hypotheses in results
    ]


def test_pytorch_finds_the_same(checkpoint: Checkpoint) -> None:
    config = config_of(4)
    native = found(Translator(checkpoint, "cpu").translate_stream(LINES, config))
    with chosen_isa("none"):
        translator = Translator(checkpoint, "cpu")
        assert translator.torch_model is translator.models[0]
        by_torch = found(translator.translate_stream(LINES, config))
    assert by_torch == near_all(native)


@pytest.mark.usefixtures("is_native")
def test_a_model_of_two_vocabularies_has_a_shortlist() -> None:
    """Imported models may have pieces of targets, then pieces of sources alone."""
    pieces = [
        tuple(f"▁{word}" for word in words.split())
        for words in ("eins zwei drei vier", "one two three four")
    ]
    models = [
        UnigramModel(
            pieces=tuple((piece, -1.0) for piece in own),
            character_map=b"",
            adds_space=True,
            removes_spaces=True,
        )
        for own in pieces
    ]
    tokenizer = SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", *pieces[0], *pieces[1]),
        source=models[1],
        target=models[0],
        target_vocab_size=8,
    )
    texts = [("one two", "eins zwei"), ("two four", "zwei vier"), ("three", "drei")]
    config = ModelConfig(
        vocab_size=12, target_vocab_size=8, num_layers=1, d_model=64, d_ff=32,
        num_heads=2, d_k=8, d_v=8,
    )  # fmt: skip
    checkpoint = Checkpoint(
        config=config,
        weights=Transformer(config).state_dict(),
        tokenizer=tokenizer,
        step=1,
        shortlist=learn_shortlist(
            encode_pairs(texts, tokenizer), tokenizer, frequent=0, per_piece=1
        ),
    )
    [given] = Translator(checkpoint, "cpu").translate_stream(
        ["one four"], config_of(2, num_best=2)
    )
    for hypothesis in given.hypotheses:
        assert set(hypothesis.text.split()) <= {"eins", "vier"}


def test_all_tokens_are_candidates_of_the_shortlist(
    checkpoint: Checkpoint, shortlist: Shortlist
) -> None:
    """Every token that is generated is a candidate of its source."""
    translator = Translator(checkpoint, "cpu")
    tokenizer = checkpoint.tokenizer
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    ids = {piece: i for i, piece in enumerate(pieces)}
    translations = translator.translate_stream(LINES, config_of(4, num_best=4))
    for line, translation in zip(LINES, translations, strict=True):
        source = tokenizer.encode(line)
        candidates = set(shortlist.candidates(source).tolist())
        for hypothesis in translation.hypotheses:
            assert {ids[piece] for piece in hypothesis.tokens} <= candidates


def test_a_list_of_all_tokens_is_the_whole_vocabulary(checkpoint: Checkpoint) -> None:
    vocab_size = checkpoint.tokenizer.vocab_size
    everything = Shortlist(
        frequent=np.arange(EOS + 1, vocab_size, dtype=np.int32),
        always=np.array([EOS], dtype=np.int32),
        ends=np.zeros(vocab_size, dtype=np.int64),
        target_vocab_size=vocab_size,
        targets=np.zeros(0, dtype=np.int32),
        tokenizer="",
    )
    translator = Translator(replace(checkpoint, shortlist=everything), "cpu")
    listed = translator.translate_stream(LINES, config_of(4))
    whole = translator.translate_stream(LINES, replace(config_of(4), shortlist=False))
    # Padding and the start of a sentence are not among the candidates.
    assert [each.text for each in listed] == [each.text for each in whole]


def test_after_a_prefix_all_tokens_are_candidates(checkpoint: Checkpoint) -> None:
    translator, prefixes = Translator(checkpoint, "cpu"), ["", "eins Katze"] * 5
    config = config_of(4)
    whole = found(
        translator.translate_stream(LINES, replace(config, shortlist=False), prefixes)
    )
    with pytest.warns(TransduceWarning, match="prefix are translated with the whole"):
        listed = found(translator.translate_stream(LINES, config, prefixes))
    without = found(translator.translate_stream(LINES, config))
    assert [t for t, _, _ in listed[1::2]] == [t for t, _, _ in whole[1::2]]
    assert near(listed[1::2]) == [(t, s) for t, s, _ in whole[1::2]]
    assert listed[::2] == without[::2]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_candidates_that_could_all_be_excluded_are_all_tokens(
    checkpoint: Checkpoint, shortlist: Shortlist, beam_size: int
) -> None:
    few = replace(checkpoint, shortlist=shortlist.limited(0, 1))
    config = config_of(beam_size, min_length=6, no_repeat_ngram=1)
    listed = found(Translator(few, "cpu").translate_stream(["four"], config))
    whole = replace(config, shortlist=False)
    expected = found(Translator(few, "cpu").translate_stream(["four"], whole))
    assert near(listed) == [(text, score) for text, score, _ in expected]


@pytest.mark.parametrize("coverage_penalty", [0.0, 0.2])
def test_an_ensemble_chooses_among_the_first_models_candidates(
    checkpoint: Checkpoint, shortlist: Shortlist, coverage_penalty: float
) -> None:
    other = replace(checkpoint, shortlist=None)
    twice = Translator(checkpoint, "cpu", other)
    once = Translator(checkpoint, "cpu")
    config = replace(config_of(4), coverage_penalty=coverage_penalty)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        together = found(twice.translate_stream(LINES, config))
    assert near(together) == [
        (text, score) for text, score, _ in found(once.translate_stream(LINES, config))
    ]


def test_a_model_without_a_shortlist_uses_all_tokens(checkpoint: Checkpoint) -> None:
    translator = Translator(replace(checkpoint, shortlist=None), "cpu")
    config = config_of(4)
    with pytest.warns(TransduceWarning, match="the model has no shortlist"):
        given = found(translator.translate_stream(LINES, config))
    off = replace(config, shortlist=False)
    assert given == found(translator.translate_stream(LINES, off))


def test_scores_of_given_translations_keep_all_tokens(checkpoint: Checkpoint) -> None:
    listed = Translator(checkpoint, "cpu")
    listed.search = replace(listed.search, shortlist=True)
    whole = Translator(replace(checkpoint, shortlist=None), "cpu")
    targets = ["eins", "Katze", "zwei drei"]
    assert listed.score(LINES[:3], targets) == whole.score(LINES[:3], targets)
