"""Many kernels at once, and long work in separate processes."""
