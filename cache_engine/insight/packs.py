"""Packs explained: would one be used here, who signed it, how it relates to a miss; and packs for FlashInfer-Bench."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cache_engine.cache.cache import Cache
from cache_engine.cache.other_toolchains import STORE
from cache_engine.cache.selection import Selection, Selector
from cache_engine.cache.serving.pack_state import Factor, differing, pack_state, refusals, refused_in_store
from cache_engine.errors import CorruptEntry
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.fingerprint import Provenance
from cache_engine.model.gemm import DType, Layout
from cache_engine.settings import Settings
from cache_engine.store.pack import Pack
from cache_engine.store.publish import publish_file
from cache_engine.store.signatures.signers import Signed, Standing, TrustedSigners, named_by
from cache_engine.units import printable

_MOST_SIGNATURES = 1_000  # a third of a second


@dataclass(frozen=True, slots=True)
class Carried:
    """The kernels of a pack that have the same target, toolchain, template and flags.

    Attributes:
        differs: the differences from this machine that keep lookups from finding the kernels; empty if lookups find
            them.
    """

    arch: str
    made: Provenance
    entries: int
    differs: tuple[Factor, ...]


@dataclass(frozen=True, slots=True)
class Preflight:
    """Whether a pack would be used here.

    Attributes:
        carried: the pack's kernels by target and way of making, the most numerous first; of a pack with more than
            10,000 kernels, a sample.
        signed: the signers of the kernels, in words; empty if the settings ask for no signature.
        reasons: why lookups here would not be served from the pack, in words; empty if they would.
    """

    carried: tuple[Carried, ...]
    signed: str
    reasons: tuple[str, ...]


def preflight(pack: Pack, settings: Settings, archs: Collection[str]) -> Preflight:
    """Compares a pack with this machine and the settings, before any of its kernels is requested.

    Args:
        archs: the targets for which kernels will be requested. For each, the pack must have a kernel that lookups can
            find.

    Raises:
        OSError: when the pack cannot be read.
        UsageError, ExtraMissing: when signatures are asked for and cannot be checked.
    """
    selector = Selector(settings)
    counts = Counter((record.arch, Provenance.of(record.components)) for record in pack.records())
    carried = tuple(
        Carried(arch, made, entries, differing(selector, made, any_toolchain=settings.serves_packs_of_any_toolchain))
        for (arch, made), entries in counts.most_common()
    )
    reasons = [] if settings.enable_caching else ["caching is switched off (enable_caching)"]
    for arch in dict.fromkeys(archs):
        there = [one for one in carried if one.arch == arch]
        if not there:
            has = ", ".join(sorted({printable(one.arch) for one in carried})) or "no kernel that can be read"
            reasons.append(f"it has no kernel for {arch}; it has {has}")
        elif all(one.differs for one in there):
            nearest = min(there, key=lambda one: len(one.differs))
            reasons.append(f"no kernel for {arch} can be found: {'; '.join(map(str, nearest.differs))}")
    signed = ""
    if settings.trusted_signers is not None:
        is_signed, signed = signed_by(pack, named_by(settings))
        if not is_signed:
            reasons.append(signed)
    return Preflight(carried, signed, tuple(reasons))


def signed_by(pack: Pack, signers: TrustedSigners) -> tuple[bool, str]:
    """Whether trusted signers signed the kernels of a pack, and who they are, in words. Checks the first 1,000.

    Raises:
        OSError: when the pack cannot be read.
        UsageError: when the file of signers was changed and cannot be read.
    """
    found: Counter[Signed] = Counter()
    for number in range(min(len(pack), _MOST_SIGNATURES)):
        with suppress(CorruptEntry):
            found[signers.check(pack.record_data(pack.row(number)))] += 1
    bad = [signed for signed in found if signed.standing is not Standing.GOOD]
    if bad:
        refused = sum(found[signed] for signed in bad)
        return False, f"{refused:,} of {sum(found.values()):,} are refused: {bad[0]}"
    return True, f"signed by {', '.join(sorted({signed.signer for signed in found}))}" if found else "empty"


def notes_on_packs(cache: Cache, selection: Selection) -> tuple[str, ...]:
    """Sentences about packs that explain a miss: a pack has the kernel from another toolchain, or cannot be used."""
    notes = [*refusals(cache.other_toolchains, cache.selector, selection), *cache.other_toolchains.refused]
    there = cache.selector.select_elsewhere(selection, cache.other_toolchains)
    if there is not None and there.toolchain_from == STORE and not cache.settings.serves_any_toolchain:
        notes.insert(0, refused_in_store(there))
    for pack in cache.packs:
        try:
            state = pack_state(pack, cache.settings)
        except OSError as error:
            notes.append(f"pack {pack.path.name} cannot be read: {error.strerror or error}")
        else:
            if not state.is_whole:
                notes.append(f"pack {pack.path.name}: {state.text}")
    return tuple(notes)


# ---- Solutions of FlashInfer-Bench: files by which its ``apply`` calls our kernels for its GEMM definitions ----
# The format is that of flashinfer-bench 0.1.2 (``flashinfer_bench/data/solution.py``). A solution is Python source that
# calls ``cache_engine.torch``; no kernel is copied, so it needs the store, or packs, where it runs.

_AUTHOR = "gemm-cache"
_DTYPES = (DType.FP16, DType.BF16)
# Not gemm.linear: PyTorch's own product, which serves while a kernel is compiled, would be F.linear there, and that
# is the function which FlashInfer-Bench replaces by its definitions' solutions.
_SOURCE = '''"""C = A · Bᵀ by kernels of gemm-cache, from its store; PyTorch multiplies while one is compiled."""

import cache_engine.torch as gemm


def run(A, B):
    return gemm.mm(A, B.mT)
'''


def write_solutions(dataset: Path, records: Iterable[Record]) -> list[Path]:
    """Writes a solution for each GEMM definition that one of the kernels computes: C = A · Bᵀ of fp16 or bf16.

    A definition has a fixed n and k and any m, and its name has no dtype: one solution serves every m and both dtypes.

    Args:
        dataset: a FlashInfer Trace dataset, such as a clone of flashinfer-trace. Other files in it stay as they are.

    Returns:
        The files, in the order of n and k.
    """
    shapes = sorted({(record.problem.n, record.problem.k) for record in records if _is_defined(record.problem)})
    return [_write(dataset, n, k) for n, k in shapes]


def _is_defined(problem: RecordedProblem) -> bool:
    """Whether a kernel computes the product of a GEMM definition, without epilogue, scales or groups."""
    plain = not (problem.mode or problem.scales or problem.epilogue)
    return plain and problem.layout == Layout.NT and problem.dtype in _DTYPES and problem.out_dtype == problem.dtype


def _write(dataset: Path, n: int, k: int) -> Path:
    definition = f"gemm_n{n}_k{k}"
    name = f"gemm_cache_{definition}"
    solution = {
        "name": name,
        "definition": definition,
        "author": _AUTHOR,
        "description": "Kernels of gemm-cache, for every m. FlashInfer-Bench must have measured it to choose it.",
        "spec": {
            "language": "python",
            "target_hardware": ["cuda"],
            "entry_point": "main.py::run",
            "dependencies": ["gemm-cache", "torch"],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": _SOURCE}],
    }
    path = dataset / "solutions" / _AUTHOR / "gemm" / definition / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    publish_file(path.parent, str(path), (json.dumps(solution, indent=2) + "\n").encode(), durable=False)
    return path
