"""Compiles wait their turn here, over all processes of a store.

- ``tickets`` -- who compiles or waits, as files that end with their process
- ``slots`` -- how many compile at a time, and who is next
- ``behind`` -- compiles in the background, while another kernel serves
"""
