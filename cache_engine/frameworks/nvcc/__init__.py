"""nvcc's launcher: a command that it understands, the files that it reads, and its stored result. Imports little.

- ``command`` -- the options that are understood; a command with others passes through to nvcc, with the reason
- ``inputs`` -- the compiler's build, the digests of files, the includes of a compile and what would shadow them
- ``results`` -- a stored result of a command, and the differences that made a miss
"""
