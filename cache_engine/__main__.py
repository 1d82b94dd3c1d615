"""Starts the command line ``gemm-cache``, also as ``python -m cache_engine``."""

import sys

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NoReturn


def main() -> "NoReturn":
    """Runs the command line and exits with its exit code.

    The command line is imported here, so that Ctrl-C during this import ends the process like Ctrl-C at any later time.
    """
    try:
        import signal

        takes_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if takes_ctrl_c:
            signal.signal(signal.SIGINT, _end_now)
        from cache_engine.cli.main import main as run

        if takes_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # during the import; or a second Ctrl-C while the first is reported
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        import signal

        # From here on the interpreter ends, and would print the place that Ctrl-C interrupts.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_now(*_: object) -> None:
    """Ends the process at once, from a signal handler: nothing has been started yet.

    Raising an exception would not work: an import may swallow the exception, or print it.
    """
    import os

    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
