"""``gemm-cache``, which is also ``python -m cache_engine``."""

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and exits with its code. Loads it here, so that Ctrl-C ends that like any other step."""
    try:
        from cache_engine.cli.main import main as run

        run()
    except KeyboardInterrupt:  # while it is loaded; or once more, while the first is reported
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        # From here on the interpreter ends, and would print where Ctrl-C interrupts that.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
