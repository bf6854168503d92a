"""Search with patience 1 and penalty power has the results of other libraries.

Also where the limit of length cuts hypotheses short: these then compete with finished
ones, and win at times.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ctranslate2
import pytest
import torch
from transformers import MarianMTModel

from beam_kinds import kind_of_beam  # noqa: F401
from transduce.checkpoint import Checkpoint
from transduce.decoding.translator import Translator
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import marian_export as to_marian
from transduce.interop.portable_tokenizer import portable_pieces
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.text.sentence_pieces import SPACE
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import EOS

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries

CPU = torch.device("cpu")
NEVER = [["<pad>"], ["<s>"]]
SENTENCES = [
    "one two three",
    "four",
    "eight seven six five four",
    "six one eight one three five",
    "x",
]
LIMITS = (1, 2, 4, 8)
PENALTIES = (0.0, 0.5, 1.0, 1.6)
NEARLY = 5e-4
"""Difference of scores below which CTranslate2 may prefer the lower one: it
approximates exponentials, differently on each processor."""

Found = list[tuple[tuple[int, ...], bool]]
"""Ids of hypotheses, best first, and whether each has ended by itself."""
Peer = Callable[[list[int], SearchConfig], Found]


def random_model(tokenizer: Tokenizer, seed: int, end: float) -> Checkpoint:
    """Random model; a higher `end` makes sentences end earlier."""
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=2, decoder_layers=1, d_model=16,
        d_ff=20, num_heads=2, d_k=8, d_v=8, activation="silu", output_bias=True,
    )  # fmt: skip
    model = Transformer(config)
    for name, weight in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(weight, mean=0.5)
    weights = dict(model.state_dict())
    weights["embedding.weight"] = weights["embedding.weight"] / 2
    weights["embedding.bias"][EOS] = end
    return Checkpoint(config=config, weights=weights, tokenizer=tokenizer, step=1)


def disturbed(checkpoint: Checkpoint, seed: int) -> Checkpoint:
    """Copy of a model with noise on its weights, as if it were trained less."""
    torch.manual_seed(seed)
    weights = {
        name: weight + 0.5 * weight.std(correction=0) * torch.randn_like(weight)
        for name, weight in checkpoint.weights.items()
    }
    return replace(checkpoint, weights=weights)


@pytest.fixture(scope="module")
def checkpoints(
    trained_checkpoint: Checkpoint, tokenizer: Tokenizer
) -> dict[str, Checkpoint]:
    return {
        "trained": trained_checkpoint,
        "less trained": disturbed(trained_checkpoint, seed=3),
        "random": random_model(tokenizer, seed=10, end=4),
        "random, with few ends": random_model(tokenizer, seed=11, end=2),
    }


@pytest.fixture(scope="module")
def known_peers() -> dict[str, dict[str, Peer]]:
    """Peers by the name of their checkpoint, the same for all kinds of our beam."""
    return {}


@pytest.fixture(params=["trained", "less trained", "random", "random, with few ends"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def checkpoint(checkpoints: dict[str, Checkpoint], name: str) -> Checkpoint:
    return checkpoints[name]


@pytest.fixture
def peers(
    checkpoint: Checkpoint,
    name: str,
    known_peers: dict[str, dict[str, Peer]],
    tmp_path: Path,
) -> dict[str, Peer]:
    if name not in known_peers:
        for peer, export in (("ctranslate2", to_ctranslate2), ("marian", to_marian)):
            export.export(checkpoint, tmp_path / peer, SENTENCES)
        known_peers[name] = {
            "CTranslate2": once(in_ctranslate2(checkpoint, tmp_path / "ctranslate2")),
            "Hugging Face": once(in_hugging_face(tmp_path / "marian")),
        }
    return known_peers[name]


def once(find: Peer) -> Peer:
    """Peer that searches once for all kinds of our beam."""
    kept: dict[tuple[tuple[int, ...], SearchConfig], Found] = {}

    def find_once(source: list[int], config: SearchConfig) -> Found:
        key = (tuple(source), config)
        if key not in kept:
            kept[key] = find(source, config)
        return kept[key]

    return find_once


def in_ctranslate2(checkpoint: Checkpoint, folder: Path) -> Peer:
    translator = ctranslate2.Translator(str(folder), compute_type="float32")
    pieces = portable_pieces(checkpoint.tokenizer, SPACE)
    ids = {piece: i for i, piece in enumerate(pieces)}

    def find(source: list[int], config: SearchConfig) -> Found:
        [result] = translator.translate_batch(
            [[pieces[i] for i in source]],
            beam_size=config.beam_size,
            num_hypotheses=config.num_best,
            patience=config.patience,
            length_penalty=config.length_penalty,
            max_decoding_length=config.max_length,
            min_decoding_length=0,
            return_end_token=True,
            suppress_sequences=NEVER,
        )
        return list(map(told, ([ids[piece] for piece in h] for h in result.hypotheses)))

    return find


def in_hugging_face(folder: Path) -> Peer:
    model = MarianMTModel.from_pretrained(folder).eval()

    def find(source: list[int], config: SearchConfig) -> Found:
        with torch.inference_mode():
            found = model.generate(
                torch.tensor([[*source, EOS]]),
                num_beams=config.beam_size,
                num_return_sequences=config.num_best,
                length_penalty=config.length_penalty,
                early_stopping=True,
                max_length=None,
                max_new_tokens=config.max_length,
            )
        return [told(row[1:]) for row in found.tolist()]

    return find


def told(ids: list[int]) -> tuple[tuple[int, ...], bool]:
    """Ids of the words, and whether the end token is among them."""
    return tuple(i for i in ids if i > EOS), EOS in ids


def ours(translator: Translator, text: str, config: SearchConfig) -> Found:
    pieces = translator.tokenizer.pieces(range(translator.tokenizer.vocab_size))
    ids = {piece: i for i, piece in enumerate(pieces)}
    [found] = translator.translate_stream([text], config)
    return [
        (
            tuple(ids[piece] for piece in each.tokens),
            len(each.token_log_probabilities) > len(each.tokens),
        )
        for each in found.hypotheses
    ]


def is_nearly_best(
    translator: Translator, text: str, config: SearchConfig, theirs: Found
) -> bool:
    """Whether a translation of CTranslate2 is ours, or has nearly the same score."""
    if ours(translator, text, config) == theirs:
        return True
    several = replace(config, num_best=config.beam_size)
    [found] = translator.translate_stream([text], several)
    scores = [each.score for each in found.hypotheses]
    place = ours(translator, text, several).index(theirs[0])
    return scores[0] - scores[place] < NEARLY


def distinct(found: Found, tokenizer: Tokenizer) -> Found:
    """Hypotheses without duplicates of a better one's text, as in our search."""
    by_text = {tokenizer.decode(ids): (ids, end) for ids, end in reversed(found)}
    return [each for each in found if by_text[tokenizer.decode(each[0])] == each]


@pytest.mark.parametrize("beam_size", [2, 4, 7])
def test_the_best_translation_equals_that_of_both_libraries(
    checkpoint, peers, beam_size
):
    translator = Translator(checkpoint, CPU)
    for max_length in LIMITS:
        for length_penalty in PENALTIES:
            config = SearchConfig(
                beam_size=beam_size, patience=1, penalty="power", extra_length=99,
                length_penalty=length_penalty, max_length=max_length,
            )  # fmt: skip
            for text in SENTENCES:
                source = translator.tokenizer.encode(text)
                theirs = peers["Hugging Face"](source, config)
                assert ours(translator, text, config) == theirs
                theirs = peers["CTranslate2"](source, config)
                assert is_nearly_best(translator, text, config, theirs)


def test_the_n_best_translations_equal_those_of_hugging_face(checkpoint, peers):
    translator = Translator(checkpoint, CPU)
    for max_length, length_penalty in zip(LIMITS, PENALTIES, strict=True):
        config = SearchConfig(
            beam_size=4, num_best=4, patience=1, penalty="power", extra_length=99,
            length_penalty=length_penalty, max_length=max_length,
        )  # fmt: skip
        for text in SENTENCES:
            found = ours(translator, text, config)
            source = translator.tokenizer.encode(text)
            theirs = peers["Hugging Face"](source, config)
            assert found == distinct(theirs, translator.tokenizer)


@pytest.mark.parametrize("patience", [0.5, 2.0])
def test_results_with_another_patience_equal_those_of_ctranslate2(
    checkpoint, peers, patience
):
    translator = Translator(checkpoint, CPU)
    for max_length in LIMITS:
        config = SearchConfig(
            beam_size=4, patience=patience, penalty="power", extra_length=99,
            length_penalty=1.0, max_length=max_length,
        )  # fmt: skip
        for text in SENTENCES:
            source = translator.tokenizer.encode(text)
            theirs = peers["CTranslate2"](source, config)
            assert is_nearly_best(translator, text, config, theirs)
