"""Kernels that a team shares in an object store or in Redis: their format, and their transfer.

- ``base`` -- the interface of every remote, and its time limits
- ``client_process`` -- the remote that programs use, opened by its URL; the requests are made by a separate process
with bounded memory, ``client_program``
- ``objects`` -- named objects in S3, Google Cloud Storage, Azure, or a directory, through obstore
- ``key_value`` -- the same in Redis or Valkey
- ``entries`` -- one entry as one object
- ``transfer`` -- ``push`` and ``pull`` between a store and a remote; ``compare`` lists the differences
- ``verification`` -- ``verify`` checks a remote's entries, ``plan`` finds old ones to delete
- ``tier`` -- lookups in a remote; ``breaker`` stops requests while the remote fails
- ``oci`` -- a pack as an OCI image layout, for container registries
- ``send_queue`` -- a thread sends the kernels that were compiled here
"""
