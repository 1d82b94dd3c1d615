"""Kernel families: their configs, the choice of the best config, and the source text of a kernel."""
