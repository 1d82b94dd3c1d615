"""Triton's cache: a folder for each key, with the IRs, PTX, CUBIN and metadata of one kernel.

Source of the layout: ``triton/runtime/cache.py`` and ``triton/compiler/compiler.py`` of Triton 3.9.0. Inductor and vLLM
have the same folders within theirs.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.deletion import DELETED, state_of
from cache_engine.frameworks.facts import (
    chosen_in,
    code_facts,
    digest_of,
    factors_of,
    number_in,
    read_object,
    text_in,
    without_binary,
)
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, Folder, Listing, Unread
from cache_engine.frameworks.readers.reader import Known, Reader, made, stamp_of, stray_file, subfolders
from cache_engine.frameworks.values import (
    DeletePlan,
    Deletion,
    Entry,
    Factor,
    Fault,
    KeyFactors,
    Part,
    PartKind,
    Place,
    State,
    Unchanged,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure

# Base32 of a SHA-256; hexadecimal digits in versions before 3.0.
_KEY = re.compile(r"[A-Z2-7]{52}|[0-9a-f]{64}|[0-9a-f]{32}")
_GROUP = "__grp__"
_KINDS = {
    "source": PartKind.SOURCE,
    "ttir": PartKind.IR,
    "ttgir": PartKind.IR,
    "llir": PartKind.IR,
    "ptx": PartKind.PTX,
    "amdgcn": PartKind.PTX,
    "cubin": PartKind.BINARY,
    "hsaco": PartKind.BINARY,
    "json": PartKind.METADATA,
    "so": PartKind.HOST,
}
CHOSEN = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""The fields of a kernel's metadata that belong to its config."""
# In the metadata, but results of the compile, not inputs.
_RESULTS = frozenset(
    {"hash", "name", "shared", "tmem_size", "global_scratch_size", "global_scratch_align", "profile_scratch_size",
     "profile_scratch_align", "tensordesc_meta", "triton_version", "target"}
)  # fmt: skip
READ_WITHIN_S = 3.0
"""Seconds that Triton may take to read the files that a group file names; usually it takes milliseconds."""
BUILT_WITHIN_S = 600.0
"""Seconds. A folder that was written more recently may belong to a kernel that is still being compiled."""
_USES_WITHOUT_IRS = re.compile(r"3\.9\.\d")
"""The versions of Triton that use an entry whose group file names no IR, as tests have shown. Triton itself writes such
entries if ``TRITON_STORE_BINARY_ONLY`` is set.
"""
_HIDDEN = (
    "the build of Triton: its version is stored, and the key has a digest of its files",
    "the Python text of the kernel and of what it calls: stored is the IR that was made of it",
)


class Triton(Reader):
    """The reader of Triton's cache."""

    kind = "triton"
    title = "Triton"
    stores = ("version",)

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The user's cache of Triton, and Triton's caches inside those of Inductor and vLLM."""
        below = ".triton/cache"
        yield from where.places(self.kind, below, TRITON_CACHE_DIR="", TRITON_HOME=below)
        # Inductor sets the variable where it is not set, vLLM always.
        elsewhere = "TRITON_CACHE_DIR" if where.environment.get("TRITON_CACHE_DIR") else ""
        for place in inductor_places(where):
            replaced_by = "" if place.origin == "given" else place.replaced_by or elsewhere
            yield from self._below(place, "triton", "*", origin="Inductor", replaced_by=replaced_by)
        for place in vllm_places(where):
            # Keys of compiled graphs, each with its ranks. In that of graphs compiled ahead it leaves this to Inductor.
            ahead = "" if place.origin == "given" else place.replaced_by or elsewhere
            yield from self._below(place, "*", "rank*", "triton_cache", origin="vLLM", replaced_by=place.replaced_by)
            for pattern in INDUCTOR_IN_VLLM:
                replaced_by = ahead if pattern[0] == AHEAD else place.replaced_by
                yield from self._below(place, *pattern, "triton", "*", origin="vLLM", replaced_by=replaced_by)

    def _below(self, place: Place, *pattern: str, origin: str, replaced_by: str) -> Iterator[Place]:
        return (Place(self.kind, path, origin, replaced_by) for path in subfolders(place.path, *pattern))

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged:
        """The entry of a folder."""
        if known is not None and _is_same(above, path, known):
            return Unchanged(id_of(path))
        try:
            opened = above.enter(path)
        except Unread as error:
            if error.fault != Fault.NOT_A_FILE:
                raise
            return stray_file(above, path, path)
        with opened as folder:
            listing = folder.list()
            groups = [file for file in listing.files if file.startswith(_GROUP) and file.endswith(".json")]
            facts, unread = _facts(place.path / path, folder, listing, groups)
            facts |= {"parts": (*_parts(path, listing), *_temporaries(path, folder, listing))}
            times = listing.files[groups[0]] if groups else folder.status
            return made(path, _stamp(folder, listing, groups[0] if groups else ""), times, facts, unread)

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """The inputs of the key that the metadata state: options, target, environment variables and version."""
        metadata, source = entry.part(PartKind.METADATA), entry.part(PartKind.SOURCE)
        if metadata is None:
            return Failure("the entry has no metadata; Triton writes the inputs of a key there")
        document = read_object(root, name_of(metadata.file))
        return factors_in(document, root.read(name_of(source.file), MOST_BINARY_BYTES) if source else None)

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan that deletes the group file first: without that file, Triton compiles the kernel again."""
        return _plan(place, entries, _deletion)

    def plan_thinning(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """A plan that first replaces the group file by one without IRs.

        Triton reads the files that the group file names, and misses if one does not exist.
        """

        def thinning(root: Folder, entry: Entry, now: float) -> Deletion:
            return _thinning(place.path, root, entry, now)

        return _plan(place, entries, thinning)


def _plan(place: Place, entries: Sequence[Entry], deletion: Callable[[Folder, Entry, float], Deletion]) -> DeletePlan:
    deletions, left, now = [], {}, time.time()
    with Folder(place.path) as root:
        for entry in entries:
            try:
                deletions.append(deletion(root, entry, now))
            except FileNotFoundError:
                left[entry.id] = "it is gone"
            except Unread as error:
                left[entry.id] = error.detail
    return DeletePlan(tuple(deletions), READ_WITHIN_S, left)


AHEAD = "torch_aot_compile"
"""The folder of vLLM's graphs that are compiled ahead of time, as vLLM does by default since PyTorch 2.10."""
INDUCTOR_IN_VLLM = (
    ("*", "rank*", "inductor_cache"), (AHEAD, "*", "inductor_cache"), (AHEAD, "*", "rank*", "inductor_cache"),
)  # fmt: skip
"""The paths of Inductor's caches in vLLM's ``torch_compile_cache``, as patterns of the folders' names."""


def inductor_places(where: Surroundings) -> Iterator[Place]:
    """The directories of Inductor's caches, except those inside vLLM's."""
    default = where.temporary / f"torchinductor_{where.user}"
    return where.places("inductor", default, TORCHINDUCTOR_CACHE_DIR="")


def vllm_places(where: Surroundings) -> Iterator[Place]:
    """The directories of vLLM's compiled graphs."""
    below = "torch_compile_cache"
    return where.places("vllm", f".cache/vllm/{below}", VLLM_CACHE_ROOT=below, XDG_CACHE_HOME=f"vllm/{below}")


def _deletion(root: Folder, entry: Entry, now: float) -> Deletion:
    """The deletion of an entry; raises ``Unread`` if the entry must stay, ``FileNotFoundError`` if it was deleted."""
    name = name_of(entry.id)
    if not stat.S_ISDIR(root.stat(name).st_mode):
        raise Unread(Fault.NOT_A_FILE, "it is no folder of Triton's")
    if not _KEY.fullmatch(name) and not name.startswith(DELETED):
        raise Unread(Fault.NOT_A_FILE, "it is not named as Triton names a key")
    with root.enter(name) as folder:
        listing = folder.list()
        newest = max(status.st_mtime for status in (folder.status, *listing.files.values(), *listing.folders.values()))
    if newest > now - BUILT_WITHIN_S:
        raise Unread(
            Fault.LOCKED, f"it was written less than {BUILT_WITHIN_S / 60:g} minutes ago: it may still be in the making"
        )
    if any(file.endswith((".so", ".autotune.json")) for file in listing.files):
        raise Unread(
            Fault.LOCKED, "it is a library for the host, or results of tuning: Triton opens them without a group file"
        )
    groups = tuple(id_of(f"{name}/{file}") for file in listing.files if file.startswith(_GROUP))
    size = sum(status.st_size for status in listing.files.values())
    return Deletion(entry.id, groups, entry.id, size)


def _thinning(place: Path, root: Folder, entry: Entry, now: float) -> Deletion:
    """The deletion of an entry's IRs; raises ``Unread`` if they must stay, ``FileNotFoundError`` if they are gone."""
    with root.enter(name_of(entry.id)) as folder:
        state, files = state_of(folder), folder.list().files
        # After that look: what was written before it is found to be new here, what comes later changes the state.
        whole = _deletion(root, entry, now)
        if len(whole.first) != 1:
            raise Unread(Fault.PARTIAL, "it has no group file, or several")
        group = name_of(whole.first[0]).partition("/")[2]
        document = read_object(folder, group)
        stem = group.removeprefix(_GROUP).removesuffix(".json")
        version = text_in(read_object(folder, f"{stem}.json"), "triton_version") or ""
    if not _USES_WITHOUT_IRS.match(version):
        made_by = f"Triton {version}" if version else "the version of Triton that made it"
        raise Unread(Fault.PARTIAL, f"whether {made_by} uses it without its IRs is not known")
    children = document.get("child_paths")
    if _elsewhere(place / name_of(entry.id), children) is not None:
        raise Unread(Fault.PARTIAL, "its group file names files of another directory")
    if not isinstance(children, dict) or not {f"{stem}.json"} <= children.keys() <= files.keys():
        raise Unread(Fault.PARTIAL, "it is partial: Triton compiles this kernel again")
    kept = {file: path for file, path in children.items() if kind_of(file) != PartKind.IR}
    if not any(kind_of(file) == PartKind.BINARY for file in kept):
        raise Unread(Fault.PARTIAL, "it has no binary: Triton cannot use it without its IRs")
    # Those that no group names too, and what a killed run left: both are of use to no process.
    parts = {file: status for file, status in files.items() if kind_of(file) == PartKind.IR or file.startswith(DELETED)}
    if not parts:
        raise Unread(Fault.PARTIAL, "it has no IRs")
    rewritten = None
    if kept != children:
        rewritten = id_of(group), msgspec.json.encode(document | {"child_paths": kept})
    size = sum(status.st_size for status in parts.values())
    return Deletion(entry.id, (), entry.id, size, tuple(map(id_of, parts)), rewritten, state)


def kind_of(file: str) -> PartKind:
    """The purpose of an entry's file, by its name."""
    return _KINDS.get(file.rpartition(".")[2], PartKind.OTHER)


def _stamp(folder: Folder, listing: Listing, group: str) -> str:
    """A stamp of the folder and of its group file, by name and status: each file that Triton adds changes it."""
    of_group = stamp_of(listing.files[group]) if group else ""
    return f"{stamp_of(folder.status)} {of_group} {id_of(group)}"


def _is_same(root: Folder, name: str, known: str) -> bool:
    of_folder, _, rest = known.partition(" ")
    of_group, _, group = rest.partition(" ")
    try:
        if stamp_of(root.stat(name)) != of_folder:
            return False
        return not group or stamp_of(root.stat_below(name, name_of(group))) == of_group
    except OSError:
        return False


def _parts(name: str, listing: Listing) -> Iterator[Part]:
    above = id_of(f"{name}/")
    for file, status in listing.files.items():
        shown = id_of(file)
        label = shown.rpartition(".")[2]
        kind = _KINDS.get(label, PartKind.OTHER)
        if file.startswith(_GROUP):
            kind, label = PartKind.INDEX, "group"
        yield Part(label, kind, status.st_size, above + shown)


def _temporaries(name: str, folder: Folder, listing: Listing) -> Iterator[Part]:
    for inner in listing.folders:
        try:
            with folder.enter(inner) as below:
                for file, status in below.list().files.items():
                    yield Part(id_of(inner), PartKind.TEMPORARY, status.st_size, id_of(f"{name}/{inner}/{file}"))
        except (FileNotFoundError, Unread):
            continue


def _facts(path: Path, folder: Folder, listing: Listing, groups: Sequence[str]) -> Known:
    """The facts about an entry, without its files and times; and for each unknown fact, the reason in words."""
    if not _KEY.fullmatch(path.name):
        return {"state": State.UNREAD}, {"name": "it is not named as Triton names a key"}
    if groups:
        return _kernel(path, folder, listing, groups[0])
    others = [file for file in listing.files if file.endswith((".so", ".autotune.json"))]
    if others:  # a library for the host, or results of tuning
        return {"name": id_of(others[0])}, without_binary("it is no kernel")
    return {"state": State.PARTIAL}, {"name": "it has no group file: Triton compiles this kernel again"}


def _kernel(path: Path, folder: Folder, listing: Listing, group: str) -> Known:
    """The facts about a kernel whose group file exists."""
    stem = group.removeprefix(_GROUP).removesuffix(".json")
    state, unread = State.COMPLETE, {}
    document: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    elsewhere = None
    try:
        children = read_object(folder, group).get("child_paths")
        elsewhere = _elsewhere(path, children)
        if not isinstance(children, dict) or not children.keys() <= listing.files.keys():
            state = State.PARTIAL
        document = read_object(folder, f"{stem}.json")
    except (FileNotFoundError, Unread) as error:
        state = State.PARTIAL
        unread = dict.fromkeys(("version", "config"), str(error))
    binary = f"{stem}.cubin"
    if binary in listing.files:
        facts, why = code_facts(folder, binary)
    else:
        why = without_binary("the entry has no CUBIN")
    if (shared := number_in(document, "shared")) is not None:
        facts["shared_bytes"] = shared  # of the launch; the CUBIN knows only what is static
    facts |= {
        "state": state,
        "name": text_in(document, "name") or id_of(stem),
        "version": text_in(document, "triton_version"),
        "arch": facts.get("arch") or target_of(document),
        "config": chosen_in(document, *CHOSEN),
        "elsewhere": elsewhere,
    }
    return facts, {"version": "this version of Triton does not store its version", **why, **unread}


def _elsewhere(here: Path, children: object) -> str | None:
    """The first path in a group file that leads to another folder, where Triton then reads; ``None`` if none does."""
    if not isinstance(children, dict):
        return None
    folder = str(here)
    for name, path in children.items():
        if path == f"{folder}/{name}":
            continue
        if not isinstance(path, str) or "\0" in path:
            return id_of(str(path)[:200])
        above = os.path.dirname(path)
        # One of the two may be named by a link. That is rare, and following it takes a hundred times as long.
        if above != folder and os.path.realpath(above) != os.path.realpath(folder):
            return id_of(path[:200])
    return None


def factors_in(document: Mapping[str, Any], source: bytes | None) -> KeyFactors:
    """The inputs of a key that a kernel's metadata and stored source state."""
    factors = [] if source is None else [Factor("source", digest_of(source), "kernel")]
    factors.append(Factor("triton_version", str(document.get("triton_version", "")), "version"))
    target = document.get("target")
    fields = target.items() if isinstance(target, dict) else [("target", target)]
    factors += [Factor(str(name), str(value), "target") for name, value in fields]
    for name, value in document.items():
        if name not in _RESULTS:
            factors.append(Factor(name, str(value), "environment" if name.isupper() else "option"))
    return factors_of(factors, _HIDDEN)


def target_of(document: Mapping[str, Any]) -> str | None:
    """The target that a kernel's metadata state."""
    target = document.get("target")
    arch = target.get("arch") if isinstance(target, dict) else None
    if isinstance(arch, int) and 0 < arch < 10_000:
        return f"sm_{arch}"
    return text_in({"arch": arch}, "arch")
