"""Writes ``vllm_contract.json``: the signatures of vLLM that our plugin uses, read from its source, not imported.

python tests/torch/record_vllm.py FOLDER_WITH_THE_PACKAGE_VLLM VERSION
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).with_name("vllm_contract.json")
_LAYERS, _KERNELS = "model_executor/layers", "model_executor/kernels/linear"
CLASSES = {
    f"{_LAYERS}/linear.py": ("LinearBase", "LinearMethodBase", "UnquantizedLinearMethod"),
    f"{_LAYERS}/quantization/base_config.py": ("QuantizationConfig", "QuantizeMethodBase"),
    f"{_LAYERS}/quantization/fp8.py": ("Fp8Config", "Fp8LinearMethod"),
    f"{_KERNELS}/base.py": ("MMLinearKernel",),
    f"{_KERNELS}/scaled_mm/BlockScaledMMLinearKernel.py": ("Fp8BlockScaledMMLinearKernel",),
    f"{_KERNELS}/scaled_mm/ScaledMMLinearKernel.py": ("FP8ScaledMMLinearLayerConfig",),
    "platforms/interface.py": ("Platform",),
    "config/compilation.py": ("CompilationConfig",),
    "config/scheduler.py": ("SchedulerConfig",),
}
FUNCTIONS = {
    f"{_LAYERS}/linear.py": ("register_weight_loader_v2_supported_method",),
    f"{_LAYERS}/quantization/__init__.py": ("register_quantization_config",),
    "config/vllm.py": ("get_current_vllm_config_or_none",),
}
FIELDS = {
    "cudagraph_capture_sizes", "max_num_batched_tokens", "out_dtype", "QUANTIZATION_METHODS", "VLLM_BATCH_INVARIANT",
}  # fmt: skip
USED = {
    "__init__", "apply", "apply_block_scaled_mm", "apply_weights", "can_implement", "create_weights", "from_config",
    "get_config_filenames", "get_min_capability", "get_name", "get_quant_method", "get_supported_act_dtypes", "is_cuda",
    "is_supported", "override_quantization_method", "process_weights_after_loading",
}  # fmt: skip
"""The methods that our classes replace or call."""


def signature(node: ast.FunctionDef) -> dict[str, Any]:
    """The parameters of a function, and whether it is abstract, or a method of the class."""
    given = node.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + [ast.unparse(one) for one in given.defaults]
    parameters = [
        one.arg if default is None else f"{one.arg}={default}"
        for one, default in zip(given.args, defaults, strict=True)
    ]
    parameters += [f"*{given.vararg.arg}"] if given.vararg else []
    parameters += [f"**{given.kwarg.arg}"] if given.kwarg else []
    decorators = [ast.unparse(one) for one in node.decorator_list]
    return {"parameters": parameters, "decorators": [one for one in decorators if one in _KINDS]}


_KINDS = ("abstractmethod", "classmethod", "staticmethod")


def recorded(package: Path) -> dict[str, Any]:
    """The classes, functions and fields of a package's source."""
    found: dict[str, Any] = {"classes": {}, "functions": {}, "fields": []}
    for path in sorted({*CLASSES, *FUNCTIONS, "envs.py"}):
        tree = ast.parse((package / path).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in CLASSES.get(path, ()):
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in USED]
                bases = [ast.unparse(one).partition("[")[0] for one in node.bases]
                found["classes"][node.name] = {
                    "file": path, "bases": bases, "methods": {one.name: signature(one) for one in methods},
                }  # fmt: skip
            if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS.get(path, ()):
                found["functions"][node.name] = {"file": path, **signature(node)}
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in FIELDS:
                found["fields"].append(f"{path}: {node.target.id}")
    return {**found, "fields": sorted(set(found["fields"]))}


if __name__ == "__main__":
    folder, version = sys.argv[1:]
    text = json.dumps({"vllm": version, **recorded(Path(folder) / "vllm")}, indent=1, ensure_ascii=False)
    CONTRACT.write_text(text + "\n")
