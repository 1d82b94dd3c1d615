"""Decisions about kernels, as pure values and functions: nothing here reads a file or a clock.

- ``sketch`` -- which m a shape is asked for with, in bounded space
- ``demand`` -- the ledger: what is asked for, decayed with time
- ``compile_time`` -- how long a compile takes, by those that a store has records of
- ``promotion`` -- when compiling a better kernel pays
- ``payback`` -- what compiling one more kernel ahead of need gains
- ``value`` -- what to evict first
"""
