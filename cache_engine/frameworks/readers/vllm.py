"""Reads vLLM's compiled graphs: for each key and rank, the inputs of the key, the graph, and the code compiled from it.

Not tested on a cache made here, because vLLM needs a GPU to write one. Layout: ``vllm/compilation/backends.py``, which
writes ``cache_key_factors.json``, and caches of vLLM 0.15 published in ``redhat-et/GKM`` under ``mcv/example``.
"""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cache_engine.frameworks.base import Surroundings
from cache_engine.frameworks.facts import factors_of, read_object, text_in, without_binary
from cache_engine.frameworks.folder import Folder, Listing, Unread
from cache_engine.frameworks.readers.reader import Known, Match, Reader, Timed, files_below, part_named, stamp_of
from cache_engine.frameworks.readers.triton import AHEAD, vllm_places
from cache_engine.frameworks.values import Entry, Factor, KeyFactors, Part, PartKind, Place, State, Unchanged, name_of
from cache_engine.model.outcome import Failure

_FACTORS = "cache_key_factors.json"
_KEY, _RANK = r"[0-9a-f]{8,64}", r"rank_?\d+(_\d+)?"
# Places of their own: of Triton, and of Inductor.
_OTHERS = re.compile(rf"({AHEAD}/)?{_KEY}/({_RANK}/)?(triton_cache|inductor_cache)")
_RANKED = re.compile(rf"{_KEY}/{_RANK}/[^/]+")
_INDEX = "vllm_compile_cache.py"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|(^|_)(PASS|AUTH|PWD)(_|$)")
_PASSWORD = re.compile(r"://[^/?#\s@:]*:[^/?#\s@]*@")
"""A pattern for the password in an address such as ``http://user:password@proxy``."""
_GROUPS = {"env": "environment", "config": "config", "compiler": "compiler", "code": "code"}


class VLLM(Reader):
    """The reader of vLLM's cache."""

    kind = "vllm"
    title = "vLLM"
    areas = re.compile(rf"{_KEY}|{_KEY}/{_RANK}|{AHEAD}|{AHEAD}/{_KEY}")
    entries = re.compile(rf"{_KEY}/{_RANK}/\w{{1,100}}|{AHEAD}/{_KEY}/{_RANK}")
    kinds: Mapping[str, PartKind] = {
        _FACTORS: PartKind.METADATA, "computation_graph.py": PartKind.SOURCE, "transformed_code.py": PartKind.SOURCE,
        _INDEX: PartKind.INDEX,
    }  # fmt: skip
    unknown: Mapping[str, str] = {
        **without_binary("an entry is a graph of many kernels; those of Triton are listed as Triton's"),
        "spill_bytes": "an entry is a graph of many kernels",
    }

    def discover(self, where: Surroundings) -> Iterable[Place]:
        """The caches below ``VLLM_CACHE_ROOT``, or in the user's cache directory."""
        return vllm_places(where)

    def entry(self, place: Place, above: Folder, path: str, known: str | None) -> Entry | Unchanged | None:
        """The entry of a folder: the compiled graphs of one part of the model, or of one rank."""
        if _OTHERS.fullmatch(path):
            return None
        rank, _, name = path.rpartition("/")
        if _RANKED.fullmatch(path) and not stat.S_ISDIR(above.stat(name).st_mode):
            # Before there were names of parts of the model, the files were in the rank's folder.
            if name == _INDEX:
                return self.folder_entry(above, rank, stamp_of(above.status))
            if _INDEX in above.list().files:
                return None
        return super().entry(place, above, path, known)

    def facts(self, folder: Folder, path: str, listing: Listing, found: Match) -> Timed:
        """The facts that the key's inputs state, and the entry's parts, including the files of unpacked artifacts."""
        facts, unread = _facts(folder, path, listing.files)
        parts = [*self.parts(path, listing)]
        for inner in listing.folders:
            if not _OTHERS.fullmatch(f"{path}/{inner}"):
                parts += self._unpacked(folder, f"{path}/{inner}", inner)
        return next(iter(listing.files.values()), None), {**facts, "parts": tuple(parts)}, unread

    def _unpacked(self, folder: Folder, path: str, inner: str) -> list[Part]:
        """The files of an artifact, which is a folder of any depth."""
        try:
            with folder.enter(inner) as below:
                return [self.part(path, file, status.st_size) for file, status in files_below(below)]
        except FileNotFoundError:
            return []

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """All inputs of the key: environment, config, compiler and code. A secret is shown only by its digest."""
        part = part_named(entry, _FACTORS)
        if part is None:
            return Failure(f"the entry has no {_FACTORS}; vLLM before 0.10 and its ahead-of-time graphs have none")
        return factors_of(_factors(read_object(root, name_of(part.file))))


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


def is_secret(variable: str, value: object) -> bool:
    """Whether a variable's name is that of a secret, or its value contains an address with a password."""
    return _SECRET.search(variable.upper()) is not None or _PASSWORD.search(str(value)) is not None


def _shown(name: str, value: object) -> str:
    """The value of an input as text; a secret value, such as a variable with a password, is replaced by its digest."""
    text = "" if value is None else str(value)
    if text and is_secret(name, value):
        return f"not shown ({hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]})"
    return text


def _facts(folder: Folder, path: str, files: Mapping[str, object]) -> Known:
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
