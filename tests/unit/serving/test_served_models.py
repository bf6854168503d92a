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
    ],
)
def test_a_model_has_a_name_and_a_folder(
    text: str, name: str, folder: str, languages: tuple[str, str]
) -> None:
    found = ModelName.parse(text)
    assert found == ModelName(name=name, path=Path(folder))
    assert found.languages == languages


def test_a_folder_that_is_there_is_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lr=0.1").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"but is 'lr=0.1'; name it as in en-de="):
        ModelName.parse("lr=0.1")
    assert ModelName.parse("x=lr=0.1").path == Path("lr=0.1")


def test_two_models_of_one_name_are_refused() -> None:
    names = [ModelName.parse(text) for text in ("a/run", "b", "c/run")]
    with pytest.raises(ConfigError, match="must be different, but two are 'run'"):
        require_distinct(names)
    require_distinct(names[:2])


def test_a_language_without_a_name_is_called_by_its_code() -> None:
    assert [language_name("de"), language_name("tlh")] == ["German", "tlh"]
