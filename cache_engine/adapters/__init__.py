"""Other frameworks keep their kernels in our store; each module is loaded by its framework.

- ``groups`` -- the files of one of their kernels, as one file of a store, with its checksum
- ``triton`` -- the class for ``TRITON_CACHE_MANAGER``
"""
