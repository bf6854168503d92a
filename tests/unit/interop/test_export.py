"""Each target's own library proves an exported model; others are refused."""

import json
import re
import signal
import warnings
from dataclasses import replace
from functools import cache
from importlib import import_module

import jaxtyping
import numpy as np
import pytest
import torch

import marian_npz
from transduce.checkpoint import Checkpoint, load_model
from transduce.cli.export import MODULES
from transduce.decoding.translator import Translator
from transduce.errors import DataError, RequestError, TransduceWarning
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import export as export_module
from transduce.interop.export import (
    GreedyOutput,
    ProofError,
    lost_search,
    prove,
    require_short,
    warn_of_lost_shortlist,
)
from transduce.interop.marian_npz_import import import_marian
from transduce.interop.onnx import MAX_POSITIONS, EncoderGraph, StepGraph
from transduce.interop.portable_tokenizer import portable_tokenizer
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.search_config import SearchConfig
from transduce.signals import unwound_on_termination
from transduce.text.sentence_pieces import SPACE
from transduce.text.shortlist import encode_pairs, learn_shortlist
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import EOS, TokenizerConfig

SENTENCES = ["one two three", "eight  seven\tfour — 中文 é </s> <pad> 🙂", "x"]
LINES = ["The dog runs.", "A cat sees the old house.", "naïve 中文 the the"]
LIKE_MARIAN = {"activation": "silu", "output_bias": True, "decoder_layers": 1}
TARGETS = ("ctranslate2", "marian", "onnx")
PAPERS_PENALTY = '`search.penalty` = "gnmt", `search.length_penalty` = 0.6'
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # raised by the libraries
]


@pytest.fixture
def make_checkpoint(tokenizer):
    def make(**changes) -> Checkpoint:
        sizes = {
            "num_layers": 2, "d_model": 16, "d_ff": 20, "num_heads": 2, "d_k": 8,
            "d_v": 8, "vocab_size": tokenizer.vocab_size, "max_positions": 40,
        }  # fmt: skip
        config = ModelConfig(**{**sizes, **changes})
        model = Transformer(config)
        for name, weight in model.named_parameters():
            if "bias" in name or "norm" in name:  # zeros and ones would hide mistakes
                torch.nn.init.normal_(weight, mean=0.5)
        return Checkpoint(
            config=config, weights=model.state_dict(), tokenizer=tokenizer, step=1
        )

    return make


def export(target, checkpoint, folder):
    module = import_module(MODULES[target])
    # In a traced model sizes are not Python integers.
    jaxtyping.config.update("jaxtyping_disable", target == "onnx")
    try:
        return module.export(checkpoint, folder, SENTENCES)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def exported(trained_checkpoint, tmp_path_factory):
    """Function that exports the trained model to a target, once for all tests."""

    @cache
    def proof_and_folder(target):
        folder = tmp_path_factory.mktemp("exported") / "out"
        return export(target, trained_checkpoint, folder), folder

    return proof_and_folder


@pytest.mark.parametrize("target", TARGETS)
def test_an_exported_model_is_proven(target, exported):
    found, folder = exported(target)
    assert found.num_sentences == 3
    assert found.num_tokens >= 6
    assert found.max_difference < 1e-3
    assert f"{found.num_tokens:,} tokens of 3 sentences are the same" in str(found)
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.parametrize(
    ("target", "changes"),
    [
        ("ctranslate2", {"norm": "pre"}),
        ("ctranslate2", {"positions": "learned"}),
        ("ctranslate2", {"scores": "unscaled"}),
        ("ctranslate2", {**LIKE_MARIAN, "norm_epsilon": 1e-2}),
        ("marian", LIKE_MARIAN),
        ("marian", {"scores": "unscaled"}),
        # PyTorch takes seconds to trace a layer, so that each model has many settings;
        # the proof fails if one of them is wrong.
        (
            "onnx",
            {
                **LIKE_MARIAN, "norm_epsilon": 1e-2, "neighbourhood": 3, "d_model": 32,
                "d_ff": 32, "d_k": 16, "d_v": 16, "num_layers": 1,
            },
        ),
        # The outputs and inputs of a layer are named by its place in the decoder.
        (
            "onnx",
            {
                "norm": "pre", "positions": "learned", "scores": "additive", "d_k": 4,
                "d_v": 6, "num_layers": 1, "decoder_layers": 2,
            },
        ),
    ],
)  # fmt: skip
def test_models_of_other_settings_are_exported_if_the_target_supports_them(
    target, changes, make_checkpoint, tmp_path
):
    assert export(target, make_checkpoint(**changes), tmp_path / "out").num_tokens > 0


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("ctranslate2", {"d_k": 4}, r"must have `model\.d_k` = 8, but has 4;"),
        ("ctranslate2", {"d_v": 4}, r"`model\.d_v`"),
        ("ctranslate2", {"neighbourhood": 3}, r"`model\.neighbourhood` = none, but"),
        ("ctranslate2", {"scores": "additive"}, r'"scaled", but has "additive"'),
        ("marian", {"norm": "pre"}, r'`model\.norm` = "post", but has "pre"'),
        ("marian", {"positions": "learned"}, r"`model\.positions`"),
        ("marian", {"norm_epsilon": 1e-3}, "epsilon` of at most 1e-05, but has 0.001;"),
    ],
)
def test_a_model_that_the_target_does_not_support_is_refused(
    target, changes, message, make_checkpoint, tmp_path
):
    with pytest.raises(RequestError, match=message):
        export(target, make_checkpoint(**changes), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_that_parses_is_refused(target, parsing_checkpoint, tmp_path):
    with pytest.raises(RequestError, match="must translate into text, but this"):
        export(target, parsing_checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_word_pieces_are_refused(corpus, make_checkpoint, tmp_path):
    pieces = learn_tokenizer(corpus[0], TokenizerConfig(kind="word-piece"))
    checkpoint = replace(make_checkpoint(), tokenizer=pieces)
    with pytest.raises(RequestError, match="kind bpe, but has one of word-pieces"):
        export("onnx", checkpoint, tmp_path / "out")


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\t\n", "one", "  one \u00a0 two\u3000three\u2028four ", "e\u0301",
        "中文 und 한국어", "🙂" * 70, "a" * 300, "</s><s>", "\ue000\uf741", "٣ ३ 3",
        "שלום", "one\u200bone", "\x00\x1f", "one,中two", "İ ſ ﬁ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("space", [" ", SPACE])
def test_the_portable_tokenizer_has_the_same_ids_and_texts(text, space, tokenizer):
    portable = portable_tokenizer(tokenizer, space)
    ids = tokenizer.encode(text)
    assert portable.encode(text, add_special_tokens=False).ids == ids
    assert portable.encode(text).ids == [*ids, 2]
    assert portable.decode(ids) == tokenizer.decode(ids)


def test_the_character_that_stands_for_spaces_may_be_in_a_piece():
    """It is read as a space, but written as it is."""
    lines = ["\u2581a \u2581a b"] * 20
    tokenizer = learn_tokenizer(lines, TokenizerConfig(vocab_size=280))
    portable = portable_tokenizer(tokenizer, SPACE)
    ids = tokenizer.encode("\u2581a b")
    assert any("\u2581" in piece for piece in tokenizer.pieces(ids))
    assert portable.decode(ids) == "\u2581a b"
    read = portable.encode("b\u2581a", add_special_tokens=False).ids
    assert portable.decode(read) == "b a"
    unknown = learn_tokenizer(["a b"] * 9, TokenizerConfig(vocab_size=264))
    spelled = unknown.encode("a\u2581b")
    assert portable_tokenizer(unknown, SPACE).decode(spelled) == "a\u2581b"


@pytest.mark.parametrize(
    ("search", "settings"),
    [
        (None, f"`search.beam_size` = 4, {PAPERS_PENALTY}"),
        (SearchConfig(beam_size=1), "`search.beam_size` = 1"),
        (
            SearchConfig(beam_size=6, no_repeat_ngram=3, bad_words=((7, 8),)),
            f"`search.beam_size` = 6, {PAPERS_PENALTY}, `search.no_repeat_ngram` = 3, "
            "`search.bad_words` = [[7, 8]]",
        ),
    ],
)
def test_a_folder_without_settings_of_search_is_told_with_those_of_the_model(
    trained_checkpoint, search, settings
):
    said = lost_search("ONNX", replace(trained_checkpoint, search=search))
    assert said == (
        "A folder for ONNX has no settings of search; give the corresponding options "
        f"to the program that translates: {settings}."
    )


@pytest.mark.parametrize("target", ["ONNX", "Hugging Face Marian"])
def test_a_lost_shortlist_is_reported(target, trained_checkpoint, corpus):
    tokenizer = trained_checkpoint.tokenizer
    pairs = encode_pairs(zip(*corpus, strict=True), tokenizer)
    shortlist = learn_shortlist(pairs, tokenizer, frequent=2, per_piece=1)
    with pytest.warns(TransduceWarning, match=f"A folder for {target} has no shortli"):
        warn_of_lost_shortlist(target, replace(trained_checkpoint, shortlist=shortlist))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TransduceWarning)
        warn_of_lost_shortlist(target, trained_checkpoint)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_ctranslate2_translates_alike_with_the_shortlist(
    beam_size, trained_checkpoint, corpus, tmp_path
):
    import ctranslate2
    import tokenizers

    tokenizer = trained_checkpoint.tokenizer
    pairs = encode_pairs(zip(*corpus, strict=True), tokenizer)
    shortlist = learn_shortlist(pairs, tokenizer, frequent=2, per_piece=1)
    # Candidates of other pieces, so that translations change.
    shortlist = replace(shortlist, targets=np.roll(shortlist.targets, 2))
    checkpoint = replace(trained_checkpoint, shortlist=shortlist)
    export("ctranslate2", checkpoint, tmp_path / "out")
    library = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32")
    pieces = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert not any(" " in piece for piece in pieces.get_vocab())

    def theirs(line: str, *, use_vmap: bool) -> str:
        [found] = library.translate_batch(
            [pieces.encode(line, add_special_tokens=False).tokens],
            beam_size=beam_size,
            max_decoding_length=30,
            use_vmap=use_vmap,
            suppress_sequences=[["<pad>"], ["<s>"]],
        )
        return pieces.decode([pieces.token_to_id(t) for t in found.hypotheses[0]])

    search = SearchConfig(
        beam_size=beam_size, penalty="power", length_penalty=1.0, shortlist=True,
        patience=None if beam_size == 1 else 1.0, max_length=30,
    )  # fmt: skip
    lines = [*corpus[0][:12], "seven eight nine"]
    translator = Translator(checkpoint, torch.device("cpu"))
    ours = [each.text for each in translator.translate_stream(lines, search)]
    assert [theirs(line, use_vmap=True) for line in lines] == ours
    assert [theirs(line, use_vmap=False) for line in lines] != ours


@pytest.fixture(scope="module")
def with_control_symbol(tmp_path_factory):
    """Imported model with a shortlist and a piece without text, a control symbol."""
    path = tmp_path_factory.mktemp("control")
    marian_npz.write_folder(path / "marian", ["vocab.spm", "vocab.spm"])
    import_marian(path / "marian", path / "model", LINES)
    checkpoint = load_model(path / "model")
    tokenizer = checkpoint.tokenizer
    pairs = encode_pairs(zip(LINES * 3, LINES * 3, strict=True), tokenizer)
    shortlist = learn_shortlist(pairs, tokenizer, frequent=2, per_piece=1)
    pieces = (*tokenizer.vocabulary[:-1], "")
    tokenizer = replace(tokenizer, vocabulary=pieces)
    return replace(checkpoint, tokenizer=tokenizer, shortlist=shortlist)


def test_a_piece_without_text_is_left_out_of_the_candidates(
    with_control_symbol, tmp_path
):
    to_ctranslate2.export(with_control_symbol, tmp_path / "out", LINES)
    text = (tmp_path / "out" / "vmap.txt").read_text(encoding="utf-8")
    first, *others = text.splitlines()
    assert first.startswith("\t")
    assert len(others) == with_control_symbol.tokenizer.vocab_size - EOS - 2
    assert all(re.fullmatch(r"[^ \t]+\t([^ \t]+( [^ \t]+)*)?", line) for line in others)


def test_pieces_with_spaces_are_no_candidates(with_control_symbol):
    shortlist = with_control_symbol.shortlist
    pieces = [f"p{i}" for i in range(shortlist.vocab_size)]
    whole = to_ctranslate2.vocabulary_map(shortlist, pieces)
    odd = int(shortlist.frequent[0])
    for piece in ("", "a b", "a\tb", "a\nb"):
        pieces[odd] = piece
        written = to_ctranslate2.vocabulary_map(shortlist, pieces)
        kept = [each for each in whole.splitlines() if not each.startswith(f"p{odd}\t")]
        expected = [re.sub(rf"\bp{odd}( |$)", "", line).rstrip(" ") for line in kept]
        assert written.splitlines() == expected


def test_other_candidates_than_the_models_fail_the_proof(
    with_control_symbol, tmp_path, monkeypatch
):
    monkeypatch.setattr(to_ctranslate2, "vocabulary_map", lambda *_: "\t</s>\n")
    with pytest.raises(ProofError, match="must choose the same tokens"):
        to_ctranslate2.export(with_control_symbol, tmp_path / "out", LINES)
    assert not (tmp_path / "out").exists()


class Impostor:
    """Model that returns given outputs."""

    def __init__(self, checkpoint, change_logits=0.0, change_id=0, ids=None):
        self._model = checkpoint.build()
        self._tokenizer = checkpoint.tokenizer
        self._changes = change_logits, change_id
        self._ids = ids

    def greedy(self, source, max_length):
        target = torch.tensor([[1]])
        for _ in range(max_length):
            logits = self._model(torch.tensor([[*source, 2]]), target)[0]
            logits[:, :2] = -torch.inf
            token = logits[-1].argmax()
            target = torch.cat([target, token.view(1, 1)], dim=1)
            if token == 2:
                break
        ids = target[0, 1:].tolist()
        change, other = self._changes
        if other:
            ids[-1] = other
        return GreedyOutput(ids=ids, logits=logits + change)

    def encode_source(self, text):
        return self._tokenizer.encode(text) if self._ids is None else self._ids

    def known_to_source(self, ids):
        return ids

    def encode_target(self, text):
        return self._tokenizer.encode(text)

    def decode(self, ids):
        return self._tokenizer.decode(ids)


def test_an_equal_model_passes_the_proof(trained_checkpoint):
    other = Impostor(trained_checkpoint)
    found = prove(other, other, trained_checkpoint, SENTENCES[:1])
    assert found.max_difference == 0


@pytest.mark.parametrize(
    ("impostor", "message"),
    [
        ({"change_logits": 0.01}, "same logits within 0.001, but they differ by 0.01"),
        ({"change_logits": float("nan")}, "they differ by nan"),
        ({"change_id": 7}, "must choose the same tokens, but do not for the"),
        ({"ids": [3]}, "tokenizers must give the same ids and text"),
    ],
)
def test_a_different_model_fails_the_proof(impostor, message, trained_checkpoint):
    other = Impostor(trained_checkpoint, **impostor)
    with pytest.raises(ProofError, match=message):
        prove(other, other, trained_checkpoint, SENTENCES[:1])


def test_a_failed_proof_writes_nothing(trained_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(export_module, "TOLERANCE", 0.0)
    with pytest.raises(ProofError, match="nothing was written"):
        export("ctranslate2", trained_checkpoint, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "max_positions", "longest"),
    [("bpe", 1_024, 250), ("character", 1_024, 600), ("character", 300, 299)],
)
def test_a_proof_has_sentences_as_long_as_translate_takes(
    kind, max_positions, longest, corpus
):
    tokenizer = learn_tokenizer(corpus[0], TokenizerConfig(kind=kind, vocab_size=300))
    number = longest // len(tokenizer.encode("one"))
    require_short(["one " * number], tokenizer, max_positions)
    with pytest.raises(DataError, match=f"must have at most {longest} tokens"):
        require_short(["one " * (number + 1)], tokenizer, max_positions)


def test_an_export_to_marian_has_the_papers_search(exported):
    _, folder = exported("marian")
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings["num_beams"] == 4
    assert settings["early_stopping"] is False
    assert settings["bad_words_ids"] == [[0], [1]]
    # Near 25 tokens, 25^alpha grows as ((5 + 25) / 6)^0.6 does.
    ours, theirs = SearchConfig(), SearchConfig(penalty="power", length_penalty=0.5)
    assert settings["length_penalty"] == theirs.length_penalty
    growth = [each.divisor(26) / each.divisor(24) for each in (ours, theirs)]
    assert growth[0] == pytest.approx(growth[1], rel=1e-4)


@pytest.mark.parametrize(("penalty", "expected"), [("gnmt", 1.0), ("power", 1.2)])
def test_an_export_to_marian_has_the_search_of_the_run(
    penalty, expected, trained_checkpoint, tmp_path
):
    search = SearchConfig(beam_size=5, patience=1, length_penalty=1.2, penalty=penalty)
    checkpoint = replace(trained_checkpoint, search=search)
    export("marian", checkpoint, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert settings["num_beams"] == 5
    assert settings["early_stopping"] is True
    assert settings["length_penalty"] == pytest.approx(expected)


def test_an_export_to_marian_has_greedy_search_without_beam_settings(
    trained_checkpoint, tmp_path
):
    checkpoint = replace(trained_checkpoint, search=SearchConfig(beam_size=1))
    export("marian", checkpoint, tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert settings["num_beams"] == 1
    assert settings.keys().isdisjoint({"length_penalty", "early_stopping"})


def test_search_by_marian_stops_soon_after_the_best_translation(exported, corpus):
    from transformers import AutoTokenizer, MarianMTModel

    _, folder = exported("marian")
    model = MarianMTModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    decoder, calls = model.get_decoder(), []
    decoder.register_forward_hook(lambda *_: calls.append(1))
    found = model.generate(tokenizer(corpus[0][0], return_tensors="pt").input_ids)
    assert found.size(1) <= len(calls) + 1 < 3 * found.size(1)


def test_marian_translates_with_the_exported_settings(
    exported, trained_checkpoint, corpus
):
    from transformers import AutoTokenizer, MarianMTModel

    _, folder = exported("marian")
    model = MarianMTModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    search = SearchConfig(penalty="power", length_penalty=0.5)
    translator = Translator(trained_checkpoint, torch.device("cpu"))
    lines = corpus[0][:8]
    for line, ours in zip(
        lines, translator.translate_stream(lines, search), strict=True
    ):
        found = model.generate(tokenizer(line, return_tensors="pt").input_ids)
        assert tokenizer.decode(found[0], skip_special_tokens=True) == ours.text


@pytest.mark.parametrize(
    "text", ["中" * 21 + "...", "a" * 40 + "中" + "a" * 60]
)  # fmt: skip
def test_long_words_with_unknown_characters_may_be_split_differently(text, tokenizer):
    """This is documented; no text is lost."""
    portable = portable_tokenizer(tokenizer)
    ids = portable.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text


def test_each_graph_makes_its_model_independent_of_lengths(make_checkpoint):
    model = make_checkpoint(num_layers=1, neighbourhood=3).build_transformer()
    with torch.no_grad():
        positions = [
            graph(model).model.positions for graph in (EncoderGraph, StepGraph)
        ]
    assert positions[0] is positions[1]
    assert len(positions[0].get_buffer("table")) == MAX_POSITIONS
    assert model.encoder_layers[0].self_attention.weights_tap._forward_hooks


def test_a_signal_while_a_graph_is_traced_takes_effect_after_it(
    make_checkpoint, tmp_path, monkeypatch
):
    """PyTorch would abort, and leave a folder, where a handler raises an exception."""
    forward, traced = EncoderGraph.forward, []

    def interrupted(self, source):
        signal.raise_signal(signal.SIGTERM)
        outputs = forward(self, source)
        traced.append(True)
        return outputs

    monkeypatch.setattr(EncoderGraph, "forward", interrupted)
    with pytest.raises(SystemExit) as ended, unwound_on_termination():
        export("onnx", make_checkpoint(num_layers=1), tmp_path / "out")
    assert ended.value.code == 128 + signal.SIGTERM
    assert traced
    assert not list(tmp_path.iterdir())


def test_an_onnx_model_reads_padded_batches(exported, trained_checkpoint):
    import onnxruntime

    _, folder = exported("onnx")
    encoder, step = (
        onnxruntime.InferenceSession(folder / name)
        for name in ("encoder.onnx", "decoder_step.onnx")
    )
    source = np.array([[5, 6, 7, 2], [8, 2, 0, 0]])
    names = [each.name for each in encoder.get_outputs()]
    memory = dict(zip(names, encoder.run(None, {"source": source}), strict=True))
    past = {
        each.name: np.zeros((2, each.shape[1], 0, each.shape[3]), np.float32)
        for each in step.get_inputs()
        if each.name.startswith(("key.", "value."))
    }
    model = trained_checkpoint.build()
    read = torch.empty(2, 0, dtype=torch.int64)
    for ids in ([[1], [1]], [[9], [10]], [[11], [12]]):
        inputs = {"last_ids": np.array(ids), **memory, **past}
        logits, *grown = step.run(None, inputs)
        past = dict(zip(past, grown, strict=True))
        read = torch.cat([read, torch.tensor(ids)], dim=1)
        with torch.no_grad():
            expected = model(torch.from_numpy(source), read)[:, -1]
        torch.testing.assert_close(
            torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4
        )
