"""Getting kernels: from a problem to its key, through the tiers, to the compiler and back."""
