"""Predicts the time of a GEMM on an accelerator or GPU, by arithmetic alone.

- ``hardware`` — an accelerator's description, and its fingerprint
- ``chips`` — accelerators and GPUs by name or from a file
- ``problem`` — a matrix multiplication to evaluate
- ``grouped`` — launches of products with the same n and k
- ``cost`` — the core-grid cost model: formulas for one partition, one block, one tile
- ``search`` — the best partition, tile and loop order under that model
- ``gpu`` — a model of real GPUs, calibrated on measured latencies
- ``calibration`` — fits a GPU's factors to a user's own measurements
- ``validation`` — the accuracy of the GPU model, compared with roofline
- ``results`` — stored results; ``catalogue`` — shapes of models
"""
