"""Kernels in an object store that a team shares; the form of each object, and moving them.

- ``objects`` -- bytes by name, in S3, Google Cloud Storage, Azure, or a directory, through obstore
- ``entries`` -- one entry as one object
- ``moving`` -- ``push`` and ``pull`` between a store and a remote, ``compare`` of both
"""
