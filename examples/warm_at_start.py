"""What an inference server does before it serves: compiles what its model needs, then never compiles again.

    python examples/warm_at_start.py Llama-3.1-8B --arch sm_90a --m 1-8192

The second start finds every kernel in the store.
"""

from __future__ import annotations

import argparse
import sys
import time

from cache_engine import GemmOperator, default_cache, model_shapes, problems_of, switches, warm
from cache_engine.types import Warmed


def prepare(model: str, arch: str | None, m: str) -> None:
    """Gets all kernels of a model for every m of a range, then switches compiling off for this process.

    From then on a size that was not prepared raises ``NotCached`` at once; no request waits for a compiler.
    """
    cache = default_cache()
    problems = problems_of(cache, model, arch=arch, m=m)
    started = time.monotonic()
    done: list[Warmed] = []

    def report(one: Warmed) -> None:
        done.append(one)
        print(f"{len(done)} of {len(problems)}: {one.kernel or one.error}")

    warm(cache, problems, on_done=report)
    failed = [f"{one.problem}: {one.trouble}" for one in done if one.trouble]
    if failed:
        sys.exit("not ready: " + "\n".join(failed))
    compiled = sum(one.kernel is not None and one.kernel.tier == "compiled" for one in done)
    print(f"ready in {time.monotonic() - started:.1f} s: {compiled} compiled, {len(done) - compiled} found")
    switches.enable_jit = False


def serve(model: str, arch: str | None, tokens: int) -> None:
    """What a request for so many tokens asks for: a kernel for each layer."""
    for shape in model_shapes(model):
        layer = GemmOperator(dtype="bf16", arch=arch, epilogue=shape.epilogue)
        kernel = layer.kernel(shape.rows(tokens), shape.n, shape.k, shape.batch)
        print(f"{tokens} tokens, {shape.operation}: {kernel.entry} from {kernel.tier}")


def main() -> None:
    """Prepares a model, then serves some requests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default="Llama-3.1-8B")
    parser.add_argument("--arch", help="target, such as sm_90a; default: that of the local GPU, else sm_90")
    parser.add_argument("--m", default="1-8192", help="numbers of tokens, such as 1-64,256 (default: %(default)s)")
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 13], help="the tokens of each request")
    asked = parser.parse_args()

    prepare(asked.model, asked.arch, asked.m)
    for tokens in asked.requests:
        serve(asked.model, asked.arch, tokens)


if __name__ == "__main__":
    main()
