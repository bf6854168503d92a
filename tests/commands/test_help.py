import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from keyword import iskeyword
from pathlib import Path

import pytest

import transduce
from transduce.cli import COMMANDS, PARTS
from transduce.cli.signatures import described

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


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "transduce", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{transduce.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)], ids=str)
def test_help_is_given_when_asked_for_or_nothing_is(
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


@pytest.mark.parametrize("columns", ["0", "1", "2", "10", "20", "47", "300", "9" * 30])
@pytest.mark.parametrize("words", [[], *([name] for name in PARTS), *CALLS], ids=str)
def test_help_says_the_same_at_every_width(
    succeeds: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    columns: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usual = succeeds(*words, "--help")
    assert max(map(len, usual.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", columns)
    text = succeeds(*words, "--help")
    width = int(columns) or 80
    assert max(map(len, text.splitlines())) <= min(max(width, 20), 100)
    # A word longer than a line is broken, and so are names at their dots.
    assert "".join(text.split()) == "".join(usual.split())


@pytest.mark.parametrize("name", PARTS)
def test_a_command_of_several_lists_them(
    succeeds: Callable[..., str], name: str
) -> None:
    text = " ".join(succeeds(name, "--help").split())
    assert [part for part, says in PARTS[name].items() if says not in text] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), 'Unknown command "trian"'),
        (("train", "--bogus", "1", "--out", "o"), "Unknown option: --bogus"),
        (("train",), "--out requires an argument"),
        (("train", "--out"), "--out requires an argument"),
        (("translate",), "MODEL requires an argument"),
        (("score", "m"), "requires an argument"),
        (("score", "m", "--source", "s"), "--target requires an argument"),
        (("average", "m"), "--out requires an argument"),
        (("average", "--out", "m"), "CHECKPOINT requires an argument"),
        (("evaluate",), "--reference requires an argument"),
        (("translate", "m", "n"), 'Unexpected argument: "n".'),
        (("translate", "m", "n", "-"), 'Unexpected arguments: "n", "-".'),
        (("train", "--out", "o", "--precision", "fp8"), 'Invalid value "fp8"'),
        (("translate", "m", "--nbest", "two"), 'unable to convert "two" into int'),
        (("train", "--out", "o", "--out", "p"), "--out"),
        (("--bogus",), "Unknown"),
    ],
    ids=str,
)
def test_a_mistyped_command_line_is_refused(
    refuses: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    refusal = refuses(*arguments)
    assert any(each in refusal for each in message.split("|"))
    command = f" {arguments[0]}" if arguments[0] in COMMANDS else ""
    assert refusal.endswith(f"See `transduce{command} --help`.")


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
