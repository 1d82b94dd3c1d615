"""Facts about kernels and models, found without running anything."""
