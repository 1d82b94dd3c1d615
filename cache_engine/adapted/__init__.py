"""Kernels of other frameworks in our store, which ``adapters`` put there: *adapted* kernels.

- ``groups`` -- the files of one of them, as one file of a store, with its checksum
- ``facts`` -- what is known of one, from its files
- ``importing`` -- those of Triton's own cache, checked
- ``packing`` -- which of them may be in packs, and how
- ``folders`` -- where a process has files for a framework that reads them by their paths
"""
