import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from transduce.cli import COMMANDS, PARTS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("ZSH", "ZSH_CUSTOM"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def completed(script: Path, *words: str) -> set[str]:
    """Completions that bash finds for the last word."""
    listed = " ".join(f"'{word}'" for word in words)
    commands = (
        f". '{script}'; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; "
        "_transduce; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", commands], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_options_and_choices(
    succeeds: Callable[..., str], tmp_path: Path
) -> None:
    script = tmp_path / "transduce.bash"
    said = succeeds("--install-completion", "--shell", "bash", "--output", script)
    assert said == ""
    assert completed(script, "transduce", "tra") == {"train", "translate"}
    assert completed(script, "transduce", "") >= set(COMMANDS)
    assert completed(script, "transduce", "reproduce", "") >= set(PARTS["reproduce"])
    assert completed(script, "transduce", "train", "--pre") == {
        "--precision",
        "--preset",
    }
    styles = completed(script, "transduce", "attention", "m", "--granularity", "")
    assert styles == {"words", "sub-words"}


def test_a_file_is_replaced_by_the_script_only_by_force(
    succeeds: Callable[..., str], refuses: Callable[..., str], tmp_path: Path
) -> None:
    startup = tmp_path / ".bashrc"
    startup.write_text("alias ll='ls -l'\n")
    options = ("--install-completion", "--shell", "bash", "--output", startup)
    assert "overwrite it with --force" in refuses(*options)
    assert startup.read_text() == "alias ll='ls -l'\n"
    succeeds(*options, "--force")
    assert "complete" in startup.read_text()


@pytest.mark.parametrize(
    ("shell", "file", "startup"),
    [
        ("bash", ".local/share/bash-completion/completions/transduce", ".bashrc"),
        ("zsh", ".zsh/completions/_cyclopts_transduce", ".zshrc"),
        ("fish", ".config/fish/completions/transduce.fish", None),
    ],
)
def test_the_completion_is_installed_once_for_each_shell(
    succeeds: Callable[..., str],
    home: Path,
    shell: str,
    file: str,
    startup: str | None,
) -> None:
    if startup is not None:
        (home / startup).write_text("alias ll='ls -l'\n")
    for _ in range(2):
        said = succeeds("--install-completion", "--shell", shell)
    assert str(home / file) in said
    script = (home / file).read_text(encoding="utf-8")
    assert [name for name in COMMANDS if name not in script] == []
    if startup is not None:
        assert f"~/{startup}" in said
        lines = (home / startup).read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(set(lines)) == (4 if shell == "zsh" else 3)
        assert "alias ll='ls -l'" in lines


def test_zsh_keeps_a_last_line_without_its_end(
    succeeds: Callable[..., str], home: Path
) -> None:
    (home / ".zshrc").write_text("alias ll='ls -l'")
    succeeds("--install-completion", "--shell", "zsh")
    assert "alias ll='ls -l'" in (home / ".zshrc").read_text().splitlines()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize("startup", ["", "autoload -Uz compinit\ncompinit\n"])
def test_zsh_knows_the_completion_whether_or_not_it_has_others(
    succeeds: Callable[..., str], home: Path, startup: str
) -> None:
    (home / ".zshrc").write_text(startup)
    succeeds("--install-completion", "--shell", "zsh")
    done = subprocess.run(
        ["zsh", "-i", "-c", "print -r -- $_comps[transduce]"],
        capture_output=True,
        text=True,
        env={**os.environ, "HOME": str(home), "ZDOTDIR": str(home)},
    )
    assert done.stdout.split() == ["_cyclopts_transduce"]


def test_the_shell_that_runs_the_command_is_found(
    succeeds: Callable[..., str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FISH_VERSION", "3.6.0")
    for variable in ("BASH_VERSION", "ZSH_VERSION"):
        monkeypatch.delenv(variable, raising=False)
    assert "transduce.fish" in succeeds("--install-completion")


def test_another_shell_is_refused(refuses: Callable[..., str]) -> None:
    assert "csh" in refuses("--install-completion", "--shell", "csh")


def test_the_script_on_standard_output_imports_no_command() -> None:
    script = "\n".join(
        [
            "import sys",
            "from transduce.cli import main",
            "main(['--install-completion', '--shell', 'zsh', '--output', '-'])",
            "heavy = {'torch', 'numpy', 'matplotlib', 'tokenizers', 'sacrebleu'}",
            "print('imported:', *sorted(heavy & set(sys.modules)))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("#compdef transduce")
    assert done.stdout.endswith("imported:\n")
