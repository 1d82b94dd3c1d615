"""Other frameworks keep their kernels in our store; each module but the first two is loaded by its framework.

- ``shelf`` -- the store as all of them use it: what they get and put is counted, and the store cleaned
- ``folders`` -- where a process has files for a framework that reads them by their paths
- ``cuda_core`` -- ``ProgramCache``, to be given to ``Program.compile``
- ``cupy`` -- ``use_store``, to be called before the first kernel
- ``triton`` -- the class for ``TRITON_CACHE_MANAGER``
"""
