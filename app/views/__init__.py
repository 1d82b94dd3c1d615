"""Views that pages draw, and that would make the pages' scripts too long.

They show a compile farm, a fleet of stores, evaluations, and runs of ``gemm-cache run``, among others.
"""
