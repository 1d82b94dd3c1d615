"""What is known about kernels and models without running anything."""
