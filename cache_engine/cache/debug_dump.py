"""A debug dump: a folder with all inputs and outputs of one compile, also of one that fails."""

from __future__ import annotations

import errno
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from cache_engine._version import __version__, version_and_build
from cache_engine.cache.build import make_artifact
from cache_engine.cache.selection import Selection
from cache_engine.cache.stages import StageClock
from cache_engine.compilers.contents import KEYED
from cache_engine.compilers.diagnostics import report, warnings
from cache_engine.compilers.disassembly import sass
from cache_engine.errors import CompileError, GemmCacheError, UsageError
from cache_engine.gpu.probe import gpu
from cache_engine.kernels.family import launch_of
from cache_engine.kernels.source import render
from cache_engine.model.artifact import Artifact, RecordedProblem
from cache_engine.settings import SETTINGS, variable
from cache_engine.store.ownership import private

SOURCE = "kernel"  # the name; the suffix depends on the compiler
PREPROCESSED, LOG, PTX, CUBIN, SASS = "kernel.ii", "compile.log", "kernel.ptx", "kernel.cubin", "kernel.sass"
CONFIG, ENVIRONMENT, RESULT, REPRODUCE = "config.json", "environment.json", "result.json", "reproduce.py"
FILES = (f"{SOURCE}.cu", f"{SOURCE}.py", PREPROCESSED, LOG, PTX, CUBIN, SASS, CONFIG, ENVIRONMENT, RESULT, REPRODUCE)

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
        for name in FILES:
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
