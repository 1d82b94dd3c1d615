"""The tabs of the page Storage that are about this store.

Functions such as ``draw(permitted)`` draw a tab; without permission, its buttons that need permission are grey.
"""
