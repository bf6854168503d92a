from pathlib import Path

import pytest

from transduce.errors import ConfigError
from transduce.serving.served_models import ModelName, language_name, require_distinct


@pytest.mark.parametrize(
    ("text", "name", "folder", "languages"),
    [
        ("en-de=runs/mine", "en-de", "runs/mine", ("en", "de")),
        ("runs/mine", "mine", "runs/mine", ("mine.source", "mine.target")),
        ("runs/de-en/", "de-en", "runs/de-en/", ("de", "en")),
        ("best=a=b", "best", "a=b", ("best.source", "best.target")),
        ("EN-DE=m", "EN-DE", "m", ("en", "de")),
        ("eng-deu=m", "eng-deu", "m", ("en", "de")),
        ("en-de-v2=m", "en-de-v2", "m", ("en-de-v2.source", "en-de-v2.target")),
        ("pt-BR-en=m", "pt-BR-en", "m", ("pt-BR", "en")),
        ("zh-Hans-pt-BR=m", "zh-Hans-pt-BR", "m", ("zh-Hans", "pt-BR")),
        ("zh-Hans:pt-BR=m", "zh-Hans-pt-BR", "m", ("zh-Hans", "pt-BR")),
        ("zh_hans:PT-br=m", "zh-Hans-pt-BR", "m", ("zh-Hans", "pt-BR")),
    ],
)
def test_a_model_has_a_name_and_a_folder(
    text: str, name: str, folder: str, languages: tuple[str, str]
) -> None:
    found = ModelName.parse(text)
    assert (found.name, found.folders) == (name, (Path(folder),))
    assert (found.stated or found.guessed) == languages


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("zh-hans-pt-br=m", "zh-Hans:pt-BR, zh-Hans-PT:br"),
        ("en-de-hi=m", "en:de-HI, en-DE:hi"),
    ],
)
def test_ambiguous_languages_are_refused(text: str, ways: str) -> None:
    with pytest.raises(ConfigError, match=rf"may be {ways}; .* SOURCE:TARGET=FOLDER"):
        ModelName.parse(text)


def test_a_pair_of_unknown_languages_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a BCP 47 tag, but is '1'"):
        ModelName.parse("1:de=m")


@pytest.mark.parametrize("text", ["", "=", "en-de=", "en:de=", "en-de=a,", "a,,b"])
def test_a_model_without_a_folder_is_refused(text: str) -> None:
    """A shell writes so if a variable is unset; `Path("")` is the current folder."""
    with pytest.raises(ConfigError, match=f"as in en-de=FOLDER, but is {text!r}"):
        ModelName.parse(text)


def test_an_existing_folder_is_not_taken_for_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lr=0.1").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"but is 'lr=0.1'; name it as in en-de="):
        ModelName.parse("lr=0.1")
    assert ModelName.parse("x=lr=0.1").folders == (Path("lr=0.1"),)
    (tmp_path / "lr=").mkdir()
    assert ModelName.parse("x=lr=").folders == (Path("lr="),)


@pytest.mark.parametrize(
    ("text", "name"),
    [("en-de=runs/1,runs/2", "en-de"), ("en:de=runs/1, runs/2", "en-de")]
    + [("runs/1,runs/2", "1")],
)
def test_several_folders_form_an_ensemble(text: str, name: str) -> None:
    found = ModelName.parse(text)
    assert (found.name, found.folders) == (name, (Path("runs/1"), Path("runs/2")))


def test_a_folder_with_a_comma_in_its_name_is_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a,b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert ModelName.parse("en-de=a,b").folders == (Path("a,b"),)


def test_two_models_of_one_name_are_refused() -> None:
    names = [ModelName.parse(text) for text in ("a/run", "b", "c/run")]
    with pytest.raises(ConfigError, match="must be different, but two are 'run'"):
        require_distinct(names)
    require_distinct(names[:2])


def test_a_language_without_a_name_is_shown_by_its_code() -> None:
    assert [language_name("de"), language_name("tlh")] == ["German", "tlh"]
