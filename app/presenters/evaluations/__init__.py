"""Predicted latencies, alone and compared with measured ones."""
