"""Kernels that a team shares in an object store or in Redis: their format, and their transfer.

- ``base`` -- the interface of every remote, and its time limits; one entry as one object
- ``client_process`` -- the remote that programs use, opened by its URL; the requests are made by a separate process
with bounded memory, ``client_program``
- ``clients`` -- named objects in S3, Google Cloud Storage, Azure, or a directory, through obstore; the same in Redis or
Valkey
- ``transfer`` -- ``push`` and ``pull`` between a store and a remote; ``compare`` lists the differences
- ``verification`` -- ``verify`` checks a remote's entries, ``plan`` finds old ones to delete
- ``tier`` -- lookups in a remote; its breaker stops requests while the remote fails; a thread sends the kernels that
were compiled here
- ``oci`` -- a pack as an OCI image layout, for container registries
"""
