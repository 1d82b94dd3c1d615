"""Public names for GPU memory that this process holds, FP8 with block scales, and profiles of operators."""

from cache_engine.gpu.fp8 import dequantise, quantise
from cache_engine.gpu.memory_pool import (
    DeviceMemory,
    DeviceMemoryPool,
    PoolStatistics,
    device_memory,
    release_device_memory,
    shared_pool,
)
from cache_engine.gpu.profiling import OperatorCall, OperatorCalls, OperatorStatistics

__all__ = [
    "DeviceMemory",
    "DeviceMemoryPool",
    "OperatorCall",
    "OperatorCalls",
    "OperatorStatistics",
    "PoolStatistics",
    "dequantise",
    "device_memory",
    "quantise",
    "release_device_memory",
    "shared_pool",
]
