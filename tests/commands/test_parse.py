"""`transduce parse`, and training on trees."""

import errno
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import transduce
from transduce.checkpoint import load_model, save_model
from transduce.cli import main
from transduce.cli.parse import without_trees
from transduce.errors import DataError
from transduce.grammar.corpus import training_trees
from transduce.model_folder import find_model
from transduce.search_config import SearchConfig
from transduce.trees.trees import Tree, indented, parse_tree, read_trees

SETTINGS = (
    "model.num_layers=1",
    "model.d_model=32",
    "model.d_ff=32",
    "model.num_heads=2",
    "model.d_k=8",
    "model.d_v=8",
    "tokenizer.vocab_size=400",
    "batching.source_tokens=200",
    "batching.target_tokens=400",
    "treebank.augmentation.copies=1",
    "training.steps=6",
    "training.checkpoint_steps=3",
    "search.beam_size=2",
    "search.extra_length=5",
)
SEARCH = ("--beam-size", 2, "--extra-length", 5)
TREES = list(islice(training_trees(seed=5), 30))


def write_trees(path: Path, trees: list[Tree]) -> Path:
    path.write_text("".join(f"{tree}\n" for tree in trees), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trees(tmp_path_factory.mktemp("trees") / "trees", TREES)


@pytest.fixture(scope="module")
def parser(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run that has been trained on some trees for a few updates."""
    out = tmp_path_factory.mktemp("parser") / "run"
    dev = write_trees(out.parent / "dev", TREES[:4])
    files = ("--trees", str(trees), "--dev-trees", str(dev), "--out", str(out))
    preset = ("--preset", "parsing-small", "--device", "cpu", "--precision", "fp32")
    main(["train", *preset, *files, "--set", *SETTINGS])
    return out


@pytest.fixture(scope="module")
def other_parser(parser: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parser with the vocabularies of `parser`, and with other, random weights."""
    folder = tmp_path_factory.mktemp("other_parser") / "model"
    checkpoint = load_model(find_model(parser))
    random = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(weight.shape, generator=random)
        for name, weight in checkpoint.weights.items()
    }
    save_model(replace(checkpoint, weights=weights), folder)
    return folder


def test_the_languages_of_trees_are_not_asked_for(
    trees: Path, succeeds: Callable[..., str], tmp_path: Path
) -> None:
    call = ("train", "--preset", "tiny", "--device", "cpu", "--precision", "fp32")
    files = ("--trees", trees, "--out", tmp_path / "run")
    printed = succeeds(*call, *files, "--set", "training.steps=1")
    assert "Variants of trees" in printed
    assert "Languages" not in printed
    assert "--source-language" not in printed


def test_a_run_on_trees_is_scored_by_f1(parser: Path) -> None:
    log = [json.loads(line) for line in (parser / "log.jsonl").read_text().splitlines()]
    scores = [entry for entry in log if entry["kind"] in ("dev", "final")]
    assert [entry["kind"] for entry in scores] == ["dev", "dev", "final"]
    for entry in scores:
        assert 0 <= entry["f1"] <= 100
        assert 0 <= entry["mended"] <= 100
    for model in ("averaged", "best"):
        if (parser / model).exists():
            names = {path.name for path in (parser / model).iterdir()}
            assert "target_tokenizer.json" in names


@pytest.mark.parametrize("options", [(), ("--constrained",)], ids=str)
def test_a_line_has_a_tree_over_its_words(
    succeeds: Callable[..., str], parser: Path, options: tuple[str, ...]
) -> None:
    text = b"The dog barks.\n\nIt isn't (really) so\n"
    lines = succeeds("parse", parser, *SEARCH, *options, stdin=text).split("\n")
    assert len(lines) == 4
    assert lines[1] == lines[3] == ""
    assert parse_tree(lines[0]).words == ("The", "dog", "barks", ".")
    assert " ".join(parse_tree(lines[2]).words) == "It is n't -LRB- really -RRB- so"


def test_an_ensemble_parses(
    succeeds: Callable[..., str], parser: Path, other_parser: Path
) -> None:
    models = (parser, "--ensemble", other_parser)
    options = (*SEARCH, "--constrained", "--tokenized")
    text = b"the old dog barks .\nyes\n"
    found = succeeds("parse", *models, *options, stdin=text)
    both = transduce.load(parser, other_parser, device="cpu", precision="fp32")
    search = replace(both.search, beam_size=2, extra_length=5)
    words = [line.split() for line in text.decode().splitlines()]
    expected = both.parser().parse_stream(words, search, constrained=True)
    assert found == "".join(f"{each.tree}\n" for each in expected)
    assert found != succeeds("parse", parser, *options, stdin=text)


def test_an_ensemble_of_parsers_counts_coverage(
    parser: Path, other_parser: Path
) -> None:
    def score(*models: Path) -> float:
        loaded = transduce.load(*models, device="cpu", precision="fp32")
        search = replace(loaded.search, beam_size=2, coverage_penalty=0.2)
        [parse] = loaded.parser().parse_stream([["yes"]], search)
        return parse.score

    assert score(parser, parser) == pytest.approx(score(parser), abs=1e-5)
    assert score(parser, other_parser) != pytest.approx(score(parser), abs=1e-5)


def test_a_parser_whose_dev_trees_were_removed_is_not_changed(
    refuses: Callable[..., str], parser: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(parser, run)
    (run / "corpus" / "dev" / "trees.txt").unlink()
    before = sorted(run.rglob("*")), (run / "config.json").read_text()
    resume = ("train", "--out", run, "--resume")
    for options in ((), ("--set", "training.steps=9")):
        assert refuses(*resume, *options).startswith(
            f"{run}/corpus/dev: must hold the dev trees, by which a parser is scored"
        )
        assert (sorted(run.rglob("*")), (run / "config.json").read_text()) == before


def test_tokenized_lines_are_cut_at_spaces_alone(
    succeeds: Callable[..., str], parser: Path
) -> None:
    # A character that treebanks do not treat as a space is part of its word.
    text = "isn't  it. 1\u00a0000\n".encode()
    line = succeeds("parse", parser, *SEARCH, "--tokenized", stdin=text)
    assert parse_tree(line.rstrip("\n")).words == ("isn't", "it.", "1\u00a0000")


def test_files_are_read_and_written(
    succeeds: Callable[..., str], parser: Path, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("one\ntwo .\n", encoding="utf-8")
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    assert succeeds("parse", parser, *SEARCH, *files) == ""
    printed = succeeds("parse", parser, *SEARCH, stdin=b"one\ntwo .\n")
    assert (tmp_path / "out").read_text(encoding="utf-8") == printed


def test_pretty_trees_are_the_same_trees(
    succeeds: Callable[..., str], parser: Path
) -> None:
    call = ("parse", parser, *SEARCH, "--constrained")
    text = b"the old dog barks .\nyes\n"
    plain, pretty = succeeds(*call, stdin=text), succeeds(*call, "--pretty", stdin=text)
    assert plain != pretty
    trees = [list(read_trees(out.splitlines(), "out")) for out in (plain, pretty)]
    assert trees[0] == trees[1]


def test_a_picture_is_drawn(
    succeeds: Callable[..., str], parser: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "tree.svg"
    succeeds("parse", parser, *SEARCH, "--svg", picture, stdin=b"the dog\n")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")
    assert ">dog</text>" in picture.read_text(encoding="utf-8")


def test_a_picture_that_cannot_be_written_is_drawn_without_parsing_again(
    refuses: Callable[..., str],
    succeeds: Callable[..., str],
    parser: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "in").write_text("the dog\n")
    out, picture = tmp_path / "out", tmp_path / "tree.svg"
    files = ("--input", tmp_path / "in", "--output", out, "--svg", picture)

    def fail(_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("transduce.cli.parse.svg", fail)
        refusal = refuses("parse", parser, *SEARCH, *files)
    assert refusal.startswith(f"{picture}: cannot be written (No space left")
    assert not out.exists()
    with monkeypatch.context() as patch:
        parse = "transduce.decoding.parser.Parser.parse_stream"
        patch.setattr(parse, lambda _, sentences, *__, **___: list(sentences))
        succeeds("parse", parser, *SEARCH, *files, "--resume")
    assert out.read_text(encoding="utf-8").startswith("(TOP")
    assert ">dog</text>" in picture.read_text(encoding="utf-8")


def test_a_picture_does_not_take_the_place_of_the_text(
    refuses: Callable[..., str], parser: Path, tmp_path: Path
) -> None:
    files = ("--output", tmp_path / "x", "--svg", tmp_path / "x")
    assert "must be another file than input and output" in refuses(
        "parse", parser, *files
    )
    assert not (tmp_path / "x").exists()


def test_an_over_long_line_has_a_flat_tree_and_a_warning(
    command: Callable[..., Any], parser: Path
) -> None:
    line = b"a " * 1_001
    outcome = command("parse", parser, *SEARCH, "--tokenized", stdin=b"\n" + line)
    assert outcome.code == 0
    assert (
        outcome.err == "Warning: line 2 is too long to parse, and its tree is flat.\n"
    )
    assert outcome.out == f"\n(TOP (S {' '.join(['(XX a)'] * 1_001)}))\n"


def test_patience_follows_the_f1_of_dev_trees(trees: Path, tmp_path: Path) -> None:
    files = ("--trees", str(trees), "--dev-trees", str(trees))
    run = ("--preset", "parsing-small", "--out", str(tmp_path / "run"))
    # The learning rate is so low that the first checkpoint stays the best.
    slow = ("training.patience=2", "training.learning_rate_scale=1e-9")
    steps = ("training.steps=30", "training.checkpoint_steps=1")
    others = [each for each in SETTINGS if "steps=" not in each]
    main(["train", *run, *files, "--set", *others, *slow, *steps])
    log = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    scores = [entry for entry in map(json.loads, log) if entry["kind"] == "dev"]
    assert [entry["step"] for entry in scores] == [1, 2, 3]
    assert len({entry["f1"] for entry in scores}) == 1


@pytest.mark.parametrize("beam_size", [1, 2])
@pytest.mark.parametrize("options", [(), ("--constrained",)], ids=str)
def test_a_parser_of_no_numbers_is_refused(
    refuses: Callable[..., str],
    parser: Path,
    tmp_path: Path,
    beam_size: int,
    options: tuple[str, ...],
) -> None:
    sound = load_model(parser)
    # The weights are finite, as loading requires, but their products are not.
    weights = {name: w.sign() * 1e38 for name, w in sound.weights.items()}
    save_model(replace(sound, weights=weights), tmp_path / "model")
    call = ("parse", tmp_path / "model", "--beam-size", beam_size, *options)
    message = refuses(*call, stdin=b"the dog\n")
    assert message.startswith("The model must output numbers, but outputs NaN; its")


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize(
    "own",
    [{"no_repeat_ngram": 1}, {"min_length": 90}, {"bad_words": ((3,), (4,))}],
    ids=lambda own: next(iter(own)),
)
def test_a_constrained_search_leaves_out_settings_that_exclude_symbols(
    command: Callable[..., Any],
    parser: Path,
    tmp_path: Path,
    beam_size: int,
    own: dict[str, Any],
) -> None:
    line = b"the old dog barked at the old dog .\n"
    call = ("--beam-size", beam_size, "--constrained")
    plain = command("parse", parser, *call, stdin=line)
    model = load_model(parser)
    save_model(
        replace(model, search=replace(model.search or SearchConfig(), **own)),
        tmp_path / "model",
    )
    outcome = command("parse", tmp_path / "model", *call, stdin=line)
    assert (outcome.code, outcome.out) == (0, plain.out)
    [name] = own
    assert f"`search.{name}` does not apply to a constrained search" in outcome.err
    assert outcome.err.count("\n") == 1


def test_the_api_parses_raw_text(parser: Path) -> None:
    translator = transduce.load(parser, device="cpu")
    [found] = translator.parse(["It's so."], constrained=True)
    assert found.tree.words == ("It", "'s", "so", ".")
    assert found.repairs.total == 0
    assert translator.parse("It's so.", constrained=True) == found


def test_gold_trees_are_parsed_and_scored(
    succeeds: Callable[..., str], parser: Path, trees: Path
) -> None:
    call = ("evaluate-parses", trees, "--model", parser, "--beam-size", 1)
    printed = succeeds(*call)
    assert "Bracketing FMeasure" in printed
    assert "\n\nRepaired to be trees: " in printed
    plain, constrained = (
        json.loads(succeeds(*call, "--json", *options))
        for options in ((), ("--constrained",))
    )
    assert plain["all"]["valid"] == constrained["all"]["valid"] == len(TREES)
    assert plain["mended"] > 0
    assert sum(plain["repairs"].values()) > 0
    assert (constrained["mended"], constrained["repairs"]) == (0, {})
    assert succeeds(*call, "--constrained").endswith(
        "0.00 % of sentences (no repairs)\n"
    )


def test_the_parses_of_an_ensemble_are_scored(
    succeeds: Callable[..., str], parser: Path, other_parser: Path, trees: Path
) -> None:
    call = ("evaluate-parses", trees, "--json", "--beam-size", 1, "--model")
    alone, twice, both = (
        json.loads(succeeds(*call, *models))
        for models in (
            (parser,),
            (parser, "--ensemble", parser),
            (parser, "--ensemble", other_parser),
        )
    )
    assert twice == alone
    assert both != alone


def test_trees_or_a_model_are_scored(
    refuses: Callable[..., str], parser: Path, trees: Path
) -> None:
    message = "Either predicted trees or a --model must be given, but "
    assert refuses("evaluate-parses", trees) == f"{message}neither is; add one."
    both = (trees, trees, "--model", parser)
    said = refuses("evaluate-parses", *both)
    assert said == f"{message}both are; leave one out."
    assert refuses("evaluate-parses", "-", "-", stdin=trees.read_bytes()) == (
        "Standard input must stand for one file, as it is read once, but stands for "
        "several; name the others."
    )


@pytest.mark.parametrize(
    "call",
    [
        ("translate", "{parser}"),
        ("sample", "{parser}"),
        ("score", "{parser}", "--source", "{trees}", "--target", "{trees}"),
        ("evaluate", "{parser}", "--source", "{trees}", "--reference", "{trees}"),
    ],
    ids=lambda call: call[0],
)
def test_a_parser_does_not_translate(
    refuses: Callable[..., str], parser: Path, trees: Path, call: tuple[str, ...]
) -> None:
    arguments = [each.format(parser=parser, trees=trees) for each in call]
    message = refuses(*arguments, stdin=b"a\n")
    assert message == (
        "A model that translates must be trained on text, but this one parses; use "
        "`transduce parse`."
    )


@pytest.mark.parametrize("to", ["ctranslate2", "marian", "onnx"])
def test_a_parser_is_not_exported(
    refuses: Callable[..., str], parser: Path, tmp_path: Path, to: str
) -> None:
    message = refuses("export", parser, "--to", to, "--out", tmp_path / "out")
    assert "must translate into text, but this one parses" in message
    assert not (tmp_path / "out").exists()


def test_a_translator_does_not_parse(
    refuses: Callable[..., str], model: Path, trees: Path
) -> None:
    message = (
        "A model that parses must be trained on trees, but this one translates; use "
        "`transduce translate`."
    )
    assert refuses("parse", model, stdin=b"a\n") == message
    assert refuses("evaluate-parses", trees, "--model", model) == message


@pytest.mark.parametrize("options", [(), ("--tokenized",)], ids=str)
@pytest.mark.parametrize("is_indented", [False, True])
def test_trees_in_brackets_are_not_parsed_as_words(
    refuses: Callable[..., str],
    parser: Path,
    tmp_path: Path,
    options: tuple[str, ...],
    is_indented: bool,
) -> None:
    text = indented(TREES[0]) if is_indented else str(TREES[0])
    (tmp_path / "in").write_text(f"\n{text}\n", encoding="utf-8")
    files = ("--input", tmp_path / "in", "--output", tmp_path / "out")
    message = "text must be sentences, but these are trees in brackets; remove"
    said = refuses("parse", parser, *SEARCH, *options, *files)
    assert said.startswith(f"{tmp_path}/in: {message}")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "in"]
    said = refuses("parse", parser, *SEARCH, *options, stdin=f"{text}\n".encode())
    assert said.startswith(f"standard input: {message}")


TREE = "(S (NP (DT the) (NN dog)) (VP (VBZ runs)))"


@pytest.mark.parametrize(
    "lines",
    [
        [f"{TREE} "],
        [f"{TREE}\t", "", TREE],
        ["(S (NP (DT the) (NN dog))", "   (VP (VBZ runs))) "],
        ["(TOP)", TREE],
        ["()", TREE],
        ["(hello there)", "(hello there)", TREE],
        ["(NP (NN dog))", TREE],
        [TREE, "(NP (NN dog))"],
    ],
    ids=str,
)
def test_lines_that_are_all_trees_are_no_text(lines: list[str]) -> None:
    parsed = without_trees(lines, "lines")
    with pytest.raises(DataError, match="^lines: text must be sentences, but these "):
        list(parsed)


@pytest.mark.parametrize(
    "lines",
    [
        ["( see ( Smith 2001 ) ( Jones 2002 ) )", "It is so ."],
        ["(hello there)", "", "( see ( Smith 2001 ) and ( Jones 2002 ) )"],
        ["A sentence .", TREE],
        ["(laughs) ", "(S (NP", ""],
        [],
    ],
    ids=str,
)
def test_lines_that_are_not_all_trees_are_text(lines: list[str]) -> None:
    assert list(without_trees(lines, "lines")) == lines


def test_lines_without_inner_brackets_are_not_kept_back() -> None:
    given = iter(["", "(hello there)", "A sentence ."])
    lines = without_trees(given, "lines")
    assert next(lines) == ""
    assert next(lines) == "(hello there)"
    assert next(given) == "A sentence ."


def test_a_sentence_in_brackets_is_parsed(
    succeeds: Callable[..., str], parser: Path
) -> None:
    line = succeeds("parse", parser, *SEARCH, stdin=b"((see below))\n").rstrip("\n")
    assert parse_tree(line).words == (
        "-LRB-", "-LRB-", "see", "below", "-RRB-", "-RRB-"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("language", "options", "is_warned"),
    [("de", (), True), ("de", ("--tokenized",), False), ("en-GB", (), False)],
)
def test_raw_text_of_another_language_is_cut_with_a_warning(
    command: Callable[..., Any],
    parser: Path,
    tmp_path: Path,
    language: str,
    options: tuple[str, ...],
    is_warned: bool,
) -> None:
    model = replace(load_model(find_model(parser)), source_language=language)
    save_model(model, tmp_path / "model")
    outcome = command("parse", tmp_path / "model", *options, stdin=b"Es ist so .\n")
    assert outcome.code == 0
    assert outcome.err.startswith("Warning: the parser reads German, but") == is_warned
    assert outcome.err.count("\n") == is_warned


@pytest.mark.parametrize("side", ["--input", None])
def test_text_that_is_not_utf_8_is_refused(
    refuses: Callable[..., str], parser: Path, tmp_path: Path, side: str | None
) -> None:
    (tmp_path / "in").write_bytes(b"one\n\xe4\n")
    files = (side, tmp_path / "in") if side else ()
    message = refuses(
        "parse", parser, *SEARCH, *files, "--output", tmp_path / "out",
        stdin=b"one\n\xe4\n",
    )  # fmt: skip
    assert ":2: a line must be valid UTF-8, but byte 1 of this one is 0xe4" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--beam-size", 0), "`search.beam_size` must be at least 1, but is 0"),
        (("--length-penalty", -1), "`search.length_penalty` must be at least 0"),
        (("--extra-length", -1), "`search.extra_length` must be at least 0"),
    ],
)
def test_an_impossible_search_is_refused(
    refuses: Callable[..., str], parser: Path, option: tuple[str, int], message: str
) -> None:
    assert message in refuses("parse", parser, *option, stdin=b"a\n")


BAD = {
    "missing": (None, "the file cannot be read"),
    "empty": (b"", "a treebank must have a tree, but has none"),
    "text": (b"The dog barks.\n", "a treebank must begin with `(`, but begins with"),
    "too few brackets": (b"(S (A a)\n(S (A a))\n", ":1:1: a tree must close its"),
    "too many brackets": (b"(S (A a)))\n", ":1:10: "),
    "text after the root": (b"(S (A a)) b\n", ":1:11: a tree must be alone on its"),
    "10,000 brackets": (
        b"(S " * 10_000 + b"(A a)" + b")" * 10_000,
        ":1:3001: brackets must be at most 1,000 deep",
    ),
    "Latin-1": (b"(S (A \xe4))\n", ":1: a line must be valid UTF-8, but byte 7"),
    "UTF-16": ("(S (A a))\n".encode("utf-16"), ":1: a line must be"),
}


@pytest.mark.parametrize("part", ["--trees", "--dev-trees"])
@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=list(BAD))
def test_a_faulty_treebank_is_refused_and_nothing_is_left(
    refuses: Callable[..., str],
    trees: Path,
    tmp_path: Path,
    part: str,
    content: bytes | None,
    message: str,
) -> None:
    bad, out = tmp_path / "bad", tmp_path / "out"
    if content is not None:
        bad.write_bytes(content)
    files = {"--trees": trees, "--dev-trees": trees} | {part: bad}
    given = [each for pair in files.items() for each in pair]
    said = refuses("train", "--preset", "parsing-small", *given, "--out", out)
    assert said.startswith(str(bad))
    assert message in said
    assert [path for path in tmp_path.iterdir() if path != bad] == []


def test_trees_and_text_are_not_mixed(
    refuses: Callable[..., str],
    trees: Path,
    corpus_files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    call = ("train", "--out", tmp_path / "out", "--preset", "parsing-small")
    text = ("--source", corpus_files[0], "--target", corpus_files[1])
    assert "Either text or trees must be given" in refuses(
        *call, "--trees", trees, *text
    )
    assert "only --dev-trees are; add --trees" in refuses(*call, "--dev-trees", trees)


def test_the_best_parser_is_not_chosen_by_bleu(
    refuses: Callable[..., str], trees: Path, tmp_path: Path
) -> None:
    files = ("--trees", trees, "--dev-trees", trees, "--out", tmp_path / "out")
    chosen = ("--set", "training.best_by=bleu")
    message = refuses("train", "--preset", "tiny", *files, *chosen)
    assert message == (
        '`training.best_by` must be one of "auto", "f1", "loss" on this dev corpus, '
        'but is "bleu".'
    )


def test_a_target_vocabulary_in_the_settings_is_refused(
    refuses: Callable[..., str], trees: Path, tmp_path: Path
) -> None:
    call = ("train", "--preset", "parsing-small", "--trees", trees)
    setting = ("--set", "model.target_vocab_size=9")
    message = refuses(*call, "--out", tmp_path / "out", *setting)
    assert "must be left to the tokenizer and the trees, but one is set" in message


def test_a_run_is_not_resumed_with_other_trees(
    refuses: Callable[..., str], parser: Path, tmp_path: Path
) -> None:
    other = write_trees(tmp_path / "other", TREES[:3])
    message = refuses("train", "--out", parser, "--resume", "--trees", other)
    assert "the run to resume was started with other files" in message


def test_a_run_is_placed_in_table_4(
    succeeds: Callable[..., str], parser: Path, tmp_path: Path
) -> None:
    gold, out = write_trees(tmp_path / "gold", TREES[:2]), tmp_path / "table4"
    told = ("--treebank", "the grammar's", "--split", "two trees")
    options = ("--wsj-only", gold, parser, *told, "--device", "cpu")
    assert "repaired" in succeeds("reproduce", "table4", "--out", out, *options)
    [row] = json.loads((out / "table4.json").read_text())["ours"]
    evaluated = ("evaluate-parses", gold, "--model", parser, "--device", "cpu")
    found = json.loads(succeeds(*evaluated, "--json"))
    assert row["figures"] == found["all"]
    assert row["mended"] == found["mended"]
    assert row["predicted"] == str(parser)
    assert row["beam_size"] == 2
