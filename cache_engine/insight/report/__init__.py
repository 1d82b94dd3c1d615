"""One HTML file to send: no script, no request, nothing outside it. Decision 17 says why it draws its own figures.

- ``page`` -- what a report consists of: facts, tables, figures, texts
- ``html`` -- the file
- ``drawing`` -- figures as SVG
- ``kernels`` -- reports of one kernel, and of two
- ``stores`` -- the report of a store
"""
