"""The tabs of Storage on this store, a module each: ``draw(permitted)`` draws one, greyed out where permission is missing."""
