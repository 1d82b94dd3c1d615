"""Decisions about kernels, as pure values and functions: nothing here reads a file or a clock.

- ``demand`` -- the ledger: the requests for each shape and each m, in bounded space, decayed with time
- ``compile_time`` -- how long a compile takes, by those that a store has records of
- ``payback`` -- the price of a compile, and the gain of one more kernel ahead of need
- ``value`` -- what to evict first
"""
