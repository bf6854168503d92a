"""Tokenizers encode any text without special ids and are learned reproducibly."""

import functools
import json
import os
import re
import subprocess
import sys
import time
import unicodedata
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from transduce.errors import CheckpointError, ConfigError, RequestError
from transduce.interop.portable_tokenizer import own_tokenizer, portable_tokenizer
from transduce.text import tokenizer as module
from transduce.text.sentence_pieces import SentencePieceTokenizer, UnigramModel
from transduce.text.tokenizer import (
    SubwordTokenizer,
    learn_tokenizer,
    load_tokenizer,
    normalize,
    without_tags,
)
from transduce.text.vocabulary import (
    BOS,
    BYTE_PIECES,
    EOS,
    NUM_RESERVED,
    PAD,
    SPECIAL_PIECES,
    TokenizerConfig,
    TokenizerKind,
)

KINDS = ["bpe", "word-piece"]
CORPUS = [
    "The cat sat on the mat, and the 12 dogs sat on the 34 cats.",
    "Die Katze saß auf der Matte; die 12 Hunde saßen auf den 34 Katzen!",
    "Żółw pływał w łódce pod Świętokrzyskiem - co za żart?",
    "私は猫が好きです。猫は私が好きです。",
    "القطة على السجادة والقطة على الكلب",
] * 3

HARD_TEXTS = [
    "我们在这里测试没有学过的汉字：龘靐齉爩",
    "مرحباً بالعالم، كيف حالك؟",
    "👩‍👩‍👧‍👦 🇩🇪 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✊🏽",
    "Z̸̡͎a̶̛͜l̵͓̈́g̷̱̽o̴̢̕ é é ở",
    " ̈begins with a mark",
    "\uf700\uf741\uf7ff a\uf763b",
    "▁Hello▁world ▁ ▁▁",
    "<s> </s> <pad> <unk> <0xE2> [UNK] ##ing @@ </w>",
    "<s></s><pad>text<s>",
    "tab\tline\nfeed\u2028separator\u00a0space\u3000wide",
    "x" * 1_000 + "é" * 500 + "7" * 300 + "!" * 300,
    "á" * 200,
    "^[]-\\ &&~~||--[[",
    "\0\x01\x7f\ufeff\ufffd\ufffe\U0010ffff",
    "ﬁﬃ① ½ Å Å",
]


@functools.cache
def learned(kind: str) -> SubwordTokenizer:
    return learn_tokenizer(CORPUS, TokenizerConfig(kind=kind, vocab_size=500))


def vocabulary(tokenizer: SubwordTokenizer) -> list[str]:
    return json.loads(tokenizer.json())["model"]["vocab"]


def learned_pieces(tokenizer: SubwordTokenizer) -> list[str]:
    return tokenizer.pieces(range(NUM_RESERVED, tokenizer.vocab_size))


AWKWARD = st.text(
    alphabet=st.sampled_from("aé猫 <s>/pd12.\u0301\u0308\uf700\uf7c3\u2581")
)


MARKS = "\u0301\u0323\u0308\u0327\u0344\u0f71\u0f72\u0f73\u05b4\u3099\u20d0\u00a8\u0345"
"""Combining marks of several classes, some of which are decomposed, and a space."""


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from(MARKS + "e\u00e9\u1ea1\u304b"))), st.integers(0, 3)
)
@example([MARKS * 20], 3)
@example(["e", MARKS * 20, "\u00e9", MARKS[::-1] * 20], 3)
def test_text_with_many_marks_has_its_normal_form(texts, copies):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LONG_LINE", 1)
        patch.setattr(module, "LONG_RUN", re.compile(r"[^\w\x00-\x7f]{3,}"))
        text = "".join(texts) * copies
        assert normalize(text) == " ".join(unicodedata.normalize("NFC", text).split())


def test_a_hundred_thousand_marks_are_normalized_in_linear_time():
    text = "e" + "\u0301\u0323" * 50_000
    start = time.process_time()
    assert normalize(text) == "\u1eb9" + "\u0323" * 49_999 + "\u0301" * 50_000
    assert time.process_time() - start < 10  # half a minute and more by insertion


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=150)
@given(text=st.text() | AWKWARD)
@example(text="")
def test_decoding_undoes_encoding(kind, text):
    tokenizer = learned(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", [*HARD_TEXTS, *CORPUS[:5]])
def test_decoding_undoes_encoding_of_hard_texts(kind, text):
    tokenizer = learned(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(text=st.text() | AWKWARD)
@example(text=" ".join(SPECIAL_PIECES))
def test_no_text_becomes_a_special_id(kind, text):
    tokenizer = learned(kind)
    assert all(EOS < i < tokenizer.vocab_size for i in tokenizer.encode(text))


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_any_ids_can_be_decoded(kind, data):
    tokenizer = learned(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    text = tokenizer.decode(ids)
    assert text == normalize(text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["", " ", "\n\t\u2028\u3000"])
def test_white_space_has_no_ids(kind, text):
    assert learned(kind).encode(text) == []


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_many_texts_equals_encoding_each(kind):
    tokenizer = learned(kind)
    texts = [*HARD_TEXTS, "", *CORPUS]
    assert tokenizer.encode_sources(texts) == [tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=150)
@given(texts=st.lists(st.text() | AWKWARD | st.sampled_from(CORPUS)))
@example(texts=HARD_TEXTS)
def test_splitting_word_by_word_equals_splitting_the_text(kind, texts):
    tokenizer = learned(kind)
    library = tokenizers.Tokenizer.from_str(tokenizer.json())
    spelt = [tokenizer.spell(text) for text in texts]
    whole = [library.encode(" " + text).ids if text else [] for text in spelt]
    assert tokenizer.encode_sources(texts) == whole
    assert tokenizer.encode_sources(texts) == whole  # from the cache


def test_the_cache_holds_few_words_and_no_long_ones(monkeypatch):
    monkeypatch.setattr(module, "KNOWN_WORDS", 5)
    tokenizer = learn_tokenizer(CORPUS, TokenizerConfig(vocab_size=500))
    for text in [*CORPUS, "a b c d " + "x" * 30, " ".join("abcdefghijk"), "a b", "c"]:
        assert tokenizer.encode(text) == learned("bpe").encode(text)
        known = tokenizer._known  # noqa: SLF001 - memory shows in no result
        assert 0 < len(known) <= 5
        assert "x" * 30 not in known


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_left_out_of_the_text(kind):
    tokenizer = learned(kind)
    cat, mat = tokenizer.encode("cat"), tokenizer.encode("mat")
    assert tokenizer.decode([BOS, *cat, PAD, *mat, EOS, PAD]) == "cat mat"


def test_special_ids_come_first():
    assert learned("bpe").pieces([PAD, BOS, EOS]) == list(SPECIAL_PIECES)
    assert (PAD, BOS, EOS) == (0, 1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_outside_the_alphabet_is_encoded_in_bytes(kind):
    tokenizer = learned(kind)
    pieces = tokenizer.pieces(tokenizer.encode("龘"))
    assert pieces[-3:] == [f"<0x{byte:02X}>" for byte in "龘".encode()]


@pytest.mark.parametrize("kind", KINDS)
def test_an_incomplete_character_is_decoded_as_a_replacement_character(kind):
    tokenizer = learned(kind)
    ids = tokenizer.encode("龘")
    assert tokenizer.decode(ids[:-1]) == "\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_the_pieces_of_a_text_concatenate_to_it(kind):
    tokenizer = learned(kind)
    pieces = tokenizer.pieces(tokenizer.encode("the cats sat on"))
    assert "".join(pieces) == " the cats sat on"


@pytest.mark.parametrize("kind", KINDS)
def test_a_frequent_word_becomes_one_piece_with_its_space(kind):
    tokenizer = learned(kind)
    assert tokenizer.pieces(tokenizer.encode("on the"))[-1] == " the"


@pytest.mark.parametrize("kind", KINDS)
def test_learned_words_take_fewer_ids_than_characters(kind):
    tokenizer = learned(kind)
    text = normalize(CORPUS[0])
    assert len(tokenizer.encode(text)) < len(text) / 2


def test_word_pieces_take_the_longest_piece_first():
    tokenizer = learn_tokenizer(
        ["ab ab ab ab bcd bcd bcd abcd"],
        TokenizerConfig(kind="word-piece", vocab_size=NUM_RESERVED + 12),
    )
    pieces = tokenizer.pieces(tokenizer.encode("abcd"))
    longest = max(
        (p for p in learned_pieces(tokenizer) if " abcd".startswith(p)), key=len
    )
    assert pieces[0] == longest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_pieces_never_join_letters_digits_and_signs(kind, text):
    tokenizer = learn_tokenizer(
        [f"{text} abc123!? 5x5 <s>"] * 5, TokenizerConfig(kind=kind, vocab_size=600)
    )
    classes = [
        {unicodedata.category(c)[0] for c in piece if c != " "} & {"L", "N", "P"}
        for piece in learned_pieces(tokenizer)
    ]
    assert max(map(len, classes)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_tokenizer_encodes_like_the_saved_one(kind, tmp_path):
    learned(kind).save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    texts = [*CORPUS, *HARD_TEXTS]
    assert loaded.vocab_size == learned(kind).vocab_size
    assert loaded.encode_sources(texts) == learned(kind).encode_sources(texts)
    ids = range(loaded.vocab_size)
    assert loaded.pieces(ids) == learned(kind).pieces(ids)
    assert loaded.decode(ids) == learned(kind).decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_saving_a_loaded_tokenizer_gives_the_same_file(kind, tmp_path):
    learned(kind).save(tmp_path / "one.json")
    load_tokenizer(tmp_path / "one.json").save(tmp_path / "two.json")
    one, two = (tmp_path / "one.json", tmp_path / "two.json")
    assert one.read_bytes() == two.read_bytes()


def test_a_missing_file_is_reported(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(CheckpointError, match=f"^{path}: the tokenizer is missing or"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"\xff\xfe" + content,
        lambda content: content.replace(b'"BPE"', b'"XYZ"'),
        lambda content: b"[]",
    ],
    ids=["empty", "half", "no UTF-8", "unknown model", "no object"],
)
def test_a_damaged_file_is_reported(damage, tmp_path):
    path = tmp_path / "tokenizer.json"
    learned("bpe").save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match=f"^{path}: the tokenizer is .* damaged"):
        load_tokenizer(path)


def test_a_tokenizer_of_another_kind_is_reported(tmp_path):
    path = tmp_path / "tokenizer.json"
    learned("bpe").save(path)
    text = path.read_text(encoding="utf-8").replace('"<s>"', '"[CLS]"')
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match="must begin with <pad>, <s>, </s>, but"):
        load_tokenizer(path)


@pytest.mark.parametrize("kind", KINDS)
def test_learning_twice_gives_the_same_tokenizer(kind, tmp_path):
    config = TokenizerConfig(kind=kind, vocab_size=500)
    again = learn_tokenizer(CORPUS, config)
    assert vocabulary(again) == vocabulary(learned(kind))
    again.save(tmp_path / "again.json")
    learned(kind).save(tmp_path / "first.json")
    first, second = (tmp_path / "first.json", tmp_path / "again.json")
    assert first.read_bytes() == second.read_bytes()


def test_learning_in_another_process_gives_the_same_tokenizer(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from transduce.text.tokenizer import learn_tokenizer\n"
        "from transduce.text.vocabulary import TokenizerConfig\n"
        "lines = Path(sys.argv[1]).read_text(encoding='utf-8').split('\\n')\n"
        "learned = learn_tokenizer(lines, TokenizerConfig(vocab_size=500))\n"
        "learned.save(Path(sys.argv[2]))"
    )
    (tmp_path / "corpus").write_text("\n".join(CORPUS), encoding="utf-8")
    learned("bpe").save(tmp_path / "here.json")
    source = str(Path(module.__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", program, tmp_path / "corpus", tmp_path / "there.json"],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": source},
    )
    here, there = (tmp_path / "here.json", tmp_path / "there.json")
    assert here.read_bytes() == there.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [NUM_RESERVED + n for n in (1, 2, 10, 60, 200)])
def test_the_vocabulary_never_exceeds_its_size(kind, vocab_size):
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size)
    tokenizer = learn_tokenizer(CORPUS, config)
    assert NUM_RESERVED < tokenizer.vocab_size <= vocab_size
    assert len(vocabulary(tokenizer)) == tokenizer.vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_enough_corpus_fills_the_vocabulary(kind):
    tokenizer = learn_tokenizer(CORPUS, TokenizerConfig(kind=kind, vocab_size=320))
    assert tokenizer.vocab_size == 320


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("lines", "vocab_size"),
    [
        ([], 300),
        ([""], 300),
        (["aa"], NUM_RESERVED + 1),
        (["aaa bbb"], NUM_RESERVED + 2),
        (["猫" * 40 + "犬" * 30 + "鳥" * 20], NUM_RESERVED + 8),
    ],
)
def test_even_the_smallest_vocabulary_encodes_any_text(kind, lines, vocab_size):
    config = TokenizerConfig(kind=kind, vocab_size=vocab_size)
    tokenizer = learn_tokenizer(lines, config)
    assert tokenizer.decode(tokenizer.encode("a cat, 猫 12")) == "a cat, 猫 12"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_a_corpus_do_not_become_special_ids(kind):
    line = " ".join(SPECIAL_PIECES) + "".join(SPECIAL_PIECES)
    tokenizer = learn_tokenizer(
        [line] * 200, TokenizerConfig(kind=kind, vocab_size=NUM_RESERVED + 60)
    )
    ids = tokenizer.encode(line)
    assert min(ids) > EOS
    assert tokenizer.decode(ids) == line
    assert tokenizer.pieces(range(3)) == list(SPECIAL_PIECES)
    assert not set(SPECIAL_PIECES) & set(learned_pieces(tokenizer))


@pytest.mark.parametrize("kind", KINDS)
def test_byte_characters_in_a_corpus_do_not_become_byte_pieces(kind):
    line = "".join(BYTE_PIECES) + " a\uf7c3\uf7a4 " + BYTE_PIECES[-1] * 5
    tokenizer = learn_tokenizer(
        [line, "a"] * 50, TokenizerConfig(kind=kind, vocab_size=NUM_RESERVED + 60)
    )
    assert tokenizer.decode(tokenizer.encode(line)) == line
    assert not set("".join(learned_pieces(tokenizer))) & set(BYTE_PIECES)


@pytest.mark.parametrize("kind", KINDS)
def test_half_of_a_surrogate_pair_is_refused_with_its_place(kind):
    said = r"but character 2 of 'a\ud800b' is '\ud800', half of a surrogate pair;"
    message = re.escape(f"Text must be valid Unicode, {said}")
    with pytest.raises(RequestError, match=message):
        learned(kind).encode("a\ud800b")
    config = TokenizerConfig(kind=kind, vocab_size=300)
    with pytest.raises(RequestError, match=message):
        learn_tokenizer(["a", "a\ud800b"], config)


def test_learning_stops_reading_after_enough_characters():
    lines, config = iter(["ten chars."] * 1_000), TokenizerConfig(vocab_size=300)
    tokenizer = learn_tokenizer(lines, config, max_characters=100)
    assert len(list(lines)) == 1_000 - 11
    assert " ten" in learned_pieces(tokenizer)


def test_text_after_the_limit_is_not_learned():
    lines = ["abcabc abc"] * 10 + ["xyzxyz xyz"] * 10
    config = TokenizerConfig(vocab_size=320)
    tokenizer = learn_tokenizer(lines, config, max_characters=50)
    assert set("".join(learned_pieces(tokenizer))) == set("abc ")


@pytest.mark.parametrize("vocab_size", [0, 3, NUM_RESERVED])
def test_a_vocabulary_without_room_for_bytes_is_refused(vocab_size):
    message = f"`tokenizer.vocab_size` must be above 259 .*, but is {vocab_size}"
    with pytest.raises(ConfigError, match=message):
        TokenizerConfig(vocab_size=vocab_size)


@pytest.mark.usefixtures("unchecked_types")
def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match='"word" or "character", but is "unig'):
        TokenizerConfig(kind="unigram")


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("e\u0301", "é"),
        ("\u212b", "Å"),
        ("  a \t\r\n b\u2028c\u00a0\u3000d ", "a b c d"),
        ("ﬁ①", "ﬁ①"),
        ("", ""),
    ],
)
def test_normal_form_is_nfc_with_single_spaces(text, normal):
    assert normalize(text) == normal


@settings(deadline=None, max_examples=100)
@given(text=st.text())
def test_normalisation_is_idempotent(text):
    assert normalize(normalize(text)) == normalize(text)


SUBJECTS = ["我们的邻居", "她的老师", "那个医生", "村里的农民", "我的朋友", "这些学生"]
TIMES = ["今天", "昨天晚上", "每天", "现在", "去年冬天"]
DEEDS = ["需要那座大房子", "买了三本新书", "想看那部电影", "找不到钥匙", "喜欢喝绿茶"]
CLAUSES = [
    text
    for subject in SUBJECTS
    for time in TIMES
    for deed in DEEDS
    for text in (f"{subject}{time}{deed}。", "Our neighbour needs a house today.")
]
UNSPACED_TEXTS = [
    "ฉันชอบอ่านหนังสือในห้องสมุดทุกวันเพราะเงียบมาก ๑๒๓",
    "ຂ້ອຍມັກອ່ານປຶ້ມຢູ່ຫ້ອງສະໝຸດທຸກມື້",
    "ខ្ញុំចូលចិត្តអានសៀវភៅនៅបណ្ណាល័យរាល់ថ្ងៃ។",
    "ကျွန်တော်နေ့တိုင်းစာကြည့်တိုက်မှာစာဖတ်ရတာကြိုက်တယ်။",
    "ང་ཉིན་ལྟར་དཔེ་མཛོད་ཁང་ལ་དེབ་ཀློག་རྒྱུར་དགའ་པོ་ཡོད།",
    "わたしはまいにちとしょかんでほんをよむのがすきです。コンピューターもつかいます。",
    "我用iPhone15打电话，他说：“ＯＫ！”然后发了👩‍👩‍👧和❤️。",
    "LG전자가 5G폰을 만들었다. ПриветWorld αβγabc 人々が二〇二四年に",
]


def script_of(character: str) -> str:
    """Script of a letter: the first word of its Unicode name."""
    is_letter = unicodedata.category(character)[0] in "LM"
    name = unicodedata.name(character, "") if is_letter else ""
    name = name.replace("IDEOGRAPHIC", "CJK")
    return name.split()[0] if name and not name.startswith("COMBINING") else ""


@pytest.mark.parametrize("kind", KINDS)
def test_a_clause_without_spaces_does_not_become_a_piece(kind):
    tokenizer = learn_tokenizer(CLAUSES, TokenizerConfig(kind=kind, vocab_size=2_000))
    han = [p for p in learned_pieces(tokenizer) if script_of(p[0]) == "CJK"]
    assert {"我们的", "今天"} <= {*han}
    assert max(map(len, han)) == 4
    assert " neighbour" in learned_pieces(tokenizer)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", UNSPACED_TEXTS)
def test_pieces_without_spaces_are_short_and_of_one_script(kind, text):
    config = TokenizerConfig(kind=kind, vocab_size=3_000)
    tokenizer = learn_tokenizer([text, text[::-1]] * 20, config)
    pieces = learned_pieces(tokenizer)
    assert max(len(piece) for piece in pieces) <= 17
    assert len(tokenizer.encode(text)) < len(text)
    for piece in pieces:
        scripts = {script_of(character) for character in piece} - {
            "",
            "KATAKANA-HIRAGANA",
        }
        assert len(scripts) <= 1, piece
    assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)


def test_an_unspaced_word_has_the_same_pieces_at_the_start_of_a_text():
    tokenizer = learn_tokenizer(CLAUSES, TokenizerConfig(vocab_size=2_000))
    assert tokenizer.pieces(tokenizer.encode("今天"))[-1] == "今天"
    assert "今天" in tokenizer.pieces(tokenizer.encode("我的朋友今天需要"))


def test_an_emoji_keeps_its_variation_selector():
    tokenizer = learn_tokenizer(["I ❤️ you"] * 5, TokenizerConfig(vocab_size=300))
    assert " ❤️" in tokenizer.pieces(tokenizer.encode("I ❤️ you"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_joiner_between_two_letters_belongs_to_their_word(kind):
    lines = ["می\u200cخواهم ශ්\u200dරී ⵜⴰ\u200dⵎⴰ"] * 5
    tokenizer = learn_tokenizer(lines, TokenizerConfig(kind=kind, vocab_size=600))
    pieces = tokenizer.pieces(tokenizer.encode(lines[0]))
    assert pieces == [" می\u200cخواهم", " ශ්\u200dරී", " ⵜⴰ\u200dⵎⴰ"]
    for text in (
        "\u200dශ",
        "می\u200c",
        "می\u200c\u200cخو",
        "a\u200dශ",
        "1\u200d2 \u200d👩",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_tokenizer_that_cut_words_at_joiners_still_does(tmp_path, monkeypatch):
    earlier = module.EARLIER_WORD_PATTERNS[1]
    config = TokenizerConfig(vocab_size=600)
    with monkeypatch.context() as patch:
        patch.setattr(module, "word_pattern", lambda _: earlier)
        learn_tokenizer(["می\u200cخواهم"] * 5, config).save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    pieces = loaded.pieces(loaded.encode("می\u200cخواهم"))
    assert pieces == [" می", "\u200c", "خواهم"]


WRITTEN_PATTERNS = {
    *("e96f60fe8b23540f", "56d98f372f0e2906", "df76f53e8e6f76e7"),
    *("00a98f80c7e7f6cc", "9f8d336110f9f31c"),
}
"""Digests of all word patterns that tokenizers have been written with. Add new ones and
remove none: models with a removed pattern would not load."""


def test_the_patterns_of_all_tokenizers_written_so_far_are_known():
    now = [module.word_pattern(kind) for kind in get_args(TokenizerKind)]
    known = {*now, *module.EARLIER_WORD_PATTERNS}
    assert {
        sha256(each.encode()).hexdigest()[:16] for each in known
    } == WRITTEN_PATTERNS


def test_most_characters_of_text_without_spaces_are_in_the_alphabet():
    letters = "".join(chr(0x4E00 + 7 * i) for i in range(90))
    tokenizer = learn_tokenizer([letters] * 3, TokenizerConfig(vocab_size=459))
    assert min(tokenizer.encode(letters)) >= NUM_RESERVED


# Such vocabularies were learned before scripts were distinguished.
EARLIER_WORD = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}{1,64}| ?[^ \p{L}\p{M}\p{N}]{1,64}| +"


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_of_spaced_languages_is_the_one_of_earlier_versions(
    kind, monkeypatch
):
    lines = [*CORPUS[:3], *CORPUS[4:5], "Ελληνικά, иврит и עברית", "হাঁস ও हिन्दी 한국어"]
    config = TokenizerConfig(kind=kind, vocab_size=450)
    now = learn_tokenizer(lines * 3, config)
    monkeypatch.setattr(module, "word_pattern", lambda _: EARLIER_WORD)
    earlier = learn_tokenizer(lines * 3, config)
    model = [json.loads(tokenizer.json())["model"] for tokenizer in (now, earlier)]
    assert model[0] == model[1]
    assert now.encode_sources(lines) == earlier.encode_sources(lines)


def test_a_tokenizer_of_earlier_versions_splits_as_before(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "word_pattern", lambda _: EARLIER_WORD)
        patch.setattr(module, "is_longer_than_a_word", lambda _: False)
        patch.setattr(module, "counts_as_unspaced", lambda _: False)
        earlier = learn_tokenizer(CLAUSES, TokenizerConfig(vocab_size=2_000))
    earlier.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    text = "我们的邻居今天需要那座大房子。"
    assert loaded.pieces(loaded.encode(text)) == [" 我们的邻居今天需要那座大房子", "。"]
    assert loaded.encode_sources(CLAUSES) == earlier.encode_sources(CLAUSES)
    assert loaded.json() == earlier.json()
    portable = portable_tokenizer(loaded)
    assert portable.encode(text, add_special_tokens=False).ids == loaded.encode(text)
    assert own_tokenizer(portable) == loaded


@pytest.mark.parametrize("text", ["我们的邻居龘今天" * 40, *UNSPACED_TEXTS])
def test_other_libraries_split_unspaced_text_alike(text):
    tokenizer = learn_tokenizer(
        [*CLAUSES, *UNSPACED_TEXTS], TokenizerConfig(vocab_size=900)
    )
    portable = portable_tokenizer(tokenizer)
    ids = tokenizer.encode(text)
    assert portable.encode(text, add_special_tokens=False).ids == ids
    assert portable.decode(ids) == normalize(text)


@pytest.mark.parametrize(
    "words",
    [
        pre_tokenizers.Split(tokenizers.Regex(r"(\p{L}+)+$"), behavior="isolated"),
        pre_tokenizers.Split(tokenizers.Regex(r"( ?\w+\s?)*!"), behavior="removed"),
        pre_tokenizers.Sequence(
            [pre_tokenizers.Split(tokenizers.Regex("(a|a)*b"), behavior="isolated")]
        ),
        pre_tokenizers.ByteLevel(),
    ],
    ids=range(4),
)
def test_a_pattern_that_might_not_end_is_refused(words, tmp_path):
    foreign = tokenizers.Tokenizer.from_str(learned("bpe").json())
    foreign.pre_tokenizer = words
    foreign.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="`pre_tokenizer` is not one that trans"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("pre_tokenizer"), "it has no `pre_tokenizer`"),
        (
            lambda content: content["pre_tokenizer"].update(invert=True),
            "cuts text in another way",
        ),
        (
            lambda content: content["pre_tokenizer"].update(behavior="Removed"),
            "cuts text in another way",
        ),
        (
            lambda content: content["model"].update(ignore_merges=True),
            "no `model.ignore_merges`",
        ),
    ],
    ids=["no words", "inverted", "removed", "merges ignored"],
)
def test_a_file_that_cuts_text_otherwise_is_refused(kind, change, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    lines = ["the dog runs", "der Hund läuft"]
    tokenizer = learn_tokenizer(lines, TokenizerConfig(kind=kind, vocab_size=300))
    content = json.loads(tokenizer.json())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=message):
        load_tokenizer(path)


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_split_in_linear_time(kind):
    """The regex engine gives up after ten million steps, which other patterns take."""
    pattern = tokenizers.Regex(module.word_pattern(kind))
    words = pre_tokenizers.Split(pattern, behavior="isolated")
    for run in (
        "a",
        "a\u0301",
        " ",
        "a ",
        "-",
        "1",
        "世",
        "ÿa",
        "\U0001f600",
        "กa",
        "ක්\u200d",
    ):
        text = run * 100_000
        cut = words.pre_tokenize_str(text)
        assert "".join(piece for piece, _ in cut) == text


def test_an_unspaced_run_that_occurs_once_does_not_become_a_piece():
    lines = ["我们喜欢猫", "我们需要水", "你听见雷声"] + ["a cat"] * 3
    tokenizer = learn_tokenizer(lines, TokenizerConfig(vocab_size=2_000))
    pieces = learned_pieces(tokenizer)
    assert [p for p in pieces if len(p) > 1 and script_of(p[0]) == "CJK"] == ["我们"]


@pytest.mark.parametrize("kind", get_args(TokenizerKind))
def test_a_tokenizer_without_its_tags_cuts_text_as_before(
    kind: TokenizerKind, tmp_path: Path
) -> None:
    lines = ["the dog runs to the house", "der Hund läuft zum Haus"] * 5
    tags = ("<bt>", ">>de<<", ">>fr<<")
    config = TokenizerConfig(kind=kind, vocab_size=320)
    tokenizer = learn_tokenizer(lines, config, tags)
    plain = without_tags(tokenizer)
    assert plain.vocab_size == tokenizer.vocab_size - 3
    assert not plain.language_tags
    assert not plain.corpus_tags
    for line in (*lines[:2], "¿Ω cats"):
        assert plain.encode(line) == tokenizer.encode(line)
        assert plain.decode(plain.encode(line)) == tokenizer.decode(
            tokenizer.encode(line)
        )
    plain.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == plain
    some = without_tags(tokenizer, [">>fr<<"])
    assert (some.language_tags, some.corpus_tags) == ((">>fr<<",), ())
    assert some.encode(">>fr<< the dog")[1:] == tokenizer.encode("the dog")
    assert without_tags(plain) is plain


def test_a_sentencepiece_vocabulary_loses_its_language_tags_alone() -> None:
    model = UnigramModel(
        pieces=(("\u2581dog", -1.0), ("<br>", -2.0)),
        character_map=b"",
        adds_space=True,
        removes_spaces=True,
    )
    tokenizer = SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", ">>de<<", "<br>", "\u2581dog", ">>fr<<"),
        source=model,
        target=model,
        target_vocab_size=7,
        added=(">>de<<", "x"),
    )
    assert tokenizer.corpus_tags == ()
    plain = without_tags(tokenizer)
    assert isinstance(plain, SentencePieceTokenizer)
    assert plain.vocabulary == (*SPECIAL_PIECES, "<unk>", "<br>", "\u2581dog")
    assert (plain.target_vocab_size, plain.added) == (6, ("x",))
    assert plain.pieces(plain.encode("dog")) == [" dog"]


def test_a_sentencepiece_vocabulary_has_the_corpus_tags_of_runs_alone(
    tmp_path: Path,
) -> None:
    model = UnigramModel(
        pieces=(("\u2581dog", -1.0),),
        character_map=b"",
        adds_space=True,
        removes_spaces=True,
    )
    tokenizer = SentencePieceTokenizer(
        vocabulary=(*SPECIAL_PIECES, "<unk>", "<br>", "<bt>", "\u2581dog"),
        source=model,
        target=model,
    )
    tokenizer.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json").corpus_tags == ()
    trained = tokenizer.trained_with(["<bt>", "<law>", "<bt>"])
    trained.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.corpus_tags == trained.corpus_tags == ("<bt>",)
    assert again == tokenizer  # both give the same ids
    plain = without_tags(again)
    assert plain.corpus_tags == ()
    assert plain.pieces(range(3, plain.vocab_size)) == ["<unk>", "<br>", " dog"]
