"""What it tells that an input of a key differs: known reasons why caches miss, and what to do about each. Pure.

From what users of these caches reported: vllm-project/vllm#47573, flashinfer-ai/flashinfer#4884,
ai-dynamo/dynamo#10695.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_UPGRADE = "another version: after an upgrade every kernel is compiled again"
_PATH = (
    "an absolute path: the cache hits only where the directory has the same name; mount it under one name everywhere"
)
_RULES: tuple[tuple[Callable[[str, str], bool], str], ...] = (
    (
        lambda group, name: group == "environment" and bool(re.search(r"(^|_)PORTS?(_|$)", name)),
        "a port of the network, which may be new at each start: fix it, or unset it before the framework starts",
    ),
    (
        lambda _, name: bool(re.search(r"(^|_)(RANK|LOCAL_RANK|NODE_RANK|DEVICE_INDEX|WORLD_SIZE)$", name.upper())),
        "the number of this process among others: each of them has kernels of its own",
    ),
    (
        lambda group, name: group == "environment" and bool(re.search(r"HOST(NAME)?(_|$)|_IP$|_ADDR(ESS)?$", name)),
        "an address or name of a machine: set it alike everywhere, or unset it before the framework starts",
    ),
    (
        lambda group, name: group == "environment" and name in ("HOME", "USER", "LOGNAME", "PWD", "TMPDIR"),
        "differs from user to user, or from directory to directory: set it alike for all that share the cache",
    ),
    (
        lambda _, name: bool(re.search(r"mtime|timestamp", name.lower())),
        "a time of modification: copies and shared storage give files another; copy with the times (rsync -t, cp -p)",
    ),
    (lambda group, name: "version" in f"{group} {name}".lower(), _UPGRADE),
    (lambda group, name: "compiler" in f"{group} {name}".lower(), "another compiler, or one with other options"),
    (lambda group, _: group == "target", "another GPU: its kernels are compiled apart"),
    (lambda group, name: group == "kernel" and name == "source", "the code of the kernel was changed"),
    (
        lambda group, name: "code" in f"{group} {name}".lower(),
        "the code of model or framework was changed",
    ),
    (
        lambda group, _: group == "environment",
        "a variable of the environment: set it alike, or not at all, wherever the cache is used",
    ),
)
_ABSOLUTE = re.compile(r"(?:^|[\s:=,'\"]|-[IL])/[\w.-]++/[\w.-]")


def meaning_of(group: str, name: str, one: str | None, other: str | None) -> str:
    """What it tells that this input is ``one`` here and ``other`` there, and the cure; empty where nothing is known."""
    for applies, meaning in _RULES[:-1]:
        if applies(group, name):
            return meaning
    values = [value for value in (one, other) if value]
    if values and all(_ABSOLUTE.search(value) for value in values):
        return _PATH
    applies, meaning = _RULES[-1]
    return meaning if applies(group, name) else ""
