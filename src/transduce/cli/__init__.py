"""The command `transduce`: one module a sub-command, imported when it is called."""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from rich.console import Console

import transduce
from transduce.errors import TransduceError

USER_ERROR = 2
"""Exit code of what the user can mend."""

app = App(
    name="transduce",
    help='The system of "Attention Is All You Need" as a tool.',
    version=transduce.__version__,
    help_format="plaintext",
    result_action="return_value",
)

COMMANDS = {
    "quickstart": "Train, average, translate and score on the built-in corpus.",
    "check": "Report on a parallel corpus before training.",
    "train": "Train a model: text files to averaged, scored model.",
    "average": "Average the weights of checkpoints.",
    "translate": "Translate raw text, one line for one line.",
    "score": "Say how likely a model holds given translations.",
    "evaluate": "Score translations against references.",
}
for _name, _help in COMMANDS.items():
    app.command(f"transduce.cli.{_name}:{_name}", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; the user's mistakes end with one sentence and exit code 2."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _fail(console, f"{' '.join(str(error).split())} See `transduce --help`.")
    except TransduceError as error:
        _fail(console, str(error))
    except KeyboardInterrupt:
        _fail(console, "Interrupted.")
    except BrokenPipeError:
        # The reader of our output has gone; there is no one left to tell.
        sys.stderr.close()
        sys.exit(0)


def _fail(console: Console, message: str) -> None:
    console.print(f"transduce: {message}", markup=False)
    sys.exit(USER_ERROR)
