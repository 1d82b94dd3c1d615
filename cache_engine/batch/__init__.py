"""Many kernels at once, and long work in processes of its own."""
