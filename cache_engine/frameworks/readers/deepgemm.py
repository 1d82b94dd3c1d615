"""DeepGEMM's cache: a folder for each kernel, with a source that instantiates a template, and its CUBIN.

Sources, of https://github.com/deepseek-ai/DeepGEMM, version 2: ``csrc/jit/compiler.hpp`` (commit 06a6ae2) for the names
of folders and files, ``csrc/jit/kernel_runtime.hpp`` (16202f6) for the files that must exist, and the templates of
``csrc/jit_kernels/impls`` (0fcd03c, 1fab197, 057ca59) for the order of their parameters. Not tested on a cache that
DeepGEMM made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cache_engine.frameworks.facts import digest_of, factors_of, image_facts, kernels_in, without_binary
from cache_engine.frameworks.folder import MOST_BINARY_BYTES, MOST_TEXT_BYTES, Folder, Listing, Unread
from cache_engine.frameworks.readers.reader import Known, Match, NoEntry, Reader, Timed
from cache_engine.frameworks.values import Entry, Factor, KeyFactors, PartKind, State, Value, id_of, name_of
from cache_engine.model.outcome import Failure

_SOURCE, _BINARY, _VERSION_1 = "kernel.cu", "kernel.cubin", "kernel.so"
# No match runs past the start of the next one, so the time for a hostile text is linear in its length.
_INSTANCE = re.compile(rb"reinterpret_cast<void\*>\(&(\w{1,200})<([^&(){};]{1,4000})>\)")
_INCLUDES = re.compile(rb"// Includes' hash value: ([0-9a-f]{1,64})\n")
_ARGUMENT = re.compile(r"(?:[^,<>]++|<[^<>]*+>)++")
_MAJOR = re.compile(r"cute::\w+::Major::\w+")
_SIZE = re.compile(r"\d{1,10}")
_LENGTH = re.compile(r"\d{1,4}")
_MOST_LETTERS = 200
_GEMM_TYPE = "GemmType::"

_SM90 = ("m", "n", "k", "groups", "block_m", "block_n", "block_k")
_SM100 = ("m", "n", "k", "block_m", "block_n", "block_k", "groups")
_TEMPLATES = {
    "sm90_fp8_gemm_1d2d_impl": (_SM90, (13, 14, 15)),
    "sm90_fp8_gemm_1d1d_impl": (_SM90, (13,)),
    "sm90_bf16_gemm_impl": (_SM90, (13, 14)),
    "sm100_fp8_gemm_1d1d_impl": (_SM100, (14, 15)),
    "sm100_bf16_gemm_impl": (_SM100, (14, 15)),
}
"""For each template: names for the first numbers in its row of number arguments, and the lengths that the row may have.
The row follows the arguments with the operands' major dimensions. Releases differ after the row's first seven numbers;
if the row has another length, no number gets a name.
"""


class DeepGemm(Reader):
    """The reader of DeepGEMM's cache.

    No safe way to delete is known: DeepGEMM ends its process if a folder lacks one of the two files.
    """

    kind = "deepgemm"
    title = "DeepGEMM"
    default = ".deep_gemm"
    variables: Mapping[str, str] = {"DG_JIT_CACHE_DIR": ""}
    areas = re.compile("cache|tmp")
    entries = re.compile(r"cache/kernel\.(.+)\.[0-9a-f]{8,64}")
    kinds: Mapping[str, PartKind] = {
        _SOURCE: PartKind.SOURCE, _BINARY: PartKind.BINARY, "kernel.ptx": PartKind.PTX,
    }  # fmt: skip

    def facts(self, folder: Folder, path: str, listing: Listing, found: Match) -> Timed:
        """The facts in the source and in the CUBIN."""
        if _VERSION_1 in listing.files:
            raise NoEntry("DeepGEMM 1 made it: a library for the host, which is not opened")
        facts, unread = _facts(folder)
        return listing.files.get(_BINARY), {**facts, "name": id_of(found[1]) if found else None}, unread

    def factors(self, root: Folder, entry: Entry) -> KeyFactors | Failure:
        """The inputs of the key: the name, the template's arguments, and digests of the source and its headers."""
        part = entry.part(PartKind.SOURCE)
        if part is None:
            return Failure(f"it has no {_SOURCE}, which has the arguments of the template")
        text = root.read(name_of(part.file), MOST_TEXT_BYTES)
        factors = [Factor("name", entry.name, "name")] if entry.name else []
        if includes := _INCLUDES.match(text):
            factors.append(Factor("headers", includes[1].decode(), "digest"))
        template, arguments = _instance(text)
        if template:
            factors.append(Factor("template", template, "template"))
        names = _names(template, arguments)
        factors += [
            Factor(names.get(at, f"argument {at + 1}"), argument, "template") for at, argument in enumerate(arguments)
        ]
        factors.append(Factor(_SOURCE, digest_of(text), "digest"))
        return factors_of(factors, ("the compiler, its version and its flags",))


def _facts(folder: Folder) -> Known:
    """The facts in the source and the CUBIN. DeepGEMM needs both files to exist, but reads only the CUBIN."""
    state = State.COMPLETE
    config: dict[str, Value] = {}
    try:
        config = _config(folder.read(_SOURCE, MOST_TEXT_BYTES))
    except (FileNotFoundError, Unread):
        state = State.PARTIAL
    try:
        image = folder.read(_BINARY, MOST_BINARY_BYTES)
    except FileNotFoundError:
        return {"state": State.PARTIAL, "config": config}, without_binary(f"it has no {_BINARY}")
    except Unread as error:
        return {"state": State.PARTIAL, "config": config}, without_binary(f"{_BINARY}: {error}")
    facts, unread = image_facts(image, _BINARY)
    if functions := kernels_in(image):
        config |= {"function": id_of(_plain(functions[0]))}
    return {**facts, "state": state, "config": config}, unread


def _plain(function: str) -> str:
    """The last name in a mangled function name. The Itanium C++ ABI writes each name as its length and its text."""
    at, found = (3 if function.startswith("_ZN") else 2), ""
    while function.startswith("_Z") and (length := _LENGTH.match(function, at)):
        at = length.end() + int(length[0])
        found = function[length.end() : at]
    return (found or function)[:_MOST_LETTERS]


def _config(text: bytes) -> dict[str, Value]:
    """The sizes and tiles that are compiled in. A size of 0 is left out, because it is an argument of each launch."""
    template, arguments = _instance(text)
    sizes = {name: int(arguments[at]) for at, name in _names(template, arguments).items()}
    config: dict[str, Value] = {name: size for name, size in sizes.items() if size}
    if sizes:
        kind = next((each.removeprefix(_GEMM_TYPE) for each in arguments if each.startswith(_GEMM_TYPE)), "")
        config |= {"type": kind} if kind else {}
    return config


def _instance(text: bytes) -> tuple[str, list[str]]:
    """The template that the source instantiates, and its arguments; both are empty if it instantiates none."""
    found = _INSTANCE.search(text)
    if found is None:
        return "", []
    arguments = _ARGUMENT.findall(found[2].decode("utf-8", "replace"))
    return found[1].decode(), [id_of(" ".join(argument.split())) for argument in arguments]


def _names(template: str, arguments: Sequence[str]) -> dict[int, str]:
    """The names of template arguments, by position, if they are known."""
    names, counts = _TEMPLATES.get(template, ((), ()))
    first = next((at for at, each in enumerate(arguments) if not _MAJOR.fullmatch(each)), 0)
    after = next((at for at in range(first, len(arguments)) if not _SIZE.fullmatch(arguments[at])), first)
    return {first + at: name for at, name in enumerate(names)} if after - first in counts else {}
