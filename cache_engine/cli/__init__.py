"""The ``gemm-cache`` command."""
