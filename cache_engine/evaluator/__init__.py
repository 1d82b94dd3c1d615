"""The predicted time of a GEMM on an accelerator, by arithmetic alone.

- ``hardware`` — an accelerator's description, and its fingerprint
- ``chips`` — accelerators and GPUs by name or from a file
- ``problem`` — what is asked
- ``cost`` — the core-grid cost model: formulas for one partition, one block, one tile
- ``search`` — the best partition, tile and loop order under that model
- ``gpus`` — GPUs by their datasheets
- ``gpu`` — a model of real GPUs, calibrated on measured latencies
- ``calibration`` · ``calibrating`` — what a user's own measurements of a GPU changed, and how that is fitted
- ``fitting`` · ``validation`` — least squares, and how well the GPU model does compared with roofline
"""
