"""``gemm-cache``, which is also ``python -m cache_engine``."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Runs the command line and exits with its code. Loads it here, so that Ctrl-C ends that like any other step."""
    try:
        from cache_engine.cli.main import main as run
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
