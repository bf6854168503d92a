"""An imported model with several target languages: chosen, and trained further."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import marian_folder as folders
import transduce
from transduce.checkpoint import load_model, save_model
from transduce.data.dataset import open_dataset
from transduce.errors import CheckpointError
from transduce.interop.marian_import import import_model

pytestmark = pytest.mark.filterwarnings("ignore")  # raised by the libraries


@pytest.fixture(scope="module")
def imported(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "model"
    import_model(marian_folder, out, ["The dog runs."])
    return out


def test_the_target_language_of_an_imported_model_is_chosen(
    imported, succeeds, refuses
):
    options = ("translate", imported, "--device", "cpu", "--jsonl")
    for language in ("de", "deu", "de-AT"):
        found = succeeds(
            *options, "--target-language", language, stdin=b"The dog runs.\n"
        )
        assert found == succeeds(*options, stdin=b">>deu<< The dog runs.\n")
    message = refuses(*options, "--target-language", "es", stdin=b"The dog runs.\n")
    assert message.endswith("'es'; it has de (German), fr (French).")
    assert transduce.load(imported, device="cpu").target_languages == ["de", "fr"]


def test_an_import_names_the_choice_of_a_target_language(
    marian_folder, command, tmp_path
):
    said = command("import", marian_folder, "--out", tmp_path / "model").out
    assert said.endswith(
        "\nIt has 2 target languages: choose one by `--target-language`, such as de, "
        "or begin each source with a tag such as >>deu<<.\n"
    )
    options = ("--out", tmp_path / "german", "--target-language", "de")
    assert "target language" not in command("import", marian_folder, *options).out


def test_a_tag_that_an_imported_model_lacks_is_refused_unless_it_is_text(
    imported, succeeds, refuses
):
    options = ("translate", imported, "--device", "cpu")
    message = refuses(*options, stdin=b">>de<< The dog runs.\n")
    assert message.endswith(
        "must be one of the model's, but is >>de<<; it has >>deu<<, >>fra<<."
    )
    found = succeeds(*options, "--target-language", "de", stdin=b">>the<< dog.\n")
    assert found == succeeds(*options, stdin=b">>deu<< >>the<< dog.\n")


def test_a_target_language_that_an_imported_model_lacks_is_refused(
    marian_folder, refuses, tmp_path
):
    options = ("--out", tmp_path / "out", "--target-language", "es")
    message = refuses("import", marian_folder, *options)
    assert message.startswith(f"{marian_folder}: the target language must be one of")
    assert message.endswith("'es'; it has de (German), fr (French).")


def test_languages_and_tags_of_corpora_come_back_from_hugging_face(
    imported, command, tmp_path
):
    checkpoint, sample = load_model(imported), tmp_path / "sample"
    sample.write_text("The dog runs.\n")
    tokenizer = checkpoint.tokenizer
    last = max(tokenizer.vocabulary, key=tokenizer.vocabulary.index)
    pieces = tuple("<bt>" if p == last else p for p in tokenizer.vocabulary)
    tagged = replace(tokenizer, vocabulary=pieces, corpus_tags=("<bt>",))
    changed = replace(checkpoint, tokenizer=tagged, target_language="fr")
    save_model(changed, tmp_path / "model")
    options = ("--to", "marian", "--sample", sample, "--out", tmp_path / "marian")
    said = command("export", tmp_path / "model", *options).out
    assert "each source begins with a tag of the target language: for Hugging" in said
    assert "Face Marian write a tag such as >>fra<< before each source" in said
    import_model(tmp_path / "marian", tmp_path / "again", ["The dog runs."])
    again = load_model(tmp_path / "again")
    assert again.target_language == "fr"
    assert again.tokenizer.corpus_tags == ("<bt>",)
    for wrong in (["<law>"], "<bt>", [">>fra<<"], [["<bt>"]]):
        folders.change_settings(
            tmp_path / "marian" / "tokenizer_config.json", corpus_tags=wrong
        )
        with pytest.raises(CheckpointError, match="`corpus_tags` must be a list of "):
            import_model(tmp_path / "marian", tmp_path / "other", ["The dog runs."])


@pytest.mark.parametrize(
    ("ending", "into"), [("de", "de"), ("fr", "fr"), ("txt", "de")]
)
def test_a_model_of_several_languages_is_evaluated_in_that_of_the_ending(
    imported, succeeds, tmp_path, ending, into
):
    source, reference = tmp_path / "test.en", tmp_path / f"test.{ending}"
    source.write_text("The dog runs.\nA cat sleeps.\n")
    options = ("--device", "cpu", "--target-language", into)
    lines = succeeds("translate", imported, "--input", source, *options)
    reference.write_text(lines)
    texts = ("--source", source, "--reference", reference)
    [*_, chrf] = json.loads(
        succeeds("evaluate", imported, *texts, "--device", "cpu", "--json")
    )
    assert chrf["score"] == pytest.approx(100)
    score = ("score", imported, "--source", source, "--target", reference)
    assert succeeds(*score, "--device", "cpu") == succeeds(*score, *options)


@pytest.mark.parametrize(
    ("name", "option"), [("evaluate", "--reference"), ("score", "--target")]
)
def test_an_ending_that_names_no_language_of_the_model_is_warned_of(
    imported, command, tmp_path, name, option
):
    source, target = tmp_path / "test.en", tmp_path / "test.es"
    for path in (source, target):
        path.write_text("The dog runs.\n")
    texts = ("--source", source, option, target, "--device", "cpu")
    outcome = command(name, imported, *texts)
    assert outcome.out
    assert outcome.err.startswith("Warning: ")
    assert "its target is de and here es" in outcome.err
    assert outcome.err.count("Warning") == 1


@pytest.mark.parametrize(
    ("chosen", "warnings"), [((), 0), (("--target-language", "de"), 1)]
)
def test_targets_in_several_languages_are_warned_of_if_one_is_chosen(
    imported, command, tmp_path, chosen, warnings
):
    sources = [tmp_path / "one.en", tmp_path / "two.en"]
    targets = [tmp_path / "one.de", tmp_path / "two.fr"]
    for path in (*sources, *targets):
        path.write_text("The dog runs.\n")
    texts = ("--source", *sources, "--target", *targets, "--device", "cpu")
    outcome = command("score", imported, *texts, *chosen)
    assert outcome.code == 0
    assert outcome.err.count("its target is de and here fr") == warnings
    assert outcome.err.count("Warning") == warnings


def test_the_heads_of_a_model_of_several_languages_are_surveyed_with_its_tags(
    imported, succeeds, tmp_path
):
    losses = []
    for name, tag in (("plain", ""), ("tagged", ">>fra<< ")):
        source, target = tmp_path / f"{name}.en", tmp_path / f"{name}.fr"
        source.write_text(f"{tag}The dog runs.\n{tag}A cat sleeps.\n")
        target.write_text("The dog.\nA cat.\n")
        out = tmp_path / name
        succeeds(
            "heads", imported, "--source", source, "--target", target, "--out", out
        )
        losses.append(json.loads((out / "heads.json").read_text())["loss"])
    assert losses[0] == losses[1]


def test_an_imported_model_is_trained_on_a_mixture_of_its_languages(
    imported, succeeds, refuses, tmp_path
):
    corpora = []
    for language in ("de", "fr", "es"):
        for side in ("en", language):
            text = "".join(f"The dog runs {i}.\n" for i in range(30))
            (tmp_path / f"{language}.{side}").write_text(text)
        files = (f"{tmp_path}/{language}.en", f"{tmp_path}/{language}.{language}")
        corpora.append(("--corpus", language, *files))
    start = ("train", "--from", imported, "--out", tmp_path / "run", "--no-dev")
    few = ("--set", "training.steps=2", "--device", "cpu")
    succeeds(*start, *corpora[0], *corpora[1], *few)
    dataset = open_dataset(tmp_path / "run/corpus/training")
    tokenizer = transduce.load(imported, device="cpu").tokenizer
    expected = tokenizer.encode_sources([">>deu<< The dog runs 0.", ">>fra<< x"])
    assert dataset.source[0].tolist() == expected[0]
    assert dataset.source[30][0] == expected[1][0]
    start = ("train", "--from", imported, "--out", tmp_path / "other", "--no-dev")
    message = refuses(*start, *corpora[0], *corpora[2], *few)
    assert message.endswith("'es'; it has de (German), fr (French).")
