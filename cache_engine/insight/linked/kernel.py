"""The linked code of a kernel in a store.

A store's CUBINs have no line tables. So a kernel is compiled once more, with them, to look at it. They hold for
the stored kernel where the machine code is the same, byte by byte: docs/decisions/0016-lines-on-request.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from cache_engine.compilers.base import Compiled
from cache_engine.compilers.elf import code_of
from cache_engine.errors import GemmCacheError
from cache_engine.insight.linked.irs import LLIR, TTGIR, TTIR, read_llvm, read_mlir
from cache_engine.insight.linked.panes import SOURCE, Linked, Text, lines_of, linked
from cache_engine.insight.linked.ptx import instructions, read_ptx
from cache_engine.insight.linked.sass import read_sass
from cache_engine.model.artifact import CUBIN, Record
from cache_engine.model.outcome import Failure

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache

_IRS = {"ttir": TTIR, "ttgir": TTGIR, "llir": LLIR}


def linked_code(cache: Cache, record: Record) -> Linked:
    """Source, IRs, PTX and machine code of a kernel, linked where its toolchain and template are installed here.

    Takes as long as compiling and disassembling do: half a second to a few seconds.

    Raises:
        CorruptEntry, StoreError: when the entry cannot be read.
    """
    source, cubin = cache.text(record, "source"), cache.section(record, CUBIN)
    language = "python" if record.compiler == "triton" else "cuda"
    texts = [Text(SOURCE, language, lines_of(source))]
    notes = []
    with ThreadPoolExecutor(1) as other:
        counted = other.submit(registers_of, cubin)
        with_lines = _compiled_again(cache, record, source, cubin)
    if isinstance(with_lines, Failure):
        notes.append(f"Lines are not linked: {with_lines}")
        ptx, lines = read_ptx(cache.text(record, "ptx"))
    else:
        texts += irs_of(with_lines.irs)
        ptx, lines = read_ptx(with_lines.ptx.decode("utf-8", "replace"))
        if instructions(ptx.lines) != instructions(read_ptx(cache.text(record, "ptx"))[0].lines):
            notes.append("The PTX is that of compiling again here; the stored PTX differs, the machine code does not.")
        cubin = with_lines.cubin
    texts.append(ptx)
    code = disassembled(cubin, lines, counted.result())
    if isinstance(code, Failure):
        notes.append(f"Machine code is not shown: {code}")
    else:
        texts.append(code)
        if not code.registers:
            notes.append("This nvdisasm does not say which registers are in use.")
    return linked(texts, notes)


def irs_of(irs: tuple[tuple[str, str], ...]) -> list[Text]:
    """Triton's IRs, in the order in which it makes them."""
    found = dict(irs)
    return [
        read_llvm(found[kind]) if kind == "llir" else read_mlir(name, found[kind])
        for kind, name in _IRS.items()
        if kind in found
    ]


def disassembled(cubin: bytes, ptx_lines: Sequence[int], registers: str) -> Text | Failure:
    """The machine code of a CUBIN, linked as far as it states lines.

    Args:
        ptx_lines: of ``read_ptx`` on the PTX that it was made of.
        registers: of ``registers_of`` on the same machine code.
    """
    from cache_engine.compilers.inspect import linked_sass

    try:
        return read_sass(linked_sass(cubin), registers, ptx_lines)
    except GemmCacheError as error:
        return Failure(str(error))


def registers_of(cubin: bytes) -> str:
    """The registers in use, as nvdisasm prints them; nothing where it cannot."""
    from cache_engine.compilers.inspect import live_registers

    try:
        return live_registers(cubin)
    except GemmCacheError:
        return ""


def _compiled_again(cache: Cache, record: Record, source: str, cubin: bytes) -> Compiled | Failure:
    """The kernel with its lines; a failure where nothing here makes the same machine code of it."""
    from cache_engine.kernels.source import render

    try:
        found = cache.select(
            record.problem.on(record.arch), family=record.family, compiler=record.compiler, config=record.config
        )
        # Compiled is only what our own template makes: a store, or a pack from elsewhere, could hold any text.
        if render(found.family.template, found.constants) != source:
            return Failure("this version of gemm-cache makes another source of it. Compile it again to see its lines.")
        compiled = found.compiler.with_lines().compile(source, record.arch)
        if code_of(compiled.cubin) == code_of(cubin):
            return compiled
    except (GemmCacheError, ValueError) as error:
        return Failure(f"it cannot be compiled here ({error}).")
    here = found.compiler.fingerprint()
    return Failure(
        f"{here.compiler} {here.version} makes other machine code than {record.compiler_version} did. "
        f"Install that version, or compile the kernel again."
    )
