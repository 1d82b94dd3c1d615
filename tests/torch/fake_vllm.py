"""A vLLM made of the recorded signatures: a call that its classes would refuse raises ``TypeError`` here too."""

from __future__ import annotations

import abc
import json
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

from cache_engine.gpu.fp8 import quantise
from tests.torch.record_vllm import CONTRACT

_MODULES = {
    "vllm": (),
    "vllm.envs": (),
    "vllm.config": ("get_current_vllm_config_or_none",),
    "vllm.platforms": (),
    "vllm.model_executor": (),
    "vllm.model_executor.kernels": (),
    "vllm.model_executor.kernels.linear": (),
    "vllm.model_executor.kernels.linear.scaled_mm": ("Fp8BlockScaledMMLinearKernel",),
    "vllm.model_executor.layers": (),
    "vllm.model_executor.layers.linear": (
        "LinearBase", "UnquantizedLinearMethod", "register_weight_loader_v2_supported_method",
    ),
    "vllm.model_executor.layers.quantization": ("register_quantization_config",),
    "vllm.model_executor.layers.quantization.base_config": ("QuantizationConfig",),
    "vllm.model_executor.layers.quantization.fp8": ("Fp8Config", "Fp8LinearMethod"),
}  # fmt: skip
"""What our plugin imports from each module."""

_DECORATORS: dict[str, Any] = {
    "abstractmethod": abc.abstractmethod, "classmethod": classmethod, "staticmethod": staticmethod,
}  # fmt: skip
Behaviour = dict[str, Callable[[dict[str, Any]], Any]]


class FakeVllm:
    """The modules of vLLM, and what their functions do.

    Attributes:
        made: the classes and functions by their names.
        config: vLLM's current config.
        platform: the current platform.
        by_vllm: the number of rows of each product that vLLM has computed itself.
        loads_by_v2: the methods whose weights are loaded by version 2 of vLLM's loader.
        registered: the configs that the plugin registered.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contract = json.loads(CONTRACT.read_text())
        self.by_vllm: list[int] = []
        self.loads_by_v2: list[str] = []
        self.config = SimpleNamespace(
            compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 2, 4]),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=200),
        )
        self.platform = SimpleNamespace(is_cuda=lambda: True)
        self._behaviour = self._behaviours()
        self.made: dict[str, Any] = {}
        for name in self._in_order():
            self.made[name] = self._class(name)
        for name, one in self.contract["functions"].items():
            self.made[name] = self._function(name, one, name)
        modules: dict[str, Any] = {}
        for name, imported in _MODULES.items():
            module: Any = ModuleType(name)
            vars(module).update({one: self.made[one] for one in imported})
            monkeypatch.setitem(sys.modules, name, module)
            modules[name] = module
            if "." in name:
                parent, _, last = name.rpartition(".")
                setattr(modules[parent], last, module)
        self.envs = modules["vllm.envs"]
        self.envs.VLLM_BATCH_INVARIANT = False
        modules["vllm.platforms"].current_platform = self.platform
        self.quantization = modules["vllm.model_executor.layers.quantization"]
        self.quantization.QUANTIZATION_METHODS = ["fp8"]
        self.registered: dict[str, Any] = {}

    def _in_order(self) -> list[str]:
        """The classes, each after its bases."""
        classes, ordered = self.contract["classes"], list[str]()
        while len(ordered) < len(classes):
            ordered += [
                name for name, one in classes.items()
                if name not in ordered and all(base in ordered or base not in classes for base in one["bases"])
            ]  # fmt: skip
        return ordered

    def _class(self, name: str) -> Any:
        one = self.contract["classes"][name]
        bases = tuple(self.made[base] for base in one["bases"] if base in self.made)
        methods = {method: self._function(f"{name}.{method}", how, method) for method, how in one["methods"].items()}
        if name == "LinearBase":
            return type(name, (torch.nn.Module,), methods)
        return abc.ABCMeta(name, bases or (abc.ABC,), methods)

    def _function(self, key: str, how: dict[str, Any], name: str) -> Any:
        """A function with the recorded parameters; returns what the behaviour of this key does with its arguments."""
        space: dict[str, Any] = {"do": self._behaviour.get(key, lambda given: None)}
        exec(f"def {name}({', '.join(how['parameters'])}): return do(dict(locals()))", space)
        made = space[name]
        for kind in reversed(how["decorators"]):
            made = _DECORATORS[kind](made)
        return made

    # ---- What the functions do, from their arguments ----

    def _behaviours(self) -> Behaviour:
        return {
            "LinearBase.__init__": lambda given: torch.nn.Module.__init__(given["self"]),
            "UnquantizedLinearMethod.apply": self._linear_by_vllm,
            "Fp8Config.from_config": lambda given: given["cls"](),
            "Fp8Config.get_quant_method": self._method_of_fp8,
            "Fp8LinearMethod.__init__": lambda given: vars(given["self"]).update(
                quant_config=given["quant_config"], out_dtype=torch.bfloat16, use_marlin=True
            ),
            "Fp8LinearMethod.create_weights": self._choose_kernel,
            "Fp8LinearMethod.apply": lambda given: given["self"].fp8_linear.apply_weights(
                given["layer"], given["x"], given["bias"]
            ),
            "Fp8BlockScaledMMLinearKernel.__init__": lambda given: setattr(given["self"], "config", given["config"]),
            "Fp8BlockScaledMMLinearKernel.apply_weights": self._quantize_and_apply,
            "register_quantization_config": lambda given: partial(self._register, given["quantization"]),
            "register_weight_loader_v2_supported_method": self._load_by_v2,
            "get_current_vllm_config_or_none": lambda _: self.config,
        }

    def _register(self, name: str, config: Any) -> Any:
        assert issubclass(config, self.made["QuantizationConfig"])
        self.quantization.QUANTIZATION_METHODS.append(name)
        self.registered[name] = config
        return config

    def _load_by_v2(self, given: dict[str, Any]) -> Any:
        self.loads_by_v2.append(given["cls"].__name__)
        return given["cls"]

    def _linear_by_vllm(self, given: dict[str, Any]) -> Any:
        self.by_vllm.append(len(given["x"]))
        return F.linear(given["x"], given["layer"].weight, given["bias"])

    def _method_of_fp8(self, given: dict[str, Any]) -> Any:
        if not isinstance(given["layer"], self.made["LinearBase"]):
            return None
        is_ignored = given["prefix"] == "ignored"
        return self.made["UnquantizedLinearMethod"]() if is_ignored else self.made["Fp8LinearMethod"](given["self"])

    def _choose_kernel(self, given: dict[str, Any]) -> None:
        kernel = SimpleNamespace(config=SimpleNamespace(out_dtype=torch.bfloat16), apply_weights=self._fp8_by_vllm)
        given["self"].fp8_linear = kernel

    def _quantize_and_apply(self, given: dict[str, Any]) -> Any:
        codes, scales = quantise(given["x"].float(), "1x128,128x128")
        layer, codes = given["layer"], torch.from_numpy(codes).view(torch.float8_e4m3fn)
        apply = given["self"].apply_block_scaled_mm
        return apply(A=codes, B=layer.weight, As=torch.from_numpy(scales), Bs=layer.weight_scale_inv)

    def _fp8_by_vllm(self, layer: Any, x: Any, bias: Any) -> Any:
        self.by_vllm.append(len(x))
        return x.new_zeros(len(x), len(layer.weight))

    def layer(self, weight: Any, bias: Any | None = None, **more: Any) -> Any:
        """A linear layer of vLLM with these weights."""
        made = self.made["LinearBase"](*reversed(weight.shape))
        made.weight, made.bias = torch.nn.Parameter(weight, requires_grad=False), bias
        for name, value in more.items():
            setattr(made, name, value)
        return made
