import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transduce.analysis.attention_maps import attention_maps
from transduce.analysis.sentence_attention import Granularity, attend
from transduce.cli import main
from transduce.decoding.translator import load
from transduce.report import chart
from transduce.text.vocabulary import BOS, EOS

TEXT = "one two three"


def data_of(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json".*?>(.*?)</script>', text)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_has_the_weights_of_the_model(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    given = ("--source", TEXT, "--target", "eins zwei")
    assert succeeds("attention", model, *given, "--out", page) == ""
    data = data_of(page)
    translator = load(model, device="cpu")
    encode = translator.tokenizer.encode
    source = torch.tensor([[*encode(TEXT), EOS]])
    target_in = torch.tensor([[BOS, *encode("eins zwei")]])
    (maps,) = attention_maps(translator.torch_model.model, source, target_in)
    for kind, expected in (
        ("encoder", maps.encoder),
        ("decoder", maps.decoder),
        ("encoder-decoder", maps.encoder_decoder),
    ):
        written = data["maps"][kind]
        numbers = np.frombuffer(b64decode(written["weights"]), dtype="<f4")
        found = torch.from_numpy(numbers.reshape(written["shape"]).copy())
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert data["source"]["pieces"][-1] == " </s>"
    assert data["read"]["pieces"][0] == " <s>"
    assert data["read"]["pieces"][1:] == data["written"]["pieces"][:-1]


@pytest.mark.parametrize("granularity", ["words", "sub-words"])
def test_the_numbers_are_the_weights_of_the_model(
    succeeds: Callable[..., str], model: Path, granularity: Granularity
) -> None:
    given = ("--source", TEXT, "--target", "eins zwei", "--granularity", granularity)
    data = json.loads(succeeds("attention", model, *given, "--json"))
    assert (data["source"], data["target"], data["is_given"]) == (
        *(TEXT, "eins zwei"),
        True,
    )
    pair = attend(load(model, device="cpu"), TEXT, "eins zwei")
    for kind in ("encoder", "decoder", "encoder-decoder"):
        expected, found = pair.heads_of(kind, granularity), data["attention"][kind]
        assert tuple(found["queries"]) == expected.queries
        assert tuple(found["keys"]) == expected.keys
        weights = torch.tensor(found["weights"])
        torch.testing.assert_close(weights, expected.weights, atol=1e-6, rtol=0)
    if granularity == "words":
        keys = data["attention"]["encoder-decoder"]["keys"]
        assert keys == ["one", "two", "three", "</s>"]
    best, *_ = data["hypotheses"]
    assert best["score"] >= best["log_probability"]


def test_the_page_loads_nothing(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    succeeds("attention", model, "--source", TEXT, "--out", page)
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?[^"'\s)]+""", text) == []
    assert "default-src 'none'" in text


def test_the_page_shows_the_search_and_a_given_translation(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    succeeds("attention", model, "--source", TEXT, "--out", page)
    own = page.read_text(encoding="utf-8")
    translation = load(model, device="cpu").translate([TEXT])[0]
    assert f'<dd dir="auto">{translation.text}</dd>' in own
    assert own.count(f"{translation.score:.3f}") >= 2  # in tree and table
    succeeds(
        "attention",
        model,
        "--source",
        TEXT,
        "--target",
        "acht",
        "--out",
        page,
        "--force",
    )
    given = page.read_text(encoding="utf-8")
    assert '<dt>Translation, as given</dt><dd dir="auto">acht</dd>' in given


def test_a_model_that_parses_reads_sentences_and_trees(
    succeeds: Callable[..., str], parsing_model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    given = ("--source", "one two", "--target", "(S (NP-SBJ (PRP It)) (VP (VBZ is)))")
    succeeds("attention", parsing_model, *given, "--out", page)
    data = data_of(page)
    assert data["source"]["words"] == ["one", "two", "</s>"]
    symbols = "(S (NP XX )NP (VP XX )VP )S"
    assert " ".join(data["written"]["words"]) == f"{symbols} </s>"
    text = page.read_text(encoding="utf-8")
    assert (
        f'<dt>Symbols of the tree, as given</dt><dd dir="auto">{symbols}</dd>' in text
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("It is", "tree:1:1: a tree must begin with `(`, but here is `It`."),
        ("", "tree:1: a tree must be here, but the line is blank."),
    ],
)
def test_a_model_that_parses_must_be_given_a_tree(
    refuses: Callable[..., str],
    parsing_model: Path,
    tmp_path: Path,
    target: str,
    message: str,
) -> None:
    given = ("--source", "It is.", "--target", target, "--out", tmp_path / "page.html")
    assert refuses("attention", parsing_model, *given) == message


def test_text_cannot_break_the_page(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    text = "</script><b>&amp; one"
    succeeds("attention", model, "--source", text, "--out", page)
    assert data_of(page)["source"]["words"][-2:] == ["one", "</s>"]
    assert page.read_text(encoding="utf-8").count("</script>") == 2  # data, code
    assert ">&lt;/script&gt;&lt;b&gt;&amp;amp; one</dd>" in page.read_text()


BEGINNINGS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", BEGINNINGS)
@pytest.mark.parametrize(
    "options",
    [
        ("--token", "two", "--kind", "encoder"),
        ("--view", "maps", "--heads", "1", "3", "--layer", "1"),
        ("--view", "overview", "--kind", "decoder", "--granularity", "sub-words"),
    ],
    ids=["lines", "maps", "overview"],
)
def test_a_figure_is_of_the_kind_that_its_name_says(
    succeeds: Callable[..., str],
    model: Path,
    tmp_path: Path,
    kind: str,
    options: tuple[str, ...],
) -> None:
    figure = tmp_path / f"figure.{kind}"
    succeeds("attention", model, "--source", TEXT, "--figure", figure, *options)
    assert figure.read_bytes().startswith(BEGINNINGS[kind])
    assert [path.name for path in tmp_path.iterdir()] == [figure.name]


def test_a_figure_is_reproducible_and_names_its_tokens(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        succeeds("attention", model, "--source", "one $two$", "--figure", path)
    assert first.read_bytes() == second.read_bytes()
    assert ">one</text>" in first.read_text(encoding="utf-8")


def test_an_unwritable_home_folder_and_a_missing_backend_of_a_notebook_do_no_harm(
    model: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    environment = {
        "HOME": str(tmp_path / "file"),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": "1",
    }
    given = ("attention", str(model), "--source", TEXT, "--figure", "picture.png")
    done = subprocess.run(
        [sys.executable, "-m", "transduce", *given],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "picture.png").is_file()


@pytest.mark.parametrize(
    ("letters", "font"),
    [
        ("我们", "Noto Sans CJK"),
        ("บ้าน", "one of the Noto fonts"),
        ("한국", "Noto Sans CJK"),
    ],
)
def test_letters_without_a_font_are_reported_in_one_sentence(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    letters: str,
    font: str,
) -> None:
    monkeypatch.setattr(chart, "installed_fonts", lambda: ())
    figure = tmp_path / "figure.png"
    main(
        ["attention", str(model), "--source", f"{letters} one", "--figure", str(figure)]
    )
    told = capfd.readouterr().err
    assert figure.read_bytes().startswith(BEGINNINGS["png"])
    assert told.count("\n") == 1
    assert told.startswith("No installed font has ")
    assert f"install a font that has them, such as {font}, or" in told


def test_an_overview_needs_no_font_as_it_has_no_words(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(chart, "installed_fonts", lambda: ())
    given = ("--source", "我们 one", "--figure", str(tmp_path / "figure.png"))
    main(["attention", str(model), *given, "--view", "overview"])
    assert capfd.readouterr().err == ""


def test_fewer_lines_are_drawn_for_one_token(
    succeeds: Callable[..., str], model: Path, tmp_path: Path
) -> None:
    whole, one = tmp_path / "whole.svg", tmp_path / "one.svg"
    shown = ("--source", TEXT, "--kind", "encoder")
    succeeds("attention", model, *shown, "--figure", whole)
    succeeds("attention", model, *shown, "--figure", one, "--token", "two")
    assert 0 < one.read_text().count("<path") < whole.read_text().count("<path")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--source", " "), "The source must have at least one word, but is empty."),
        (
            ("--source", "caf\udce9"),
            "--source must be valid UTF-8, but is 'caf\\udce9'; write it in a terminal "
            "whose locale is UTF-8.",
        ),
        (("--target", "caf\udce9"), "--target must be valid UTF-8, but is 'caf"),
        (("--target", ""), "The target must have at least one word, but is empty."),
        (
            ("--source", "one " * 129),
            "The source must have at most 128 tokens, as attention maps grow with its "
            "square, but has 129; give a single sentence.",
        ),
        (("--target", "eins " * 300), "The target must have at most 128 tokens"),
        (("--layer", "2"), "--layer must be from 1 to 1, but is 2."),
        (("--layer", "0"), "--layer must be from 1 to 1, but is 0."),
        (("--heads", "1", "5"), "--heads must be from 1 to 4, but is 5."),
        (
            ("--heads", "1", "2", "1"),
            "--heads must have no value twice, but 1 is given more than once; leave",
        ),
        (("--token", "no"), "--token must be one of one, two, three, </s>, but is no."),
        (("--figure", "f.jpg"), "f.jpg: a figure must end in .png, .svg, .pdf, but"),
        (("--figure", "no/f.png"), "no/f.png: cannot be written (No such file or"),
        (("--out", "no/page.html"), "no/page.html: cannot be written (No such file"),
        (("--out", "."), ".: cannot be written (Is a directory)"),
        (("--view", "words"), 'Invalid value "words"'),
        (("--beam-size", "0"), "`search.beam_size` must be at least 1, but is 0."),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else "",
)
def test_a_mistake_ends_with_one_sentence_and_writes_nothing(
    refuses: Callable[..., str],
    model: Path,
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--source": (TEXT,), "--figure": ("f.png",), "--kind": ("encoder",)}
    given[options[0]] = options[1:]
    words = [word for name, values in given.items() for word in (name, *values)]
    assert refuses("attention", model, *words).startswith(message)
    assert [p for p in tmp_path.iterdir() if p.name != "f.png"] == []
    assert not (tmp_path / "f.png").exists() or options[0] == "--out"


@pytest.mark.parametrize(
    ("view", "option"),
    [
        ("overview", ("--layer", "1")),
        ("overview", ("--heads", "1", "2")),
        ("overview", ("--token", "one")),
        ("maps", ("--token", "nonsense")),
    ],
)
def test_an_option_without_effect_in_a_view_is_refused(
    refuses: Callable[..., str],
    model: Path,
    view: str,
    option: tuple[str, ...],
    tmp_path: Path,
) -> None:
    figure = tmp_path / "f.png"
    call = ("--source", TEXT, "--figure", figure, "--view", view)
    assert refuses("attention", model, *call, *option) == (
        f"{option[0]} has no effect with --view {view}; leave it out, or choose "
        "--view lines."
    )
    assert not figure.exists()


def test_a_command_without_an_output_file_is_refused(
    refuses: Callable[..., str], model: Path
) -> None:
    message = refuses("attention", model, "--source", TEXT)
    assert message.startswith("There must be an output, but none is named;")


def test_a_path_that_is_no_model_is_refused(
    refuses: Callable[..., str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    refusal = refuses("attention", tmp_path, "--source", TEXT, "--out", page)
    assert "must be a model or a run, but holds no model.safetensors" in refusal
    assert not page.exists()


def test_an_older_page_stays_if_the_new_one_fails(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    model: Path,
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")
    message = refuses("attention", model, "--source", "", "--out", page, "--force")
    assert message == "The source must have at least one word, but is empty."
    assert page.read_text() == "before"
    succeeds("attention", model, "--source", TEXT, "--out", page, "--force")
    assert page.read_text().startswith("<!doctype html>")


def test_search_options_need_an_output_that_shows_the_search(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    model: Path,
    tmp_path: Path,
) -> None:
    given = ("--source", TEXT, "--target", "eins", "--beam-size", 2)
    picture = tmp_path / "picture.png"
    assert refuses("attention", model, *given, "--figure", picture) == (
        "--beam-size and --length-penalty have no effect on a picture with --target; "
        "leave them out, or add --out or --json, which show the search."
    )
    assert not picture.exists()
    found = json.loads(succeeds("attention", model, *given, "--json"))
    assert len(found["hypotheses"]) == 2
