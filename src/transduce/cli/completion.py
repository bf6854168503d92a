"""`transduce --install-completion`: completion of command lines in the shell."""

from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

from transduce.cli import ALL_COMMANDS, command_line
from transduce.cli.files import require_new, writer
from transduce.errors import ConfigError

Shell = Literal["bash", "zsh", "fish"]
SHELLS: tuple[Shell, ...] = get_args(Shell)
STARTUP_FILES = {"bash": "~/.bashrc", "zsh": "~/.zshrc"}
"""Startup files that load the completion; fish finds it by itself."""
LOADED_BY_ZSH = (
    "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }; "
    "autoload -Uz {function} && compdef {function} transduce"
)
"""Line of .zshrc that turns completion on where it is off, and loads ours."""


def install_completion(
    *, shell: Shell | None = None, output: Path | None = None, force: bool = False
) -> None:
    """Complete commands and options in the shell by the Tab key.

    Writes a completion script to the user's folder for such scripts, and loads it in
    .bashrc or .zshrc.

    For example:

        transduce --install-completion
        transduce --install-completion --shell bash --output transduce.bash

    Parameters
    ----------
    shell
        Shell of the script; by default the one that runs the command.
    output
        Only write the script to this file, or with - to standard output.
    force
        Overwrite this file if it exists.
    """
    shell = shell or _this_shell()
    app = command_line(ALL_COMMANDS)
    if output is not None:
        require_new(output, force=force)
        with writer(output, overwrite=force) as file:
            file.write(app.generate_completion(shell=shell))
        return
    path = app.install_completion(shell=shell)
    if shell == "zsh":
        _load_in_zsh(path)
    loaded = f", loaded in {STARTUP_FILES[shell]}" if shell in STARTUP_FILES else ""
    print(f"The completion is in {path}{loaded}; open a new terminal to use it.")


def _load_in_zsh(script: Path) -> None:
    """Load a completion script at the end of .zshrc.

    Its folder is in zsh's path, but zsh searches that only when completion is turned
    on: never by default, and otherwise often before the folder is added.
    """
    startup = Path(STARTUP_FILES["zsh"]).expanduser()
    before = startup.read_bytes() if startup.exists() else b""
    line = LOADED_BY_ZSH.replace("{function}", script.name).encode()
    if line not in before.splitlines():
        is_cut_short = before and not before.endswith(b"\n")
        with startup.open("ab") as file:
            file.write((b"\n" if is_cut_short else b"") + line + b"\n")


def _this_shell() -> Shell:
    """Shell that runs the command; `ConfigError` if it is unknown."""
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    found: str | None = None
    with suppress(ShellDetectionError):
        found = detect_shell()
    for shell in SHELLS:
        if shell == found:
            return shell
    raise ConfigError(
        f"The shell must be one of {', '.join(SHELLS)}, but is "
        f"{found or 'unknown'}; name it by --shell."
    )
