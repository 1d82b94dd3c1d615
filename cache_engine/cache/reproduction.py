"""Makes the command line that compiles a kernel again with the same key, from a selection or from a record."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path

from cache_engine.compilers import COMPILERS
from cache_engine.compilers.base import ALLOWED, flags_at_level
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.model.artifact import Record, RecordedProblem
from cache_engine.model.fingerprint import ToolchainFingerprint
from cache_engine.model.gemm.fields import FIELDS, Options
from cache_engine.model.kernel import KernelConfig
from cache_engine.settings import FAST_MATH, Settings, variable


def reproducing_command(record: Record, settings: Settings, store: Path, verb: str = "compile") -> str:
    """The command, for a POSIX shell, that compiles the kernel of a record on a machine with the same toolchain.

    Args:
        settings: the settings in force where the command is shown. If they ask for flags that the kernel was compiled
            without, the command switches these flags off.
        store: the store that the command uses.
        verb: ``compile``, or ``time`` for the command that times the kernel as well.
    """
    extra = [flag for flag in _extra_flags(record) if flag != FAST_MATH]
    variables = [_assignment("compiler_flags", " ".join(extra))] if extra or settings.compiler_flags else []
    variables += _cuda(record.compiler, record.compiler_version, record.arch, settings.cuda)
    asked = _arguments(record.problem, record.arch, record.compiler, record.family, record.config)
    return " ".join((*variables, shlex.join(("gemm-cache", "--store", str(store), verb, *asked))))


def command_of_choice(
    problem: RecordedProblem, arch: str, compiler: ToolchainFingerprint, family: str, config: KernelConfig,
    extra_flags: Sequence[str],
) -> str:  # fmt: skip
    """The command that compiles the chosen kernel again, even if it is cached, in the environment's store."""
    given = [flag for flag in extra_flags if flag != FAST_MATH]
    variables = [_assignment("compiler_flags", " ".join(given))] if given else []
    variables += _cuda(compiler.compiler, compiler.version, arch)
    asked = _arguments(problem, arch, compiler.compiler, family, config)
    return " ".join((*variables, shlex.join(("gemm-cache", "compile", *asked, "--force"))))


def _arguments(problem: RecordedProblem, arch: str, compiler: str, family: str, config: KernelConfig) -> list[str]:
    """The arguments of ``compile`` and ``time`` that name one kernel completely, so that no choice is left."""
    p = problem
    values = ",".join(f"{field.name}={getattr(config, field.name)}" for field in fields(config))
    asked = chain.from_iterable(
        field.arguments(getattr(p, field.name))
        for field in FIELDS
        if field.name not in Options.__struct_fields__ or getattr(p, field.name) != field.default
    )
    return [*asked, f"--arch={arch}", f"--compiler={compiler}", f"--family={family}", f"--config={values}"]


def _extra_flags(record: Record) -> list[str]:
    """The flags of a record that came from the settings, i.e. those that the program does not add itself."""
    flags = dict(record.components).get("flags", "").split()
    compiler = COMPILERS.get(record.compiler)
    if compiler is not None:
        own = list(flags_at_level(compiler.flags, record.problem.opt_level))
        if flags[: len(own)] == own:
            return flags[len(own) :]
    # Another version of this program compiled the kernel, so the key differs anyway; use the flags that are known here.
    return [flag for flag in flags if flag.partition("=")[0] in ALLOWED]


def _cuda(compiler: str, version: str, arch: str, asked: str = "auto") -> list[str]:
    """The environment variable that selects the same version of CUDA; nothing if that version is used anyway.

    Args:
        asked: the setting ``cuda`` where the command runs.
    """
    major, target = version.partition(".")[0], ARCHITECTURES.get(arch)
    if compiler not in ("nvrtc", "nvcc") or target is None or not major.isdecimal():
        return []
    is_usual = int(major) == target.cuda_versions[0] and asked in ("auto", major)
    return [] if is_usual else [_assignment("cuda", major)]


def _assignment(setting: str, value: str) -> str:
    return f"{variable(setting)}={shlex.quote(value)}"
