import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.cli.compare import MAX_ALIGNED, marked_differences

FEW = ("--resamples", "20", "--shuffles", "20")


@pytest.fixture
def files(corpus_files: tuple[Path, Path], tmp_path: Path) -> dict[str, Path]:
    """The reference, and systems that omit its last word or mistranslate its second."""
    lines = corpus_files[1].read_text(encoding="utf-8").splitlines()
    sides = {
        "reference": lines,
        "last": [" ".join(line.split()[:-1]) for line in lines],
        "second": [
            " ".join([*line.split()[:1], "no", *line.split()[2:]]) for line in lines
        ],
    }
    for name, side in sides.items():
        (tmp_path / name).write_text("\n".join(side) + "\n", encoding="utf-8")
    return {name: tmp_path / name for name in sides}


@pytest.fixture
def arguments(files: dict[str, Path]) -> tuple[object, ...]:
    systems = (files["last"], files["second"], files["reference"])
    return ("compare", "--reference", files["reference"], *systems, *FEW)


def test_every_table_is_printed(
    succeeds: Callable[..., str], arguments: tuple[object, ...]
) -> None:
    out = succeeds(*arguments)
    assert out.startswith("40 sentences by 3 systems\n")
    for heading in (
        "Scores",
        "By length of the reference, in words",
        "Words met, by their frequency",
    ):
        assert f"\n{heading}\n" in out
    joined = " ".join(out.split())
    for signature in ("|bs:20|seed:12345|", "|ar:20|seed:12345|", "|tok:13a|"):
        assert signature in joined
    assert "without correction for several systems" in joined
    assert "differs most from" in joined


def test_json_has_the_whole_comparison(
    succeeds: Callable[..., str], arguments: tuple[object, ...], files: dict[str, Path]
) -> None:
    found = json.loads(succeeds(*arguments, "--json"))
    assert found["systems"] == [str(files[n]) for n in ("last", "second", "reference")]
    bleu, chrf = found["scores"]
    assert bleu["systems"][2]["score"] == pytest.approx(100)
    assert bleu["systems"][0]["bootstrap_p"] is None
    assert 0 < chrf["systems"][2]["randomisation_p"] < 0.05
    assert sum(each["num_sentences"] for each in found["by_length"]) == 40
    assert found["examples"][1]["better"][0]["hypothesis_chrf"] == pytest.approx(100)


def test_a_page_is_written_as_well(
    succeeds: Callable[..., str], arguments: tuple[object, ...], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert "Scores" in succeeds(*arguments, "--html", page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert '<td class="text" dir="auto">better</td>' in text
    assert "<mark>" in text


def test_sources_and_training_text_are_used(
    succeeds: Callable[..., str],
    arguments: tuple[object, ...],
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    (tmp_path / "train").write_text("eins eins\n")
    options = ("--source", corpus_files[0], "--train", tmp_path / "train")
    found = json.loads(succeeds(*arguments, *options, "--json"))
    example = found["examples"][0]["better"][0]
    sources = corpus_files[0].read_text(encoding="utf-8").splitlines()
    assert example["source"] == sources[example["line"] - 1]
    buckets = [each["occurrences"]["first"] for each in found["by_frequency"]]
    assert buckets == [0, 2]
    assert example["source"] in succeeds(*arguments, *options)


def test_each_reference_is_a_file_of_its_own(
    succeeds: Callable[..., str],
    refuses: Callable[..., str],
    arguments: tuple[object, ...],
    files: dict[str, Path],
    tmp_path: Path,
) -> None:
    second = ("--reference", files["second"])
    found = json.loads(succeeds(*arguments, *second, "--json"))
    bleu = found["scores"][0]
    assert bleu["bootstrap_signature"].startswith("nrefs:2|")
    assert [each["score"] for each in bleu["systems"][1:]] == pytest.approx([100, 100])
    assert "By length of the first reference" in succeeds(*arguments, *second)
    (tmp_path / "short").write_text("eins\n")
    message = refuses(*arguments, "--reference", tmp_path / "short")
    assert "short: must have as many lines as" in message
    (tmp_path / "blank").write_text("\n" * 40)
    message = refuses(*arguments, "--reference", tmp_path / "blank")
    assert message.endswith("blank: at least one line must have text, but none has.")


def test_the_seed_is_in_the_signature_and_decides(
    succeeds: Callable[..., str], arguments: tuple[object, ...]
) -> None:
    first = succeeds(*arguments, "--seed", "1", "--json")
    assert "|seed:1|" in first
    assert succeeds(*arguments, "--seed", "1", "--json") == first
    assert succeeds(*arguments, "--seed", "2", "--json") != first


def test_the_number_of_examples_may_be_zero(
    succeeds: Callable[..., str], arguments: tuple[object, ...]
) -> None:
    out = succeeds(*arguments, "--examples", "0")
    assert "No sentence is shown." in out


def test_words_that_are_not_the_references_are_marked() -> None:
    marked = marked_differences("ein alter Hund bellt", "ein Hund bellt laut")
    assert marked.words == (
        ("ein", False),
        ("alter", True),
        ("Hund", False),
        ("bellt", False),
    )


def test_as_few_words_as_possible_are_marked() -> None:
    marked = marked_differences("c d a x b y c", "a b c d")
    assert [word for word, is_marked in marked.words if is_marked] == [*"cdxy"]


def test_a_loop_of_one_word_is_marked_soon() -> None:
    started = time.process_time()
    looped = marked_differences("ja " * 3_000, "ja nein " * 1_000)
    assert time.process_time() - started < 5
    assert sum(not is_marked for _, is_marked in looped.words) == 1_000


def test_a_long_text_is_aligned_between_its_common_beginning_and_end() -> None:
    common = "eins " * MAX_ALIGNED
    marked = marked_differences(f"{common} b a {common}", f"{common} a b {common}")
    assert len(marked.words) == 2 * MAX_ALIGNED + 2
    assert [
        place for place, (_, is_marked) in enumerate(marked.words) if is_marked
    ] in (
        [MAX_ALIGNED],
        [MAX_ALIGNED + 1],
    )


def test_words_that_a_text_too_long_to_align_lacks_are_marked() -> None:
    inner = [f"w{i}" for i in range(MAX_ALIGNED + 1)]
    text = " ".join(["gleich", "neu", "neu", *inner, "gleich"])
    reference = " ".join(["gleich", *reversed(inner), "neu", "alt", "gleich"])
    marked = marked_differences(text, reference)
    assert [i for i, (_, is_marked) in enumerate(marked.words) if is_marked] == [2]


def test_characters_that_a_text_too_long_to_align_lacks_are_marked() -> None:
    marked = marked_differences("老" + "三" * MAX_ALIGNED, "买" + "本" * 9)
    assert all(is_marked for _, is_marked in marked.words)


@pytest.mark.parametrize(
    ("systems", "message"),
    [
        (("last",), "The number of systems must be at least 2, but is 1;"),
        ((), "The number of systems must be at least 2, but is 0;"),
        (("last", "last"), "last: a system must be given once, but is given twice."),
        (("last", "short"), "short: must have as many lines as reference, 40, but has"),
        (("last", "empty"), "empty: must have as many lines as reference, 40, but has"),
        (("last", "none"), "none: the file cannot be read (No such file or directory)"),
        (("last", "."), ".: the file cannot be read (Is a directory)"),
        (("last", "latin"), "latin:1: a line must be valid UTF-8"),
    ],
    ids=str,
)
def test_faulty_systems_are_refused(
    refuses: Callable[..., str],
    files: dict[str, Path],
    systems: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = files["reference"].parent
    (folder / "short").write_text("eins\n")
    (folder / "empty").touch()
    (folder / "latin").write_bytes(b"gr\xfcn\n")
    monkeypatch.chdir(folder)
    refusal = refuses("compare", "--reference", "reference", *systems)
    assert refusal.startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--resamples", str(10**12)), "`resamples` must be at most 100,000, but is"),
        (("--shuffles", str(10**20)), "`shuffles` must be at most 100,000, but is"),
        (("--seed", "0"), "`seed` must be at least 1, but is 0."),
        (("--resamples", "0"), "`resamples` must be at least 1, but is 0."),
        (("--shuffles", "-1"), "`shuffles` must be at least 1, but is -1."),
        (("--examples", "-1"), "--examples must be at least 0, but is -1."),
        (("--source", "no"), "no: the file cannot be read"),
        (("--train", "no"), "no: the file cannot be read"),
        (("--tokenize", "words"), 'Invalid value "words"'),
        (("--html", "no/page.html"), "no/page.html: cannot be written (No such file"),
    ],
    ids=" ".join,
)
def test_a_mistake_ends_with_one_sentence(
    refuses: Callable[..., str],
    arguments: tuple[object, ...],
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    # Given numbers of trials replace the default ones.
    given = arguments[:-4] if options[0] in FEW else arguments
    assert message in refuses(*given, *options)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("content", ["", "\n", " \n\t\n"], ids=repr)
def test_a_blank_reference_is_refused(
    refuses: Callable[..., str], tmp_path: Path, content: str
) -> None:
    path = tmp_path / "blank"
    path.write_text(content)
    refusal = refuses("compare", "--reference", path, path, path)
    assert refusal == f"{path}: at least one line must have text, but none has."


def test_a_blank_training_text_is_refused(
    refuses: Callable[..., str], arguments: tuple[object, ...], tmp_path: Path
) -> None:
    path = tmp_path / "blank"
    path.write_text("\n \n")
    refusal = refuses(*arguments, "--train", path)
    assert refusal == f"{path}: at least one line must have text, but none has."


def test_standard_input_stands_for_one_file(
    refuses: Callable[..., str], files: dict[str, Path]
) -> None:
    reference = ("--reference", files["reference"])
    for given in (("-", "--train", "-"), ("-", "-"), ("-", "--source", "-")):
        refusal = refuses("compare", *reference, *given, stdin=b"eins\n")
        assert refusal.startswith("Standard input must stand for one file")


def test_a_source_of_other_length_is_refused(
    refuses: Callable[..., str], arguments: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "source").write_text("one\ntwo\n")
    refusal = refuses(*arguments, "--source", tmp_path / "source")
    assert "source: must have as many lines as" in refusal
    assert refusal.endswith("40, but has 2.")


CHINESE = ["老师昨天买了三本书。", "我们的邻居今天需要那座大房子。"]


@pytest.mark.parametrize(
    ("name", "options", "tokenizer"),
    [
        ("reference.zh", (), "zh"),
        ("reference", (), "zh, as the references are in the script of Chinese"),
        ("reference.de", ("--target-language", "zh-Hant"), "zh"),
        ("reference.de", ("--tokenize", "zh"), "zh"),
        ("reference.zh", ("--tokenize", "char"), "char"),
        ("reference.ja", (), "ja-mecab"),
        ("reference.ko", (), "ko-mecab"),
        ("reference.th.gz", (), "char"),
    ],
)
def test_comparison_cuts_words_by_the_language(
    succeeds: Callable[..., str],
    tmp_path: Path,
    name: str,
    options: tuple[str, ...],
    tokenizer: str,
) -> None:
    reference, other = tmp_path / name, tmp_path / "other"
    reference.write_text("\n".join(CHINESE), encoding="utf-8")
    other.write_text("\n".join(line.replace("了", "") for line in CHINESE), "utf-8")
    files = ("--reference", reference, reference, other)
    out = " ".join(succeeds("compare", *files, *options, *FEW).split())
    assert f"Words are those of sacreBLEU's tokenizer {tokenizer}." in out
    assert f"|tok:{tokenizer.split(',')[0]}" in out
    found = json.loads(succeeds("compare", *files, *options, *FEW, "--json"))
    assert found["scores"][0]["systems"][0]["score"] == pytest.approx(100)


def test_characters_are_marked_in_text_without_spaces() -> None:
    marked = marked_differences("老师买三本书。", "老师买了三只书。")
    assert [word for word, is_marked in marked.words if is_marked] == ["本"]
    assert "".join(word for word, _ in marked.words) == "老师买三本书。"
    assert marked.separator == ""


@pytest.mark.skipif(sys.platform != "linux", reason="Names are Unicode elsewhere")
def test_the_name_of_a_file_that_is_not_utf8_is_escaped(
    succeeds: Callable[..., str], files: dict[str, Path], tmp_path: Path
) -> None:
    system = tmp_path / os.fsdecode(b"caf\xe9")
    system.write_bytes(files["last"].read_bytes())
    page = tmp_path / "page.html"
    options = ("--reference", files["reference"], "--html", page, *FEW)
    out = succeeds("compare", system, files["second"], *options)
    assert r"caf\udce9" in out
    assert r"caf\udce9" in page.read_text(encoding="utf-8")


def test_a_mark_in_text_without_spaces_is_marked_with_its_letter() -> None:
    marked = marked_differences("กันข้าวที่บาน", "กินข้าวที่บ้าน")
    assert [word for word, is_marked in marked.words if is_marked] == ["กั", "บา"]
    assert "".join(word for word, _ in marked.words) == "กันข้าวที่บาน"
