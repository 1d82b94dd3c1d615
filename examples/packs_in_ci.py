"""A CI job makes a pack of a model's kernels; a machine without compiler and writable directory serves it.

    python examples/packs_in_ci.py make kernels.gemmpack --store ./ci-store --model Qwen3-0.6B --arch sm_90a
    python examples/packs_in_ci.py check kernels.gemmpack --model Qwen3-0.6B --arch sm_90a

Neither needs a GPU. Keep the store between jobs, in the CI system's cache: then a job compiles only what is new.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cache_engine import GemmProblem, NotCached, model_shapes, open_cache, problems_of, warm

TOKENS = range(1, 8193)


def make(pack: Path, store: Path, model: str, arch: str, tokens: range) -> None:
    """Compiles what the store lacks, and exports the kernels of this model alone."""
    with open_cache(store) as cache:
        done = warm(cache, problems_of(cache, model, arch=arch, m=tokens))
        failed = [f"{one.problem}: {one.trouble}" for one in done if one.trouble]
        if failed:
            sys.exit("\n".join(failed))
        keys = [one.kernel.key for one in done if one.kernel]
        exported = cache.admin.export(pack, keys=keys, replace=True)
    if exported.refused:
        sys.exit("\n".join(f"{refused.key}: {refused.cause}" for refused in exported.refused))
    print(f"{exported.entries} kernels in {pack}")


def check(pack: Path, model: str, arch: str, tokens: range) -> None:
    """Asks for every size as a server does that mounts the pack: nothing is compiled, nothing is written."""
    missing = 0
    with open_cache(packs=(pack,), enable_caching="packs", enable_jit=False) as cache:
        for shape in model_shapes(model):
            for m in tokens:
                problem = GemmProblem(shape.rows(m), shape.n, shape.k, shape.batch, arch=arch, epilogue=shape.epilogue)
                try:
                    cache.get_or_compile(problem)
                except NotCached as error:
                    missing += 1
                    print(error, file=sys.stderr)
        hits = cache.stats().hits
    print(f"{hits} hits, {missing} missing")
    if missing:
        sys.exit(1)


def main() -> None:
    """Makes a pack, or checks one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("make", "check"))
    parser.add_argument("pack", type=Path)
    parser.add_argument("--store", type=Path, default=Path("ci-store"))
    parser.add_argument("--model", default="Llama-3.1-8B")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--most", type=int, default=TOKENS[-1], help="most tokens (default: %(default)s)")
    asked = parser.parse_args()

    tokens = range(1, asked.most + 1)
    if asked.what == "make":
        make(asked.pack, asked.store, asked.model, asked.arch, tokens)
    else:
        check(asked.pack, asked.model, asked.arch, tokens)


if __name__ == "__main__":
    main()
