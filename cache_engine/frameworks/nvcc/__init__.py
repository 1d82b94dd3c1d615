"""nvcc, launched: a command that is understood, what it reads, and its stored result. Imports little, as each hit does.

- ``command`` -- options that are understood; all else passes through to nvcc, with the reason
- ``inputs`` -- the compiler's build, the digests of files, the includes of a compile and what would shadow them
- ``results`` -- a stored result of a command, and the differences that made a miss
"""
