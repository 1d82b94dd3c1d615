"""Compiles many kernels at once, and runs long work in separate processes."""
