"""Kernel families: which configs there are, which is best, and the source it makes."""
