"""A transformer block of your own: swapped, warmed, served while kernels are compiled, trained, compiled and exported.

    python examples/pytorch_model.py --device cuda 1 16 64

On a CPU (the default) PyTorch multiplies, and kernels are compiled for --arch, as a job without a GPU does for a pack.
docs/pytorch.md explains each step.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

import cache_engine.torch as gemm

HEADS = 4


class Block(torch.nn.Module):  # type: ignore[misc]  # PyTorch's types are not read here
    """Attention, then two products with a gelu between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Of tokens × width, or a batch of that."""
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(-3, -2) for one in self.qkv(x).chunk(3, dim=-1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(x)))


def main() -> None:
    """Runs each step, and compares with the block as it was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tokens", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--arch", default="sm_90a", help="the target, without a GPU")
    parser.add_argument("--width", type=int, default=128)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    block = Block(arguments.width).to(arguments.device)
    requests = [torch.randn(tokens, arguments.width, device=arguments.device) for tokens in arguments.tokens]
    with torch.no_grad():
        expected = [block(x) for x in requests]
    print(gemm.swap(block))

    # A server: with warm no kernel is compiled while requests come. A request with another number of tokens waits 50 ms
    # for its kernels; after that PyTorch multiplies until they are ready.
    warmed = gemm.warm(block, m=arguments.tokens, arch=None if arguments.device == "cuda" else arguments.arch)
    failed = [one.trouble for one in warmed if one.trouble is not None]
    print(f"{len(warmed)} products warmed", *failed, sep="\n  ")
    gemm.serving.wait_ms = 50.0
    served = torch.compile(block, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        errors = [float((served(x) - y).abs().max()) for x, y in zip(requests, expected, strict=True)]
    print(f"{len(requests)} requests served, largest difference {max(errors):.0e}")

    optimizer = torch.optim.SGD(block.parameters(), lr=1e-2)
    loss = block(requests[-1]).square().mean()
    loss.backward()
    optimizer.step()
    after = block(requests[-1]).square().mean()
    print(f"one step of training: loss {'falls' if after < loss else 'rises'}")

    tokens = torch.export.Dim("tokens", min=2, max=4096)
    exported = torch.export.export(block.eval(), (requests[-1],), dynamic_shapes=({0: tokens},))
    ours = [node for node in exported.graph.nodes if "gemm_cache" in str(node.target)]
    print(
        f"exported for any number of tokens, with {len(ours)} of our operators; {gemm.unswap(block)} layers unswapped"
    )


if __name__ == "__main__":
    main()
