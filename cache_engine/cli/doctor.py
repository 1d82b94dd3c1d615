"""Is this machine ready: what is installed, what is found, and what to do about what is not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cache_engine.compilers import COMPILERS
from cache_engine.compilers.tools import find_tool
from cache_engine.config import Settings
from cache_engine.device.memory_pool import free_and_total_bytes
from cache_engine.device.probe import gpu
from cache_engine.errors import GemmCacheError, NotHereError, PackUnusable
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.store.disk import open_store
from cache_engine.store.pack import Pack, find_packs
from cache_engine.units import counted, human_bytes

OK, NOTE, PROBLEM = "ok", "note", "problem"

_PACKAGES = ("cupy-cuda13x", "duckdb", "plotly", "portalocker", "streamlit")
# File systems on which locks between machines are best effort.
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "lustre", "gpfs", "beegfs", "ceph"})


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: its name, ``ok``, ``note`` or ``problem``, and what was seen."""

    name: str
    status: str
    detail: str


def examine(settings: Settings) -> list[Check]:
    """Everything worth knowing about this machine. Changes nothing, and needs no GPU."""
    checks = [Check("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")]
    checks += _packages()
    checks += _compilers()
    checks += _tools()
    device = gpu()
    if isinstance(device, DeviceFingerprint):
        checks.append(
            Check("gpu", OK, f"{device.name}, {device.arch}, {device.sms} SMs, driver for CUDA {device.driver}")
        )
        checks.append(_device_memory())
    else:
        checks.append(Check("gpu", NOTE, f"none: {device}. Everything but launching and timing works without one"))
    checks += _store(settings)
    checks += _packs(settings)
    return checks


def _device_memory() -> Check:
    try:
        free, total = free_and_total_bytes()
    except Exception as error:  # CuPy says in many ways that it cannot use a GPU
        return Check("device memory", PROBLEM, f"CuPy cannot use the GPU: {error}")
    return Check("device memory", OK, f"{human_bytes(free)} free of {human_bytes(total)}")


def _packages() -> Iterator[Check]:
    for name in _PACKAGES:
        try:
            yield Check(name, OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Check(name, PROBLEM, f"not installed; run: {sys.executable} -m pip install {name}")


def _compilers() -> Iterator[Check]:
    for name, compiler in COMPILERS.items():
        try:
            fingerprint = compiler.fingerprint()
            compiler.load()
            variables = f", environment {fingerprint.environment}" if fingerprint.environment else ""
            yield Check(name, OK, f"{fingerprint.version}, build {fingerprint.build}{variables}")
        except NotHereError as error:
            # What compiles unless another is asked for must be there.
            yield Check(name, PROBLEM if name == "nvrtc" else NOTE, str(error))


def _tools() -> Iterator[Check]:
    for name in ("cuobjdump", "nvdisasm"):
        try:
            yield Check(name, OK, str(find_tool(name, f"nvidia-cuda-{name}")))
        except NotHereError as error:
            yield Check(name, PROBLEM, str(error))


def _store(settings: Settings) -> Iterator[Check]:
    directory = settings.directory()
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        yield Check("store", NOTE, f"{directory} does not exist yet; it is made when first used")
        return
    try:
        layout = open_store(directory, trust=settings.trust_store, create=False)
    except GemmCacheError as error:
        yield Check("store", PROBLEM, str(error))
        return
    writable = os.access(layout.root, os.W_OK)
    yield Check("store", OK if writable else NOTE, f"{layout.root}{'' if writable else ', which cannot be written'}")
    kind = _file_system(layout.root)
    if kind in _NETWORK_FILE_SYSTEMS:
        yield Check("file system", NOTE, f"{kind}: locks between machines are best effort; a kernel may compile twice")
    else:
        yield Check("file system", OK, kind)
    free = shutil.disk_usage(layout.root).free
    enough = free > settings.max_bytes
    advice = "" if enough else f", less than the store may grow to ({human_bytes(settings.max_bytes)})"
    yield Check("free disk", OK if enough else NOTE, f"{human_bytes(free)}{advice}")


def _packs(settings: Settings) -> Iterator[Check]:
    for path in find_packs(settings.packs):
        try:
            pack = Pack(path, trust=settings.trust_store)
            yield Check("pack", OK, f"{path}, {counted(len(pack), 'kernel')}")
        except PackUnusable as error:
            yield Check("pack", PROBLEM, str(error))


def _file_system(path: Path) -> str:
    """The type of the file system that holds ``path``: that of the longest mount point above it."""
    best, kind = "", "unknown"
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            _, mount_point, file_system = line.split(maxsplit=3)[:3]
            if len(mount_point) >= len(best) and path.is_relative_to(mount_point):
                best, kind = mount_point, file_system
    return kind
