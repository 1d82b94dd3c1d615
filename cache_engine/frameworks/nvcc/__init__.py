"""The launcher of nvcc: the commands that it understands, the files that they read, and their stored results.

- ``command`` -- the options that are understood; a command with others passes through to nvcc, with the reason
- ``inputs`` -- the compiler's build, the digests of files, the includes of a compile and what would shadow them
- ``results`` -- a stored result of a command, and the differences that made a miss
"""
