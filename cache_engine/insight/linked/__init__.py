"""Links between the lines of a kernel's source, PTX and machine code.

``kernel`` makes the links of one kernel, and reads PTX and Triton's intermediate languages (IRs); ``marks`` has the
lines and links of a text, and ``machine_code`` reads machine code.
"""
