"""Adapters, by which other frameworks store their kernels in our store. Frameworks load all modules but the first.

- ``shelf`` -- the store as all adapters use it: it counts reads and writes, and cleans the store; and a process's
  folder of files, for frameworks that read kernels by path
- ``cuda_core`` -- ``ProgramCache``, to be given to ``Program.compile``
- ``cupy`` -- ``use_store``, to be called before the first kernel
- ``triton`` -- the class for ``TRITON_CACHE_MANAGER``
"""
