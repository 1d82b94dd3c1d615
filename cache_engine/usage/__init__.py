"""Decisions about kernels, as values and functions that read no file and no clock.

- ``demand`` -- the ledger: the requests for each shape and each m, in bounded space, decayed with time
- ``compile_time`` -- predicts the time of a compile from the records of a store
- ``payback`` -- the price of compiling a kernel in advance, and its gain
- ``value`` -- the order in which entries are evicted
"""
