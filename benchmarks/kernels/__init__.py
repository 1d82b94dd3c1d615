"""Compiling kernels, and running them where there is a GPU."""
