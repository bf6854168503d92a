import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

import pytest

import transduce
from transduce.cli import COMMANDS, GROUPS, PARTS, command_line
from transduce.cli.help import described
from transduce.errors import TransduceWarning

ASK_FOR_HELP = """
import sys
from transduce.cli import main
try:
    main({arguments})
finally:
    heavy = {{"torch", "numpy", "matplotlib", "tokenizers", "sacrebleu"}}
    print("imported:", *sorted(heavy & set(sys.modules)))
"""


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    script = ASK_FOR_HELP.format(arguments=["--help"])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("imported:\n")
    assert done.stderr == ""
    assert [name for name in COMMANDS if name not in done.stdout] == []


def test_the_package_shows_its_public_names_and_no_others() -> None:
    assert dir(transduce) == sorted(transduce.__all__)
    assert all(hasattr(transduce, name) for name in transduce.__all__)


def test_warnings_of_the_package_have_a_public_class() -> None:
    assert transduce.TransduceWarning is TransduceWarning
    assert issubclass(TransduceWarning, UserWarning)


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_module_is_the_command_and_prints_its_version(flag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "transduce", flag],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{transduce.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_help_is_printed_by_its_options_and_without_a_command(
    succeeds: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    text = " ".join(succeeds(*arguments).split())
    assert "Train a model: text files to averaged, scored model." in text


CALLS = [
    *([name] for name in COMMANDS if name not in PARTS),
    *([name, part] for name, parts in PARTS.items() for part in parts),
]


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_every_command_explains_itself(
    succeeds: Callable[..., str], words: list[str]
) -> None:
    text = succeeds(*words, "--help")
    assert f"transduce {' '.join(words)}" in text
    assert "--" in text


TABLES = {part for parts in PARTS.values() for part in parts}
OTHERS = [["help"], ["--install-completion"]]
WIDTHS = [0, 1, 2, 10, 20, 40, 47, 60, 120, 200, 300, int("9" * 30)]
WITHOUT_OPTIONS = [["transduce", "presets"], ["transduce", "--install-completion"]]
"""Examples without any option."""


@pytest.mark.parametrize(
    "words", [[], *([name] for name in PARTS), *CALLS, *OTHERS], ids=str
)
def test_help_has_the_same_words_at_every_width(
    succeeds: Callable[..., str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    texts = {}
    for columns in (80, *WIDTHS):
        with monkeypatch.context() as patch:  # not while pytest reports
            patch.setenv("COLUMNS", str(columns))
            texts[columns] = succeeds(*words, "--help")
    usual = texts[80]
    for columns, text in texts.items():
        width = min(max(columns or 80, 20), 100)
        assert max(map(len, text.splitlines())) <= width
        # A word longer than a line is broken, and names are broken at their dots.
        assert "".join(text.split()) == "".join(usual.split())


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["settings"], "[PRESET]"),
        (["average"], "CHECKPOINT [MORE...]"),
        (["compare"], "[SYSTEMS...]"),
        (["evaluate-parses"], "GOLD [PREDICTED]"),
        (["reproduce", "table2"], "[RUNS...]"),
        (["help"], "[COMMAND...]"),
    ],
    ids=str,
)
def test_the_usage_names_the_arguments(
    succeeds: Callable[..., str], words: list[str], arguments: str
) -> None:
    usage = " ".join(succeeds(*words, "--help").split("\n\n")[0].split())
    assert usage.endswith(f" {arguments}")


@pytest.mark.parametrize("words", [[], ["train"], ["reproduce", "table3"]], ids=str)
def test_the_command_help_prints_the_help_of_a_command(
    succeeds: Callable[..., str], words: list[str]
) -> None:
    assert succeeds("help", *words) == succeeds(*words, "--help")


def test_the_command_help_refuses_an_unknown_command(
    refuses: Callable[..., str],
) -> None:
    assert 'Unknown command "trian"' in refuses("help", "trian")


@pytest.mark.parametrize("name", PARTS)
def test_a_command_of_several_lists_them(
    succeeds: Callable[..., str], name: str
) -> None:
    text = " ".join(succeeds(name, "--help").split())
    assert [part for part, says in PARTS[name].items() if says not in text] == []


def test_help_groups_the_commands_by_what_they_are_for(
    succeeds: Callable[..., str],
) -> None:
    lines = succeeds("--help").splitlines()
    titles = [line[:-1] for line in lines if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert titles == [*GROUPS, "Options"]
    shown = [line.split()[0] for line in lines if re.match(r"  [a-z]", line)]
    assert [word for word in shown if word in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("words", [*CALLS, *OTHERS], ids=" ".join)
def test_help_has_examples_that_are_commands_as_they_stand(
    succeeds: Callable[..., str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    called = ["transduce", *words]
    _, _, after = succeeds(*words, "--help").partition("For example:\n\n")
    examples = [line.strip() for line in after.split("\n\n")[0].splitlines()]
    assert examples
    for example in examples:
        command = shlex.split(example.split(" | ")[-1].split(" > ")[0])
        assert command[: len(called)] == called
        _, bound, unused, _ = command_line().parse_known_args(command[1:])
        assert unused == []
        assert bound.arguments or command in WITHOUT_OPTIONS


@pytest.mark.parametrize("words", [*CALLS, *OTHERS], ids=" ".join)
def test_options_of_several_values_must_have_one(words: list[str]) -> None:
    app = command_line()
    for word in words:
        app = app[word]
    for argument in app.assemble_argument_collection():
        several = argument.parameter.consume_multiple
        assert several is None or several[0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), 'Unknown command "trian"'),
        (("train", "--bogus", "1", "--out", "o"), "Unknown option: --bogus"),
        (
            ("train", "--out", "o", "--label-smoothing", "0.2"),
            "Unknown option: --label-smoothing. The setting training.label_smoothing "
            "is given as --set training.label_smoothing=VALUE. See",
        ),
        (
            ("check", "--training.seed=3"),
            "Unknown option: --training.seed. The setting training.seed is given as "
            "--set training.seed=VALUE. See",
        ),
        (
            ("train", "--out", "o", "--patience", "3"),
            "The setting training.patience or search.patience is given as --set "
            "training.patience=VALUE.",
        ),
        (
            ("distill", "m", "--source", "s", "--out", "o", "--seed=3"),
            "Unknown option: --seed. The setting training.seed or treebank.",
        ),
        (("translate", "m", "--dropout", "3"), "Unknown option: --dropout. See"),
        (
            ("translate", "m", "--n-best=4"),
            "Unknown option: --n-best. Did you mean --nbest? See",
        ),
        (("translate", "m", "--beam", "4"), "Did you mean --beam-size?"),
        (  # options have no opposites
            ("reproduce", "table1", "--out", "o", "--no-force"),
            "Unknown option: --no-force. Did you mean --force?",
        ),
        (
            ("check", "--empty-source"),
            "Unknown option: --empty-source. Did you mean --dev-source?",
        ),
        (("train", "--out", "o", "--lr", "1"), "Unknown option: --lr. See"),
        (("train",), "--out must be given."),
        (("train", "--out"), "--out must have a value, but has none."),
        (
            ("translate", "m", "--ensemble"),
            "--ensemble must have a value, but has none.",
        ),
        (("train", "--out", "o", "--set"), "--set must have a value, but has none."),
        (
            ("translate", "m", "--input", "-x"),
            "--input must have a value, but has none; write --input=-x if -x is the "
            "value and no option. See",
        ),
        (
            ("parse", "m", "--input", "--svg", "x"),
            "--input must have a value, but has none. See",
        ),
        (
            ("tune", "m", "--beam-sizes"),
            "--beam-sizes must have a value, but has none.",
        ),
        (("translate",), "MODEL must be given."),
        (("score", "m"), "--source must be given."),
        (("score", "m", "--source", "s"), "--target must be given."),
        (("average", "m"), "--out must be given."),
        (("average", "--out", "m"), "CHECKPOINT must be given."),
        (("evaluate",), "--reference must be given."),
        (
            ("translate", "m", "n"),
            'Unexpected argument: "n"; text is read from standard input or --input.',
        ),
        (
            ("parse", "m", "n", "-"),
            'Unexpected arguments: "n", "-"; text is read from standard input or '
            "--input.",
        ),
        (
            ("train", "my.en", "my.de", "--out", "o"),
            'Unexpected arguments: "my.en", "my.de"; name text by --source and '
            "--target, or trees by --trees.",
        ),
        (
            ("clean", "my.en", "my.de", "--out", "o"),
            'Unexpected arguments: "my.en", "my.de"; name files by --source and '
            "--target.",
        ),
        (
            ("tune", "m", "my.en", "my.de"),
            'Unexpected arguments: "my.en", "my.de"; name files by --dev-source and '
            "--dev-target.",
        ),
        (
            ("quickstart", "folder"),
            'Unexpected argument: "folder"; name the output by --out.',
        ),
        (
            ("presets", "base"),
            'Unexpected argument: "base"; `transduce settings` shows the preset that '
            "it is given.",
        ),
        (("evaluate-parses", "a", "b", "c"), 'Unexpected argument: "c".'),
        (("train", "--out", "o", "--precision", "fp8"), 'Invalid value "fp8"'),
        (
            ("translate", "m", "--nbest", "two"),
            '--nbest must be a whole number, but is "two".',
        ),
        (
            ("translate", "m", "--nbest", "2.5"),
            '--nbest must be a whole number, but is "2.5".',
        ),
        (
            ("translate", "m", "--nbest", "1e3"),
            '--nbest must be a whole number, but is "1e3".',
        ),
        (
            ("translate", "m", "--nbest", "inf"),
            '--nbest must be a whole number, but is "inf".',
        ),
        (
            ("translate", "m", "--nbest="),
            "--nbest must be a whole number, but is empty.",
        ),
        (
            ("tune", "m", "--beam-sizes", "1", "x"),
            '--beam-sizes must be a whole number, but is "x".',
        ),
        (
            ("translate", "m", "--length-penalty", "x"),
            '--length-penalty must be a number, but is "x".',
        ),
        (
            ("translate", "m", "--patience", "x"),
            '--patience must be a number or none, but is "x".',
        ),
        (("translate", "m", "--jsonl=x"), '--jsonl must be true or false, but is "x".'),
        (
            ("reproduce", "table4", "--wsj-only", "g"),
            "--wsj-only must have 2 values, but has 1.",
        ),
        (("train", "--ot", "o"), "--out must be given, but --ot is given instead."),
        (
            ("train", "--out", "o", "--out", "p"),
            "--out must be given once, but is given again.",
        ),
        (("--bogus",), "Unknown"),
    ],
    ids=str,
)
def test_a_mistyped_command_line_is_refused(
    refuses: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    refusal = refuses(*arguments)
    assert any(each in refusal for each in message.split("|"))
    named = [word for word in arguments[:2] if word in COMMANDS or word in TABLES]
    command = " ".join(["transduce", *named])
    assert refusal.endswith(f"See `{command} --help`.")


def test_help_on_a_command_imports_nothing_heavy() -> None:
    script = "\n".join(
        [
            "import contextlib, sys",
            "from transduce.cli import main",
            f"for words in {CALLS!r}:",
            "    with contextlib.suppress(SystemExit):",
            "        main([*words, '--help'])",
            "heavy = {'torch', 'numpy', 'matplotlib', 'tokenizers', 'sacrebleu'}",
            "print('imported:', *sorted(heavy & set(sys.modules)))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("imported:\n")
    assert done.stdout.count("Usage: transduce ") == len(CALLS)


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_a_signature_read_from_the_source_is_that_of_the_command(
    words: list[str],
) -> None:
    name = words[-1].replace("-", "_")
    name += "_" if iskeyword(name) else ""
    module = f"transduce.cli.{words[0] if len(words) > 1 else name}"
    read = described(f"{module}:{name}")
    assert not isinstance(read, str)
    imported = getattr(import_module(module), name)
    assert inspect.signature(read) == inspect.signature(imported)
    assert read.__doc__ == imported.__doc__
    assert read.__kwdefaults__ == imported.__kwdefaults__


def test_a_signature_that_cannot_be_read_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_command.py").write_text(
        "class Odd: ...\ndef one(x: Odd): ...\ntwo = one\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two", "three"):
        assert described(f"odd_command:{name}") == f"odd_command:{name}"
    assert described("no_such_module:one") == "no_such_module:one"
