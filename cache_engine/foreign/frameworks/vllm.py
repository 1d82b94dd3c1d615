"""vLLM's compiled graphs: for each key and rank, the inputs of the key, the graph, and what was compiled of it.

Not made by us: vLLM needs a GPU to write one. Layout: ``vllm/compilation/backends.py``, which writes
``cache_key_factors.json``, and caches of vLLM 0.15 published in ``redhat-et/GKM`` under ``mcv/example``.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cache_engine.foreign.base import Surroundings
from cache_engine.foreign.facts import entry_of, factors_of, read_object, text_in, without_binary
from cache_engine.foreign.folder import Folder, Unread
from cache_engine.foreign.frameworks.common import files_below, folder_stamp, read_part, stray_file, times_of, walk
from cache_engine.foreign.frameworks.triton import AHEAD, vllm_places
from cache_engine.foreign.values import (
    DeletePlan,
    Entry,
    Factor,
    KeyFactors,
    Part,
    PartKind,
    Place,
    Seen,
    State,
    Unchanged,
    id_of,
    name_of,
)
from cache_engine.model.outcome import Failure

_FACTORS = "cache_key_factors.json"
_KEY, _RANK = r"[0-9a-f]{8,64}", r"rank_?\d+(_\d+)?"
_AREA = re.compile(rf"{_KEY}|{_KEY}/{_RANK}|{AHEAD}|{AHEAD}/{_KEY}")
_ENTRY = re.compile(rf"{_KEY}/{_RANK}/\w{{1,100}}|{AHEAD}/{_KEY}/{_RANK}")
# Places of their own: of Triton, and of Inductor.
_OTHERS = re.compile(rf"({AHEAD}/)?{_KEY}/({_RANK}/)?(triton_cache|inductor_cache)")
_RANKED = re.compile(rf"{_KEY}/{_RANK}/[^/]+")
_INDEX = "vllm_compile_cache.py"
_KINDS = {
    _FACTORS: PartKind.METADATA,
    "computation_graph.py": PartKind.SOURCE,
    "transformed_code.py": PartKind.SOURCE,
    _INDEX: PartKind.INDEX,
}
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_GROUPS = {"env": "environment", "config": "config", "compiler": "compiler", "code": "code"}


class VLLM:
    """The source ``vllm``."""

    kind = "vllm"
    title = "vLLM"
    unknowable: Mapping[str, str] = {
        **without_binary("an entry is a graph of many kernels; those of Triton are listed as Triton's"),
        "version": "vLLM does not store its version",
        "compile_ms": "vLLM does not store how long a compile took",
        "spill_bytes": "an entry is a graph of many kernels",
    }

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """Below ``VLLM_CACHE_ROOT``, or the user's caches."""
        return vllm_places(where)

    def scan(self, place: Place, known: Mapping[str, str]) -> Iterator[Seen]:
        """See ``Source.scan``."""
        return walk(place, known, _entry, lambda path: _AREA.fullmatch(path) is not None)

    def read(self, place: Place, entry: Entry, part: Part) -> bytes | Failure:
        """See ``Source.read``."""
        return read_part(place, part)

    def key_factors(self, place: Place, entry: Entry) -> KeyFactors | Failure:
        """Every input of the key: environment, config, compiler and code. Of a secret only its digest."""
        file = next((part.file for part in entry.parts if part.name == _FACTORS), None)
        if file is None:
            return Failure(f"the entry has no {_FACTORS}; vLLM before 0.10 and its ahead-of-time graphs have none")
        try:
            with Folder(place.path) as root:
                document = read_object(root, name_of(file))
        except (OSError, Unread) as error:
            return Failure(f"cannot read {file}: {error}")
        return factors_of(_factors(document))

    def plan_delete(self, place: Place, entries: Sequence[Entry]) -> DeletePlan | Failure:
        """None yet."""
        return Failure("no way to delete from vLLM's cache without a failure of its readers is known")


def _factors(document: Mapping[str, Any]) -> Iterator[Factor]:
    for name, value in document.items():
        group = _GROUPS.get(name, "digest")
        if isinstance(value, dict):
            for inner, said in value.items():
                yield Factor(inner, _shown(inner, said), group)
        elif isinstance(value, list):
            for number, said in enumerate(value):
                yield Factor(f"{name} {number}", _shown("", said), group)
        else:
            yield Factor(name, _shown("", value), group)


def _shown(name: str, value: object) -> str:
    """A value as text; the environment may hold keys of services, of which only a change is of interest."""
    text = "" if value is None else str(value)
    if text and _SECRET.search(name.upper()):
        return f"not shown ({hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]})"
    return text


def _entry(above: Folder, path: str, name: str, known: str | None) -> Entry | Unchanged | None:
    if _OTHERS.fullmatch(path):
        return None
    if _RANKED.fullmatch(path) and not stat.S_ISDIR(above.stat(name).st_mode):
        # Before there were names of parts of the model, the files were in the rank's folder.
        if name == _INDEX:
            return _read(above, path.rpartition("/")[0], known)
        if _INDEX in above.list().files:
            return None
    if not _ENTRY.fullmatch(path):
        return stray_file(above, name, path)
    with above.enter(name) as folder:
        return _read(folder, path, known)


def _read(folder: Folder, path: str, known: str | None) -> Entry | Unchanged:
    stamp = folder_stamp(folder)
    if stamp == known:
        return Unchanged(id_of(path))
    listing = folder.list()
    parts = [_part(path, file, status.st_size) for file, status in listing.files.items()]
    for inner in listing.folders:  # an artifact that is unpacked
        if _OTHERS.fullmatch(f"{path}/{inner}"):
            continue
        parts += _unpacked(folder, path, inner)
    facts, unread = _facts(folder, path, listing.files)
    created_at, last_used_at = times_of(next(iter(listing.files.values()), folder.status))
    facts |= {
        "id": id_of(path),
        "stamp": stamp,
        "parts": tuple(parts),
        "created_at": created_at,
        "last_used_at": last_used_at,
    }
    return entry_of(facts, unread)


def _facts(folder: Folder, path: str, files: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    rank = next(part for part in path.split("/") if re.fullmatch(_RANK, part))
    facts: dict[str, Any] = {"name": path.rpartition("/")[2], "config": {"rank": rank}}
    if _FACTORS not in files:
        is_ahead = path.startswith(f"{AHEAD}/")
        state = State.COMPLETE if is_ahead and "model" in files else State.PARTIAL
        return {**facts, "state": state}, {}
    try:
        document = read_object(folder, _FACTORS)
    except (FileNotFoundError, Unread) as error:
        return {**facts, "state": State.PARTIAL}, {"config": str(error)}
    digests = ("code_hash", "compiler_hash", "config_hash")
    facts["config"] |= {name: text[:12] for name in digests if (text := text_in(document, name))}
    return facts, {}


def _unpacked(folder: Folder, path: str, inner: str) -> list[Part]:
    """The files of an artifact, which is a folder of any depth."""
    try:
        with folder.enter(inner) as below:
            return [_part(f"{path}/{inner}", file, status.st_size) for file, status in files_below(below)]
    except FileNotFoundError:
        return []


def _part(path: str, file: str, size_bytes: int) -> Part:
    return Part(id_of(file), _KINDS.get(file, PartKind.OTHER), size_bytes, id_of(f"{path}/{file}"))
