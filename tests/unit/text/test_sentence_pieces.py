"""Pieces, ids and text equal SentencePiece's on text of every kind."""

import functools
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transduce.errors import CheckpointError, RequestError
from transduce.grammar.corpus import Grammar
from transduce.text.sentence_pieces import (
    SentencePieceModel,
    SentencePieceTokenizer,
    read_model,
    tokenizer_of_model,
)
from transduce.text.tokenizer import load_tokenizer
from transduce.text.vocabulary import EOS, SPECIAL_PIECES

FORMS = "naïve café Straße ﬁne ½ … „ “ — ™ 中文 각 ё"
SYMBOLS = ["<s>/", "dog", "ﬁ", "--", "---"]
SETTINGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "with spaces as they are": {"remove_extra_whitespaces": False},
    "nothing before the first word": {"add_dummy_prefix": False},
    "nothing rewritten": {"normalization_rule_name": "identity"},
    "small letters": {"normalization_rule_name": "nmt_nfkc_cf"},
    "pieces across words": {"split_by_whitespace": False},
    "bytes of unknown characters": {"byte_fallback": True, "vocab_size": 420},
    "symbols": {"user_defined_symbols": SYMBOLS},
    "byte pairs": {"model_type": "bpe"},
    "byte pairs across words": {"model_type": "bpe", "split_by_whitespace": False},
    "byte pairs, symbols and bytes": {
        "model_type": "bpe", "user_defined_symbols": SYMBOLS, "byte_fallback": True,
        "vocab_size": 420,
    },
}  # fmt: skip
HARD_TEXTS = [
    "",
    " ",
    "  \t ",
    "The dog  runs.",
    "  spaces before,   between and after  ",
    "我们在这里测试没有学过的汉字：龘靐齉爩",
    "a中文b 中 文",
    "مرحباً بالعالم، كيف حالك؟",
    "👩‍👩‍👧‍👦 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✊🏽 the dog🙂",
    "Z̸̡͎a̶̛͜l̵͓̈́g̷̱̽o̴̢̕ é ﬁ\u0301 ở A\u030a \u1100\u1161\u11a8",
    "ﬁﬃ① ½ Å Å ﷺ ｆｕｌｌ ㌔",
    " ̈begins with a mark ´ ¨",
    "▁Hello▁world ▁ ▁▁",
    "▁",
    "<s> </s> <pad> <unk> <0xE2>",
    "<s></s><pad>text<s>",
    "tab\tline\nfeed\r\nseparator\u2028 \u00a0 space\u3000wide\u200b\u00ad",
    "x" * 1_000 + "é" * 500 + "7" * 300 + "!" * 300,
    "\0\x01\x7f\ufeff\ufffd\ufffe\U0010ffff",
    "dogs<s>/<s>//ﬁdog ----- the------",
    "aaaa aaaaaaaaa ......... TTTTTTT",
]


@functools.cache
def proto(name: str) -> bytes:
    pairs = islice(Grammar.built_in().training_sentences(seed=5), 300)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*(pair.source for pair in pairs), FORMS]),
        model_writer=model,
        minloglevel=2,
        **{"vocab_size": 150, "hard_vocab_limit": False, **SETTINGS[name]},
    )
    return model.getvalue()


@functools.cache
def oracle(name: str) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=proto(name))


@functools.cache
def model_of(name: str) -> SentencePieceModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my.model"
        path.write_bytes(proto(name))
        model, _ = read_model(path)
    return model


@functools.cache
def tokenizer() -> SentencePieceTokenizer:
    pieces = [piece for piece, _ in model_of("usual").pieces]
    return SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", ">>deu<<", *pieces, "龘靐"),
        source=model_of("usual"),
        target=model_of("small letters"),
    )


def ids_of(*pieces: str) -> list[int]:
    return [tokenizer().vocabulary.index(piece) for piece in pieces]


@pytest.mark.parametrize("name", SETTINGS)
def test_hard_texts_are_split_as_by_sentencepiece(name):
    expected = [oracle(name).encode(text, out_type=str) for text in HARD_TEXTS]
    assert model_of(name).cut(HARD_TEXTS) == expected


AWKWARD = st.text(
    alphabet=st.sampled_from(
        "aTeh. é中½ﬁ™ \u0301\u0308\u0323\u2581\u3000\t\n\0<s>/\u1100\u1161"
    )
)


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(AWKWARD, st.text()))
@example(text="\u2581a \u2581")
def test_any_text_is_split_as_by_sentencepiece(name, text):
    assert model_of(name).cut([text]) == [oracle(name).encode(text, out_type=str)]


def test_sentences_are_split_as_by_sentencepiece():
    pairs = islice(Grammar.built_in().training_sentences(seed=6), 400)
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    assert model_of("usual").cut(texts) == oracle("usual").encode(texts, out_type=str)


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(RequestError, match=r"character 2 of 'a\\ud800b' is '\\ud800'"):
        model_of("usual").cut(["a\ud800b"])


def test_a_piece_outside_the_vocabulary_is_unknown():
    assert tokenizer().encode("龘") == ids_of("\u2581", "<unk>")
    assert tokenizer().decode(ids_of("\u2581the", "<unk>")) == "the"


def test_a_piece_of_the_vocabulary_needs_no_sentencepiece_model():
    assert tokenizer().encode("龘靐") == ids_of("\u2581", "龘靐")


def test_source_and_target_have_their_own_sentencepiece_models():
    [source], [target] = (
        encode(["THE DOG"])
        for encode in (tokenizer().encode_sources, tokenizer().encode_targets)
    )
    assert source != target
    assert tokenizer().decode(target) == "the dog"
    assert tokenizer().encode_targets([""]) == [[]]


@pytest.mark.parametrize("text", SPECIAL_PIECES)
def test_typed_special_tokens_are_text(text):
    assert min(tokenizer().encode(f"{text} a{text}")) > EOS


def test_an_added_token_without_text_has_no_id() -> None:
    damaged = replace(tokenizer(), added=("",))
    assert damaged.unknown not in damaged.encode("the dog")


def test_a_silent_token_is_read_but_not_written(tmp_path):
    plain = tokenizer()
    piece = plain.vocabulary[-1]
    silent = replace(plain, added=(piece,), silent=(piece,))
    ids = [*silent.encode("the dog"), len(plain.vocabulary) - 1]
    assert silent.encode(piece) == ids[-1:]
    assert silent.decode(ids) == silent.decode(ids[:-1]) == "the dog"
    silent.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == silent
    assert silent.without([piece]).silent == ()
    content = {**json.loads(silent.json()), "silent": ["absent"]}
    with pytest.raises(ValueError, match="silent tokens must be in the vocabulary"):
        SentencePieceTokenizer.from_content(content)


def test_the_code_of_a_language_is_one_piece():
    expected = [*ids_of(">>deu<<"), *tokenizer().encode(" The dog")]
    assert tokenizer().encode(">>deu<< The dog") == expected
    assert tokenizer().language(">>deu<< The >>x<< dog") == ">>deu<<"
    assert tokenizer().language("The >>deu<< dog") == ""
    assert ids_of(">>deu<<")[0] not in tokenizer().encode(" >>deu<< The dog")


def test_a_code_outside_the_vocabulary_is_text():
    assert tokenizer().language(">>the<< dog") == ""
    assert tokenizer().decode(tokenizer().encode(">>the<< dog")).endswith("the dog")


def test_pieces_show_a_space_before_a_word():
    assert tokenizer().pieces(ids_of("\u2581the", "<unk>")) == [" the", "<unk>"]
    assert tokenizer().vocab_size == len(tokenizer().vocabulary)


def test_special_tokens_are_left_out_of_the_text():
    ids = tokenizer().encode("the dog")
    assert tokenizer().decode([1, *ids, 2, 0, 0]) == "the dog"


def test_a_text_of_known_pieces_is_decoded_unchanged():
    for text in ("The dog runs.", "  a   café ", "ﬁne …"):
        expected = oracle("usual").decode(oracle("usual").encode(text))
        assert tokenizer().decode(tokenizer().encode(text)) == expected


def spelling() -> SentencePieceTokenizer:
    """Tokenizer that spells unknown characters by bytes."""
    name = "bytes of unknown characters"
    library = oracle(name)
    pieces = map(library.id_to_piece, range(3, library.vocab_size()))
    return SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", *pieces),
        source=model_of(name),
        target=model_of(name),
    )


def test_characters_spelled_by_bytes_come_back() -> None:
    tokenizer = spelling()
    for text in HARD_TEXTS:
        expected = oracle("bytes of unknown characters").decode(
            oracle("bytes of unknown characters").encode(text)
        )
        found = tokenizer.decode(tokenizer.encode(text))
        assert found == " ".join(expected.split())
    assert tokenizer.decode(tokenizer.encode("龘 <0xE9>")) == "龘 <0xE9>"


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=12))
@example(data="é龘🙂".encode()[:-1])
@example(data=b"\xed\xa0\x80\xc0\xaf\xf8\x88\x80\x80\x80")
def test_any_bytes_are_decoded_as_by_sentencepiece(data: bytes) -> None:
    library, tokenizer = oracle("bytes of unknown characters"), spelling()
    names = ["\u2581the", *(f"<0x{byte:02X}>" for byte in data), "\u2581the"]
    expected = library.decode_pieces(names)
    ids = map(tokenizer.vocabulary.index, names)
    assert tokenizer.decode(ids) == " ".join(expected.split())


def test_pieces_like_bytes_are_text_without_byte_fallback() -> None:
    plain = replace(tokenizer(), vocabulary=(*tokenizer().vocabulary, "<0xE9>"))
    assert plain.decode([plain.vocab_size - 1]) == "<0xE9>"


def write_model(path: Path, name: str, change: Callable | None = None) -> Path:
    """Write a model of SentencePiece, changed as a message of Protocol Buffers."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    message = ModelProto()
    message.ParseFromString(proto(name))
    if change is not None:
        change(message)
    path.write_bytes(message.SerializeToString())
    return path


@pytest.mark.parametrize("name", SETTINGS)
def test_the_tokenizer_of_a_model_decodes_as_sentencepiece(
    name: str, tmp_path: Path
) -> None:
    ours = tokenizer_of_model(write_model(tmp_path / "my.model", name))
    theirs = oracle(name)
    for text in HARD_TEXTS:
        ids = theirs.encode(text)
        assert len(ours.encode(text)) == len(ids)
        known = theirs.decode([i for i in ids if i != theirs.unk_id()])
        assert ours.decode(ours.encode(text)) == " ".join(known.split())
    ours.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == ours


def test_the_tokenizer_of_a_model_has_the_tags_behind_its_pieces(tmp_path) -> None:
    path = write_model(tmp_path / "my.model", "byte pairs")
    plain = tokenizer_of_model(path)
    found = tokenizer_of_model(path, ["<bt>", ">>de<<"])
    assert found.vocabulary == (*plain.vocabulary, "<bt>", ">>de<<")
    assert (found.corpus_tags, found.language_tags) == (("<bt>",), (">>de<<",))
    assert found.encode(">>de<< The dog")[0] == found.vocab_size - 1


def test_a_vocabulary_is_searched_once_for_the_tags_that_each_source_is_checked_by(
    tmp_path,
) -> None:
    found = tokenizer_of_model(write_model(tmp_path / "my.model", "byte pairs"))
    assert found.language_tags is found.language_tags
    tagged = found.trained_with([])
    assert tagged.language_tags == ()


def set_kind(message: Any) -> None:
    message.trainer_spec.model_type = 4


def leave_spaces(message: Any) -> None:
    message.normalizer_spec.escape_whitespaces = False


def leave_a_piece_unused(message: Any) -> None:
    message.pieces[30].type = 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (set_kind, "cuts by other means"),
        (leave_spaces, "leaves spaces as they are"),
        (leave_a_piece_unused, "has unused pieces"),
    ],
)
def test_a_model_that_cuts_otherwise_is_refused(change, said, tmp_path) -> None:
    path = write_model(tmp_path / "my.model", "byte pairs", change)
    with pytest.raises(RequestError, match=f"^{path}: .* or byte pairs, but {said}; "):
        read_model(path)


def test_a_special_token_as_text_is_refused(tmp_path) -> None:
    def name_a_piece(message: Any) -> None:
        message.pieces[30].piece = "<pad>"

    path = write_model(tmp_path / "my.model", "usual", name_a_piece)
    with pytest.raises(RequestError, match=f"^{path}: .* must have <pad> as a special"):
        tokenizer_of_model(path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_model_is_reported_in_one_sentence(data: st.DataObject) -> None:
    content = bytearray(proto("usual"))
    places = st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    del content[data.draw(places) if data.draw(st.booleans()) else len(content) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "my.model"
        path.write_bytes(content)
        said = f"{path}: the model of SentencePiece "
        assert _error_of_reading(path).startswith((said, "none"))


def _error_of_reading(path: Path) -> str:
    try:
        read_model(path)
    except (CheckpointError, RequestError) as error:
        return str(error)
    return "none"


@pytest.mark.parametrize("make", [tokenizer, spelling])
def test_a_loaded_tokenizer_equals_the_saved_one_of_its_kind(make, tmp_path):
    make().save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == make()
    is_new = "spells_bytes" in (tmp_path / "tokenizer.json").read_text("utf-8")
    assert is_new == (make is spelling)


def test_a_loaded_tokenizer_equals_the_saved_one(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer().save(path)
    loaded = load_tokenizer(path)
    assert loaded == tokenizer()
    assert hash(loaded) == hash(tokenizer())
    assert loaded.encode_sources(HARD_TEXTS) == tokenizer().encode_sources(HARD_TEXTS)
    assert loaded != replace(tokenizer(), target=model_of("usual"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content.pop("target"),
        lambda content: content["source"].pop("pieces"),
        lambda content: content["source"].update(pieces=[["a", "b"]]),
        lambda content: content["source"].update(pieces=[["a"]]),
        lambda content: content["source"].update(kind="word"),
        lambda content: content["source"].update(symbols=[7]),
        lambda content: content["source"].update(character_map="?"),
        lambda content: content["source"].update(character_map="AAEAAAAA"),
        lambda content: content["vocabulary"].remove("<unk>"),
        lambda content: content.update(vocabulary=3),
        lambda content: content.update(type="BPE"),
        lambda content: content.update(target_vocab_size=3),  # without <unk>
        lambda content: content.update(corpus_tags=["<law>"]),
    ],
)
def test_a_damaged_file_is_reported(damage, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer().save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    damage(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"^{path}: the tokenizer is .* damaged"):
        load_tokenizer(path)


def test_a_tokenizer_of_another_kind_is_reported(tmp_path):
    path = tmp_path / "tokenizer.json"
    other = ("<unk>", *tokenizer().vocabulary[1:3], "the")
    replace(tokenizer(), vocabulary=other).save(path)
    with pytest.raises(CheckpointError, match="must begin with <pad>, <s>, </s>, but"):
        load_tokenizer(path)
