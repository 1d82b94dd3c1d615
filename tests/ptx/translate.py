"""Each basic block of a PTX kernel as a Python function that executes it for all threads at once.

A register is an array with an element for each thread, seen as the type that an instruction says: ``r12_i4`` is
``%r12`` as signed numbers of 32 bits. ``M`` tells which threads take part: an array, or ``True`` where all do. Memory,
barriers and what whole warps do are methods of ``X``, see ``machine.py``.

Source: PTX ISA 9.2, chapter 9.7 "Instructions". An instruction that is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx import translate_hopper
from tests.ptx.hopper import PARAMETERS
from tests.ptx.maps import SIZE
from tests.ptx.parse import Address, Instruction, Operand, Program, PtxError
from tests.ptx.shared import BASE
from tests.ptx.tables import COMPARED, OF_INTEGERS, SPECIAL, TYPES, UFUNCS
from tests.ptx.tensor import KINDS


class Translator:
    """Translates a program once.

    Attributes:
        views: the registers that the code uses, with the types that it sees them as.
        constants: numbers that the code uses, by name.
        source: the Python functions, ``b0``, ``b1`` and so on. Each returns nothing, or which threads take its branch.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.views: set[tuple[str, str]] = set()
        self.constants: dict[str, Any] = {}
        self._sums = translate_hopper.sums_of(program)
        lines: list[str] = []
        for number, block in enumerate(program.blocks):
            lines.append(f"def b{number}(M):\n    pass")
            for instruction in block.instructions:
                lines += self._guarded(instruction)
        self.source = "\n".join(lines)

    def _guarded(self, instruction: Instruction) -> list[str]:
        if instruction.opcode[0] == "bra":
            leaves = [] if instruction.guard is None else [f"return {self._predicate(instruction)}"]
            return [f"    {line}" for line in self._tracked(instruction, leaves)]
        code = self._tracked(instruction, self._translated(instruction))
        if instruction.opcode[0] != "wgmma" and not self._sums.isdisjoint((*instruction.written, *instruction.read)):
            code = ["H.touch(X.chosen(M))", *code]
        if instruction.guard is None:
            return [f"    {line}" for line in code]
        return [
            f"    outer, M = M, M & {self._predicate(instruction)}",
            "    if M.any():",
            *(f"        {line}" for line in code),
            "    M = outer",
        ]

    def _tracked(self, instruction: Instruction, code: list[str]) -> list[str]:
        """With what follows those registers that the text does not show to be written before they are read."""
        doubtful = self._program.doubtful
        reads = [f"X.check_written({name!r}, M)" for name in dict.fromkeys(instruction.read) if name in doubtful]
        writes = [f"X.note_written({name!r}, M)" for name in instruction.written if name in doubtful]
        return [*([f"X.line = {instruction.line}"] if reads else []), *reads, *code, *writes]

    def _predicate(self, instruction: Instruction) -> str:
        assert instruction.guard is not None
        name, negated = instruction.guard
        return f"{'~' if negated else ''}{self.value(name, '?')}"

    def _translated(self, instruction: Instruction) -> list[str]:
        opcode, operands = instruction.opcode, instruction.operands
        root, kind = ".".join(opcode[:-1]), TYPES.get(opcode[-1], "")
        integer = kind[:1] in ("u", "i", "?")
        if root in UFUNCS and kind and (integer or root not in OF_INTEGERS) and not (root == "mul" and integer):
            if opcode[0] in ("div", "rem") and kind[0] != "u":  # NumPy rounds down, PTX towards 0
                raise self._unknown(instruction)
            given = ", ".join(self.value(operand, kind) for operand in operands[1:])
            return [f"np.{UFUNCS[root]}({given}, out={self.target(operands[0], kind)}, where=M)"]
        if (code := translate_hopper.translated(instruction, self)) is not None:
            return code
        own: Callable[[Instruction], list[str]] | None = getattr(self, f"_{opcode[0]}", None)
        if own is None:
            raise self._unknown(instruction)
        return own(instruction)

    # ---- Operands ----

    def value(self, operand: Operand, kind: str) -> str:
        """What an instruction reads, seen as a type."""
        assert isinstance(operand, str)
        if operand in SPECIAL:
            return SPECIAL[operand]
        if operand.startswith("%"):
            return self._view(operand, kind)
        if self._program.shared is not None and operand == self._program.shared[0]:
            return self._constant(BASE, kind)
        maps = [name for name, given in self._program.parameters if given == "map"]
        if operand in maps:
            return self._constant(PARAMETERS + SIZE * maps.index(operand), kind)
        if operand[:2] in ("0f", "0F", "0d", "0D"):
            # The bits of a floating-point number, whatever the register is seen as.
            bits = np.frombuffer(bytes.fromhex(operand[2:]), dtype=f">u{len(operand[2:]) // 2}")
            return self._named(bits.astype(f"u{bits.itemsize}").view(kind)[0], kind)
        try:
            return self._constant(int(operand.removesuffix("U"), 0), kind)
        except ValueError:
            raise PtxError(f"{operand} is not declared") from None

    def target(self, operand: Operand, kind: str) -> str:
        """What an instruction writes."""
        assert isinstance(operand, str)
        return self._view(operand, kind)

    def _wide(self, operand: str, kind: str) -> str:
        """A register as numbers of its own size, signed or not as the type says: narrower ones are extended."""
        return self._view(operand, f"{kind[0] if kind[0] != 'f' else 'u'}{self._size(operand)}")

    def _size(self, register: str) -> int:
        kind, _ = self._program.registers[register.rstrip("0123456789")]
        return np.dtype(TYPES[kind]).itemsize

    def _view(self, register: str, kind: str) -> str:
        if (np.dtype(kind).itemsize > self._size(register)) or ((kind == "?") != register.startswith("%p")):
            raise PtxError(f"{register} is used as if it were of type {kind}")
        self.views.add((register, kind))
        return f"{register[1:]}_{kind.replace('?', 'p')}"

    def _constant(self, value: float, kind: str) -> str:
        dtype = np.dtype(kind)
        if dtype.kind in "ui":
            whole = int(value) & (1 << 8 * dtype.itemsize) - 1
            scalar = np.array(whole, dtype=f"u{dtype.itemsize}").view(dtype)[()]
        else:
            scalar = dtype.type(value)
        return self._named(scalar, kind)

    def _named(self, scalar: Any, kind: str) -> str:
        name = f"c_{kind.replace('?', 'p')}_{scalar.tobytes().hex()}"
        self.constants[name] = scalar
        return name

    def group(self, operand: Operand, kind: str) -> str:
        """Several registers."""
        names = operand if isinstance(operand, tuple) else (operand,)
        return f"({''.join(self.value(name, kind) + ', ' for name in names)})"

    def address(self, operand: Operand, kind: str) -> str:
        """A base and an offset."""
        assert isinstance(operand, Address)
        base = self.value(operand.base, kind)
        return f"{base}, {self._constant(operand.offset, kind)}"

    def _unknown(self, instruction: Instruction) -> PtxError:
        return PtxError(f"line {instruction.line}: {instruction.text}: this instruction is not known")

    # ---- Arithmetic ----

    def _mad(self, instruction: Instruction) -> list[str]:
        if instruction.opcode[1:-1] != ("lo",):
            raise self._unknown(instruction)
        kind = TYPES[instruction.opcode[-1]]
        target, (a, b, c) = self.target(instruction.operands[0], kind), self._values(instruction, kind)
        return [f"np.add(np.multiply({a}, {b}), {c}, out={target}, where=M)"]

    def _fma(self, instruction: Instruction) -> list[str]:
        """In fp64, whose product of two fp32 is exact. Of fp64 the product is rounded too, which hardware does not."""
        kind = TYPES[instruction.opcode[-1]]
        if instruction.opcode[1:-1] != ("rn",) or kind not in ("f4", "f8"):
            raise self._unknown(instruction)
        target, (a, b, c) = self.target(instruction.operands[0], kind), self._values(instruction, kind)
        return [f"np.add(np.multiply({a}, {b}, dtype='f8'), {c}, out={target}, where=M)"]

    def _mul(self, instruction: Instruction) -> list[str]:
        how, kind = instruction.opcode[1], TYPES[instruction.opcode[-1]]
        a, b = self._values(instruction, kind)
        double = f"{kind[0]}{2 * int(kind[1])}" if kind[1] in "24" else ""
        if how == "wide" and double:
            target = self.target(instruction.operands[0], double)
            return [f"np.multiply({a}, {b}, out={target}, dtype='{double}', where=M)"]
        if how == "hi" and double:
            high = f"np.right_shift(np.multiply({a}, {b}, dtype='{double}'), {8 * int(kind[1])})"
            return [self._set(instruction.operands[0], kind, high)]
        raise self._unknown(instruction)

    def _values(self, instruction: Instruction, kind: str) -> list[str]:
        return [self.value(operand, kind) for operand in instruction.operands[1:]]

    def _set(self, target: Operand, kind: str, value: str) -> str:
        return f"np.copyto({self.target(target, kind)}, {value}, where=M, casting='unsafe')"

    def _setp(self, instruction: Instruction) -> list[str]:
        if len(instruction.opcode) != 3 or instruction.opcode[1] not in COMPARED:
            raise self._unknown(instruction)
        how, kind = instruction.opcode[1], TYPES[instruction.opcode[2]]
        target, (a, b) = self.target(instruction.operands[0], "?"), self._values(instruction, kind)
        compared = f"np.{COMPARED[how]}({a}, {b}"
        if how in ("ltu", "leu", "gtu", "geu", "equ"):
            return [f"np.logical_not({compared}), out={target}, where=M)"]
        if how == "ne" and kind[0] == "f":
            raise self._unknown(instruction)
        return [f"{compared}, out={target}, where=M)"]

    def _selp(self, instruction: Instruction) -> list[str]:
        kind = TYPES[instruction.opcode[1]]
        target, a, b, which = instruction.operands
        chosen = f"np.where({self.value(which, '?')}, {self.value(a, kind)}, {self.value(b, kind)})"
        return [self._set(target, kind, chosen)]

    def _copysign(self, instruction: Instruction) -> list[str]:
        """The sign is that of the first, the rest that of the second."""
        kind = TYPES[instruction.opcode[1]]
        sign, value = self._values(instruction, kind)
        return [f"np.copysign({value}, {sign}, out={self.target(instruction.operands[0], kind)}, where=M)"]

    def _bfi(self, instruction: Instruction) -> list[str]:
        kind = TYPES[instruction.opcode[1]]
        field, base, start, length = self._values(instruction, kind)
        return [self._set(instruction.operands[0], kind, f"F.insert_bits({field}, {base}, {start}, {length})")]

    def _prmt(self, instruction: Instruction) -> list[str]:
        a, b, selector = self._values(instruction, "u4")
        if instruction.opcode != ("prmt", "b32"):
            raise self._unknown(instruction)
        return [self._set(instruction.operands[0], "u4", f"F.pick_bytes({a}, {b}, {selector})")]

    def _mov(self, instruction: Instruction) -> list[str]:
        """Also from several registers to one of their size, and back."""
        kind, (target, value) = TYPES[instruction.opcode[1]], instruction.operands
        size = np.dtype(kind).itemsize
        if isinstance(value, tuple):
            part = f"u{size // len(value)}"
            joined = [
                f"np.left_shift({self.value(name, part)}, {8 * int(part[1]) * index}, dtype='u{size}')"
                for index, name in enumerate(value)
            ]
            return [self._set(target, f"u{size}", " | ".join(joined))]
        if isinstance(target, tuple):
            part = f"u{size // len(target)}"
            whole = self.value(value, f"u{size}")
            return [
                self._set(name, part, f"np.right_shift({whole}, {8 * int(part[1]) * index})")
                for index, name in enumerate(target)
                if name != "_"
            ]
        return [self._set(target, kind, self.value(value, kind))]

    def _cvt(self, instruction: Instruction) -> list[str]:
        *rounding, to, given = instruction.opcode[1:]
        if to in ("e4m3x2", "e5m2x2") and (given, rounding) == ("f32", ["rn", "satfinite"]):
            target, *pair = instruction.operands
            high, low = (self.value(one, "f4") for one in pair)
            return [self._set(target, "u2", f"F.two_to_fp8({high}, {low}, {to[:4]!r})")]
        target, value = instruction.operands
        if (to, given) == ("bf16", "f32") and rounding == ["rn"]:
            return [self._set(target, "u2", f"F.to_bf16({self.value(value, 'u4')})")]
        if (to, given) == ("tf32", "f32") and rounding in (["rna"], ["rn"]):
            return [self._set(target, "u4", f"F.to_tf32({self.value(value, 'u4')}, {rounding == ['rna']})")]
        if (to, given) in (("f16x2", "e4m3x2"), ("f16x2", "e5m2x2")) and rounding == ["rn"]:
            return [self._set(target, "u4", f"F.two_fp8_to_fp16({self.value(value, 'u2')}, {given[:4]!r})")]
        if (to, given) == ("f32", "f32") and rounding == ["rni"]:
            return [f"np.rint({self.value(value, 'f4')}, out={self.target(target, 'f4')}, where=M)"]
        to_kind, given_kind = TYPES[to], TYPES[given]
        narrows = to_kind[0] == "f" and (given_kind[0] != "f" or int(to_kind[1]) < int(given_kind[1]))
        if (to_kind[0] != "f" and given_kind[0] == "f") or rounding != (["rn"] if narrows else []):
            raise self._unknown(instruction)
        assert isinstance(target, str)
        wide = to_kind if to_kind[0] == "f" else f"{to_kind[0]}{max(int(to_kind[1]), self._size(target))}"
        return [self._set(target, wide, self.value(value, given_kind))]

    def _cvta(self, instruction: Instruction) -> list[str]:
        """Generic addresses are those of global memory here; kernels turn none of shared memory into one."""
        if instruction.opcode[1:] not in (("to", "global", "u64"), ("param", "u64")):
            raise self._unknown(instruction)
        return [self._set(instruction.operands[0], "u8", self.value(instruction.operands[1], "u8"))]

    # ---- Memory ----

    def _ld(self, instruction: Instruction) -> list[str]:
        space, *vector, kind = instruction.opcode[1:]
        target, address = instruction.operands
        element = TYPES[kind]
        if space == "param":
            assert isinstance(address, Address)
            if address.offset or vector or isinstance(target, tuple):
                raise self._unknown(instruction)
            bits = f"u{element[1]}"
            return [self._set(target, bits, f"X.parameter({address.base!r}, {bits!r})")]
        names = target if isinstance(target, tuple) else (str(target),)
        self._check_vector(instruction, vector, names)
        element = element if element[0] == "i" else f"u{element[1]}"
        targets = "".join(f"{self._wide(name, element)}, " for name in names)
        return [
            f"X.line = {instruction.line}",
            f"X.load_{self._space(instruction, space)}({self._place(space, address)}, {element!r}, ({targets}), M)",
        ]

    def _st(self, instruction: Instruction) -> list[str]:
        space, *vector, kind = instruction.opcode[1:]
        address, value = instruction.operands
        names = value if isinstance(value, tuple) else (str(value),)
        self._check_vector(instruction, vector, names)
        bits = f"u{TYPES[kind][1]}"
        values = "".join(f"{self.value(name, bits)}, " for name in names)
        return [
            f"X.line = {instruction.line}",
            f"X.store_{self._space(instruction, space)}({self._place(space, address)}, {bits!r}, ({values}), M)",
        ]

    def _check_vector(self, instruction: Instruction, vector: list[str], names: tuple[str, ...]) -> None:
        if vector != ([] if len(names) == 1 else [f"v{len(names)}"]) or len(names) not in (1, 2, 4):
            raise self._unknown(instruction)

    def _space(self, instruction: Instruction, space: str) -> str:
        if space not in ("global", "shared"):
            raise self._unknown(instruction)
        return space

    def _place(self, space: str, address: Operand) -> str:
        return self.address(address, "u8" if space == "global" else "u4")

    def _atom(self, instruction: Instruction) -> list[str]:
        if [part for part in instruction.opcode[1:] if part not in ("relaxed", "gpu")] != ["global", "add", "u32"]:
            raise self._unknown(instruction)
        target, address, value = instruction.operands
        assert isinstance(target, str)
        place, added = self.address(address, "u8"), self.value(value, "u4")
        return [
            f"X.line = {instruction.line}",
            f"X.add_atomically({self.target(target, 'u4')}, {place}, {added}, M)",
        ]

    def _cp(self, instruction: Instruction) -> list[str]:
        opcode, line = instruction.opcode, f"X.line = {instruction.line}"
        if opcode == ("cp", "async", "commit_group"):
            return [line, "X.commit(M)"]
        if opcode == ("cp", "async", "wait_group"):
            return [line, f"X.wait({int(str(instruction.operands[0]))}, M)"]
        if opcode[:2] != ("cp", "async") or opcode[2:] not in (("ca", "shared", "global"), ("cg", "shared", "global")):
            raise self._unknown(instruction)
        target, source, size, *given = instruction.operands
        if int(str(size)) not in ((16,) if opcode[2] == "cg" else (4, 8, 16)):
            raise self._unknown(instruction)
        count = self.value(given[0] if given else size, "u4")
        return [
            line,
            f"X.copy({self.address(target, 'u4')}, {self.address(source, 'u8')}, {int(str(size))}, {count}, M)",
        ]

    def _membar(self, instruction: Instruction) -> list[str]:
        if instruction.opcode[1:] not in (("gl",), ("sys",)):
            raise self._unknown(instruction)
        return ["X.fence(M)"]

    def _fence(self, instruction: Instruction) -> list[str]:
        if instruction.opcode[1:] not in (("acq_rel", "gpu"), ("sc", "gpu")):
            raise self._unknown(instruction)
        return ["X.fence(M)"]

    # ---- Blocks and warps ----

    def _bar(self, instruction: Instruction) -> list[str]:
        if instruction.opcode == ("bar", "warp", "sync") and instruction.operands == ("-1",) and not instruction.guard:
            return [f"X.line = {instruction.line}", "X.meet(M)"]
        if instruction.opcode != ("bar", "sync") or instruction.operands != ("0",) or instruction.guard:
            raise self._unknown(instruction)
        return [f"X.line = {instruction.line}", "X.arrive(M)"]

    def _ret(self, instruction: Instruction) -> list[str]:
        return [f"X.line = {instruction.line}", "X.leave(M)"]

    def _ldmatrix(self, instruction: Instruction) -> list[str]:
        forms = {
            ("sync", "aligned", "m8n8", "x4", "shared", "b16"): False,
            ("sync", "aligned", "m8n8", "x4", "trans", "shared", "b16"): True,
        }
        target, address = instruction.operands
        if instruction.opcode[1:] not in forms or not isinstance(target, tuple) or len(target) != 4:
            raise self._unknown(instruction)
        transposed = forms[instruction.opcode[1:]]
        return [
            f"X.line = {instruction.line}",
            f"X.load_matrix({self.group(target, 'u4')}, {self.address(address, 'u4')}, {transposed}, M)",
        ]

    def _mma(self, instruction: Instruction) -> list[str]:
        form = ".".join(instruction.opcode[3:])
        counts = [len(operand) for operand in instruction.operands if isinstance(operand, tuple)]
        if instruction.opcode[1:3] != ("sync", "aligned") or form not in KINDS or counts != [4, 4, 2, 4]:
            raise self._unknown(instruction)
        sums = np.dtype(KINDS[form].sums).str[1:]
        d, a, b, c = instruction.operands
        groups = (self.group(d, sums), self.group(a, "u4"), self.group(b, "u4"), self.group(c, sums))
        return [f"X.line = {instruction.line}", f"X.multiply({form!r}, {', '.join(groups)}, M)"]
