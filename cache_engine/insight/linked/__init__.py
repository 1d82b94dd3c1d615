"""Which lines of source, PTX and machine code belong together: ``kernel`` of a store's, ``foreign`` of others'."""
