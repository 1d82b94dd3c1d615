"""Kernels, as lists and one by one."""
