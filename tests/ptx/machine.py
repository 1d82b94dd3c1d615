"""A PTX machine: executes a kernel on the CPU, all threads of a launch at once, and refuses what is undefined.

``Kernel`` stands where a launch expects a loaded function, so the project's own launch code passes the arguments.
Threads that branch apart are executed in turns: always those that are furthest behind in the text, so they meet again
where paths do. Shared memory and registers are poisoned at the start. What is refused: access out of bounds,
misaligned, to what has not been written, or not ordered by barriers, waits and fences after another thread's
(``shared.py``, ``memory.py``); registers read before they are written (``parse.py``); warp-wide instructions, and
barriers, that a part of a warp executes; barriers that some threads never reach; arguments that do not match the
parameters.

What sm_90a adds is in ``hopper.py``: with it threads also sleep at barriers that others end, and warp groups are run
in another order when copies are early.

It knows nothing of time, of caches, or of what ptxas makes of the PTX.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.ptx import arithmetic, tensor
from tests.ptx.faults import Fault
from tests.ptx.hopper import GROUP, Hopper
from tests.ptx.maps import SIZE
from tests.ptx.memory import Memory
from tests.ptx.parse import Program, parse
from tests.ptx.shared import Shared
from tests.ptx.tables import TYPES
from tests.ptx.translate import Translator

Array = npt.NDArray[Any]
_POISON = 0xFFF7A55A_FFF7A55A  # a NaN as fp64, as either half in fp32, and neither small nor a valid offset
_WARP = 32
_MOST_BLOCKS = 200_000  # hundreds of times what the largest launch of the tests takes


class Kernel:
    """A kernel that can be launched as CuPy's functions are.

    Attributes:
        program: what was parsed.
        late: whether asynchronous copies land as late as allowed; then the last thread is also the first to count.
        unwritten: arrays of which the next launches may read nothing that they have not written.
    """

    def __init__(self, ptx: str, *, late: bool = True) -> None:
        """Translates the text.

        Raises:
            PtxError: when it is not understood.
        """
        self.program: Program = parse(ptx)
        translated = Translator(self.program)
        self._code: CodeType = compile(translated.source, "<ptx>", "exec")
        self._views, self._constants = sorted(translated.views), translated.constants
        self.late = late
        self.unwritten: tuple[Array, ...] = ()

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        """Runs all blocks to their end.

        Raises:
            Fault: naming the line of the PTX.
        """
        launch = _Launch(self, tuple(grid), tuple(block), arguments, shared_mem)
        names = {
            "np": np,
            "F": arithmetic,
            "X": launch,
            "H": launch.hopper,
            **self._constants,
            **launch.rows(self._views),
        }
        exec(self._code, names)
        with np.errstate(all="ignore"):
            launch.run([names[f"b{number}"] for number in range(len(self.program.blocks))])


class _Launch:
    """One launch, while it runs."""

    def __init__(
        self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...], shared_mem: int
    ) -> None:
        program = self._program = kernel.program
        self._blocks, self._threads = int(np.prod(grid)), int(np.prod(block))
        if block[1:] != (1, 1) or self._threads % _WARP or self._threads > program.threads:
            raise Fault(f"a block is {block}; it must be whole warps along x, of at most {program.threads} threads")
        self.line = 0
        self._late, self._count = kernel.late, self._blocks * self._threads
        self._lanes = np.arange(self._count)
        self._is_waiting, self._is_meeting, self._is_done = (np.zeros(self._count, dtype=bool) for _ in range(3))
        self._is_set = {register: np.zeros(self._count, dtype=bool) for register in program.doubtful}
        shared, of_global = granules(program)
        self._shared = Shared(self._blocks, self._threads, shared_mem, shared, late=kernel.late)
        self._memory = Memory(self._blocks, self._threads, of_global)
        self._parameters = self._placed(arguments, kernel.unwritten)
        self.hopper: Hopper | None = None
        if program.is_asynchronous:
            given = [self._parameters[name] for name, kind in program.parameters if kind == "map"]
            cluster = program.cluster
            if grid[0] % cluster:
                raise Fault(f"a grid is {grid[0]} blocks wide, which is no multiple of {cluster}, those of a cluster")
            self.hopper = Hopper(
                self._blocks, self._threads, cluster, self._shared, self._memory, given, late=kernel.late
            )
        block_number, thread = np.divmod(self._lanes.astype(np.uint32), self._threads)
        where = (block_number % grid[0], block_number // grid[0] % grid[1], block_number // grid[0] // grid[1])
        self._special = {
            "cluster_ctarank": block_number % program.cluster,
            "cluster_nctarank": np.full_like(thread, program.cluster),
        }
        for axis, name in enumerate("xyz"):
            self._special[f"tid_{name}"] = thread if axis == 0 else np.zeros_like(thread)
            self._special[f"ctaid_{name}"] = where[axis]
            self._special[f"ntid_{name}"] = np.full_like(thread, block[axis])
            self._special[f"nctaid_{name}"] = np.full_like(thread, grid[axis])

    def _placed(self, arguments: tuple[Any, ...], unwritten: tuple[Array, ...]) -> dict[str, Any]:
        """The value of each parameter; arrays get addresses."""
        if len(arguments) != len(self._program.parameters):
            raise Fault(f"{len(arguments)} arguments are given for {len(self._program.parameters)} parameters")
        values = {}
        for (name, kind), value in zip(self._program.parameters, arguments, strict=True):
            if kind == "map":
                if not isinstance(value, np.ndarray) or (value.size, value.nbytes) != (1, SIZE):  # as CuPy
                    raise Fault(f"{name} is one element of {SIZE} bytes, and {value!r} is given")
                values[name] = value
                continue
            if isinstance(value, np.ndarray):
                if not value.flags.c_contiguous:
                    raise Fault(f"{name} has gaps")
                fresh = any(value is one for one in unwritten)
                value = np.uint64(self._memory.add(value, is_written=not fresh))  # noqa: PLW2901
            if value.dtype.itemsize != np.dtype(TYPES[kind]).itemsize or (value.dtype.kind == "f") != (kind[0] == "f"):
                raise Fault(f"{name} is of type {kind}, and a {value.dtype} is given")
            values[name] = value
        return values

    def rows(self, views: list[tuple[str, str]]) -> dict[str, Array]:
        """The registers of all threads, poisoned, under the names that the code has for them."""
        rows: dict[str, Array] = {}
        found: dict[str, Array] = {**self._special}
        for register, kind in views:
            if register not in rows:
                own = TYPES[self._program.registers[register.rstrip("0123456789")][0]]
                bits = "?" if own == "?" else f"u{own[1]}"
                poison = True if own == "?" else _POISON & (1 << 8 * int(own[1])) - 1
                rows[register] = np.full(self._count, poison, dtype=bits)
            row = rows[register]
            step = row.itemsize // np.dtype(kind).itemsize
            found[f"{register[1:]}_{kind.replace('?', 'p')}"] = row if kind == "?" else row.view(kind)[::step]
        return found

    def run(self, code: list[Any]) -> None:
        """Executes block after block: always the first, in the text, that a thread is at."""
        blocks = self._program.blocks
        at = np.zeros(self._count, dtype=np.int64)
        for _ in range(_MOST_BLOCKS):
            is_stopped = self._is_waiting | self._is_meeting | self._is_done
            if self.hopper is not None:
                # Those of its warp meet it again before they do anything else.
                is_stopped |= np.repeat(self.hopper.is_asleep.reshape(-1, _WARP).any(1), _WARP)
                is_stopped |= self.hopper.clusters.is_waiting
            if is_stopped.all():
                if self._is_done.all():
                    if self.hopper is not None:
                        self.hopper.end()
                    return
                self._pass_barriers()
                continue
            if self.hopper is not None and not self._late:
                # Whole warp groups as far as they can, the last first, and of the last block of a cluster.
                group = self._lanes % (self._threads * self._program.cluster) // GROUP
                is_stopped |= group != group[~is_stopped].max()
            number = int(at[~is_stopped].min())
            # As long as all threads are at the same place, no mask is needed.
            mask: Any = (at == number) & ~is_stopped
            mask = True if mask.all() else mask
            block = blocks[number]
            try:
                taken = code[number](mask)
            except Fault as fault:
                raise Fault(f"{fault}, in line {self.line}: {self._text()}") from None
            last = block.instructions[-1] if block.instructions else None
            if last is None or last.opcode[0] != "bra" or last.guard is None:
                after: Any = block.following[0] if block.following else number
            else:
                after = np.where(taken, block.following[1], block.following[0])
            if self.hopper is not None:
                mask = mask & ~self.hopper.is_asleep
            np.copyto(at, after, where=mask)
        raise Fault(f"it has not ended after {_MOST_BLOCKS} basic blocks")

    def _text(self) -> str:
        for block in self._program.blocks:
            for instruction in block.instructions:
                if instruction.line == self.line:
                    return instruction.text
        return "?"

    def _chosen(self, mask: Any) -> Array:
        return self._lanes if mask is True else np.flatnonzero(mask)

    def _warps(self, mask: Any) -> Array:
        """The threads that take part, all of each warp."""
        if mask is not True:
            by_warp = mask.reshape(-1, _WARP)
            if (by_warp.any(1) != by_warp.all(1)).any():
                raise Fault("a part of a warp executes what all of it must")
        return self._chosen(mask)

    # ---- What the code calls ----

    def parameter(self, name: str, bits: str) -> Any:
        """The bits of an argument."""
        return self._parameters[name].view(bits)

    def note_written(self, register: str, mask: Any) -> None:
        """By the threads that take part."""
        self._is_set[register][self._chosen(mask)] = True

    def check_written(self, register: str, mask: Any) -> None:
        """By each thread that takes part."""
        if not self._is_set[register][self._chosen(mask)].all():
            raise Fault(f"{register} is read that has not been written")

    def chosen(self, mask: Any) -> Array:
        """The threads that take part."""
        return self._chosen(mask)

    def warps(self, mask: Any) -> Array:
        """The same, which must be whole warps."""
        return self._warps(mask)

    def at(self, base: Any, offset: Any, mask: Any) -> Array:
        """The address that each gives."""
        return self._at(base, offset, self._chosen(mask))

    def each(self, value: Any, mask: Any) -> Array:
        """The value that each gives."""
        given: Array = np.broadcast_to(value, self._lanes.shape)[self._chosen(mask)]
        return given

    def arrive(self, mask: Any) -> None:
        """At the block's barrier."""
        self._is_waiting[self._warps(mask)] = True

    def meet(self, mask: Any) -> None:
        """Lanes wait for the others of their warp: ``bar.warp.sync``."""
        self._is_meeting[self._chosen(mask)] = True
        met = np.repeat(self._is_meeting.reshape(-1, _WARP).all(1), _WARP)
        self._is_meeting[met] = False
        self._shared.pass_warps(self._lanes[met])
        self._memory.pass_warps(np.unique(self._lanes[met] // _WARP))

    def leave(self, mask: Any) -> None:
        """The kernel."""
        self._is_done[self._chosen(mask)] = True
        if self.hopper is not None:
            self.hopper.clusters.leave(self._chosen(mask))

    def _pass_barriers(self) -> None:
        if self.hopper is not None and self.hopper.clusters.pass_barriers():
            return
        if self._is_meeting.any():
            raise Fault("a part of a warp waits for the others, which never come")
        whole = self._is_waiting.reshape(-1, self._threads)
        if not whole.all(1).any():
            if self.hopper is not None and self.hopper.land():
                return
            if whole.any():
                raise Fault("a part of a block waits at a barrier that the others never reach")
            raise Fault("threads wait for a phase of an mbarrier that never ends")
        for block in np.flatnonzero(whole.all(1)):
            threads = slice(block * self._threads, (block + 1) * self._threads)
            self._shared.pass_barrier(int(block))
            self._memory.pass_barrier(int(block))
            self._is_waiting[threads] = False

    def load_global(self, base: Any, offset: Any, element: str, targets: tuple[Array, ...], mask: Any) -> None:
        """``ld.global``."""
        self._load(self._memory, base, offset, element, targets, mask)

    def load_shared(self, base: Any, offset: Any, element: str, targets: tuple[Array, ...], mask: Any) -> None:
        """``ld.shared``."""
        self._load(self._shared, base, offset, element, targets, mask)

    def _load(
        self, memory: Memory | Shared, base: Any, offset: Any, element: str, targets: tuple[Array, ...], mask: Any
    ) -> None:
        lanes, size = self._chosen(mask), int(element[1])
        words = memory.read(self._at(base, offset, lanes), lanes, size * len(targets), size).view(element)
        for index, target in enumerate(targets):
            target[lanes] = words[:, index]

    def store_global(self, base: Any, offset: Any, bits: str, values: tuple[Any, ...], mask: Any) -> None:
        """``st.global``."""
        lanes = self._chosen(mask)
        self._memory.write(self._at(base, offset, lanes), lanes, self._stacked(values, lanes, bits))

    def store_shared(self, base: Any, offset: Any, bits: str, values: tuple[Any, ...], mask: Any) -> None:
        """``st.shared``."""
        lanes = self._chosen(mask)
        self._shared.write(self._at(base, offset, lanes), lanes, self._stacked(values, lanes, bits))

    def _at(self, base: Any, offset: Any, lanes: Array) -> Array:
        if np.ndim(base) == 0:
            return np.full(len(lanes), base + offset)
        addresses: Array = base[lanes] + offset
        return addresses

    def _stacked(self, values: tuple[Any, ...], lanes: Array, bits: str) -> Array:
        words = np.empty((len(lanes), len(values)), dtype=bits)
        for index, value in enumerate(values):
            words[:, index] = value if np.ndim(value) == 0 else value[lanes]
        return words

    def add_atomically(self, target: Array, base: Any, offset: Any, value: Any, mask: Any) -> None:
        """``atom.add``, of one thread after the other."""
        lanes = self._chosen(mask)
        lanes = lanes[::-1] if self._late else lanes
        values = np.broadcast_to(value, self._lanes.shape)[lanes]
        target[lanes] = self._memory.add_atomically(self._at(base, offset, lanes), lanes, values)

    def copy(self, base: Any, offset: Any, source: Any, further: Any, size: int, count: Any, mask: Any) -> None:
        """``cp.async``: ``count`` bytes, and zeroes for the rest; here all or none."""
        lanes = self._chosen(mask)
        counts = np.broadcast_to(count, self._lanes.shape)[lanes]
        if ((counts != 0) & (counts != size)).any():
            raise Fault(f"cp.async is to read {int(counts.max())} bytes of {size}, which is not known here")
        words = np.zeros((len(lanes), size // 4), dtype=np.uint32)
        reading = counts != 0
        if reading.any():
            words[reading] = self._memory.read(self._at(source, further, lanes[reading]), lanes[reading], size, 4)
        self._shared.copy(self._at(base, offset, lanes), lanes, words)

    def commit(self, mask: Any) -> None:
        """``cp.async.commit_group``."""
        self._shared.commit(self._chosen(mask))

    def wait(self, pending: int, mask: Any) -> None:
        """``cp.async.wait_group``."""
        self._shared.wait(self._chosen(mask), pending)

    def fence(self, mask: Any) -> None:
        """``membar.gl``."""
        self._memory.fence(self._chosen(mask))

    def load_matrix(self, targets: tuple[Array, ...], base: Any, offset: Any, transposed: bool, mask: Any) -> None:
        """``ldmatrix``."""
        lanes = self._warps(mask)
        registers = tensor.load(self._shared.read(self._at(base, offset, lanes), lanes, 16, 4), transposed)
        for index, target in enumerate(targets):
            target[lanes] = registers[:, index]

    def multiply(
        self,
        form: str,
        d: tuple[Array, ...],
        a: tuple[Array, ...],
        b: tuple[Array, ...],
        c: tuple[Array, ...],
        mask: Any,
    ) -> None:
        """``mma.sync``."""
        lanes, kind = self._warps(mask), tensor.KINDS[form]
        given = (self._stacked(one, lanes, bits) for one, bits in ((a, "u4"), (b, "u4"), (c, np.dtype(kind.sums).str)))
        sums = tensor.multiply(kind, *given)
        for index, target in enumerate(d):
            target[lanes] = sums[:, index]


def granules(program: Program) -> tuple[int, int]:
    """The bytes that all of a kernel's accesses are multiples of: those to shared, and those to global memory."""
    widths: dict[str, list[int]] = {"shared": [16], "global": [16]}
    for block in program.blocks:
        for instruction in block.instructions:
            opcode = instruction.opcode
            if opcode[0] in ("ld", "st", "atom") and opcode[1] != "param":
                space = "shared" if "shared" in opcode else "global"
                count = next((int(part[1:]) for part in opcode if part in ("v2", "v4")), 1)
                widths[space].append(count * np.dtype(TYPES[opcode[-1]]).itemsize)
            elif opcode[:2] == ("cp", "async") and len(opcode) > 3 and opcode[2] != "bulk":
                widths["shared"].append(int(str(instruction.operands[2])))
    return min(widths["shared"]), min(widths["global"])
