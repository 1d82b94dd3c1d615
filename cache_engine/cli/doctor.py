"""``gemm-cache doctor``: what is installed on this machine, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cache_engine._version import version_and_build
from cache_engine.cache.serving.pack_state import pack_state
from cache_engine.cli.support import Verb, emit, json_option, only_with, open_cache, write_file
from cache_engine.cli.terminal import LEFT, RIGHT, print_table, short_time
from cache_engine.compilers import COMPILERS
from cache_engine.compilers.contents import cuda_for, find_tool
from cache_engine.errors import CompileError, ExtraMissing, GemmCacheError, NotHereError, PackUnusable, UsageError
from cache_engine.gpu.memory_pool import free_and_total_bytes
from cache_engine.gpu.probe import driver_cuda, gpu, gpu_extra, local_arch
from cache_engine.insight.packs import signed_by
from cache_engine.kernels.hopper import TARGET
from cache_engine.kernels.select import TO_PROVE
from cache_engine.model.architecture import compiled_for
from cache_engine.model.documents import to_json
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.proof import PROVED
from cache_engine.settings import (
    BY_NAME,
    LOCAL,
    NEVER,
    PACKS,
    Origin,
    Settings,
    unknown_in_words,
    unknown_variables,
    variable,
)
from cache_engine.settings.extras import how_to_install, pip, require
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.layout import StoreLayout
from cache_engine.store.pack import Pack, find_packs
from cache_engine.store.proofs import states
from cache_engine.store.signatures.signers import TrustedSigners, named_by
from cache_engine.units import counted, human_bytes, printable
from cache_engine.upkeep.plan import NO_FREE_BYTES

if TYPE_CHECKING:
    from cache_engine.batch.gpu_check import GpuSpeed

OK, NOTE, PROBLEM = "ok", "note", "problem"

# Packages by the extra that installs them; the core's are in no extra.
_PACKAGES = {
    "portalocker": "",
    "numpy": "evaluate",
    "duckdb": "dashboard",
    "plotly": "dashboard",
    "streamlit": "dashboard",
    "cryptography": "team",
}
# File systems on which locks between machines are best effort.
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "gpfs", "beegfs", "ceph"})

_TIMED_KERNELS, _TIMED_READS = 20, 5

# Five lines that prove that a compiler works.
_PROOF = """extern "C" __global__ void doctor(float* values) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float value = values[i];
    values[i] = value * value;
}
"""

_SIGNS = {OK: "✓", NOTE: "·", PROBLEM: "✗"}


@dataclass(frozen=True)
class Check:
    """The result of one check of this machine: ``status`` is ``OK``, ``NOTE`` or ``PROBLEM``."""

    name: str
    status: str
    detail: str


@click.command(
    "doctor",
    cls=Verb,
    examples=("doctor", "doctor --settings", "doctor --gpu --output gpu.html --output gpu.json"),
    done="The installation is usable; notes are no problem.",
    failed="There is a problem; the line marked ✗ says how to fix it.",
    missing="--gpu: there is no NVIDIA GPU, or the extra gpu is not installed.",
)
@click.option("--settings", "every", is_flag=True, help="Also list the settings that are at their default.")
@click.option("--gpu", "on_gpu", is_flag=True, help="Also check the GPU: all families, matmul, memory pool, speed.")
@click.option(
    "--output",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE",
    help="--gpu: write the report to a .json or .html file to send, or to a .csv for calibrate (repeatable).",
)
@json_option
@click.pass_obj
def doctor_verb(settings: Settings, /, every: bool, on_gpu: bool, files: tuple[Path, ...], as_json: bool) -> None:
    """Check the installation.

    Checks packages, compilers, tools, the GPU, the store and its disk, packs, and the environment's variables, and
    says how long a hit from that disk takes. Also lists the settings that are not at their default, with their origin:
    argument, environment or settings file. Changes nothing and needs no GPU.

    With --gpu, which takes a minute at most, every family computes small problems of each type and layout, in processes
    of their own; a wrong result's line has a command that repeats it. Then layers of models are timed beside cuBLAS,
    and compared with the GPU model's prediction.
    """
    only_with("--gpu", on_gpu, ("files",))
    for file in files:
        if file.suffix not in _WRITERS:
            raise UsageError(f"{file} must end with {', '.join(_WRITERS)}")
        if not file.absolute().parent.is_dir():  # said before the GPU works for a minute
            raise UsageError(f"{file} is in a folder that does not exist")
        if file.is_dir():
            raise UsageError(f"{file} is a directory; give the name of a file")
    speeds: list[GpuSpeed] = []
    checks = [*_on_the_gpu(settings, speeds), *examine(settings)] if on_gpu else examine(settings)
    is_ok = all(check.status != PROBLEM for check in checks)
    listed = [_setting(settings, name) for name in BY_NAME]
    document = {"checks": checks, "ok": is_ok, "settings": listed, "speeds": speeds}
    unwritten: Exception | None = None
    for file in files:
        try:
            write_file(file, _WRITERS[file.suffix](document).encode(), force=True)
        except (OSError, UsageError) as error:
            unwritten = unwritten or error
    is_failed = not is_ok and unwritten is None
    emit(document, as_json, lambda: _print_checks(checks, speeds, settings, every=every), failed=is_failed)
    if unwritten is not None:  # the report is printed all the same
        raise unwritten


def _setting(settings: Settings, name: str) -> dict[str, str]:
    """A setting as JSON: its value (of a secret, only whether it is set), its origin and its environment variable."""
    return {
        "name": name,
        "value": settings.shown(name),
        "origin": settings.origin(name),
        "variable": variable(name),
    }


def examine(settings: Settings) -> list[Check]:
    """Checks this machine. Changes nothing, and needs no GPU."""
    checks = [Check("gemm-cache", OK, version_and_build())]
    checks += [Check("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    checks += _packages()
    checks.append(_cupy())
    checks += _compilers(settings)
    checks += _tools()
    device = gpu()
    if isinstance(device, DeviceFingerprint):
        checks.append(
            Check("gpu", OK, f"{device.name}, {device.arch}, {device.sms} SMs, driver for CUDA {device.driver}")
        )
        checks.append(_device_memory())
    else:
        checks.append(Check("gpu", NOTE, f"none: {device}. Compiling and browsing work without a GPU"))
    checks += _store(settings)
    checks += _packs(settings)
    checks += _remote(settings)
    checks += _settings(settings)
    return checks


def _on_the_gpu(settings: Settings, timed: list[GpuSpeed]) -> Iterator[Check]:
    """Checks the GPU, and appends speeds to ``timed``. Stores no kernel on disk."""
    from cache_engine.batch.gpu_check import BUDGET_S, check_gpu, speeds

    until, refused = time.monotonic() + BUDGET_S, set[str]()
    with open_cache(settings.with_overrides({"enable_caching": False, "prove": NEVER})) as cache:
        for name, v in check_gpu(cache, until):
            refused |= set() if v.state == PROVED else {name}
            again = f"; again: {v.command}" if v.refused and v.command else ""
            where = f" ({v.case}, seed {v.seed})" if v.refused and v.case else ""
            right = f"{counted(v.cases, 'case')} right on the GPU" if v.state == PROVED else f"{v.state}: "
            status = OK if v.state == PROVED else PROBLEM
            yield Check(f"GPU: {name}", status, f"{right}{v.refused or v.undecided}{where}{again}")
        timed += speeds(cache, until, refused)
    for wrong in (speed for speed in timed if speed.is_wrong):
        yield Check("GPU: result", PROBLEM, f"{wrong.family} {wrong.m}x{wrong.n}x{wrong.k} is wrong: {wrong.reason}")
    if measured := sum(speed.tflops is not None for speed in timed):
        calibrate = "add --output gpu.csv, then gemm-cache calibrate gpu.csv --output gpu.json"
        yield Check("GPU: speed", OK, f"{measured} of {len(timed)} timed; to fit the GPU model to them, {calibrate}")
    else:
        yield Check("GPU: speed", NOTE, f"not measured: {timed[0].reason}")


def _device_memory() -> Check:
    try:
        require(gpu_extra(), "launching")
        free, total = free_and_total_bytes()
    except ExtraMissing as error:
        return Check("device memory", NOTE, str(error))
    except Exception as error:  # CuPy says in many ways that it cannot use a GPU
        return Check("device memory", PROBLEM, f"CuPy cannot use the GPU: {error}")
    return Check("device memory", OK, f"{human_bytes(free)} free of {human_bytes(total)}")


def _packages() -> Iterator[Check]:
    for name, extra in _PACKAGES.items():
        try:
            yield Check(name, OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            status = NOTE if extra else PROBLEM
            how = how_to_install(extra) if extra else f"{pip()} install {name}"
            yield Check(name, status, f"not installed; run: {how}")


def _cupy() -> Check:
    here = []
    for name in ("cupy-cuda13x", "cupy-cuda12x"):
        with suppress(metadata.PackageNotFoundError):
            here.append((name, metadata.version(name)))
    driver, extra = driver_cuda(), gpu_extra()
    again = f"run: pip uninstall --yes {' '.join(name for name, _ in here)} && {how_to_install(extra)}"
    if not here:
        name = "cupy-cuda12x" if extra == "cuda12" else "cupy-cuda13x"
        return Check(name, NOTE, f"not installed; run: {how_to_install(extra)}")
    name, version = here[0]
    if len(here) > 1:
        return Check(name, PROBLEM, f"cupy-cuda12x is installed too, and both write the same files; {again}")
    if driver is not None and extra == "cuda12" and name == "cupy-cuda13x":
        return Check(name, PROBLEM, f"{version}, but the driver is for CUDA {driver[0]}.{driver[1]}; {again}")
    return Check(name, OK, version)


def _compilers(settings: Settings) -> Iterator[Check]:
    arch, driver = local_arch() or settings.default_arch, driver_cuda()
    for name in COMPILERS:
        compiler = COMPILERS[name].of_cuda(cuda_for(settings.cuda, driver, arch))
        try:
            fingerprint = compiler.fingerprint()
            compiler.load()
            if compiler.takes == ".cu":
                compiler.compile(_PROOF, arch)
        except (NotHereError, CompileError) as error:
            # The default compiler must work, unless packs serve without one.
            needed = name == "nvrtc" and (settings.toolchain == LOCAL or not settings.packs)
            yield Check(name, PROBLEM if needed else NOTE, str(error))
            continue
        variables = f", environment {fingerprint.environment}" if fingerprint.environment else ""
        text = f"{fingerprint.version}, build {fingerprint.build}{variables}"
        if compiler.takes == ".cu" and driver is not None and int(fingerprint.version.split(".")[0]) > driver[0]:
            why = f"the driver is for CUDA {driver[0]}.{driver[1]} and loads nothing that it compiles"
            yield Check(name, PROBLEM, f"{text}, but {why}; run: export GEMM_CACHE_CUDA={driver[0]}")
        else:
            yield Check(name, OK, text)


def _tools() -> Iterator[Check]:
    for name in ("cuobjdump", "nvdisasm"):
        try:
            yield Check(name, OK, str(find_tool(name, f"nvidia-cuda-{name}")))
        except NotHereError as error:
            yield Check(name, PROBLEM, str(error))


def _store(settings: Settings) -> Iterator[Check]:
    if settings.enable_caching == PACKS:
        yield Check("store", NOTE, "not used: enable_caching is packs")
        return
    try:
        directory = settings.directory()
    except GemmCacheError as error:
        yield Check("store", PROBLEM, str(error))
        return
    if not settings.directory_exists or _is_empty(directory):
        yield _future_store(directory)
        return
    try:
        layout = open_store(directory, trust=settings.trust_store, create=False)
    except GemmCacheError as error:
        yield Check("store", PROBLEM, str(error))
        return
    writable = os.access(layout.root, os.W_OK)
    yield Check("store", OK if writable else NOTE, f"{layout.root}{'' if writable else ', which is read-only'}")
    kind = _file_system(layout.root)
    if kind in _NETWORK_FILE_SYSTEMS:
        yield Check(
            "file system", NOTE, f"{kind}: locks between machines are best effort; a kernel may be compiled twice"
        )
    else:
        yield Check("file system", OK, kind)
    free = shutil.disk_usage(layout.root).free
    enough = free > settings.max_bytes
    advice = "" if enough else f", less than max_bytes allows the store to take ({human_bytes(settings.max_bytes)})"
    state = PROBLEM if free < NO_FREE_BYTES else OK if enough else NOTE
    yield Check("free disk", state, f"{human_bytes(free)}{advice}")
    yield from _speed(layout)
    yield from _families(settings, layout)


def _families(settings: Settings, layout: StoreLayout) -> Iterator[Check]:
    """For each family that this machine's GPU must prove before use: the newest proof in the store."""
    device = gpu()
    if isinstance(device, str) or compiled_for(device.arch) != TARGET:
        return
    for family in sorted(TO_PROVE):
        newest = next(iter(states(layout, family, device=device)), None)
        text = f"not proved on {device.name} yet; matmul proves it (prove = {settings.prove})"
        text = text if newest is None else f"{newest.words}, {newest.toolchain}"
        yield Check(family, OK if newest is not None and newest.state == PROVED else NOTE, text)


def _speed(layout: StoreLayout) -> Iterator[Check]:
    """Measures the time of a hit on this machine and disk. Yields nothing for a store without a readable kernel."""
    disk, times = DiskStore(layout), list[float]()
    for key in islice(disk.keys(), _TIMED_KERNELS):
        with suppress(GemmCacheError, OSError):  # what is damaged, verify says
            took = []
            for _ in range(_TIMED_READS):
                started = time.perf_counter()
                found = disk.get(key)
                took.append(time.perf_counter() - started)
            if found is not None:
                times.append(min(took))
    if times:
        of = f"median of {counted(len(times), 'kernel')}, each the fastest of {_TIMED_READS} reads"
        yield Check("disk hit", OK, f"{short_time(statistics.median(times))}, every byte verified ({of})")


def _future_store(directory: Path) -> Check:
    above = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    if not os.access(above, os.W_OK | os.X_OK):
        advice = "name a directory that you may write with --store or GEMM_CACHE_DIR"
        return Check("store", PROBLEM, f"{directory} cannot be created, because you may not write {above}; {advice}")
    return Check("store", NOTE, f"{directory} does not exist yet; the first use creates it")


def _is_empty(folder: Path) -> bool:
    with suppress(OSError):
        return not os.listdir(folder)
    return False


def _packs(settings: Settings) -> Iterator[Check]:
    signers: TrustedSigners | None = None
    if settings.trusted_signers is not None:
        try:
            signers = named_by(settings)
            yield Check("trusted signers", OK, f"{signers.path}, {counted(len(signers), 'key')}")
        except (UsageError, ExtraMissing) as error:
            yield Check("trusted signers", PROBLEM, f"{error}; no pack is used")
            return
    for path in find_packs(settings.packs):
        try:
            pack = Pack(path, trust=settings.trust_store)
            state = pack_state(pack, settings)
            is_signed, who = (True, "") if signers is None else signed_by(pack, signers)
        except PackUnusable as error:
            yield Check("pack", PROBLEM, str(error))
        except OSError as error:
            yield Check("pack", PROBLEM, f"{path} cannot be read: {error.strerror or error}")
        else:
            status = PROBLEM if not is_signed else OK if state.is_whole else NOTE
            yield Check("pack", status, f"{path}, {state.text}{f'; {who}' if who else ''}")


def _remote(settings: Settings) -> Iterator[Check]:
    if settings.writes_remote and settings.signing_key is None:
        yield Check("remote", PROBLEM, "kernels are not sent to it, as the setting signing_key names no key")
    if not settings.reads_remote:
        return
    url = printable(settings.remote or "")
    try:
        require("team", "a remote", "obstore", "redis")
        require("team", "checking signatures", "cryptography")
    except ExtraMissing as error:
        yield Check("remote", PROBLEM, f"{url} is not asked: {error}")
        return
    if settings.trusted_signers is None:
        yield Check("remote", NOTE, f"{url} is not asked, as the setting trusted_signers names no keys")
    else:
        yield Check("remote", OK, f"{url} is asked for what is not cached here")


def _settings(settings: Settings) -> Iterator[Check]:
    if settings.file is not None:
        yield Check("settings file", OK, str(settings.file))
    for name, meant in unknown_variables(os.environ):
        yield Check("environment", NOTE, unknown_in_words(name, meant))


def _file_system(path: Path) -> str:
    """The type of the file system that holds ``path``, read for the longest mount point above ``path``."""
    best, kind = "", "unknown"
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, mount_point, file_system = line.split(maxsplit=3)[:3]
            if len(mount_point) >= len(best) and path.is_relative_to(mount_point):
                best, kind = mount_point, file_system
    return kind


# ---- For people ----


_SPEED_WORDS, _SPEED_NUMBERS = ("model", "layer", "family"), ("m", "n", "k", "TFLOP/s", "cuBLAS", "predicted")


def _speed_rows(speeds: Iterable[GpuSpeed]) -> list[tuple[str, ...]]:
    """The cells of the table of speeds; what was not measured says so."""

    def rate(value: float | None, otherwise: str = "not measured") -> str:
        return otherwise if value is None else f"{value:,.1f}"

    return [
        (
            one.model, one.layer, one.family, str(one.m), str(one.n), str(one.k), rate(one.tflops),
            rate(one.reference_tflops), rate(one.predicted_tflops, "unknown GPU"),
        )
        for one in speeds
    ]  # fmt: skip


def _as_csv(document: dict[str, Any]) -> str:
    """The measured times, as ``calibrate`` reads them."""
    device = gpu()
    arch = device if isinstance(device, str) else device.name.replace(",", " ")
    timed = [one for one in document["speeds"] if one.latency_us is not None]
    return "\n".join(
        ("arch,M,N,K,latency_us", *(f"{arch},{one.m},{one.n},{one.k},{one.latency_us}" for one in timed), "")
    )


def _as_html(document: dict[str, Any]) -> str:
    from cache_engine.insight.report.page import Report, Section, Table, written

    found = Table(
        ("status", "check", "result"), tuple((one.status, one.name, one.detail) for one in document["checks"]), 3
    )
    table = Table((*_SPEED_WORDS, *_SPEED_NUMBERS), tuple(_speed_rows(document["speeds"])), len(_SPEED_WORDS))
    sections = (Section("Checks", (found,)), Section("Speed in bf16, TFLOP/s", (table,)))
    return written(Report("First contact with a GPU", "", "gemm-cache doctor --gpu", sections), time.time())


_WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    ".json": lambda document: f"{to_json(document)}\n",
    ".html": _as_html,
    ".csv": _as_csv,
}
"""The functions that make the content of a file of ``--output``, by the ending of its name."""


def _print_checks(checks: list[Check], speeds: list[GpuSpeed], settings: Settings, *, every: bool) -> None:
    rows = [(_SIGNS[check.status], check.name, check.detail) for check in checks]
    print_table({"": LEFT, "check": LEFT, "result": LEFT}, rows)
    if speeds:
        print()
        print_table({**dict.fromkeys(_SPEED_WORDS, LEFT), **dict.fromkeys(_SPEED_NUMBERS, RIGHT)}, _speed_rows(speeds))
    listed = [name for name in BY_NAME if every or settings.origin(name) != Origin.DEFAULT]
    if listed:
        print()
        print_table(
            {"setting": LEFT, "value": LEFT, "origin": LEFT, "variable": LEFT},
            [(name, settings.shown(name), settings.origin(name), variable(name)) for name in listed],
            dispensable=("variable",),
        )
