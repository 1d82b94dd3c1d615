"""Instructions of sm_90a as calls of ``hopper.py``.

Source: PTX ISA 9.2, 9.7.13.15 "mbarrier", 9.7.9.27 "cp.async.bulk.tensor" and "cp.async.bulk.wait_group", 9.7.15
"wgmma", 9.7.13.8 "elect.sync", 9.7.19.5 "setmaxnreg", 9.7.13.4 "fence.proxy.async" and "fence.mbarrier_init", and
those of ``clusters.py``.
"""

from __future__ import annotations

import re
from typing import Protocol

from tests.ptx import tiles
from tests.ptx.parse import Instruction, Operand, Program, PtxError, Tensor

_COPY = ("cp", "async", "bulk", "tensor")


class Operands(Protocol):
    """How operands are written in the code."""

    def value(self, operand: Operand, kind: str) -> str:
        """What is read."""
        ...

    def target(self, operand: Operand, kind: str) -> str:
        """What is written."""
        ...

    def group(self, operand: Operand, kind: str) -> str:
        """Several registers."""
        ...

    def address(self, operand: Operand, kind: str) -> str:
        """A base and an offset."""
        ...


def translated(instruction: Instruction, given: Operands) -> list[str] | None:
    """The code of an instruction; none where it is not one of these.

    Raises:
        PtxError: when it is one of these in a form that is not known.
    """
    opcode, operands = instruction.opcode, instruction.operands
    call: str | None = None
    match opcode:
        case ("fence", "proxy", "async", "shared::cta"):
            call = "fence("
        case (*copy, dimensions, "shared::cluster", "global", "mbarrier::complete_tx::bytes") if tuple(copy) == _COPY:
            call = _copy(instruction, dimensions, given)
        case (*copy, dimensions, "shared::cluster", "global", "mbarrier::complete_tx::bytes", "multicast::cluster") if (
            tuple(copy) == _COPY
        ):
            call = _copy(instruction, dimensions, given)
        case (*_, dimensions, "global", "shared::cta", "bulk_group") if opcode[:4] == _COPY:
            call = _store(instruction, dimensions, given)
        case ("cp", "async", "bulk", "commit_group"):
            call = "stores.commit("
        case ("cp", "async", "bulk", "wait_group", *reads) if reads in ([], ["read"]):
            call = f"stores.wait({int(str(operands[0]))}, {bool(reads)}"
        case ("elect", "sync") if operands[1] == "0xffffffff":
            call = f"elect({given.target(str(operands[0]).removeprefix('_|'), '?')}"
        case ("vote", "sync", "any", "pred"):
            asked, members = given.value(operands[1], "?"), given.value(operands[2], "u4")
            call = f"vote({given.target(operands[0], '?')}, X.each({asked}, M), X.each({members}, M)"
        case ("setmaxnreg", "inc" | "dec", "sync", "aligned", "u32"):
            registers = int(str(operands[0]))
            if registers % 8 or not 24 <= registers <= 256:
                raise PtxError(
                    f"line {instruction.line}: {instruction.text}: the count must be 24 to 256, a multiple of 8"
                )
            call = f"resize({registers}, {opcode[1] == 'inc'}"
        case ("wgmma", "fence" | "commit_group", "sync", "aligned"):
            call = "begin(" if opcode[1] == "fence" else "commit("
        case ("wgmma", "wait_group", "sync", "aligned"):
            call = f"wait_products({int(str(operands[0]))}"
        case ("wgmma", "mma_async", "sync", "aligned", *_):
            call = _product(instruction, given)
        case _:
            call = _of_barriers(instruction, given)
            if call is None and opcode[0] in ("mbarrier", "wgmma", "elect", "setmaxnreg", "vote", "mapa", "barrier"):
                raise _unknown(instruction)
    if call is None:
        return None
    lanes = "X.chosen(M)" if opcode[0] in ("mbarrier", "fence", "cp", "mapa", "barrier") else "X.warps(M)"
    separator = "" if call.endswith(("(", "=")) else ", "
    return [f"X.line = {instruction.line}", f"H.{call}{separator}{lanes})"]


def _of_barriers(instruction: Instruction, given: Operands) -> str | None:
    """Those of a block and of its cluster."""
    operands = instruction.operands
    match instruction.opcode:
        case ("mbarrier", "init", "shared::cta", "b64"):
            place, arrivals = given.address(operands[0], "u4"), given.value(operands[1], "u4")
            return f"initialise(X.at({place}, M), X.each({arrivals}, M)"
        case ("mbarrier", "arrive", "shared::cta", "b64") if operands[0] == "_":
            return f"arrive(X.at({given.address(operands[1], 'u4')}, M), X.each(0, M)"
        case ("mbarrier", "arrive", "expect_tx", "shared::cta", "b64") if operands[0] == "_":
            return f"arrive(X.at({given.address(operands[1], 'u4')}, M), X.each({given.value(operands[2], 'u4')}, M)"
        case ("mbarrier", "try_wait", "parity", "shared::cta", "b64") if instruction.guard is None:
            place, parity = given.address(operands[1], "u4"), given.value(operands[2], "u4")
            return f"wait({given.target(operands[0], '?')}, X.at({place}, M), X.each({parity}, M)"
        case ("mbarrier", "arrive", "shared::cluster", "b64") if operands[0] == "_":
            return f"arrive_afar(X.at({given.address(operands[1], 'u4')}, M)"
        case ("mapa", "shared::cluster", "u32"):
            place, rank = (f"X.each({given.value(one, 'u4')}, M)" for one in operands[1:])
            return f"map_address({given.target(operands[0], 'u4')}, {place}, {rank}"
        case ("barrier", "cluster", "arrive", *how) if how in (["release"], ["relaxed"]):
            return f"clusters.arrive(releases={how == ['release']}, lanes="
        case ("barrier", "cluster", "wait", "acquire") if instruction.guard is None:
            return "clusters.wait("
        case ("fence", "mbarrier_init", "release", "cluster"):
            return "announce("
    return None


def _copy(instruction: Instruction, dimensions: str, given: Operands) -> str:
    target, source, barrier, *masks = instruction.operands
    if len(masks) != instruction.opcode.count("multicast::cluster"):
        raise _unknown(instruction)
    tensor, first = _box(instruction, source, dimensions, given)
    places = [f"X.at({given.address(one, 'u4')}, M)" for one in (target, barrier)]
    mask = f"X.each({given.value(masks[0], 'u2')}, M)" if masks else "None"
    return f"copy({places[0]}, {tensor}, {first}, {places[1]}, {mask}"


def _store(instruction: Instruction, dimensions: str, given: Operands) -> str:
    target, source = instruction.operands
    tensor, first = _box(instruction, target, dimensions, given)
    return f"store(X.at({given.address(source, 'u4')}, M), {tensor}, {first}"


def _box(instruction: Instruction, tensor: Operand, dimensions: str, given: Operands) -> tuple[str, str]:
    """A tensor map's address, and where in the tensor a box begins."""
    if not isinstance(tensor, Tensor) or dimensions != f"{len(tensor.first)}d":
        raise _unknown(instruction)
    first = "".join(f"X.each({given.value(one, 'i4')}, M), " for one in tensor.first)
    return f"X.each({given.value(tensor.base, 'u8')}, M)", f"({first})"


def _product(instruction: Instruction, given: Operands) -> str:
    shape = re.fullmatch(r"m64n(\d+)(k\d+)", instruction.opcode[4])
    d, a, b, adds, *numbers = instruction.operands
    form = ".".join((shape[2], *instruction.opcode[5:])) if shape else ""
    # Signs of A and B, and where elements have 16 bits, which are stored across k.
    if form not in tiles.FORMS or [numbers[:2], len(numbers)] != [["1", "1"], 4 if tiles.FORMS[form][1] == 2 else 2]:
        raise _unknown(instruction)
    assert shape
    count = int(shape[1])
    if count % 8 or not 8 <= count <= 256 or not isinstance(d, tuple) or len(d) != count // 2:
        raise _unknown(instruction)
    across = tuple(one == "1" for one in numbers[2:]) or (False, False)
    matrices = ", ".join(f"X.each({given.value(one, 'u8')}, M)" for one in (a, b))
    return (
        f"multiply({form!r}, {count}, {given.group(d, 'f4')}, {matrices}, X.each({given.value(adds, '?')}, M), {across}"
    )


def sums_of(program: Program) -> frozenset[str]:
    """The registers that hold sums of ``wgmma``."""
    return frozenset(
        name
        for block in program.blocks
        for one in block.instructions
        if one.opcode[:2] == ("wgmma", "mma_async")
        for name in one.written
    )


def _unknown(instruction: Instruction) -> PtxError:
    return PtxError(f"line {instruction.line}: {instruction.text}: this instruction is not known")
