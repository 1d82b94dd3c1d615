"""The kernel caches of other frameworks, read and never run; and their kernels in our store.

- ``values`` -- places, entries, their parts, findings, key factors
- ``base`` -- the protocol of a reader of one framework's cache
- ``folder`` -- reads a folder that others write: bounded, following no link, leaving no trace
- ``readers`` -- one for each framework
- ``registry`` -- all readers, including plug-ins; the caches that they find; the installed versions
- ``torch_compile`` -- the artifacts of torch.compile as a snapshot, and the lookups that its traces logged
- ``comparison`` -- why the keys of two entries, or of the entries of two directories, differ
- ``doctor`` -- problems of a cache, and their cures
- ``deletion`` -- plans a cleaning, and deletes so that no process fails; ``cleanup`` -- the result of a cleaning

Kernels that ``adapters`` put into our store are called *adapted*:

- ``bundles`` -- all files of an adapted kernel, as one file of the store with a checksum
- ``bundle_facts`` -- the description of an adapted kernel, from its files
- ``bundle_packs`` -- adapted kernels in packs, and kernels from Triton's own cache, both checked
"""
