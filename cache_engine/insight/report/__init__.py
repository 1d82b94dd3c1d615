"""Reports: one HTML file, with no script, that loads nothing. Decision 17 says why it draws its own figures.

- ``page`` -- the parts of a report: facts, tables, figures, texts; and the file
- ``drawing`` -- figures as SVG
- ``kernels`` -- reports of one kernel, of two, and of a store
"""
