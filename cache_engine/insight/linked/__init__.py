"""Links between the lines of a kernel's source, PTX and machine code.

``kernel`` makes the links of one kernel. It reads each text with ``marks``, PTX and Triton's intermediate languages
(IRs) with ``irs``, and machine code with ``machine_code``.
"""
