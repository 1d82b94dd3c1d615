"""The tabs of the page Storage about this store, a module each.

``draw(permitted)`` draws a tab; without permission, its buttons that need permission are grey.
"""
