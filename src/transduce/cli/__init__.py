"""The command `transduce`: its sub-commands, and how one is run.

Each sub-command is a module, which is imported when it is called. An error of the user,
of the machine or of the installation ends with one sentence (`main`); `mistakes`
describes mistakes in the command line.
"""

import gc
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    Parameter,
    Token,
    convert,
)

import transduce
from transduce.cli.help import PLAIN_HELP, PlainHelp, described
from transduce.cli.terminal import (
    BoundedConsole,
    discard_output,
    escape_output,
    exiting_at_once_if_distributed,
    lasting_streams,
    open_closed_streams,
    print_message,
    warnings_as_sentences,
)
from transduce.errors import (
    LIST_CORPORA,
    NAME_START,
    NO_GPU_MEMORY,
    NO_MEMORY,
    OVERWRITE,
    RESUME,
    START_FROM_RUN,
    START_OVER,
    ConfigError,
    TransduceError,
    missing_in,
    missing_package,
    shortened,
)
from transduce.files import MORE_FILES, are_too_many_open, is_disk_full, is_utf8
from transduce.machine import respect_cpu_quota
from transduce.signals import (
    ended_by_schedulers,
    signals_after_imports,
    unwound_on_termination,
)

USER_ERROR = 2
"""Exit code of errors that the user can correct."""


DASH_AS_FILE = "./-"
"""Replacement for a lone `-`, which the argument parser would take for an option."""


def _converted(hint: Any, tokens: Sequence[Token]) -> Any:
    """Convert an option's value; `CoercionError` instead of rounding to a whole
    number."""
    tokens = [
        token.evolve(value="-") if token.value == DASH_AS_FILE else token
        for token in tokens
    ]
    try:
        converted = convert(hint, tokens)
    except OverflowError:
        raise _no_whole_number(tokens[-1]) from None
    values = converted if isinstance(converted, tuple) else (converted,)
    for value, token in zip(values, tokens, strict=False):
        text = token.value
        if type(value) is int and "." in text and float(text) != value:
            raise _no_whole_number(token)
    return converted


def _no_whole_number(token: Token) -> CoercionError:
    return CoercionError(token=token, target_type=int)


DEFAULT_PARAMETER = Parameter(
    converter=_converted, negative_bool=(), negative_iterable=(), consume_multiple=1
)
"""Options have no opposites such as --no-force, and lists take several values."""


GROUPS = {
    "Train": {
        "quickstart": "Train, average, translate and score on the built-in corpus.",
        "data": "Download and prepare a named corpus.",
        "check": "Report on a parallel corpus, or on treebanks, before training.",
        "clean": "Write the good pairs of a parallel corpus, and the others with "
        "reasons.",
        "split": "Split a parallel corpus into training, dev and test text.",
        "train": "Train a model: text files to averaged, scored model.",
        "presets": "List the presets: sizes, and what each is for.",
        "settings": "List the settings of a run, or of a preset.",
        "average": "Average the weights of a run's last checkpoints, or of models.",
        "tune": "Choose beam size and length penalty on dev text.",
        "distill": "Train a small model on the translations of a large one.",
        "back-translate": "Make training pairs from text of the target language alone.",
    },
    "Translate": {
        "translate": "Translate raw text, one line for one line, in order.",
        "sample": "Draw translations at random.",
        "shortlist": "Count a shortlist of target pieces, for faster translation.",
        "score": "Score given translations by a model's log-probability.",
        "align": "Link the words of given translations to those of their sources.",
    },
    "Measure": {
        "evaluate": "Score translations against references.",
        "compare": "Compare systems, with tests of significance.",
        "reproduce": "Reproduce a table or an experiment of the paper.",
        "benchmark": "Measure speed beside other libraries.",
    },
    "Look inside": {
        "attention": "Show what a model attends to in a sentence, as a page or a "
        "picture.",
        "heads": "Survey the attention heads over a corpus, and their importance.",
    },
    "Parse": {
        "parse": "Parse sentences, one tree per line.",
        "evaluate-parses": "Score parses against gold trees, as EVALB does.",
    },
    "Serve and exchange": {
        "serve": "Serve models over HTTP, with a web page.",
        "export": "Write a model for another library, if the two prove to be the same.",
        "import": "Import a Marian model, in Marian's or Hugging Face's format, if the "
        "two prove to be the same.",
        "quantize": "Write a model a quarter as large, with weights in 8 bits.",
    },
}
"""Descriptions of the commands by group, in the order of the help."""
PARTS = {
    "reproduce": {
        "table1": "Measure what layers cost, beside the formulas of Table 1.",
        "table2": "Place runs among the models of Table 2, and forecast trainings.",
        "table3": "Vary the base model as Table 3 does, at any scale.",
        "table4": "Place parses among the parsers of Table 4.",
        "scaling": "Compare scaled, unscaled and additive attention.",
    },
    "benchmark": {
        "training": "Measure the speed and memory of training.",
        "decoding": "Measure the speed and memory of decoding.",
    },
}
"""Sub-commands of commands, with descriptions."""
FLAGS = {"--help": "Print this help.", "--version": "Print the version."}
INSTALL_COMPLETION = "--install-completion"
COMMANDS = tuple(name for commands in GROUPS.values() for name in commands)
ALL_COMMANDS = (*COMMANDS, *(part for parts in PARTS.values() for part in parts))


def command_line(described_commands: Collection[str] = ()) -> App:
    """Command line; a command is imported when it is called.

    Signatures and docstrings of `described_commands` are read without importing them,
    for help and completion.
    """
    options_group = Group.create_default_parameters("Options")
    app = App(
        name="transduce",
        help='Train the Transformer of "Attention Is All You Need", and use it.',
        version=lambda: transduce.__version__,
        version_flags=("--version", "-V"),
        help_format="plaintext",
        help_formatter=PLAIN_HELP,
        group_parameters=options_group,
        default_parameter=DEFAULT_PARAMETER,
    )

    for title, commands in GROUPS.items():
        group = Group.create_ordered(title)
        for position, (name, summary) in enumerate(commands.items()):
            place: dict[str, Any] = {"group": group, "sort_key": position}
            if name in PARTS:
                several = App(
                    name=name, help=summary, group_parameters=options_group, **place
                )
                for part, part_summary in PARTS[name].items():
                    is_described = part in described_commands
                    _add(several, part, f"{name}:{part}", part_summary, is_described)
                app.command(several)
            else:
                module = name.replace("-", "_")
                module = f"{module}_" if iskeyword(module) else module
                is_described = name in described_commands
                _add(app, name, f"{module}:{module}", summary, is_described, **place)
    _add_options(app, described_commands)
    return app


def _add(
    app: App, name: str, function: str, summary: str, is_described: bool, **place: Any
) -> None:
    """Add a command, whose function is named as MODULE:FUNCTION below `cli`."""
    reference = f"transduce.cli.{function}"
    if is_described:  # all of its docstring
        read = described(reference)
        app.command(read, name=name, help_formatter=PlainHelp(read), **place)
    else:
        app.command(reference, name=name, help=summary, **place)


def _add_options(app: App, described_commands: Collection[str]) -> None:
    """Add help, version and completion, which the help lists among the options."""
    options = Group.create_ordered("Options")
    formatter = PlainHelp(print_help) if described_commands else PLAIN_HELP
    app.command(
        print_help, name="help", help_formatter=formatter, group=options, sort_key=0
    )
    for position, (flag, summary) in enumerate(FLAGS.items(), start=1):
        app[flag].group, app[flag].help, app[flag].sort_key = options, summary, position
    _add(
        app,
        INSTALL_COMPLETION,
        "completion:install_completion",
        "Complete commands and options by the Tab key, in bash, zsh or fish.",
        INSTALL_COMPLETION in described_commands,
        group=options,
        sort_key=len(FLAGS) + 1,
    )


def print_help(*command: str) -> None:
    """Print the help of a command.

    For example:

        transduce help train
        transduce help reproduce table3

    Parameters
    ----------
    command
        Name of the command; without it, all commands are listed.
    """
    _run([*command, "--help"])


PRINTS_RESULT = {
    "translate",
    "sample",
    "score",
    "align",
    "evaluate",
    "parse",
    "evaluate_parses",
    "compare",
    "tune",
    "check",
    "presets",
    "settings",
    "install_completion",
    "print_help",
    "training",
    "decoding",
}
"""Functions of commands that write their result to standard output. The other commands
print only progress, and continue when its reader has gone."""
RESULT_OPTIONS = {"attention": ("json", "out"), "clean": ("json_output",)}
"""Options by which other commands write a result to standard output, too: a flag, or a
file that is standard output."""


EXTRAS = {
    "benchmark": "benchmark",
    "export": "export",
    "import": "export",
    "serve": "serve",
}
"""Extras that some commands need; the others need "train" at most."""
TOO_LITTLE_MEMORY = (
    "There is not enough memory; close other programs, raise the limit of memory "
    "(ulimit -v), or give less text at once."
)
CPU_LACKS_MEMORY = re.compile(f"failed to map segment|{NO_MEMORY}", re.IGNORECASE)
"""Pattern of the errors of the dynamic linker and of PyTorch for too little memory."""
GPU_FAULTS = {
    NO_GPU_MEMORY: "The GPU has too little free memory; close "
    "other programs that use it, or compute on the CPU (--device cpu).",
    "no kernel image is available": "The installed PyTorch has no kernels for this "
    "GPU; install a build that has them, or compute on the CPU (--device cpu).",
}
"""Messages by the patterns of PyTorch's errors on a GPU."""
FAULTS = (
    EOFError, ImportError, LookupError, MemoryError, RuntimeError, TypeError,
    ValueError,  # UnicodeEncodeError is one
)  # fmt: skip
"""Errors by which faults of the machine, its installation or its environment appear."""
LIBRARIES = (
    "CUDA_", "HF_", "MPL", "NPY_", "ONNX", "PYTORCH_", "TORCH", "TRANSFORMERS_",
    "TRITON_",
)  # fmt: skip
"""Beginnings of the environment variables that libraries read at their import."""
OPTIONS_OF_REMEDIES = {
    OVERWRITE: " with --force",
    RESUME: " by `transduce train --resume`",
    START_OVER: " by `transduce train --force`",
    START_FROM_RUN: " by `transduce train --from`",
    NAME_START: " (`transduce train --from`)",
    LIST_CORPORA: ", or by `transduce train --corpus`",
}
"""Options that commands add to the remedies of errors."""
NO_TEMPORARY_FOLDER = "No usable temporary directory"
"""Beginning of Python's error if no folder for temporary files can be written."""
TRUNCATED_BYTECODE = "marshal data too short"
"""Python's error for a module whose bytecode a full disk cut short."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; errors of the user end with one sentence and exit code 2."""
    with (
        exiting_at_once_if_distributed(),
        ended_by_schedulers(),
        unwound_on_termination(),
        signals_after_imports(),
        warnings_as_sentences(),
    ):
        escape_output()
        # A notebook sets Matplotlib's backend for its own kernel. Its commands may run
        # where that is not installed, and they open no windows.
        os.environ.pop("MPLBACKEND", None)
        # Matplotlib warns of a home folder that it cannot write to, as in a container.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        words = sys.argv[1:] if arguments is None else arguments
        try:
            _run(words)
        except FAULTS as error:
            command = words[0] if words else ""
            message = _explained(error, command) or _of_environment(error)
            if message is None:
                raise
            _fail(message)


def _explained(error: Exception, command: str) -> str | None:
    """Describe a fault of the machine or of the installation; None for any other."""
    for cause in _causes(error):
        if isinstance(cause, MemoryError) or CPU_LACKS_MEMORY.search(str(cause)):
            return TOO_LITTLE_MEMORY
        for pattern, message in GPU_FAULTS.items():
            if isinstance(cause, RuntimeError) and re.search(pattern, str(cause)):
                return message
    if isinstance(error, ImportError) and (package := missing_in(error)) is not None:
        extra = EXTRAS.get(command, "train")
        return missing_package(f"`transduce {command}`", package, extra)
    if isinstance(error, EOFError) and TRUNCATED_BYTECODE in str(error):
        return (
            f"Python's compiled modules are cut short ({error}), as a full disk "
            "leaves them; free space, and delete the __pycache__ folders in "
            f"{sys.prefix} and {Path(transduce.__file__).parent}."
        )
    if isinstance(error, UnicodeEncodeError) and not is_utf8(error.object):
        return (
            f"{shortened(error.object)}: the names of files must be UTF-8 here, as a "
            "library or a format needs them, but this one is not; rename it."
        )
    return None


def _of_environment(error: Exception) -> str | None:
    """Describe an error by which a library refuses an environment variable.

    It appears while the library is imported, and names the value, or the line of code
    that fails names the variable. Return None for any other error.
    """
    ours = str(Path(transduce.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    libraries = list(takewhile(lambda f: not f.filename.startswith(ours), frames[::-1]))
    if not any(frame.name == "<module>" for frame in libraries):
        return None
    code = " ".join(frame.line or "" for frame in libraries)
    for name, value in os.environ.items():
        if name.startswith(LIBRARIES) and (
            re.search(rf"\b{name}\b", f"{error} {code}")
            or (not value.isdigit() and _has_word(str(error), value))
        ):
            return (
                f"The environment variable {name} must be what its library accepts, "
                f"but is {shortened(value)}; correct it, or unset it."
            )
    return None


def _has_word(text: str, word: str) -> bool:
    return bool(word and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it comes from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _run(arguments: Sequence[str]) -> None:
    is_output_closed = open_closed_streams()
    try:
        words = [DASH_AS_FILE if each == "-" else each for each in arguments]
        asks_for_help = bool({"--help", "-h"} & set(words))
        with _imports_not_collected():
            function, given, _ = command_line(
                words if asks_for_help else ()
            ).parse_args(
                words,
                console=BoundedConsole(highlight=False),
                exit_on_error=False,
                print_error=False,
            )
        prints_progress = _prints_only_progress(function, given.arguments)
        if is_output_closed and not prints_progress:
            _fail(
                "Standard output must be open, but is closed; send it to a file, or to "
                f"{os.devnull}."
            )
        if function.__module__.startswith(f"{__name__}."):  # not the help
            _require_current_folder()
        respect_cpu_quota()
        with lasting_streams(is_output_progress=prints_progress):
            function(*given.args, **given.kwargs)
    except CycloptsError as error:
        from transduce.cli.mistakes import described_mistake  # not for every command

        command = " ".join(("transduce", *(error.command_chain or ())))
        _fail(f"{described_mistake(error)} See `{command} --help`.")
    except TransduceError as error:
        _fail(error_sentence(error))
    except KeyboardInterrupt:
        _fail("Interrupted.")
    except BrokenPipeError:
        # The reader of the output has gone, as with `head`; that is not an error.
        discard_output()
        sys.exit(0)
    except OSError as error:
        discard_output()
        _fail(system_error_sentence(error))


def error_sentence(error: TransduceError) -> str:
    """Return an error's message, with the options of the remedies that it names.

    A message that quotes another command's has some of the options already.
    """
    message = str(error)
    for remedy, option in OPTIONS_OF_REMEDIES.items():
        message = message.replace(f"{remedy}{option}", remedy)
        message = message.replace(remedy, f"{remedy}{option}")
    return message


def system_error_sentence(error: OSError) -> str:
    """Return the sentence for an error of the system that ends a command."""
    if are_too_many_open(error):  # the next file, whichever it is, is not at fault
        return f"Too many files are open; {MORE_FILES} and try again."
    if error.filename is None and NO_TEMPORARY_FOLDER in str(error):
        return (
            "There must be a folder for temporary files, but none can be written; free "
            "some space, or name a folder by the environment variable TMPDIR."
        )
    what = error.filename or "The output"
    remedy = "; free some space and try again" if is_disk_full(error) else ""
    return f"{what}: cannot be read or written ({error.strerror or error}){remedy}."


def _require_current_folder() -> None:
    """Raise `ConfigError` if the current folder was removed.

    Relative paths lead nowhere then, and libraries may end the process.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError(
            "The current folder must exist, but was removed; change to another (cd) "
            "and try again."
        ) from None


def _prints_only_progress(
    function: Callable[..., Any], given: Mapping[str, object]
) -> bool:
    """Return whether a command prints only progress on standard output."""
    if not function.__module__.startswith(__name__):  # the library's help
        return False
    if function.__name__ in PRINTS_RESULT:
        return False
    options = RESULT_OPTIONS.get(function.__name__, ())
    return not any(_is_printed(given.get(name)) for name in options)


def _is_printed(value: object) -> bool:
    """Return whether the value of an option lets a command print its result."""
    from transduce.cli.files import is_standard_output  # not for every help

    return is_standard_output(value) if isinstance(value, Path) else bool(value)


@contextmanager
def _imports_not_collected() -> Iterator[None]:
    """Keep imported objects out of garbage collection, which would take a fifth of the
    time until the first line."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _fail(message: str) -> NoReturn:
    print_message(f"transduce: {message}")
    sys.exit(USER_ERROR)
