"""Training on unspaced text scores checkpoints by a tokenizer of its language."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("no_trials")
TINY = ("train", "--preset", "tiny", "--precision", "fp32", "--device", "cpu")
ENGLISH = ["I go to the library.", "The teacher reads.", "We need a house."] * 5
TEXTS = {
    "zh": ["我去图书馆。", "老师在看书。", "我们需要一座房子。"] * 5,
    "ja": ["私は図書館へ行きます。", "先生は本を読みます。", "家が必要です。"] * 5,
    "th": ["ฉันไปห้องสมุด", "ครูอ่านหนังสือ", "เราต้องการบ้าน"] * 5,
    "ko": ["저는 도서관에 갑니다.", "선생님은 책을 읽습니다.", "집이 필요합니다."] * 5,
}
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "th": "char", "ko": "ko-mecab"}


def options(folder: Path, language: str, ending: str) -> tuple[object, ...]:
    source, target = folder / "text.en", folder / f"text{ending}"
    source.write_text("\n".join(ENGLISH), encoding="utf-8")
    target.write_text("\n".join(TEXTS[language]), encoding="utf-8")
    dev = ("--dev-source", source, "--dev-target", target)
    return ("--source", source, "--target", target, *dev, "--out", folder / "run")


@pytest.fixture
def without_mecab(
    import_anew: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hide the package that splits Japanese into words."""
    import_anew("sacrebleu.tokenizers.tokenizer_ja_mecab")
    monkeypatch.setitem(sys.modules, "MeCab", None)


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "by its script"])
@pytest.mark.parametrize("language", TEXTS)
def test_training_scores_by_the_tokenizer_of_the_language(
    succeeds: Callable[..., str], tmp_path: Path, language: str, *, is_named: bool
) -> None:
    files = options(tmp_path, language, f".{language}" if is_named else ".txt")
    out = succeeds(*TINY, *files, "--set", "training.steps=2")
    tokenizer = TOKENIZERS[language]
    assert f", sacreBLEU ({tokenizer}) " in out
    assert ", chrF2 " in out
    assert ("as the references are in the script of" in out) is not is_named
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    [dev, final] = [e for e in map(json.loads, lines) if e["kind"] in ("dev", "final")]
    for entry in (dev, final):
        assert f"|tok:{tokenizer}" in entry["signature"]
        assert entry["chrf"] >= 0


def test_a_setting_chooses_another_tokenizer(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    files = options(tmp_path, "ja", ".ja")
    chosen = ("--set", "training.steps=1", "evaluation.tokenize=char")
    assert ", sacreBLEU (char) " in succeeds(*TINY, *files, *chosen)


@pytest.mark.usefixtures("without_mecab")
def test_a_missing_package_is_reported_before_training(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    said = refuses(*TINY, *options(tmp_path, "ja", ".ja"))
    assert said.startswith("BLEU with the tokenizer ja-mecab needs the package ")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_mecab")
@pytest.mark.parametrize("ending", [".ja", ".txt"])
def test_a_check_names_a_missing_package(
    command: Callable[..., Any], tmp_path: Path, ending: str
) -> None:
    *files, _, _ = options(tmp_path, "ja", ending)
    found = command("check", "--preset", "tiny", *files, "--json")
    report = json.loads(found.out)
    [advice] = [each for each in report["advice"] if "mecab" in each["problem"]]
    assert advice["problem"].startswith("BLEU with the tokenizer ja-mecab needs the")
    assert advice["remedy"].startswith("install it by pip install")
    assert advice["is_refusal"]
    assert not report["would_train"]
    chosen = ("--set", "evaluation.tokenize=char")
    report = json.loads(
        command("check", "--preset", "tiny", *files, *chosen, "--json").out
    )
    assert report["missing_package"] is None


@pytest.mark.usefixtures("without_mecab")
def test_a_package_that_a_further_dev_set_needs_is_reported_before_training(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    texts = {"en": ENGLISH, "de": ENGLISH, "ja": TEXTS["ja"]}
    for ending, lines in texts.items():
        (tmp_path / f"text.{ending}").write_text("\n".join(lines), encoding="utf-8")
    english, german, japanese = (tmp_path / f"text.{ending}" for ending in texts)
    corpora = ("--corpus", "german", english, german)
    corpora += ("--corpus", "japanese", english, japanese)
    dev = ("--dev", "german", english, german, "--dev", "japanese", english, japanese)
    said = refuses(*TINY, *corpora, *dev, "--out", tmp_path / "run")
    assert said.startswith("BLEU with the tokenizer ja-mecab needs the package ")
    assert not (tmp_path / "run").exists()
