"""A model keeps its languages from training or import to every copy."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import transduce
from marian_folder import change_settings
from transduce.checkpoint import Checkpoint, load_model, save_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.model_folder import open_model
from transduce.text.tokenizer import learn_tokenizer
from transduce.text.vocabulary import TokenizerConfig

pytestmark = pytest.mark.usefixtures("no_trials")

TINY = ("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu")
FEW = ("--set", "training.steps=2", "training.checkpoint_steps=1")


def kept(model: Path) -> tuple[str | None, str | None]:
    """Languages of a folder, which must be the same by all ways to read it."""
    ways = (open_model(model), load_model(model), transduce.load(model))
    found = {(way.source_language, way.target_language) for way in ways}
    assert len(found) == 1
    return found.pop()


def corpus(corpus_files: tuple[Path, Path], folder: Path, *endings: str) -> list[Path]:
    return [
        shutil.copy(path, folder / f"train.{ending}")
        for path, ending in zip(corpus_files, endings, strict=True)
    ]


@pytest.mark.parametrize(
    ("endings", "options", "said", "languages"),
    [
        (("en", "de"), (), "English (en) to German (de)\n", ("en", "de")),
        (
            ("eng_Latn.txt", "zh_hans"),
            (),
            "English (Latin) (en-Latn) to Chinese (Simplified) (zh-Hans)\n",
            ("en-Latn", "zh-Hans"),
        ),
        (
            ("txt", "de"),
            (),
            "unknown to German (de) (name them by --source-language)\n",
            (None, "de"),
        ),
        (
            ("en", "de"),
            ("--target-language", "PT_br"),
            "English (en) to Portuguese (Brazil) (pt-BR)\n",
            ("en", "pt-BR"),
        ),
    ],
    ids=str,
)
def test_a_run_has_the_languages_that_are_given_or_guessed(
    succeeds: Callable[..., str],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
    endings: tuple[str, str],
    options: tuple[str, ...],
    said: str,
    languages: tuple[str | None, str | None],
) -> None:
    source, target = corpus(corpus_files, tmp_path, *endings)
    files = ("--source", source, "--target", target)
    out = succeeds(*TINY, *files, *options, *FEW, "--out", tmp_path / "run")
    assert f"Languages: {said}" in out
    assert kept(tmp_path / "run") == languages
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["settings"]["languages"] == {
        "source": languages[0],
        "target": languages[1],
    }


def test_settings_and_options_name_the_same_languages(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus(corpus_files, tmp_path, "a", "b")
    files = ("--source", source, "--target", target, "--out", tmp_path / "run")
    named = ("languages.source=EN", "languages.target=zh")
    succeeds(*TINY, *files, *FEW, *named)
    assert kept(tmp_path / "run") == ("en", "zh")


def test_a_malformed_language_tag_is_refused_before_writing(
    refuses: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus_files
    options = ("--source-language", "English", "--out", tmp_path / "run")
    said = refuses(*TINY, "--source", source, "--target", target, *options)
    assert said == (
        "A language must be a BCP 47 tag, but is 'English'; did you mean 'en'?"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_is_resumed_in_its_languages_alone(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    source, target = corpus(corpus_files, tmp_path, "en", "de")
    files = ("--source", source, "--target", target, "--out", tmp_path / "run")
    succeeds(*TINY, *files, *FEW)
    succeeds(*TINY, *files, *FEW, "--resume")
    said = refuses(*TINY, *files, *FEW, "--resume", "--source-language", "fr")
    assert (
        "`languages.source` of the run to resume is 'en', but 'fr' is requested"
    ) in said


def test_a_run_of_a_version_without_languages_is_resumed(
    succeeds: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    older = shutil.copytree(run, tmp_path / "run")
    record = json.loads((older / "config.json").read_text())
    del record["settings"]["languages"]
    (older / "config.json").write_text(json.dumps(record))
    for config in older.glob("*/config.json"):
        change_settings(config, source_language="left out", target_language="left out")
    assert kept(older) == (None, None)
    succeeds("train", "--out", older, "--resume", "--device", "cpu")


@pytest.mark.parametrize("value", [7, "English", "", ["en"]])
def test_a_folder_with_a_malformed_language_tag_is_refused(
    refuses: Callable[..., str], model: Path, tmp_path: Path, value: object
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    change_settings(folder / "config.json", target_language=value)
    said = refuses("translate", folder, stdin=b"A dog.\n")
    assert "`target_language` must be a BCP 47 tag such as en, or null, b" in said
    assert repr(value) in said


def test_an_average_has_the_languages_of_its_members(
    succeeds: Callable[..., str], corpus_files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = corpus(corpus_files, tmp_path, "en", "de")
    files = ("--source", source, "--target", target, "--out", tmp_path / "run")
    succeeds(*TINY, *files, *FEW)
    members = sorted((tmp_path / "run" / "checkpoints").iterdir())
    succeeds("average", *members, "--out", tmp_path / "average")
    assert kept(tmp_path / "average") == ("en", "de")


@pytest.mark.filterwarnings("ignore")
class TestOtherLibraries:
    def test_a_model_that_goes_to_marian_and_back_has_its_languages(
        self, succeeds: Callable[..., str], model: Path, tmp_path: Path
    ) -> None:
        from dataclasses import replace

        named = replace(
            load_model(model), source_language="en", target_language="zh-Hans"
        )
        save_model(named, tmp_path / "named")
        theirs, ours = tmp_path / "marian", tmp_path / "model"
        succeeds("export", tmp_path / "named", "--to", "marian", "--out", theirs)
        succeeds("import", theirs, "--out", ours)
        assert kept(ours) == ("en", "zh-Hans")

    def test_a_model_of_several_targets_goes_to_marian_and_back_with_its_own(
        self, succeeds: Callable[..., str], tmp_path: Path
    ) -> None:
        tokenizer = learn_tokenizer(
            ["one two", "eins zwei"],
            TokenizerConfig(vocab_size=340),
            [">>de<<", ">>fr<<"],
        )
        config = ModelConfig(
            num_layers=1, d_model=16, d_ff=16, num_heads=2, d_k=8, d_v=8,
            vocab_size=tokenizer.vocab_size,
        )  # fmt: skip
        checkpoint = Checkpoint(
            config=config,
            weights=Transformer(config).state_dict(),
            tokenizer=tokenizer,
            step=1,
            source_language="en",
            target_language="fr",
        )
        save_model(checkpoint, tmp_path / "several")
        theirs, ours = tmp_path / "marian", tmp_path / "model"
        succeeds("export", tmp_path / "several", "--to", "marian", "--out", theirs)
        succeeds("import", theirs, "--out", ours)
        assert kept(ours) == ("en", "fr")

    def test_a_folder_for_ctranslate2_names_the_languages(
        self, succeeds: Callable[..., str], model: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(model, tmp_path / "named")
        change_settings(folder / "config.json", source_language="en")
        out = tmp_path / "out"
        succeeds("export", folder, "--to", "ctranslate2", "--out", out)
        config = json.loads((out / "config.json").read_text())
        assert config["source_language"] == "en"
        assert config["target_language"] is None

    @pytest.mark.parametrize(
        ("named", "options", "languages"),
        [
            # Its vocabulary holds >>deu<< and >>fra<<: the source says which.
            ({"source_lang": "eng", "target_lang": "deu"}, (), ("en", None)),
            ({"source_lang": "ROMANCE"}, (), (None, None)),
            ({"source_lang": "gem"}, (), (None, None)),
            ({}, ("--source-language", "EN", "--target-language", "de"), ("en", "de")),
        ],
        ids=str,
    )
    def test_a_folder_of_marian_names_its_languages(
        self,
        succeeds: Callable[..., str],
        marian_folder: Path,
        tmp_path: Path,
        named: dict[str, str],
        options: tuple[str, ...],
        languages: tuple[str | None, str | None],
    ) -> None:
        folder = shutil.copytree(marian_folder, tmp_path / "marian")
        change_settings(folder / "tokenizer_config.json", **named)
        succeeds("import", folder, *options, "--out", tmp_path / "model")
        assert kept(tmp_path / "model") == languages


@pytest.fixture
def named(trained_checkpoint, corpus_files, tmp_path, monkeypatch) -> Path:
    """Model from English to German, beside files of both languages."""
    monkeypatch.chdir(tmp_path)
    for path, ending in zip(corpus_files, ("en", "de"), strict=True):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[:3]
        Path(f"text.{ending}").write_text("".join(lines), encoding="utf-8")
    tagged = replace(trained_checkpoint, source_language="en", target_language="de")
    save_model(tagged, Path("model"))
    return Path("model")


@pytest.mark.parametrize(
    "arguments",
    [
        ("translate", "--input", "text.de"),
        ("sample", "--input", "text.de"),
        ("score", "--source", "text.de", "--target", "text.de"),
        ("evaluate", "--source", "text.de", "--reference", "text.de"),
    ],
)
def test_a_file_of_another_language_is_used_with_a_warning(command, named, arguments):
    name, *options = arguments
    outcome = command(name, named, *options, "--device", "cpu")
    assert outcome.out
    assert outcome.err.startswith("Warning: model: the model must have the languages")
    assert "its source is en and here de" in outcome.err
    assert outcome.err.count("Warning") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("score", "--target", "text.en"),
        ("evaluate", "--reference", "text.en"),
        ("evaluate", "--reference", "text.en", "--target-language", "en"),
        ("heads", "--target", "text.en", "--out", "heads"),
    ],
)
def test_a_target_of_another_language_is_used_with_a_warning(command, named, arguments):
    name, *options = arguments
    outcome = command(name, named, "--source", "text.en", *options, "--device", "cpu")
    assert outcome.out
    assert "its target is de and here en" in outcome.err
    assert outcome.err.count("Warning") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("tune", "--dev-source", "text.de", "--dev-target", "text.en"),
        ("shortlist", "--source", "text.de", "--target", "text.en"),
        ("shortlist", "--source", "text.en", "--target", "text.en"),
    ],
)
def test_a_file_of_another_language_changes_no_model(refuses, named, arguments):
    name, *options = arguments
    before = sorted(named.iterdir())
    assert "the model must have the languages of the" in refuses(name, named, *options)
    assert sorted(named.iterdir()) == before
