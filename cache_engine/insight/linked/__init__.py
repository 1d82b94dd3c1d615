"""Links between lines of source, PTX and machine code: ``kernel`` has those of one kernel."""
