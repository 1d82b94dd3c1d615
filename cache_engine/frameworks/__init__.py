"""The kernel caches of other frameworks, read and never run; and their kernels in our store.

- ``values`` -- places, entries, their parts, findings, key factors
- ``base`` -- the protocol of a reader of one framework's cache
- ``folder`` -- reading a folder of others: bounded, no link followed, no trace left
- ``readers`` -- one for each framework
- ``registry`` -- all readers, those of plug-ins too, the places that they find, and what is installed
- ``comparison`` -- why keys differ, of two entries or of two directories; known reasons
- ``doctor`` -- what is wrong with a cache, and the cure
- ``deletion`` -- the plan of a cleaning, and deleting so that no process fails; ``cleanup`` -- its outcome

Kernels that ``adapters`` put into our store are called *adapted*:

- ``bundles`` -- the files of one of them, as one file of a store, with its checksum
- ``bundle_facts`` -- what these files say of it
- ``bundle_packs`` -- those that may be in packs, and how; those of Triton's own cache, checked
"""
