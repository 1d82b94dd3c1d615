"""The tabs of Storage on this store, a module each. ``draw(permitted)`` greys out what needs permission."""
