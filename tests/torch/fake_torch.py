"""A PyTorch made of NumPy, as far as a launch asks it: so that launches are tested where PyTorch is not installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy
import pytest

_TYPES = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32")


class Tensor:
    """An array that answers as a tensor on a GPU."""

    def __init__(self, values: Any) -> None:
        self.array = numpy.asarray(values)
        self.dtype = getattr(sys.modules["torch"], str(self.array.dtype))
        self.shape, self.device = self.array.shape, SimpleNamespace(type="cuda", index=0)
        self.layout, self.is_nested, self.requires_grad, self.is_cuda = "strided", False, False, True

    def stride(self) -> tuple[int, ...]:
        """In elements."""
        return tuple(one // self.array.itemsize for one in self.array.strides)

    def data_ptr(self) -> int:
        """The address."""
        return int(self.array.ctypes.data)

    def get_device(self) -> int:
        """The first GPU."""
        return 0

    def dim(self) -> int:
        """The number of axes."""
        return self.array.ndim

    def is_contiguous(self) -> bool:
        """By rows."""
        return bool(self.array.flags.c_contiguous)

    def clone(self, memory_format: Any = None) -> Tensor:
        """Contiguous, at a multiple of 64 bytes."""
        memory = numpy.empty(self.array.nbytes + 64, dtype="uint8")
        start = -memory.ctypes.data % 64
        placed = memory[start : start + self.array.nbytes].view(self.array.dtype).reshape(self.array.shape)
        placed[...] = self.array
        return Tensor(placed)

    contiguous = clone


class Linear:
    """A linear layer."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def modules(self) -> list[Any]:
        """Itself."""
        return [self]

    def named_modules(self) -> list[tuple[str, Any]]:
        """Itself, without a name."""
        return [("", self)]


def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has ``import torch`` find it, and ``cache_engine.torch`` imported anew; returns it."""
    torch: Any = MagicMock(name="torch")
    for name in _TYPES:
        setattr(torch, name, f"torch.{name}")
    torch.Tensor, torch.strided = Tensor, "strided"
    torch.nn.Linear, torch.nn.Parameter, torch.nn.MultiheadAttention = Linear, type("Parameter", (Tensor,), {}), type
    torch.autograd.Function = object
    torch.empty = torch.zeros = lambda shape, dtype, device: Tensor(
        numpy.zeros(shape, dtype.removeprefix("torch."))
    ).clone()
    torch.get_float32_matmul_precision = lambda: "highest"
    torch.compiler.is_compiling = torch.is_grad_enabled = torch.is_autocast_enabled = lambda *_: False
    torch._C._len_torch_dispatch_stack = lambda: 0
    torch._C._functorch.peek_interpreter_stack = lambda: None
    torch.autograd.forward_ad._current_level = -1
    for name in ("torch", "torch.nn", "torch.nn.functional", "torch.autograd", "torch.utils.flop_counter"):
        part = torch
        for attribute in name.split(".")[1:]:
            part = getattr(part, attribute)
        monkeypatch.setitem(sys.modules, name, part)
    for name in [one for one in sys.modules if one.startswith("cache_engine.torch")]:
        monkeypatch.delitem(sys.modules, name)
    return torch
