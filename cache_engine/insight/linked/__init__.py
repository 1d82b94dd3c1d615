"""Links between lines of source, PTX and machine code: ``kernel`` has those of one kernel, ``marks`` those
within a text, ``irs`` those of Triton's intermediate texts."""
