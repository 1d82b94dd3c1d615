"""Links between lines of source, PTX and machine code: ``kernel`` of a store's, ``foreign`` of others'."""
