"""Links between lines of source, PTX and machine code.

``kernel`` has those of one kernel; ``marks`` of a text, and ``irs``, Triton's intermediate ones, are what it reads.
"""
