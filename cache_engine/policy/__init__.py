"""Decisions about kernels, as pure values and functions: nothing here reads a file or a clock.

- ``sketch`` -- which m a shape is asked for with, in bounded space
- ``demand`` -- the ledger: what is asked for, decayed with time
- ``promotion`` -- when compiling a better kernel pays
- ``budget`` -- what to compile ahead when not all can be
- ``value`` -- what to evict first
"""
