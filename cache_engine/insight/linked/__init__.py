"""Links between the lines of a kernel's source, PTX and machine code.

``kernel`` makes the links of one kernel. It reads each text with ``marks`` and, for PTX and Triton's intermediate
languages (IRs), ``irs``.
"""
