"""Fine-tuned folders: added tokens, padded embeddings, and weights in several files."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import pad
from transformers import MarianMTModel, MarianTokenizer

import marian_folder as folders
from transduce.checkpoint import load_model
from transduce.decoding.translator import Translator
from transduce.errors import CheckpointError, RequestError
from transduce.interop import ctranslate2 as to_ctranslate2
from transduce.interop import marian_export as to_marian
from transduce.interop.export import ProofError
from transduce.interop.marian_import import import_model, read_added_tokens
from transduce.interop.portable_tokenizer import NAMED_TOKENS
from transduce.text.vocabulary import EOS

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries
SENTENCES = ["The dog runs.", "A cat sees the dog."]
ADDED = ["<term>", "WORD"]


def save_padded(
    folder: Path,
    added: list[str],
    special: list[str] | None = None,
    named: dict[str, str] | None = None,
) -> MarianTokenizer:
    """Add tokens, pad the embeddings to a multiple of 64, and save in small files."""
    tokenizer = MarianTokenizer.from_pretrained(folder)
    model = MarianMTModel.from_pretrained(folder)
    tokenizer.add_tokens(added)
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": special})
    if named:
        tokenizer.add_special_tokens(named)
    torch.manual_seed(2)
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)
    # The library gives the bias as many entries as the tokenizer has tokens.
    missing = model.config.vocab_size - model.final_logits_bias.size(1)
    model.final_logits_bias = pad(model.final_logits_bias, (0, missing))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    tokens = {token: len(tokenizer) - len(added) + i for i, token in enumerate(added)}
    (folder / "added_tokens.json").write_text(json.dumps(tokens))
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_older_files(
    folder: Path, added: dict[str, object], special: dict[str, object] | None = None
) -> None:
    """Give a folder the files of older ones, which have no `added_tokens_decoder`."""
    path = folder / "tokenizer_config.json"
    named = dict.fromkeys(NAMED_TOKENS, "left out")
    folders.change_settings(path, added_tokens_decoder="left out", **named)
    (folder / "added_tokens.json").write_text(json.dumps(added))
    if special is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(special))


@pytest.fixture
def changed(folder: Path) -> Path:
    save_padded(folder, ADDED)
    return folder


def test_rows_behind_the_pieces_are_left_out(changed: Path, tmp_path: Path) -> None:
    content = json.loads((changed / "config.json").read_text())
    assert content["vocab_size"] % 64 == 0
    assert (changed / "model.safetensors.index.json").is_file()
    proof = import_model(changed, tmp_path / "model", SENTENCES)
    assert proof.num_tokens > 0
    model = load_model(tmp_path / "model")
    pieces = json.loads((changed / "vocab.json").read_text())
    # Padding has an id of its own, beside the start of the target.
    assert model.config.vocab_size == len({**pieces, **dict.fromkeys(ADDED)}) + 1


def test_added_tokens_are_cut_as_by_hugging_face(changed: Path, tmp_path: Path) -> None:
    import_model(changed, tmp_path / "model", SENTENCES)
    ours = load_model(tmp_path / "model").tokenizer
    theirs = MarianTokenizer.from_pretrained(changed)
    for text in (
        "The <term> runs.", "The<term>runs <term> <term>", "WORD", "a WORDWORD b", "",
    ):  # fmt: skip
        pieces = [piece.replace("\u2581", " ") for piece in theirs.tokenize(text)]
        own = set(ours.pieces(range(ours.vocab_size)))
        known = [piece if piece in own else "<unk>" for piece in pieces]
        assert ours.pieces(ours.encode(text)) == known
    assert ours.decode(ours.encode_targets(["WORD"])[0]) == "WORD"


def test_added_tokens_of_the_tokenizers_settings_need_no_file(changed: Path) -> None:
    """The library reads no added_tokens.json beside such settings."""
    expected = read_added_tokens(changed)
    assert set(expected.cut) == {*ADDED}
    (changed / "added_tokens.json").unlink()
    assert read_added_tokens(changed) == expected
    # One of another model has no effect.
    (changed / "added_tokens.json").write_text('{"VERB": 3}')
    assert read_added_tokens(changed) == expected


@pytest.mark.parametrize("is_older", [False, True])
def test_new_tokens_with_a_name_are_not_cut_and_decode_to_nothing(
    folder: Path, tmp_path: Path, is_older: bool
) -> None:
    named = {"bos_token": "<s>", "sep_token": "<sep>", "cls_token": "<cls>"}
    theirs = save_padded(folder, ["WORD"], named=named)
    if is_older:
        pieces = [*named.values(), "WORD"]
        ids = dict(zip(pieces, theirs.convert_tokens_to_ids(pieces), strict=True))
        write_older_files(folder, ids, named)
        theirs = MarianTokenizer.from_pretrained(folder)
    import_model(folder, tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    ours = checkpoint.tokenizer
    assert (ours.added, ours.silent) == (("WORD",), ("<sep>", "<cls>"))
    separator = theirs.convert_tokens_to_ids("<sep>")
    ids = theirs("The dog runs.", add_special_tokens=False).input_ids
    expected = theirs.decode([*ids, separator], skip_special_tokens=True)
    own_ids = [*ours.encode("The dog runs."), ours.vocabulary.index("<sep>")]
    assert ours.decode(own_ids) == expected
    assert len(ours.encode("<sep>")) > 1
    to_marian.export(checkpoint, tmp_path / "back", SENTENCES)
    import_model(tmp_path / "back", tmp_path / "again", SENTENCES)
    assert load_model(tmp_path / "again").tokenizer == ours


def test_a_named_token_without_a_row_of_the_embeddings_is_left_out(
    folder: Path,
) -> None:
    expected = read_added_tokens(folder)
    theirs = MarianTokenizer.from_pretrained(folder)
    theirs.add_special_tokens({"sep_token": "<sep>"})
    theirs.save_pretrained(folder)
    assert read_added_tokens(folder) == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"extra_special_tokens": {"ent_token": "<ent>"}},
        {"ent_token": "<ent>"},
        {"extra_special_tokens": ["<ent>"], "additional_special_tokens": ["WORD"]},
        {"extra_special_tokens": [], "additional_special_tokens": ["<ent>"]},
    ],
    ids=str,
)
def test_special_tokens_are_found_where_the_library_finds_them(
    folder: Path, tmp_path: Path, settings: dict
) -> None:
    save_padded(folder, ["<ent>", "WORD"])
    folders.change_settings(folder / "tokenizer_config.json", **settings)
    import_model(folder, tmp_path / "model", SENTENCES)
    ours = load_model(tmp_path / "model").tokenizer
    theirs = MarianTokenizer.from_pretrained(folder)
    text = "The <ent> runs to<ent>WORD."
    ids = theirs(text, add_special_tokens=False).input_ids
    expected = theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ours.encode(text)) == " ".join(expected.split())
    assert (set(ours.added), ours.silent) == ({"<ent>", "WORD"}, ("<ent>",))


def test_special_added_tokens_are_cut_and_decode_to_nothing(
    folder: Path, tmp_path: Path
) -> None:
    # One of them is a piece already.
    theirs = save_padded(folder, ["WORD"], ["<ent>", ">>deu<<"])
    import_model(folder, tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    ours = checkpoint.tokenizer
    for text in ("The <ent> runs to<ent>WORD.", "a >>deu<< dog", ">>deu<< a dog"):
        ids = theirs(text, add_special_tokens=False).input_ids
        names = theirs.convert_ids_to_tokens(ids)
        assert ours.pieces(ours.encode(text)) == [
            n.replace("\u2581", " ") for n in names
        ]
        expected = theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ours.encode(text)) == " ".join(expected.split())
    to_marian.export(checkpoint, tmp_path / "back", SENTENCES)
    import_model(tmp_path / "back", tmp_path / "again", SENTENCES)
    assert load_model(tmp_path / "again").tokenizer == ours


def test_special_tokens_of_older_folders_are_read(folder: Path) -> None:
    special = {"additional_special_tokens": [{"content": "<ent>"}, ">>deu<<", "<no>"]}
    size = len(json.loads((folder / "vocab.json").read_text()))
    write_older_files(folder, {"<ent>": size, "W": size + 1}, special)
    found = read_added_tokens(folder)
    assert found.ids == {"<ent>": size, "W": size + 1}
    assert set(found.cut) == {"<ent>", "W", ">>deu<<"}
    assert set(found.silent) == {"<ent>", ">>deu<<"}


def test_a_special_token_without_an_id_is_text(folder: Path, tmp_path: Path) -> None:
    special = {"extra_special_tokens": ["dog"]}
    folders.change_settings(folder / "tokenizer_config.json", **special)
    import_model(folder, tmp_path / "model", SENTENCES)
    ours = load_model(tmp_path / "model").tokenizer
    assert ours.decode(ours.encode(SENTENCES[0])) == SENTENCES[0]


@pytest.mark.parametrize(
    ("added", "error", "said"),
    [
        ([], CheckpointError, "`added_tokens_decoder` must give a token for each id"),
        ({"x": {"content": "W"}}, CheckpointError, "must give a token for each id"),
        ({"9": {"content": 5}}, CheckpointError, "must give a token for each id"),
        ({"9": {"content": "W"}}, CheckpointError, "on to one token each, but does"),
        (
            {"9": {"content": "W", "single_word": True}}, RequestError,
            "must have no `single_word`, but has for 'W'; set it to false there",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_added_tokens_that_cannot_be_read_are_refused(
    folder: Path, added: object, error: type, said: str
) -> None:
    path = folder / "tokenizer_config.json"
    folders.change_settings(path, added_tokens_decoder=added)
    with pytest.raises(error, match=f"^{path}: .*{said}"):
        read_added_tokens(folder)


def test_beams_equal_those_of_hugging_face_without_the_unused_rows(
    changed: Path, tmp_path: Path
) -> None:
    import_model(changed, tmp_path / "model", SENTENCES)
    translator = Translator(load_model(tmp_path / "model"), "cpu")
    model = MarianMTModel.from_pretrained(changed).eval()
    tokenizer = MarianTokenizer.from_pretrained(changed)
    pieces = json.loads((changed / "vocab.json").read_text())
    unused = range(len(pieces) + len(ADDED), model.config.vocab_size)
    never = [[i] for i in (model.config.pad_token_id, *unused)]
    for text in SENTENCES:
        with torch.inference_mode():
            found = model.generate(
                **tokenizer(text, return_tensors="pt"), bad_words_ids=never,
                num_beams=4, num_return_sequences=1, max_length=None,
                max_new_tokens=20, early_stopping=True, renormalize_logits=True,
                forced_eos_token_id=None, return_dict_in_generate=True,
                output_scores=True,
            )  # fmt: skip
        config = translator.search.given({"max_length": 20, "num_best": 1})
        [ours] = translator.translate_stream([text], config)
        assert ours.score == pytest.approx(float(found.sequences_scores[0]), abs=1e-3)


def test_an_imported_model_with_added_tokens_is_exported_and_read_back(
    changed: Path, tmp_path: Path
) -> None:
    import_model(changed, tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    to_marian.export(checkpoint, tmp_path / "back", SENTENCES)
    theirs = MarianTokenizer.from_pretrained(tmp_path / "back")
    text = "The <term> runs <term>."
    assert theirs(text).input_ids == [*checkpoint.tokenizer.encode(text), EOS]
    import_model(tmp_path / "back", tmp_path / "again", SENTENCES)
    assert load_model(tmp_path / "again").tokenizer == checkpoint.tokenizer


def test_a_folder_whose_added_tokens_are_lost_is_no_export(
    changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_model(changed, tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    monkeypatch.setattr(MarianTokenizer, "add_tokens", lambda *_: 0)
    with pytest.raises(ProofError, match="sentence 'one <term> two <term>'"):
        to_ctranslate2.export(checkpoint, tmp_path / "back", SENTENCES)
    assert not (tmp_path / "back").exists()


def test_added_tokens_are_exported_to_ctranslate2(
    changed: Path, tmp_path: Path
) -> None:
    import_model(changed, tmp_path / "model", [*SENTENCES, "A <term> runs."])
    checkpoint = load_model(tmp_path / "model")
    to_ctranslate2.export(checkpoint, tmp_path / "back", [*SENTENCES, "WORD a"])
    theirs = MarianTokenizer.from_pretrained(tmp_path / "back")
    ids = theirs("a WORDWORD b", add_special_tokens=False).input_ids
    assert ids == checkpoint.tokenizer.encode("a WORDWORD b")


@pytest.mark.parametrize(
    "tokens", [{"<term>": 9_999}, {"<term>": 3}, {"<term>": "x"}, {"<term>": [1]}]
)
def test_added_tokens_of_another_model_are_reported(
    folder: Path, tmp_path: Path, tokens: dict
) -> None:
    write_older_files(folder, tokens)
    said = "added_tokens.json: must give the ids from"
    with pytest.raises(CheckpointError, match=said):
        import_model(folder, tmp_path / "model", SENTENCES)
    assert not (tmp_path / "model").exists()


def test_an_index_that_names_other_folders_is_refused(
    changed: Path, tmp_path: Path
) -> None:
    path = changed / "model.safetensors.index.json"
    folders.change_settings(path, weight_map={"a": "../elsewhere.safetensors"})
    with pytest.raises(CheckpointError, match="must name files of this folder"):
        import_model(changed, tmp_path / "model", SENTENCES)


def test_a_missing_file_of_several_is_reported(changed: Path, tmp_path: Path) -> None:
    sorted(changed.glob("model-*.safetensors"))[0].unlink()
    with pytest.raises(CheckpointError, match="missing or damaged"):
        import_model(changed, tmp_path / "model", SENTENCES)
