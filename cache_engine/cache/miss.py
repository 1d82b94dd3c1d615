"""Handles a miss: logs it with its cause, and makes the kernel, with a debug dump if asked for."""

from __future__ import annotations

import errno
import os
import platform
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cache_engine._version import __version__, version_and_build
from cache_engine.cache.selection import Selection, Selector
from cache_engine.cache.stages import COMPILE, GENERATE, START_COMPILER, StageClock
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.contents import KEYED
from cache_engine.compilers.diagnostics import report, warnings
from cache_engine.compilers.disassembly import sass
from cache_engine.errors import CompileError, CorruptEntry, GemmCacheError, UsageError
from cache_engine.gpu.probe import gpu
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.select import choose, ranking
from cache_engine.kernels.source import render
from cache_engine.model import decision
from cache_engine.model.artifact import Artifact, Blob, Record, RecordedProblem
from cache_engine.model.gemm import GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.measurement import COST_MODEL, GIVEN, Measurement
from cache_engine.settings import SETTINGS, variable
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.ownership import private

if TYPE_CHECKING:
    from cache_engine.gpu.timer import Timing
    from cache_engine.usage.compile_time import Compile

# ---- Logs a miss in the log of decisions: its cause, as far as the store shows it now, and the choice of config ----
# A hit calls nothing here. A miss compiles for 0.1 s or more, and logging takes a thousandth of that. Causes that only
# earlier lines of the log show are found when the log is read (``model.decision.Causes``).


def log_miss(
    journal: Journal, store: DiskStore, selector: Selector, selection: Selection, fault: Exception | None, forced: bool
) -> None:
    """Logs a miss and the choice of its config.

    Args:
        fault: the error of reading the entry on disk, if there was one.
        forced: whether the caller asked for a compile with ``force``.
    """
    reason, detail = decision.FORCED if forced else "", ""
    if isinstance(fault, CorruptEntry):
        reason, detail = decision.DAMAGED, str(fault)
    elif fault is not None:
        reason, detail = decision.UNREADABLE, str(fault)
    elif not reason and store.has_unknown_format(selection.key):
        reason = decision.OTHER_FORMAT
    elif not reason and (other := _other_config(store, selector, selection)):
        reason, detail = decision.OTHER_CONFIG, other
    request, toolchain = decision.request_of(selection.prefix.with_constants(selection.constants))
    named = {"key": selection.key, "name": selection.name}
    journal.decided(decision.MISS, **named, reason=reason, detail=detail, request=request, toolchain=toolchain)
    runner_up, margin = _runner_up(selector, selection)
    chosen = f"{selection.family.name} {selection.config}"
    journal.decided(
        decision.CHOICE, **named, reason=selection.config_from, detail=chosen, runner_up=runner_up, margin=margin
    )


def _other_config(store: DiskStore, selector: Selector, selection: Selection) -> str:
    """A text about a stored kernel for the same problem, whose config was chosen before a timing changed the choice."""
    if selection.config_from in (GIVEN, COST_MODEL):
        return ""
    problem = selection.problem
    for family, compiler in ((None, None), (selection.family.name, selection.compiler.name)):
        with suppress(GemmCacheError):
            chosen, config = choose(problem, family, None, COMPILERS[compiler or "nvrtc"].takes, selector.factors())
            key = selector.select(problem, chosen.name, compiler, config).key
            if key != selection.key and os.path.exists(store.layout.record_path(key)):
                return f"the {COST_MODEL} had chosen {chosen.name} {config}, which {key[:12]} has"
    return ""


def _runner_up(selector: Selector, selection: Selection) -> tuple[str, float | None]:
    """The second best config, and its extra time as a share of the best one's; empty and ``None`` without a choice."""
    chosen = (selection.family.name, selection.config)
    ranked: list[tuple[float, tuple[str, KernelConfig]]] = []
    if selection.config_from == COST_MODEL:
        ranked = [
            (cycles, (chosen[0], config))
            for cycles, config in ranking(selection.problem, chosen[0], selector.factors())
        ]
    elif selection.config_from != GIVEN and selector.history is not None:
        for timings in selector.history.rankings(selection.problem):
            ranked = [(one.median_us, (one.family, one.config)) for one in timings]
            if any(one == chosen for _, one in ranked):
                break
    best = next((cost for cost, one in ranked if one == chosen), 0.0)
    for cost, one in ranked:
        if one != chosen and best > 0:
            return " ".join(map(str, one)), max(0.0, cost / best - 1)
    return "", None


# ---- Makes a kernel: from a selection its artifact, and then its record and the measurement of its speed ----


def make_artifact(selection: Selection, stages: StageClock) -> Artifact:
    """Generates the source and compiles it.

    Raises:
        CompilerMissing, ToolMissing: when a program that is needed is not installed.
        CompileError: when the compiler refuses the source.
    """
    from cache_engine.compilers.disassembly import resources  # imports subprocess, which no hit needs

    with stages(GENERATE):
        source = render(selection.family.template, selection.constants)
    with stages(START_COMPILER):
        selection.compiler.load()
    with stages(COMPILE):
        try:
            compiled = selection.compiler.compile(source, selection.problem.arch or "")
        except CompileError as error:
            error.command = selection.command
            raise
    dynamic_shared_bytes = compiled.shared_bytes
    if dynamic_shared_bytes is None:
        dynamic_shared_bytes = selection.family.shared_bytes(selection.problem, selection.config)
    used = resources(compiled.cubin, compiled.log, dynamic_shared_bytes)
    return Artifact(compiled.cubin, compiled.ptx, source.encode(), compiled.log, used)


def describe(selection: Selection, artifact: Artifact, blob: Blob, stages_ms: dict[str, float]) -> Record:
    """The record of an artifact that was just compiled."""
    toolchain = selection.compiler.fingerprint()
    return Record(
        key=selection.key,
        components=selection.prefix.with_constants(selection.constants),
        name=selection.name,
        family=selection.family.name,
        compiler=toolchain.compiler,
        compiler_version=toolchain.version,
        arch=selection.problem.arch or "",
        problem=RecordedProblem.of(selection.problem),
        config=selection.config,
        resources=artifact.resources,
        blob=blob,
        compile_ms=stages_ms[COMPILE],
        stages_ms=stages_ms,
        created_at=time.time(),
        created_by=f"gemm-cache {version_and_build()}",
        config_from=selection.config_from,
        warnings=warnings(artifact.log.decode("utf-8", "replace"), artifact.resources),
    )


def compile_of(selection: Selection) -> Compile:
    """The properties of the selected kernel from which its compile time is predicted."""
    from cache_engine.usage.compile_time import Compile

    s = selection
    return Compile(s.family.name, s.compiler.name, s.problem.arch or "", RecordedProblem.of(s.problem), s.config)


def measurement(record: Record, problem: GemmProblem, timing: Timing, config_from: str) -> Measurement:
    """A measurement to be stored: the timing of the kernel with this record, for this problem."""
    import msgspec

    # The kernel's own specialisation, which differs from the problem's if the kernel served in place of another.
    measured = msgspec.structs.replace(RecordedProblem.of(problem), specialisation=record.problem.specialisation)
    return Measurement(
        key=record.key,
        family=record.family,
        compiler=record.compiler,
        compiler_version=record.compiler_version,
        arch=record.arch,
        problem=measured,
        config=record.config,
        config_from=config_from,
        device=timing.device,
        timing={name: value for name, value in msgspec.to_builtins(timing).items() if name != "device"},
        measured_at=time.time(),
        measured_by=f"gemm-cache {version_and_build()}",
    )


# ---- A debug dump: a folder with all inputs and outputs of one compile, also of one that fails ----

SOURCE = "kernel"  # the name; the suffix depends on the compiler
PREPROCESSED, LOG, PTX, CUBIN, SASS = "kernel.ii", "compile.log", "kernel.ptx", "kernel.cubin", "kernel.sass"
CONFIG, ENVIRONMENT, RESULT, REPRODUCE = "config.json", "environment.json", "result.json", "reproduce.py"
DUMP_FILES = (
    f"{SOURCE}.cu",
    f"{SOURCE}.py",
    PREPROCESSED,
    LOG,
    PTX,
    CUBIN,
    SASS,
    CONFIG,
    ENVIRONMENT,
    RESULT,
    REPRODUCE,
)

# Other variables and packages are not written: a value, or even a name, may contain a secret.
_TOLD = tuple(variable(setting.name) for setting in SETTINGS if not setting.metadata["kind"].is_secret)
_VARIABLES = ("CUDA_HOME", "NVCC_CCBIN", *KEYED, *_TOLD)
_PACKAGES = (
    "cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvcc", "nvidia-nvvm",
    "nvidia-cuda-crt", "triton",
)  # fmt: skip

_REPRODUCE = '''"""Compiles {source} of this folder again, as it was compiled, and writes reproduced.cubin.

Needs gemm-cache {version} and the compiler that environment.json names. Or, from the problem on:

    {command}
"""

import sys
from pathlib import Path

from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import Cuda
from cache_engine.compilers.diagnostics import report
from cache_engine.errors import CompileError

compiler, extra_flags = COMPILERS[{compiler!r}].of_cuda(Cuda(({cuda},))).at_level({level}), {extra!r}
if extra_flags:
    compiler = compiler.with_flags(extra_flags)
folder = Path(__file__).parent
try:
    compiled = compiler.compile((folder / {source!r}).read_text(encoding="utf-8"), {arch!r})
except CompileError as error:
    sys.exit(f"{{report(error)}}\\n\\nerror: {{error}}")
(folder / "reproduced.cubin").write_bytes(compiled.cubin)
sys.stdout.write(compiled.log.decode())
'''


def make_artifact_and_dump(folder: Path, selection: Selection, stages: StageClock) -> Artifact:
    """As ``make_artifact``, and writes the inputs and outputs into ``folder``.

    The inputs are written before the compiler starts. Files of an earlier dump are replaced or deleted.

    Raises:
        UsageError: when the folder cannot be written.
    """
    try:
        _make_private(folder)
        for name in DUMP_FILES:
            (folder / name).unlink(missing_ok=True)
        _write_inputs(folder, selection)
        try:
            artifact = make_artifact(selection, stages)
        except GemmCacheError as error:
            _write_failure(folder, error)
            _write_preprocessed(folder, selection)
            raise
        _write_preprocessed(folder, selection)
        _write_outputs(folder, artifact, stages)
    except OSError as error:
        raise UsageError(f"cannot write the debug dump in {folder}: {error.strerror}") from error
    return artifact


def _source_name(selection: Selection) -> str:
    return f"{SOURCE}{selection.compiler.takes}"


def _write_inputs(folder: Path, selection: Selection) -> None:
    compiler, arch = selection.compiler, selection.problem.arch or ""
    _write(folder, _source_name(selection), render(selection.family.template, selection.constants))
    launch = launch_of(selection.family, selection.problem, selection.config)
    config = {
        "key": selection.key,
        "name": selection.name,
        "problem": RecordedProblem.of(selection.problem),
        "arch": arch,
        "family": selection.family.name,
        "config": selection.config,
        "launch": launch,
        "compiler": compiler.name,
        "flags": compiler.flags,
        "components": dict(selection.prefix.with_constants(selection.constants)),
        "command": selection.command,
    }
    _write(folder, CONFIG, _json(config))
    _write(folder, ENVIRONMENT, _json(_environment(selection)))
    script = _REPRODUCE.format(
        source=_source_name(selection),
        version=__version__,
        command=selection.command,
        compiler=compiler.name,
        cuda=compiler.fingerprint().version.partition(".")[0],
        level=selection.problem.opt_level,
        extra=selection.extra_flags,
        arch=arch,
    )
    _write(folder, REPRODUCE, script)


def _write_preprocessed(folder: Path, selection: Selection) -> None:
    """Writes the preprocessed source, if the compiler can show it; this may work for a source that does not compile."""
    try:
        source = (folder / _source_name(selection)).read_text("utf-8")
        text = selection.compiler.preprocess(source, selection.problem.arch or "")
    except GemmCacheError:
        return
    if text is not None:
        _write(folder, PREPROCESSED, text)


def _write_outputs(folder: Path, artifact: Artifact, stages: StageClock) -> None:
    log = artifact.log.decode("utf-8", "replace")
    _write_bytes(folder, CUBIN, artifact.cubin)
    _write_bytes(folder, PTX, artifact.ptx)
    _write(folder, LOG, log)
    _write(folder, SASS, sass(artifact.cubin))
    found = warnings(log, artifact.resources)
    _write(folder, RESULT, _json({"resources": artifact.resources, "warnings": found, "stages_ms": stages.ms}))


def _write_failure(folder: Path, error: GemmCacheError) -> None:
    facts: dict[str, Any] = {"kind": type(error).__name__, "level": error.level, "message": str(error)}
    if isinstance(error, CompileError):
        facts |= {"flags": error.flags, "report": report(error)}
        _write(folder, LOG, error.log)
    _write(folder, RESULT, _json({"error": facts}))


def _environment(selection: Selection) -> dict[str, Any]:
    installed = {}
    for name in _PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    device = gpu()
    return {
        "gemm_cache": version_and_build(),
        "python": platform.python_version(),
        "python_build": sys.version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "toolchain": selection.compiler.fingerprint(),
        "gpu": f"none: {device}" if isinstance(device, str) else device,
        "packages": installed,
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _write(folder: Path, name: str, text: str) -> None:
    _write_bytes(folder, name, text.encode())


def _write_bytes(folder: Path, name: str, data: bytes) -> None:
    """Writes a new file that only the user can read: the source and the environment are private."""
    with open(folder / name, "xb", opener=private) as file:
        os.fchmod(file.fileno(), 0o600)  # even with an unusual umask
        file.write(data)


def _make_private(folder: Path) -> None:
    """Creates the folder, private to the user; an existing folder stays unchanged."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)
    if not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def _json(document: object) -> str:
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
