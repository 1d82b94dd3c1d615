"""PTX text as basic blocks of instructions. It reads what NVRTC makes of this project's kernels, and refuses the rest.

Source: PTX ISA 9.2, chapters 4 "Syntax" and 5 "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.ptx.tables import SPECIAL

_STATEMENT = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_SCOPE = re.compile(r"\{\s*\.reg\s+\.pred\s+(\w+)\s*;(.*?;)\s*\}", re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(%[a-z]+)<(\d+)>")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+64\s+)?\.(\w+)\s+"
    r"(?:\.ptr\s+(?:\.(?:global|shared)\s+)?(?:\.align\s+\d+\s+)?)?(\w+)(\[128\])?"
)
_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)(.*?)\{(.*)\}", re.DOTALL)
_SHARED = re.compile(r"\.extern\s+\.shared\s+\.align\s+(\d+)\s+\.b8\s+(\w+)\[\]")
_STORES = ("st", "cp", "bar", "membar", "fence", "bra", "ret", "red", "setmaxnreg", "barrier")
_STORES_ALSO = (("mbarrier", "init"), ("wgmma", "fence"), ("wgmma", "commit_group"), ("wgmma", "wait_group"))
_OF_HOPPER = {("mbarrier",), ("wgmma",), ("elect",), ("setmaxnreg",), ("cp", "bulk"), ("barrier",), ("mapa",)}


class PtxError(Exception):
    """The text is not PTX, or more of it than is known here."""


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]``."""

    base: str
    offset: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """``[base, {x, y}]``: an element of a tensor."""

    base: str
    first: tuple[str, ...]


Operand = str | Address | Tensor | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        opcode: in its parts: ``("add", "s32")``.
        guard: the predicate that it is executed under, and whether it must be false.
        line: of the text, from 1.
    """

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None
    line: int
    text: str

    @property
    def written(self) -> tuple[str, ...]:
        """The registers that it writes."""
        if self._only_reads:
            return ()
        first = self.operands[0]
        return first if isinstance(first, tuple) else (str(first).removeprefix("_|"),)

    @property
    def read(self) -> Iterator[str]:
        """The registers that it reads."""
        if self.guard is not None:
            yield self.guard[0]
        for operand in self.operands[0 if self._only_reads else 1 :]:
            for text in _names(operand):
                if text.startswith("%") and text not in SPECIAL:
                    yield text

    @property
    def _only_reads(self) -> bool:
        return self.opcode[0] in _STORES or self.opcode[:2] in _STORES_ALSO


@dataclass(slots=True)
class Block:
    """Instructions that are executed one after the other; control leaves after the last one alone."""

    label: str | None
    instructions: list[Instruction] = field(default_factory=list)
    following: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel.

    Attributes:
        parameters: name and type of each, in order.
        registers: type and number of each kind, by prefix: ``{"%r": ("b32", 204)}``.
        shared: the name of dynamic shared memory, and its alignment in bytes.
        threads: the most that a block may have.
        cluster: how many blocks along x are one.
        doubtful: registers that some path through the text reads before it has written them. No thread may take it.
    """

    name: str
    target: str
    parameters: tuple[tuple[str, str], ...]
    registers: dict[str, tuple[str, int]]
    blocks: tuple[Block, ...]
    shared: tuple[str, int] | None
    threads: int
    cluster: int
    doubtful: frozenset[str]

    @property
    def is_asynchronous(self) -> bool:
        """Whether it has instructions of sm_90 and sm_90a (``hopper.py``)."""
        roots = {
            ("cp", "bulk") if "bulk" in one.opcode else one.opcode[:1]
            for block in self.blocks
            for one in block.instructions
        }
        return not roots.isdisjoint(_OF_HOPPER)


def parse(text: str) -> Program:
    """The one kernel of a PTX text.

    Raises:
        PtxError: when it is not understood.
    """
    plain = re.sub(r"//[^\n]*", "", text)
    entry, target = _ENTRY.search(plain), re.search(r"^\.target\s+(\w+)", plain, re.MULTILINE)
    if entry is None or target is None:
        raise PtxError("there is no kernel in the text")
    name, parameters, directives, body = entry.groups()
    body, scopes = _without_scopes(body)
    threads = re.search(r"\.maxntid\s+(\d+)", directives)
    cluster = re.search(r"\.reqnctapercluster\s+(\d+)((?:\s*,\s*\d+)*)", directives)
    if cluster and set(re.findall(r"\d+", cluster[2])) - {"1"}:
        raise PtxError(f"{cluster[0]}: clusters are known along x alone")
    shared = _SHARED.search(plain)
    registers = {prefix: (kind, int(count)) for kind, prefix, count in _REGISTERS.findall(body)}
    registers |= {"%p_": ("pred", scopes)} if scopes else {}
    blocks = _blocks(body, plain.count("\n", 0, entry.start(4)) + 1)
    return Program(
        name,
        target[1],
        tuple((found[2], "map" if found[3] else found[1]) for found in _PARAMETER.finditer(parameters)),
        registers,
        tuple(blocks),
        (shared[2], int(shared[1])) if shared else None,
        int(threads[1]) if threads else 1024,
        int(cluster[1]) if cluster else 1,
        _doubtful(registers, blocks),
    )


def _blocks(body: str, line: int) -> list[Block]:
    blocks = [Block(None)]
    for text, at in _statements(body, line):
        if text.endswith(":"):
            if blocks[-1].instructions or blocks[-1].label:
                blocks.append(Block(None))
            blocks[-1].label = text[:-1]
        elif not text.startswith("."):
            instruction = _instruction(text, at)
            sleeps = instruction.opcode[:2] == ("mbarrier", "try_wait")
            if sleeps and blocks[-1].instructions:
                blocks.append(Block(None))
            blocks[-1].instructions.append(instruction)
            if sleeps or instruction.opcode[0] in ("bra", "ret", "bar", "barrier"):
                blocks.append(Block(None))
    if not blocks[-1].instructions:
        blocks[-1].instructions.append(Instruction(("ret",), (), None, line, "ret"))
    places = {block.label: number for number, block in enumerate(blocks) if block.label}
    for number, block in enumerate(blocks):
        last = block.instructions[-1] if block.instructions else None
        further = (number + 1,) if last is None or last.opcode[0] not in ("bra", "ret") or last.guard else ()
        if last is not None and last.opcode[0] == "bra":
            if last.operands[0] not in places:
                raise PtxError(f"line {last.line}: {last.text}: there is no such label")
            further = (*further, places[str(last.operands[0])])
        block.following = further
    return blocks


def _statements(body: str, line: int) -> Iterator[tuple[str, int]]:
    """Labels, directives and instructions, with the line each begins in."""
    counted = 0
    for match in re.finditer(r"\s*([$\w]+:(?!:)|(?:[^;:]|::)+(?=;));?", body):
        line += body.count("\n", counted, match.start(1))
        counted = match.start(1)
        if text := match[1].strip():
            yield text, line


def _instruction(text: str, line: int) -> Instruction:
    match = _STATEMENT.fullmatch(text)
    if match is None:
        raise PtxError(f"line {line}: {text!r} is not understood")
    negated, predicate, opcode, rest = match.groups()
    operands = tuple(_operand(part) for part in _OPERAND.findall(rest))
    guard = (predicate, bool(negated)) if predicate else None
    return Instruction(tuple(opcode.split(".")), operands, guard, line, " ".join(text.split()))


def _operand(text: str) -> Operand:
    if text[0] == "{":
        return tuple(part.strip() for part in text[1:-1].split(","))
    if text[0] == "[":
        inner = text[1:-1].replace(" ", "")
        if "{" in inner:
            base, _, first = inner.partition(",")
            return Tensor(base, tuple(first[1:-1].split(",")))
        base, _, offset = inner.partition("+")
        return Address(base, int(offset or 0))
    return text


def _names(operand: Operand) -> tuple[str, ...]:
    if isinstance(operand, Tensor):
        return (operand.base, *operand.first)
    return operand if isinstance(operand, tuple) else (operand.base if isinstance(operand, Address) else operand,)


def _without_scopes(body: str) -> tuple[str, int]:
    """The text with a name of its own for the predicate that inline assembly declares within braces."""
    count = 0

    def opened(scope: re.Match[str]) -> str:
        nonlocal count
        inner = re.sub(rf"\b{scope[1]}\b", f"%p_{count}", scope[2])
        count += 1
        return inner

    return _SCOPE.sub(opened, body), count


def _doubtful(registers: dict[str, tuple[str, int]], blocks: list[Block]) -> frozenset[str]:
    """Follows every path. A thread follows one of them whatever other threads do, so this holds for each."""
    numbers: dict[str, int] = {}
    for prefix, (_, count) in registers.items():
        for index in range(count):
            numbers[f"{prefix}{index}"] = len(numbers)
    everything = (1 << len(numbers)) - 1
    entering = [0] + [everything] * (len(blocks) - 1)
    waiting = set(range(len(blocks)))
    while waiting:
        number = min(waiting)
        waiting.discard(number)
        known = entering[number]
        for instruction in blocks[number].instructions:
            known |= _written(instruction, numbers)
        for following in blocks[number].following:
            if entering[following] & known != entering[following]:
                entering[following] &= known
                waiting.add(following)
    doubtful = set()
    for number, block in enumerate(blocks):
        known = entering[number]
        for instruction in block.instructions:
            for name in instruction.read:
                if name not in numbers:
                    raise PtxError(f"line {instruction.line}: {instruction.text}: {name} is not declared")
                if not known >> numbers[name] & 1:
                    doubtful.add(name)
            known |= _written(instruction, numbers)
    return frozenset(doubtful)


def _written(instruction: Instruction, numbers: dict[str, int]) -> int:
    if instruction.guard is not None:
        return 0
    try:
        return sum(1 << numbers[name] for name in set(instruction.written) if name != "_")
    except KeyError as error:
        raise PtxError(f"line {instruction.line}: {instruction.text}: {error} is not declared") from None
