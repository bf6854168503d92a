"""Models exported to Marian itself are the same when they are read again."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import sentencepiece
import torch

import marian_folder
import marian_npz
from marian_npz import SHARED, TWO, UNTIED, VARIANTS
from transduce.checkpoint import Checkpoint, load_model
from transduce.errors import CheckpointError, RequestError, TransduceWarning
from transduce.interop.export import ProofError
from transduce.interop.marian_npz_export import export
from transduce.interop.marian_npz_import import import_marian
from transduce.search_config import SearchConfig
from transduce.text.languages import LanguagesConfig
from transduce.text.shortlist import encode_pairs, learn_shortlist
from transduce.text.vocabulary import BOS, EOS

# Imported without decoder.yml, a model has the searches of this package.
pytestmark = pytest.mark.filterwarnings("ignore:Marian has only a beam size")
SENTENCES = ["The dog runs.", "A cat sees the old house.", "naïve 中文 the the"]
LISTS = ["source.yml", "target.yml"]


@pytest.mark.parametrize("name", VARIANTS)
def test_an_imported_model_goes_back_array_by_array(name: str, tmp_path: Path) -> None:
    vocabularies, options = VARIANTS[name]
    arrays = marian_npz.write_folder(tmp_path / "marian", vocabularies, **options)
    import_marian(tmp_path / "marian", tmp_path / "model", SENTENCES)
    proof = export(load_model(tmp_path / "model"), tmp_path / "out", SENTENCES)
    assert proof.startswith("The folder, read back, has the same weights, and the same")
    with np.load(tmp_path / "out" / "model.npz") as stored:
        found = {each: stored[each] for each in stored if "special" not in each}
    assert found.keys() == arrays.keys()
    for each, array in arrays.items():
        if each == "encoder_Wemb" and vocabularies == TWO:
            continue  # the source has the union of both vocabularies
        np.testing.assert_array_equal(found[each], array, err_msg=each)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        {".made-by", "model.npz", "decoder.yml", *vocabularies}
    )


def test_the_vocabulary_of_an_export_cuts_as_the_original(tmp_path: Path) -> None:
    marian_npz.write_folder(tmp_path / "marian", TWO, **UNTIED)
    import_marian(tmp_path / "marian", tmp_path / "model", SENTENCES)
    export(load_model(tmp_path / "model"), tmp_path / "out", SENTENCES)
    for name in TWO:
        first, second = (
            sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / each / name))
            for each in ("marian", "out")
        )
        # Pieces of the target only must not cut a source.
        for sentence in [*SENTENCES, "Die Schwester liest das Buch nicht."]:
            pieces = second.encode(sentence, out_type=str)
            assert pieces == first.encode(sentence, out_type=str)
        assert (second.eos_id(), second.unk_id()) == (0, 1)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_pieces_of_bytes_and_symbols_go_back(kind: str, tmp_path: Path) -> None:
    trainer = {"model_type": kind, "user_defined_symbols": ["<x>"]}
    marian_npz.write_folder(
        tmp_path / "marian", SHARED, trainer={**marian_folder.BYTES, **trainer}
    )
    import_marian(tmp_path / "marian", tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    export(checkpoint, tmp_path / "out", SENTENCES)
    written = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "out" / "vocab.spm")
    )
    text = "龘 the<x>"
    ids = written.encode(text)
    assert written.decode(ids) == text
    # Ids of this package are two more, for padding and start.
    assert checkpoint.tokenizer.encode(text) == [i + EOS for i in ids]


def test_a_model_of_byte_pairs_with_further_pieces_makes_word_lists(
    tmp_path: Path,
) -> None:
    """An unused piece would change how SentencePiece merges others."""
    trainer = {"model_type": "bpe"}
    marian_npz.write_folder(tmp_path / "marian", SHARED, trainer=trainer)
    import_marian(tmp_path / "marian", tmp_path / "model", SENTENCES)
    checkpoint = load_model(tmp_path / "model")
    tokenizer = checkpoint.tokenizer
    pieces = (*tokenizer.vocabulary[:-1], "<bt>")
    changed = replace(
        checkpoint,
        tokenizer=replace(tokenizer, vocabulary=pieces, corpus_tags=("<bt>",)),
    )
    export(changed, tmp_path / "out", SENTENCES)
    assert {*LISTS, *TWO} <= {path.name for path in (tmp_path / "out").iterdir()}
    import_marian(tmp_path / "out", tmp_path / "again", SENTENCES)
    assert load_model(tmp_path / "again").tokenizer == changed.tokenizer


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("imported")
    marian_npz.write_folder(path / "marian", SHARED)
    import_marian(path / "marian", path / "model", SENTENCES)
    return load_model(path / "model")


def test_pieces_without_an_id_make_word_lists(
    imported: Checkpoint, tmp_path: Path
) -> None:
    """The tokenizers of OPUS-MT have such pieces, and tags of languages."""
    tokenizer = imported.tokenizer
    pieces = (*tokenizer.vocabulary[:-2], ">>de<<", "")
    changed = replace(imported, tokenizer=replace(tokenizer, vocabulary=pieces))
    sentences = [*SENTENCES, ">>de<< The dog"]
    export(changed, tmp_path / "out", sentences)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".made-by", "model.npz", "decoder.yml", *LISTS, *TWO}
    import_marian(tmp_path / "out", tmp_path / "model", SENTENCES)
    again = load_model(tmp_path / "model")
    assert again.tokenizer.vocabulary == pieces
    assert again.tokenizer.encode(sentences[-1])[0] == len(pieces) - 2


def test_what_marian_has_no_options_for_comes_back(
    imported: Checkpoint, tmp_path: Path
) -> None:
    pieces = (*imported.tokenizer.vocabulary[:-2], ">>de<<", "<bt>")
    config = replace(
        imported.transformer_config,
        dropout=0.3, attention_dropout=0.2, relu_dropout=0.05,
    )  # fmt: skip
    changed = replace(
        imported,
        config=config,
        tokenizer=replace(imported.tokenizer, vocabulary=pieces, corpus_tags=("<bt>",)),
        source_language="en",
        target_language="de",
    )
    export(changed, tmp_path / "out", SENTENCES)
    import_marian(tmp_path / "out", tmp_path / "model", SENTENCES)
    again = load_model(tmp_path / "model")
    assert (again.source_language, again.target_language) == ("en", "de")
    assert again.tokenizer.corpus_tags == ("<bt>",)
    assert again.config == config
    with pytest.raises(RequestError, match="language must be one of the model's, but"):
        import_marian(
            tmp_path / "out",
            tmp_path / "other",
            SENTENCES,
            LanguagesConfig(target="fr"),
        )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("transduce-target-language", "no such", "A language must be a BCP 47 tag"),
        ("transduce-corpus-tags", '["<bt>"]', "must be a list of tags of corpora in"),
        ("transduce-dropout", 2, "`model.dropout` must be at least 0 and below 1"),
        ("transduce-dropout", "much", "`transduce-dropout` must be a number, but is"),
    ],
)
def test_damaged_options_of_this_package_are_reported(
    tmp_path: Path, option: str, value: object, message: str
) -> None:
    marian_npz.write_folder(tmp_path / "marian", SHARED, **{option: value})
    with pytest.raises(CheckpointError, match=message):
        import_marian(tmp_path / "marian", tmp_path / "model", SENTENCES)


def test_unscaled_scores_are_scaled_in_marian(
    imported: Checkpoint, tmp_path: Path
) -> None:
    config = replace(imported.transformer_config, scores="unscaled")
    unscaled = replace(imported, config=config)
    export(unscaled, tmp_path / "out", SENTENCES)
    import_marian(tmp_path / "out", tmp_path / "model", SENTENCES)
    again = load_model(tmp_path / "model")
    source, target = torch.tensor([[5, 6, 7, EOS]]), torch.tensor([[BOS, 8, 9]])
    with torch.no_grad():
        first, second = (
            each.build_transformer()(source, target) for each in (unscaled, again)
        )
    torch.testing.assert_close(first, second)


def test_a_shortlist_that_marian_would_need_in_its_own_form_is_reported(
    imported: Checkpoint, tmp_path: Path
) -> None:
    pairs = encode_pairs(zip(SENTENCES, SENTENCES, strict=True), imported.tokenizer)
    shortlist = learn_shortlist(pairs, imported.tokenizer)
    with pytest.warns(TransduceWarning, match="A folder for Marian has no shortlist"):
        export(replace(imported, shortlist=shortlist), tmp_path / "out", SENTENCES)


def test_the_search_goes_back(imported: Checkpoint, tmp_path: Path) -> None:
    unknown = imported.tokenizer.unknown
    search = SearchConfig(
        beam_size=6, penalty="power", length_penalty=0.7, patience=1.0,
        bad_words=((unknown,),),
    )  # fmt: skip
    export(replace(imported, search=search), tmp_path / "out", SENTENCES)
    import_marian(tmp_path / "out", tmp_path / "model", SENTENCES)
    assert load_model(tmp_path / "model").search == search


def test_search_settings_that_marian_lacks_are_reported(
    imported: Checkpoint, tmp_path: Path
) -> None:
    search = SearchConfig(beam_size=2, no_repeat_ngram=3)
    with pytest.warns(TransduceWarning, match="Marian has only a beam size, a length"):
        export(replace(imported, search=search), tmp_path / "out", SENTENCES)
    settings = (tmp_path / "out" / "decoder.yml").read_text()
    assert json.loads(settings.split("normalize: ")[1].split("\n")[0]) == 0.5
    assert "allow-unk: true" in settings


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({"max_length": 20}, "`search.max_length`."),
        ({"extra_length": 9}, "`search.extra_length`."),
        ({"patience": 2.0}, "`search.patience`."),
        ({"shortlist": True}, "`search.shortlist`."),
        ({"min_length": 2, "bad_words": ((7,),)}, "`search.min_length`, `search.bad"),
        ({"penalty": "gnmt"}, "`search.length_penalty`, `search.penalty`."),
        ({"beam_size": 1, "patience": None, "penalty": "gnmt"}, ""),
        ({"num_best": 2}, ""),
    ],
)
def test_each_setting_that_marian_lacks_is_named(
    imported: Checkpoint, tmp_path: Path, others: dict[str, Any], told: str
) -> None:
    marians = SearchConfig(beam_size=4, patience=1.0, penalty="power")
    changed = replace(imported, search=replace(marians, **others))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        export(changed, tmp_path / "out", SENTENCES)
    messages = [str(each.message) for each in found]
    assert len(messages) == bool(told)
    assert all(f"these settings of the model: {told}" in each for each in messages)


def test_the_file_holds_arrays_of_the_model_alone(
    imported: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy 2.0 stores each named argument that it lacks as an array."""
    savez, stored = np.savez, dict[str, object]()

    def noted(file: BinaryIO, **arrays: np.ndarray) -> None:
        stored.update(arrays)
        savez(file, **arrays)  # type: ignore[arg-type]

    monkeypatch.setattr(np, "savez", noted)
    export(imported, tmp_path / "out", SENTENCES)
    assert "Wemb" in stored
    assert "allow_pickle" not in stored
    assert all(isinstance(array, np.ndarray) for array in stored.values())


def test_the_options_come_before_the_arrays(
    imported: Checkpoint, tmp_path: Path
) -> None:
    """`marian-conv` cannot skip arrays that NumPy has written."""
    export(imported, tmp_path / "out", SENTENCES)
    with np.load(tmp_path / "out" / "model.npz") as arrays:
        assert arrays.files[0] == "special:model.yml"


def test_other_positions_are_refused(imported: Checkpoint, tmp_path: Path) -> None:
    config = replace(imported.config, position_base=10_000.0)
    with pytest.raises(RequestError) as refusal:
        export(replace(imported, config=config), tmp_path / "out", SENTENCES)
    told = "must be trained with Marian's sinusoids, whose base is 37275.9372 at this"
    assert told in str(refusal.value)
    assert "`model.position_base=37275.9372`" in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_of_our_own_is_refused(
    trained_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match="must have a tokenizer of SentencePiece"):
        export(trained_checkpoint, tmp_path / "out", SENTENCES)


def test_a_learned_start_is_refused(imported: Checkpoint, tmp_path: Path) -> None:
    weight = imported.weights["embedding.weight"].clone()
    weight[BOS, 3] = 0.25
    weights = {**imported.weights, "embedding.weight": weight}
    with pytest.raises(RequestError, match="must have zeros as the embedding of"):
        export(replace(imported, weights=weights), tmp_path / "out", SENTENCES)


def test_added_tokens_are_refused(imported: Checkpoint, tmp_path: Path) -> None:
    tokenizer = replace(imported.tokenizer, added=("the",))
    with pytest.raises(RequestError, match="tokenizer of SentencePiece without added"):
        export(replace(imported, tokenizer=tokenizer), tmp_path / "out", SENTENCES)


def test_tokens_without_a_text_have_none_when_they_come_back(
    imported: Checkpoint, tmp_path: Path
) -> None:
    silent = ("<sep>", "<cls>")
    vocabulary = (*imported.tokenizer.vocabulary[: -len(silent)], *silent)
    tokenizer = replace(imported.tokenizer, vocabulary=vocabulary, silent=silent)
    export(replace(imported, tokenizer=tokenizer), tmp_path / "out", SENTENCES)
    import_marian(tmp_path / "out", tmp_path / "again", SENTENCES)
    again = load_model(tmp_path / "again").tokenizer
    assert again.decode(range(len(vocabulary) - len(silent), len(vocabulary))) == ""


def test_a_folder_that_reads_back_otherwise_is_not_written(
    imported: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(folder: Path) -> Checkpoint:
        found = load_model(folder)
        changed = torch.add(found.weights["embedding.weight"], 1e-3)
        return replace(found, weights={**found.weights, "embedding.weight": changed})

    monkeypatch.setattr("transduce.interop.marian_npz_export.load_model", other)
    with pytest.raises(ProofError, match="the weight of embedding is another"):
        export(imported, tmp_path / "out", SENTENCES)
    assert not (tmp_path / "out").exists()
