"""``python -m cache_engine`` is ``gemm-cache``."""

from cache_engine.cli import main

main()
