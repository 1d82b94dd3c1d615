"""Kernels in an object store, or in Redis, that a team shares; the form of each object, and moving them.

- ``base`` -- what every remote does, and how long it is waited for
- ``client_process`` -- the one remote that programs use, opened by its URL: a process of bounded memory asks, which is
  ``client_program``
- ``objects`` -- bytes by name, in S3, Google Cloud Storage, Azure, or a directory, through obstore
- ``key_value`` -- the same in Redis or Valkey
- ``entries`` -- one entry as one object
- ``transfer`` -- ``push`` and ``pull`` between a store and a remote, ``compare`` of both
- ``verification`` -- ``verify`` what a remote has, and ``plan`` what is old there
- ``tier`` -- lookups in a remote; its ``breaker`` stops asking while it fails
- ``oci`` -- a pack as an image layout of OCI, which registries carry
- ``send_queue`` -- a thread sends the kernels that were compiled here
"""
