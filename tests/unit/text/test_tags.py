"""Tags of corpora and of target languages: names, tokens, and their search."""

import pytest
import tokenizers

from transduce.errors import ConfigError, RequestError
from transduce.interop.portable_tokenizer import own_tokenizer, portable_tokenizer
from transduce.text.tokenizer import (
    SubwordTokenizer,
    WordTokenizer,
    learn_tokenizer,
    load_tokenizer,
    tagged,
)
from transduce.text.vocabulary import (
    TokenizerConfig,
    TokenizerKind,
    corpus_tag,
    find_language_tag,
    is_tag,
    language_tag,
    languages_of,
)

TAGS = ["<bt>", ">>de<<", ">>pt-BR<<"]
TEXT = ["A man sleeps.", "<bt> is a tag.", "Ein >>de<< Mann", "two <<x>> b t d e"]
SIZES: dict[TokenizerKind, int] = {
    "bpe": 400,
    "word-piece": 400,
    "word": 60,
    "character": 300,
}


@pytest.fixture(params=SIZES)
def tokenizer(request: pytest.FixtureRequest) -> SubwordTokenizer:
    kind: TokenizerKind = request.param
    config = TokenizerConfig(kind=kind, vocab_size=SIZES[kind])
    return learn_tokenizer(TEXT * 3, config, TAGS)


def test_tags_are_the_last_pieces_of_a_vocabulary(tokenizer: SubwordTokenizer):
    size = tokenizer.vocab_size
    assert [tokenizer.tag_id(tag) for tag in TAGS] == [size - 3, size - 2, size - 1]
    assert tokenizer.pieces(range(size - 3, size)) == TAGS
    assert tokenizer.language_tags == (">>de<<", ">>pt-BR<<")
    assert tokenizer.tag_id("<unk>") is tokenizer.tag_id(">>fr<<") is None


def test_no_text_gives_the_tag_of_a_corpus(tokenizer: SubwordTokenizer):
    texts = ["<bt>", "<bt> A man", "A <bt>", "<bt>>de<<", " >>de<<", "A >>de<<"]
    tags = {tokenizer.tag_id(tag) for tag in TAGS}
    for ids in tokenizer.encode_sources([*TEXT, *texts]):
        assert not tags & set(ids)


def test_a_language_tag_before_a_text_is_one_token(tokenizer: SubwordTokenizer):
    [plain] = tokenizer.encode_sources(["A man sleeps."])
    for text in (">>de<< A man sleeps.", ">>de<<A man sleeps."):
        assert tokenizer.encode(text) == [tokenizer.tag_id(">>de<<"), *plain]
        assert tokenizer.language(text) == ">>de<<"
        assert tokenizer.decode(tokenizer.encode(text)) == ">>de<< A man sleeps."
    assert tokenizer.language(">>fr<< A man sleeps.") == ""
    assert len(tokenizer.encode(">>fr<< A")) > 2


def test_a_saved_tokenizer_keeps_its_tags(tokenizer: SubwordTokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert loaded == tokenizer
    texts = [*TEXT, ">>pt-BR<< A man"]
    assert loaded.encode_sources(texts) == tokenizer.encode_sources(texts)
    assert loaded.tag_id("<bt>") == tokenizer.tag_id("<bt>")


def test_tags_take_the_place_of_learned_pieces():
    tokenizer = learn_tokenizer(TEXT * 9, TokenizerConfig(vocab_size=270), TAGS)
    assert tokenizer.vocab_size <= 270
    assert tokenizer.tag_id(">>de<<") == tokenizer.vocab_size - 2
    with pytest.raises(ConfigError, match="of the 3 tags, but is 261"):
        learn_tokenizer(TEXT, TokenizerConfig(vocab_size=261), TAGS)


def test_words_split_with_their_tag_have_one_id_each():
    tokenizer = learn_tokenizer(TEXT, TokenizerConfig(kind="word", vocab_size=60), TAGS)
    assert isinstance(tokenizer, WordTokenizer)
    text = ">>de<< A man sleeps."
    assert tokenizer.split(text) == [">>de<<", " A", " man", " sleeps", "."]
    assert len(tokenizer.encode(text)) == 5


def test_the_tag_of_a_corpus_may_be_given_without_its_brackets():
    assert corpus_tag("bt") == corpus_tag("<bt>") == "<bt>"


@pytest.mark.parametrize(
    "name", ["", "<>", "s", "<s>", "pad", "unk", "a b", "<1>", "</s>"]
)
def test_a_tag_that_is_no_name_or_another_token_is_refused(name: str):
    with pytest.raises(ConfigError, match="tag of a corpus must be letters"):
        corpus_tag(name)


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("signs", [">><<", ">>|<<", ">>*<<<"])
def test_learned_pieces_of_signs_are_no_tags(kind: TokenizerKind, signs: str):
    config = TokenizerConfig(kind=kind, vocab_size=SIZES[kind])
    lines = [f"previous{signs}next", f"{signs} top"] * 9
    plain = learn_tokenizer(lines, config)
    if kind != "character":
        assert signs in plain.pieces(range(plain.vocab_size))
    assert plain.language_tags == plain.corpus_tags == ()
    assert learn_tokenizer(lines, config, TAGS).language_tags == (">>de<<", ">>pt-BR<<")


def test_special_tokens_are_no_tags():
    assert not any(map(is_tag, ("<s>", "</s>", "<pad>", "<unk>", " <unk>", "a", "<")))


def test_a_language_finds_the_tag_that_matches_it_best():
    tags = (">>deu<<", ">>zho_Hans<<", ">>zho_Hant<<", ">>pt_BR<<", ">>x3<<")
    for language, tag in {
        "de": ">>deu<<",
        "deu": ">>deu<<",
        "de-AT": ">>deu<<",
        "zh-TW": ">>zho_Hant<<",
        "zho_Hans": ">>zho_Hans<<",
        "pt": ">>pt_BR<<",
        "x3": ">>x3<<",
    }.items():
        assert find_language_tag(language, tags) == tag
    assert languages_of(tags) == ["de", "zh-Hans", "zh-Hant", "pt-BR", "x3"]
    assert language_tag("deu") == ">>de<<"


def test_an_unknown_language_is_refused_with_those_there_are():
    with pytest.raises(RequestError) as error:
        find_language_tag("fr", (">>deu<<", ">>pt_BR<<"))
    assert str(error.value) == (
        "The target language must be one of the model's, but is 'fr'; it has de "
        "(German), pt-BR (Portuguese (Brazil))."
    )
    with pytest.raises(RequestError, match="this one has none"):
        find_language_tag("fr", ())


def test_a_tag_that_a_model_of_several_languages_lacks_is_refused():
    config = TokenizerConfig(vocab_size=300)
    tokenizer = learn_tokenizer(TEXT * 3, config, TAGS)
    with pytest.raises(RequestError) as error:
        tagged(">>fr<< A man", "", tokenizer)
    assert str(error.value) == (
        "The tag before a source must be one of the model's, but is >>fr<<; it has "
        ">>de<<, >>pt-BR<<."
    )
    known = ">>de<< A >>fr<< man"
    assert (
        tagged(known, "", tokenizer) == tagged(known, ">>pt-BR<<", tokenizer) == known
    )
    for text in ("A >>fr<< man", ">> A man <<", " "):
        assert tagged(text, "", tokenizer) == text
    # After the tag of a chosen language it is text, as it is for one language.
    assert tagged(">>fr<< A", ">>de<<", tokenizer) == ">>de<< >>fr<< A"
    single = learn_tokenizer(TEXT * 3, config)
    assert tagged(">>fr<< A", "", single) == ">>fr<< A"


def test_an_exported_vocabulary_keeps_its_tags():
    config = TokenizerConfig(vocab_size=300)
    tokenizer = learn_tokenizer(TEXT * 3, config, TAGS)
    portable = portable_tokenizer(tokenizer)
    for text in (*TEXT[:2], ">>de<< A man", ">>pt-BR<< <bt> two", "<bt> A"):
        assert portable.encode(text, add_special_tokens=False).ids == (
            tokenizer.encode(text)
        )
    again = tokenizers.Tokenizer.from_str(portable.to_str())
    assert own_tokenizer(again) == tokenizer
