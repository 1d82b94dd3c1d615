"""A kernel in hand: what every lookup returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cache_engine.cache.selection import INSTALLED, Selection
from cache_engine.cache.stages import StageClock
from cache_engine.kernels.family import launch_of
from cache_engine.model.artifact import Record
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import Launch
from cache_engine.model.key import CacheKey
from cache_engine.model.outcome import Failure
from cache_engine.store.base import Loaded
from cache_engine.units import human_bytes

if TYPE_CHECKING:
    from cache_engine.cache.queue.behind import Better


@dataclass(frozen=True, slots=True, repr=False)
class CompiledKernel:
    """A kernel in hand: its code, and how to launch it.

    Attributes:
        key: its CacheKey.
        problem: the problem it was asked for.
        record: its metadata; ``record.resources`` has registers and shared memory, ``record.compile_ms`` the time.
        cubin: the compiled code, as ``cuModuleLoadData`` takes it.
        tier: which tier had it: ``"memory"``, ``"pack"``, ``"disk"`` or ``"remote"``; or ``"compiled"``.
        launch: how to launch it for the problem. It depends on m, which the kernel's code need not: keep a launch for
            each problem, and a loaded module for each key.
        config_from: what chose its config: ``"given"``, ``"cost model"`` or ``"measured on …"``.
        stages_ms: milliseconds that each stage of getting it took, by name.
        unpublished: why it could not be stored; ``None`` when it was stored, or was found.
        toolchain_from: what names the toolchain in its key: ``"installed"``, ``"pack NAME"`` or ``"store"``. The last
            two are of kernels that need not be what the compiler installed here would make; see ``cache.elsewhere``.
        better: the kernel that is compiled in the background, where this one serves in its place: ``better.ready``,
            ``better.wait(timeout_s)``, then ``better.kernel`` or ``better.failure``.
    """

    key: CacheKey
    problem: GemmProblem
    record: Record
    cubin: bytes
    tier: str
    launch: Launch
    config_from: str
    stages_ms: dict[str, float]
    unpublished: Failure | None = None
    toolchain_from: str = INSTALLED
    better: Better[CompiledKernel] | None = None

    @property
    def entry(self) -> str:
        """The name of the kernel's function in ``cubin``: what ``cuModuleGetFunction`` is asked for."""
        return self.record.name

    def __repr__(self) -> str:
        p = self.problem
        batch = f"{p.batch} × " if p.batch > 1 else ""
        what = f"{batch}{p.m} × {p.n} × {p.k}, {p.dtype}, {p.arch}; {self.record.family} {self.record.config}"
        return f"<CompiledKernel {self.key[:12]}: {what}, {human_bytes(len(self.cubin))}, {self.tier}>"


def kernel_of(
    selection: Selection, loaded: Loaded, tier: str, stages: StageClock, unpublished: Failure | None = None
) -> CompiledKernel:
    """A kernel in hand for what was selected."""
    s = selection
    launch = launch_of(s.family, s.problem, s.config, loaded.record.resources.shared_bytes)
    return CompiledKernel(
        s.key, s.problem, loaded.record, loaded.cubin, tier, launch, s.config_from, stages.ms, unpublished,
        s.toolchain_from,
    )  # fmt: skip
