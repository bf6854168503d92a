"""Start of the program, by `transduce` or `python -m transduce`."""

import signal


def main() -> None:
    """Run the command that `sys.argv` holds.

    Ctrl-C ends the program at once while it imports its modules, as it has done nothing
    yet, and once the command has ended, as there is nothing left to undo.
    """
    if signal.getsignal(signal.SIGINT) != signal.default_int_handler:
        from transduce import cli

        cli.main()
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from transduce import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        cli.main()
    except KeyboardInterrupt:  # before the command's first step, or after its last one
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    finally:  # an error within a library's exit function would be printed
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
