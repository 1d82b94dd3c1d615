"""Checks whether the cache in an image would be hit on this machine: its targets, versions, paths and key factors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cache_engine.frameworks.images import HIDDEN, TRITON, Image, extract_image
from cache_engine.frameworks.readers.triton import Triton
from cache_engine.frameworks.readers.vllm import is_secret
from cache_engine.frameworks.registry import installed_version, is_stale
from cache_engine.frameworks.values import Entry, Place

_MOST_NAMED = 5


def check_image(folder: Path, targets: Sequence[str], environment: Mapping[str, str]) -> tuple[Image, list[str]]:
    """The image, and the reasons why its cache would miss here; no reasons if none is known.

    Args:
        folder: the OCI image layout.
        targets: the targets that the server will need, such as ``sm_90a``.
        environment: the environment variables of the server that will mount the image.

    Raises:
        PackUnusable: when ``folder`` is not such an image, or is damaged.
        OSError: when there is no space to unpack the image.
    """
    with tempfile.TemporaryDirectory() as temporary:
        image = extract_image(folder, Path(temporary) / "image")
        reasons = list(_of_targets(image, targets))
        if image.kind == TRITON:
            seen = Triton().scan(Place(TRITON, Path(temporary) / "image", "given"), {})
            reasons += _of_triton([one for one in seen if isinstance(one, Entry)], environment)
        else:
            reasons += _of_vllm(image, environment)
    return image, reasons


def _of_targets(image: Image, targets: Sequence[str]) -> Iterator[str]:
    for target in targets:
        if target.removeprefix("sm_").rstrip("af") not in image.targets:
            has = ", ".join(f"sm_{one}" for one in image.targets) or "no target"
            yield f"target: it has {has}, and {target} is asked for"


def _of_triton(entries: Sequence[Entry], environment: Mapping[str, str]) -> Iterator[str]:
    here = environment.get("TRITON_CACHE_DIR") or os.path.join(
        environment.get("TRITON_HOME") or environment.get("HOME") or os.path.expanduser("~"), ".triton", "cache"
    )
    made_for = {os.path.dirname(os.path.dirname(one.elsewhere)) for one in entries if one.elsewhere}
    for path in sorted(made_for - {here}):
        yield f"path: its group files name {path}, and Triton looks in {here}; set TRITON_CACHE_DIR, or export for it"
    installed = installed_version(TRITON)
    versions = {one.version for one in entries if one.version and is_stale(one.version, installed)}
    if versions:
        yield f"version: Triton {', '.join(sorted(versions))} made it, and {installed} is installed here"


def _of_vllm(image: Image, environment: Mapping[str, str]) -> Iterator[str]:
    """Yields a text for each environment variable in vLLM's keys that has another value here."""
    home = environment.get("HOME") or os.path.expanduser("~")
    differ: dict[str, tuple[str, str]] = {}
    for graph in image.manifest.get("vllm", ()):
        for row in graph.get("binary", ()) if isinstance(graph, dict) else ():
            factors = row.get("env") if isinstance(row, dict) else None
            for variable, value in factors.items() if isinstance(factors, dict) else ():
                here = environment.get(variable)
                # Nothing of a secret is shown, least of all the one of this machine; a hidden one says nothing.
                if value == HIDDEN or is_secret(variable, value) or (here is not None and is_secret(variable, here)):
                    continue
                if here is not None and here != str(value):
                    differ[variable] = (str(value), here)
                elif isinstance(value, str) and (below := _below_home(value)) and value != os.path.join(home, below):
                    differ[variable] = (value, os.path.join(home, below))
    for variable, (there, here) in sorted(differ.items())[:_MOST_NAMED]:
        yield f"{variable}: {there} there, {here} here; vLLM has it in the key"
    if len(differ) > _MOST_NAMED:
        yield f"{len(differ) - _MOST_NAMED} more variables differ"


def _below_home(path: str) -> str:
    """The part of a path below the home directory, if the path is a usual place of settings or caches; else empty."""
    for folder in ("/.config/", "/.cache/"):
        home, found, rest = path.partition(folder)
        if found and home:
            return f"{folder}{rest}"[1:]
    return ""
