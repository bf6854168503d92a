"""Output and exit codes of `transduce check`."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from transduce.cli import main
from transduce.cli.check import CorpusDisplay
from transduce.cli.terminal import BoundedConsole
from transduce.data.corpus_files import CorpusFiles
from transduce.experiments.corpus_check import advise, check_corpus
from transduce.experiments.presets import PRESETS

A_ALONE = ("--source", "a", "--target", "a")


@pytest.fixture
def faulty(tmp_path: Path) -> tuple[str, str]:
    """Two files with an error of every kind."""
    source = [b"one two", b"", b"caf\xe9", b"same", "a\u2028b".encode(), b"one  two"]
    target = [b"eins zwei", b"leer", b"kaffee", b"same", b"c", b"eins zwei", b"mehr"]
    for name, lines in (("a.en", source), ("a.de", target)):
        (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in lines))
    return str(tmp_path / "a.en"), str(tmp_path / "a.de")


def _check(files: tuple[object, object], *options: str) -> None:
    main(["check", "--source", str(files[0]), "--target", str(files[1]), *options])


def _fail(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Run a command that must end with code 2; return its message of one sentence."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("transduce: ")
    assert error.count("\n") == 1
    return error


def test_a_sound_corpus_is_reported_on_and_accepted(corpus_files, capsys):
    _check(corpus_files, "--preset", "tiny")
    output = capsys.readouterr()
    assert output.err == ""
    assert f"  training source             {corpus_files[0]}\n" in output.out
    assert "  lines                               40          40\n" in output.out
    assert "  kept                                40      100.0%\n" in output.out
    assert "  Training would start.\n" in output.out
    assert "dev source" not in output.out


def test_a_preset_that_needs_a_model_is_refused_as_by_training(corpus_files, capsys):
    source, target = map(str, corpus_files[:2])
    options = ["check", "--source", source, "--target", target, "--preset", "adapt"]
    assert "name the model to start from (`transduce train --from`)" in _fail(
        capsys, options
    )


def test_plain_output_fits_eighty_columns_of_ascii(corpus_files, capsys, monkeypatch):
    monkeypatch.chdir(corpus_files[0].parent)
    _check(("train.en", "train.de"), "--preset", "tiny")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines).isascii()
    assert all(line == line.rstrip() for line in lines)


def test_a_report_is_the_same_each_time(corpus_files, capsys):
    _check(corpus_files, "--preset", "tiny")
    first = capsys.readouterr().out
    _check(corpus_files, "--preset", "tiny")
    assert capsys.readouterr().out == first


def test_a_dev_corpus_has_columns_and_an_overlap(corpus_files, capsys):
    source, target = map(str, corpus_files)
    _check(corpus_files, "--dev-source", source, "--dev-target", target)
    output = capsys.readouterr().out
    assert (
        "  lines                               40          40          40          40\n"
        in output
    )
    assert "dev sources that are also in training: 40\n" in output
    assert f"    {source}:1 is {source}:1\n" in output
    assert "    and 37 more\n" in output


def test_a_faulty_corpus_is_reported_on_to_its_end_and_refused(faulty, capsys):
    with pytest.raises(SystemExit) as ended:
        _check(faulty, "--preset", "tiny")
    assert ended.value.code == 2
    output = capsys.readouterr()
    source, target = faulty
    for line in (
        f"    {source}:3 (byte 4 is 0xe9)",
        f"    {source}:5 (U+2028)",
        f"    {source}:2",
        f"    {source}:4",
        f"    {source}:6 repeats {source}:1",
        "  Training would refuse this corpus.",
    ):
        assert f"{line}\n" in output.out
    assert " ".join(output.out.split()).count(f"{source} has 6 lines, but") == 1
    assert output.err == (
        "transduce: Training would refuse this corpus for 2 reasons, first: lines of "
        "the training corpus that are not UTF-8 text, or above 1,000,000 bytes: 1; "
        "convert the files to UTF-8, remove NUL bytes and split long lines, or drop "
        "these pairs by `transduce clean`.\n"
    )


def test_json_is_one_object_with_the_same_figures(corpus_files, capsys):
    _check(corpus_files, "--preset", "tiny", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["would_train"] is True
    assert report["training"]["pairs"]["kept"] == 40
    assert report["training"]["source"]["files"] == [str(corpus_files[0])]
    assert report["dev"] is None
    assert report["epoch"]["steps"] == PRESETS["tiny"].training.steps
    assert report["advice"][-1].keys() == {"problem", "remedy", "is_refusal"}


def test_json_of_a_refused_corpus_is_whole(faulty, capsys):
    with pytest.raises(SystemExit) as ended:
        _check(faulty, "--preset", "tiny", "--json")
    assert ended.value.code == 2
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert report["would_train"] is False
    assert report["training"]["unequal"][0]["target_lines"] == 7
    assert report["training"]["source"]["invalid"]["count"] == 1
    assert output.err.count("\n") == 1


@pytest.mark.parametrize(
    "options", [["--set", "batching.max_length=5"], ["--config", "settings.toml"]]
)
def test_settings_decide_what_is_kept(
    options, corpus_files, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("settings.toml").write_text("[batching]\nmax_length = 5\n")
    _check(corpus_files, "--preset", "tiny", "--json", *options)
    pairs = json.loads(capsys.readouterr().out)["training"]["pairs"]
    assert 0 < pairs["kept"] < 40
    assert pairs["kept"] + pairs["overlong"]["count"] == 40


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--target", "a"], "but only a is; add --source."),
        ([], "A corpus must be given: --source FILE... --target FILE..., or --trees"),
        (["--trees", "a", "--source", "a", "--target", "a"], "Either text or trees"),
        (["--dev-trees", "a"], "but only --dev-trees are; add --trees"),
        (
            ["--trees", "a"],
            "a: a treebank must begin with `(`, but begins with `one`; remove",
        ),
        (["--trees", "b"], "b: a treebank must have a tree, but has none"),
        (["--source", "none", "--target", "none"], "none: the file cannot be read"),
        (
            ["--source", "a", "a", "--target", "a"],
            "equally many files, but have 2 and 1",
        ),
        (["--source", "a", "--target", "a", "--dev-source", "a"], "but only a is"),
        (["--source", "a", "--target", "a", "--preset", "bas"], "did you mean `base`"),
        (["--source", "a", "--target", "a", "--set", "x=1"], "there is no setting `x`"),
        (["--source", "a", "--target", "b"], "corpus: 0 of 1"),
        (["--source", "b", "--target", "b"], "corpus: 0 of 1"),
        (["--source", "gz", "--target", "a"], "damaged or cut short"),
        (
            [*A_ALONE, "--set", "training.schedule=plateau"],
            '`training.schedule` is "plateau", which needs a learning rate',
        ),
        (
            [*A_ALONE, "--set", "training.patience=3"],
            "`training.patience` needs a dev corpus, but there is none",
        ),
        (
            [*A_ALONE, "--set", "tokenizer.kind=word", "augmentation.typos=0.1"],
            "`augmentation.typos` needs a vocabulary of sub-words",
        ),
        (
            ["--corpus", "a", "a", "a", "1", "--corpus", "b", "a", "a"],
            "All corpora must have a weight, or none, but b has none",
        ),
        (
            ["--corpus", "a", "a", "a", "--corpus", "b", "b", "b"],
            "usable pairs of the corpus b: 0; give files with text on both sides",
        ),
    ],
)
def test_a_mistake_ends_with_one_sentence(
    arguments, sentence, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("one\n")
    Path("b").write_text("\n")
    Path("gz").write_bytes(b"\x1f\x8b\x08\x00")
    assert sentence in _fail(capsys, ["check", *arguments])


def test_a_terminal_gets_colours_and_blocks(faulty):
    files = CorpusFiles(source=(Path(faulty[0]),), target=(Path(faulty[1]),))
    report = check_corpus(files, PRESETS["tiny"])
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=60, highlight=False)
    CorpusDisplay(console).show(report, advise(report))
    assert "\x1b[31m  Training would refuse this corpus.\x1b[0m" in output.getvalue()
    assert "█" in output.getvalue()
    assert "#" not in output.getvalue()


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_figures_stand_below_their_labels_in_a_narrow_terminal(
    corpus_files, width, tmp_path, monkeypatch
):
    monkeypatch.chdir(corpus_files[0].parent)
    source, target = Path("train.en"), Path("train.de")
    files = CorpusFiles(
        source=(source,), target=(target,), dev_source=(source,), dev_target=(target,)
    )
    output = StringIO()
    console = BoundedConsole(
        file=output, force_terminal=True, width=width, color_system=None, soft_wrap=True
    )
    report = check_corpus(files, PRESETS["tiny"])
    CorpusDisplay(console).show(report, advise(report))
    lines = output.getvalue().splitlines()
    label = lines.index("  tokens a word")
    assert len(lines[label + 1].split()) == 4
    tables = lines[: lines.index("Places")]
    assert max(map(len, tables)) <= max(width, 31)


def test_a_little_padding_is_not_shown_as_none(corpus_files):
    files = CorpusFiles(source=(corpus_files[0],), target=(corpus_files[1],))
    report = check_corpus(files, PRESETS["tiny"])
    assert report.epoch is not None
    little = replace(report, epoch=replace(report.epoch, padding=0.0004))
    output = StringIO()
    CorpusDisplay(Console(file=output, width=80)).show(little, ())
    assert "0.04% of the positions computed" in output.getvalue()


def test_a_share_is_not_rounded_to_all_or_none(corpus_files):
    files = CorpusFiles(source=(corpus_files[0],), target=(corpus_files[1],))
    report = check_corpus(files, PRESETS["tiny"])
    pairs = replace(report.training.pairs, total=100_000, kept=99_999, invalid=1)
    training = replace(report.training, pairs=pairs)
    output = StringIO()
    console = Console(file=output, width=80)
    CorpusDisplay(console).show(replace(report, training=training), ())
    lines = output.getvalue().splitlines()
    assert "  kept                            99,999     99.999%" in lines
    assert "  left out, not UTF-8 text             1      0.001%" in lines


def test_figures_of_billions_have_a_space_between_them(corpus_files):
    files = CorpusFiles(source=(corpus_files[0],), target=(corpus_files[1],))
    report = check_corpus(files, PRESETS["tiny"])
    side = replace(report.training.source, characters=5_512_345_678)
    training = replace(report.training, source=side, target=side)
    output = StringIO()
    console = Console(file=output, force_terminal=True, width=80, color_system=None)
    CorpusDisplay(console).show(replace(report, training=training), ())
    lines = output.getvalue().splitlines()
    assert "  characters                 5,512,345,678 5,512,345,678" in lines
    assert "  lines                                 40            40" in lines


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """File of three trees, two of them on several lines."""
    path = tmp_path / "my.trees"
    path.write_text(
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ barks))))\n"
        "( (S\n    (NP (DT a) (NN cat))\n    (VP (VBZ sleeps))))\n\n"
        "( (S\n    (NP-SBJ (DT the) (NN dog))\n    (VP (VBZ sleeps) (. .))))\n"
    )
    return path


def test_trees_are_reported_on(trees, capsys):
    main(["check", "--trees", str(trees), "--dev-trees", str(trees)])
    output = capsys.readouterr().out
    for line in (
        "  trees                                3           3",
        "  words                               10          10",
        "    longest                            4           4",
        "  in training too                                  3",
        "  preset                      parsing-small, which fits a corpus of this size",
        "  variants                    8 of each tree (treebank.augmentation)",
        "  trained on                  27 trees and variants",
        "  Training would start.",
    ):
        assert f"{line}\n" in output
    assert (
        "dev sentences that are also in training: 3 (3 with the same tree); remove\n"
        "      them from the training treebank, or dev scores are too high."
    ) in output


def test_trees_are_one_object_in_json(trees, capsys):
    main(["check", "--trees", str(trees), "--preset", "tiny", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["preset"] == "tiny"
    assert report["would_train"] is True
    assert report["training"]["trees"] == report["prepared"] == 3
    assert report["training"]["labels"] == 4
    assert report["training"]["tags"] == 4
    assert (report["dev"], report["copies"]) == (None, 0)


def test_check_without_a_preset_chooses_one_that_fits(corpus_files, capsys):
    _check(corpus_files, "--json")
    assert json.loads(capsys.readouterr().out)["preset"] == "multi30k"
    _check(corpus_files)
    output = capsys.readouterr().out
    assert (
        "  preset                      multi30k, which fits a corpus of this size\n"
        in output
    )


def test_a_pipe_is_refused_since_a_check_reads_several_times(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SystemExit) as exit_:
        _check((tmp_path / "pipe", tmp_path / "pipe"), "--preset", "tiny")
    assert exit_.value.code == 2
    assert "pipe: a corpus must be a file, since it is read" in capsys.readouterr().err


PATIENCE = ("--preset", "tiny", "--set", "training.patience=2")


def written(name: str, lines: Iterable[str]) -> str:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return name


def numbered(name: str, number: int) -> tuple[str, str]:
    """Two files of so many different pairs."""
    lines = [f"{name} line {i}" for i in range(number)]
    return written(f"{name}.en", lines), written(f"{name}.de", lines)


def test_pairs_to_hold_out_are_counted_in_the_first_corpus_alone(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    few, many = numbered("few", 60), numbered("many", 750)
    both = ("--corpus", "few", *few, "--corpus", "many", *many)
    for command in (["check"], ["train", "--out", "run"]):
        said = _fail(capsys, [*command, *both, *PATIENCE])
        assert "`training.patience` needs a dev corpus, but there is none" in said
    main(["check", "--corpus", "many", *many, "--corpus", "few", *few, *PATIENCE])
    assert "Training would start." in capsys.readouterr().out


def test_only_different_translated_sources_can_be_held_out(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    source = written("a.en", (f"line {i % 150}" for i in range(600)))
    target = written("a.de", (f"Zeile {i}" for i in range(600)))
    said = _fail(capsys, ["check", "--source", source, "--target", target, *PATIENCE])
    assert "`training.patience` needs a dev corpus, but there is none" in said


def test_only_different_trees_can_be_held_out(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = "(S (NP (DT the) (NN dog{})) (VP (VBZ barks)))"
    trees = written("a.trees", (tree.format(i % 150) for i in range(600)))
    said = _fail(capsys, ["check", "--trees", trees, *PATIENCE])
    assert "`training.patience` needs a dev corpus, but there is none" in said


@pytest.mark.parametrize(
    "options",
    [
        ("--dev-target", "dev.es"),
        ("--dev-target", "dev.de", "--set", "languages.target=es"),
    ],
)
def test_a_language_that_no_corpus_has_is_refused_as_training_does(
    options, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lines = [f"line {i}" for i in range(20)]
    for name in ("a.en", "a.de", "a.fr", "dev.en", "dev.es", "dev.de"):
        written(name, lines)
    both = ["--corpus", "one", "a.en", "a.de", "--corpus", "two", "a.en", "a.fr"]
    call = [*both, "--preset", "tiny", "--dev-source", "dev.en"]
    for command in (["check"], ["train", "--out", "run"]):
        said = _fail(capsys, [*command, *call, *options])
        assert "must be one of the model's, but is 'es'" in said
    main(["check", *call, "--dev-target", "dev.de"])
    assert "Training would start." in capsys.readouterr().out
