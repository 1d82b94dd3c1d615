"""``python -m cache_engine`` is ``gemm-cache``."""

from cache_engine.cli.main import main

main()
