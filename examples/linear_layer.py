"""A linear layer that asks for a kernel whenever the number of tokens changes.

    python examples/linear_layer.py --arch sm_90a 1 7 64 300 4096 300

It does all but the launch, so it needs no GPU. docs/integration.md shows the launch.
"""

from __future__ import annotations

import argparse

from cache_engine import CompiledKernel, GemmOperator


class Linear:
    """y = gelu(x · Wᵀ + b) in bf16: x is m × k, the weights W are n × k, b has n elements."""

    def __init__(self, inputs: int, outputs: int, arch: str | None = None) -> None:
        self.n, self.k = outputs, inputs
        self._operator = GemmOperator(dtype="bf16", layout="nt", epilogue="bias+gelu", arch=arch)
        self._kernels: dict[int, CompiledKernel] = {}

    def kernel(self, m: int) -> CompiledKernel:
        """The kernel for m tokens: compiled once ever, found in the store once in a process, then at hand."""
        if m not in self._kernels:
            self._kernels[m] = self._operator.kernel(m, self.n, self.k)
        return self._kernels[m]

    def call(self, m: int) -> str:
        """The launch for m tokens as CUDA C++ writes it. Load ``cubin`` once for each key, not for each m."""
        launch = self.kernel(m).launch
        grid, block = (f"dim3({x}, {y}, {z})" for x, y, z in (launch.grid, launch.block))
        return f"<<<{grid}, {block}, {launch.shared_bytes}>>>({', '.join(launch.arguments)})"


def main() -> None:
    """Calls the layer with each number of tokens."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tokens", type=int, nargs="*", default=[1, 7, 64, 300, 4096, 300])
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--outputs", type=int, default=6144)
    parser.add_argument("--arch", help="target, such as sm_90a; default: that of the local GPU, else sm_90")
    asked = parser.parse_args()

    layer = Linear(asked.inputs, asked.outputs, asked.arch)
    for m in asked.tokens:
        kernel = layer.kernel(m)
        print(f"m = {m}: {kernel.tier}, key {kernel.key[:12]}, {kernel.record.resources.registers} registers")
        print(f"  {kernel.entry}{layer.call(m)}")
    print(f"{len(set(asked.tokens))} sizes, {len({layer.kernel(m).key for m in asked.tokens})} kernels")


if __name__ == "__main__":
    main()
