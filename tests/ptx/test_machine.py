"""The machine itself: what instructions do, and what it refuses, on kernels of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import machine, tensor
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.parse import PtxError

_TEXT = """
.version 9.0
.target sm_90
.address_size 64
.extern .shared .align 128 .b8 memory[];
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
.maxntid 64, 1, 1
{{
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<20>;
    .reg .f32 %f<9>;
    .reg .b64 %rd<9>;
    .reg .f64 %fd<9>;
    ld.param.u64 %rd1, [k_param_0];
    ld.param.u64 %rd2, [k_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, memory;
    add.s32 %r4, %r3, %r2;
    xor.b32 %r5, %r4, 4;
{body}
    ret;
}}
"""


def launch(
    body: str, *, threads: int = 32, blocks: int = 1, shared: int = 256, late: bool = True, unwritten: bool = True
) -> Any:
    """Runs a kernel, and returns the array that it writes.

    %rd1 is an array of 64 words to write, %rd4 the thread's own in it, %rd2 one of 64 to read that counts from 0;
    %r1 is the thread, %r4 its own word of shared memory, %r5 its neighbour's.
    """
    kernel = Kernel(_TEXT.format(body=body), late=late)
    written, given = np.full(64, 7, dtype=np.uint32), np.arange(64, dtype=np.uint32)
    given.flags.writeable = False
    kernel.unwritten = (written,) if unwritten else ()
    kernel((blocks, 1, 1), (threads, 1, 1), (written, given), shared_mem=shared)
    return written


@pytest.mark.parametrize(
    ("setup", "instruction", "expected"),
    [
        ("mov.b32 %r6, 0xFFFFFFFF;", "add.s32 %r9, %r6, 2;", 1),
        ("mov.b32 %r6, 3;", "sub.s32 %r9, %r6, 5;", 0xFFFFFFFE),
        ("mov.b32 %r6, -7;", "shr.s32 %r9, %r6, 1;", 0xFFFFFFFC),
        ("mov.b32 %r6, -7;", "shr.u32 %r9, %r6, 1;", 0x7FFFFFFC),
        ("mov.b32 %r6, -7;", "shr.s32 %r9, %r6, 40;", 0xFFFFFFFF),
        ("mov.b32 %r6, 1;", "shl.b32 %r9, %r6, 32;", 0),
        ("mov.b32 %r6, 0x80000001;", "mul.hi.u32 %r9, %r6, 6;", 3),
        ("mov.b32 %r6, -3;", "mad.lo.s32 %r9, %r6, 5, 1;", 0xFFFFFFF2),
        ("mov.b32 %r6, -3;", "mul.wide.s32 %rd5, %r6, 5; shr.u64 %rd5, %rd5, 32; cvt.u32.u64 %r9, %rd5;", 0xFFFFFFFF),
        ("mov.b32 %r6, -3;", "mul.wide.u32 %rd5, %r6, 5; shr.u64 %rd5, %rd5, 32; cvt.u32.u64 %r9, %rd5;", 4),
        ("mov.b32 %r6, 29;", "div.u32 %r7, %r6, 8; rem.u32 %r8, %r6, 8; mad.lo.s32 %r9, %r7, 16, %r8;", 0x35),
        ("mov.b32 %r6, -1;", "min.u32 %r7, %r6, 8; max.s32 %r8, %r6, 8; sub.s32 %r9, %r7, %r8;", 0),
        ("mov.b32 %r6, 0x12345678;", "bfi.b32 %r9, %r6, 0xFFFFFFFF, 8, 12;", 0xFFF678FF),
        ("mov.b32 %r6, 0x12348678;", "prmt.b32 %r9, %r6, 0xAABBCCDD, 0x9410U;", 0xFFDD8678),
        ("mov.b32 %r6, 0x0001FF85;", "cvt.u16.u32 %rs1, %r6; cvt.s32.s8 %r9, %rs1;", 0xFFFFFF85),
        ("mov.b32 %r6, 0x0001FF85;", "cvt.u16.u32 %rs1, %r6; cvt.u32.u16 %r9, %rs1;", 0xFF85),
        ("mov.b32 %r6, 0x0001FF85;", "mov.b32 {%rs1, %rs2}, %r6; mov.b32 %r9, {%rs2, %rs1};", 0xFF850001),
        ("mov.b32 %r6, 5;", "setp.gt.s32 %p1, %r6, -1; selp.b32 %r9, 1, 2, %p1;", 1),
        ("mov.b32 %r6, 5;", "setp.gt.u32 %p1, %r6, -1; selp.b32 %r9, 1, 2, %p1;", 2),
        ("setp.eq.s32 %p1, 5, 5;", "not.pred %p2, %p1; and.pred %p3, %p1, %p2; selp.b32 %r9, 1, 2, %p3;", 2),
        ("mov.f32 %f1, 0f7FC00000;", "setp.lt.f32 %p1, %f1, 0f00000000; selp.b32 %r9, 1, 2, %p1;", 2),
        ("mov.f32 %f1, 0f7FC00000;", "setp.ltu.f32 %p1, %f1, 0f00000000; selp.b32 %r9, 1, 2, %p1;", 1),
        ("mov.f32 %f1, 0f7FC00000;", "setp.neu.f32 %p1, %f1, 0f00000000; selp.b32 %r9, 1, 2, %p1;", 1),
        ("mov.f32 %f1, 0f3F800800;", "fma.rn.f32 %f2, %f1, %f1, 0fBF801000; mov.b32 %r9, %f2;", 0x33800000),
        ("mov.f32 %f1, 0f40200000;", "cvt.rni.f32.f32 %f2, %f1; mov.b32 %r9, %f2;", 0x40000000),
        ("mov.f32 %f1, 0f3F800000;", "copysign.f32 %f2, 0f80000000, %f1; mov.b32 %r9, %f2;", 0xBF800000),
        ("mov.f32 %f1, 0fC0000000;", "neg.f32 %f2, %f1; abs.f32 %f3, %f1; sub.f32 %f4, %f2, %f3; mov.b32 %r9, %f4;", 0),
        ("mov.f32 %f1, 0f40400000;", "ex2.approx.ftz.f32 %f2, %f1; mov.b32 %r9, %f2;", 0x41000000),
        ("mov.b32 %r6, 0f3F800000;", "mov.b32 %r9, %r6;", 0x3F800000),
        ("mov.b32 %r6, 0x3F808000;", "mov.b32 %f1, %r6; cvt.rn.bf16.f32 %rs1, %f1; cvt.u32.u16 %r9, %rs1;", 0x3F80),
        ("mov.b32 %r6, 0x3F818000;", "mov.b32 %f1, %r6; cvt.rn.bf16.f32 %rs1, %f1; cvt.u32.u16 %r9, %rs1;", 0x3F82),
        ("mov.b32 %r6, 0x7F800001;", "mov.b32 %f1, %r6; cvt.rn.bf16.f32 %rs1, %f1; cvt.u32.u16 %r9, %rs1;", 0x7FFF),
        ("mov.f32 %f1, 0f47800000;", "cvt.rn.f16.f32 %rs1, %f1; cvt.u32.u16 %r9, %rs1;", 0x7C00),
        ("mov.f32 %f1, 0f3F802000;", "cvt.rn.f16.f32 %rs1, %f1; cvt.f32.f16 %f2, %rs1; mov.b32 %r9, %f2;", 0x3F802000),
        ("mov.b32 %r6, 0x3F801000;", "cvt.rna.tf32.f32 %r9, %r6;", 0x3F802000),
        ("mov.b32 %r6, 0xC438;", "cvt.u16.u32 %rs1, %r6; cvt.rn.f16x2.e4m3x2 %r9, %rs1;", 0xC2003C00),
        ("mov.b32 %r6, 0x7F01;", "cvt.u16.u32 %rs1, %r6; cvt.rn.f16x2.e4m3x2 %r9, %rs1;", 0x7FFF1800),
        ("mov.b32 %r6, 0x3C01;", "cvt.u16.u32 %rs1, %r6; cvt.rn.f16x2.e5m2x2 %r9, %rs1;", 0x3C000100),
        ("mov.b32 %r6, 0x3F801000;", "cvt.rn.tf32.f32 %r9, %r6;", 0x3F800000),
        ("mov.b32 %r6, 0xFF800001;", "cvt.rna.tf32.f32 %r9, %r6;", 0x7FFFFFFF),
        ("mov.f64 %fd1, 0d3FF0000010000000;", "cvt.rn.f32.f64 %f1, %fd1; mov.b32 %r9, %f1;", 0x3F800000),
        ("mov.f32 %f1, 0f3F800001;", "cvt.f64.f32 %fd1, %f1; cvt.rn.f32.f64 %f2, %fd1; mov.b32 %r9, %f2;", 0x3F800001),
        ("mov.b32 %r6, -5;", "cvt.s64.s32 %rd5, %r6; min.s64 %rd6, %rd5, 3; cvt.u32.u64 %r9, %rd6;", 0xFFFFFFFB),
        ("mov.b32 %r6, -5;", "cvt.u64.u32 %rd5, %r6; min.u64 %rd6, %rd5, 3; cvt.u32.u64 %r9, %rd6;", 3),
    ],
)  # fmt: skip
def test_an_instruction_does_what_the_isa_says(setup: str, instruction: str, expected: int) -> None:
    assert launch(f"{setup} {instruction} st.global.u32 [%rd4], %r9;")[0] == expected


def test_threads_that_branch_apart_meet_again() -> None:
    body = """
    and.b32 %r6, %r1, 3;
    mov.u32 %r7, 0;
$more:
    setp.eq.s32 %p1, %r6, 0;
    @%p1 bra $done;
    add.s32 %r7, %r7, 10;
    sub.s32 %r6, %r6, 1;
    bra $more;
$done:
    @!%p1 st.global.u32 [%rd4], %r3;
    st.shared.u32 [%r4], %r7;
    bar.sync 0;
    ld.shared.u32 %r8, [%r5];
    st.global.u32 [%rd4], %r8;
    """
    assert launch(body)[:8].tolist() == [10, 0, 30, 20, 10, 0, 30, 20]


_STORE, _READ, _BARRIER = "st.shared.u32 [%r4], %r1;", "ld.shared.u32 %r6, [%r5];", "bar.sync 0;"
_COPY = "add.s64 %rd5, %rd2, %rd3; cp.async.ca.shared.global [%r4], [%rd5], 4, 4; cp.async.commit_group;"
_WAIT, _OWN, _KEEP = "cp.async.wait_group 0;", "ld.shared.u32 %r6, [%r4];", "st.global.u32 [%rd4], %r6;"


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_STORE + _BARRIER + _READ + _KEEP, [1, 0, 3, 2]),
        (_STORE + _BARRIER + _READ + _BARRIER + _STORE + _KEEP, [1, 0, 3, 2]),
        (_COPY + _WAIT + _OWN + _KEEP, [0, 1, 2, 3]),
        (_COPY + _WAIT + _BARRIER + _READ + _KEEP, [1, 0, 3, 2]),
        (_COPY.replace("4, 4;", "4, 0;") + _WAIT + _OWN + _KEEP, [0, 0, 0, 0]),
        ("ld.global.u32 %r6, [%rd2+8];" + _KEEP, [2, 2, 2, 2]),
        ("st.global.u32 [%rd4], %r1; ld.global.u32 %r6, [%rd4]; add.s32 %r6, %r6, 1;" + _KEEP, [1, 2, 3, 4]),
    ],
)
def test_what_is_ordered_is_accepted(body: str, expected: list[int], late: bool) -> None:
    assert launch(body, late=late)[:4].tolist() == expected


_NEIGHBOUR = "xor.b64 %rd6, %rd3, 4; add.s64 %rd6, %rd6, %rd1;"
# One of 32 blocks writes a word, and a thread of the last to count itself in reads what the first wrote.
_BLOCKS = """
    mov.u32 %r10, %ctaid.x;
    mul.wide.u32 %rd5, %r10, 4;
    add.s64 %rd5, %rd5, %rd1;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra $written;
    st.global.u32 [%rd5], %r10;
$written:
    {fence}
    {barrier}
    mov.u32 %r6, 0;
    @%p1 bra $counted;
    atom.global.add.u32 %r6, [%rd1+252], 1;
$counted:
    st.shared.u32 [%r4], %r6;
    {after}
    ld.shared.u32 %r7, [memory];
    setp.ne.s32 %p2, %r7, 10;
    @%p2 bra $end;
    {acquired}
    and.b32 %r11, %r1, 3;
    mul.wide.u32 %rd6, %r11, 4;
    add.s64 %rd6, %rd6, %rd1;
    ld.global.u32 %r8, [%rd6];
$end:
"""
_ORDERED = {"fence": "membar.gl;", "barrier": _BARRIER, "after": _BARRIER, "acquired": "membar.gl;"}


@pytest.mark.parametrize("late", [True, False])
def test_blocks_are_ordered_by_fences_barriers_and_a_count(late: bool) -> None:
    written = launch(_BLOCKS.format(**_ORDERED), blocks=4, late=late, unwritten=False)
    assert (written[:4].tolist(), written[63]) == ([0, 1, 2, 3], 7 + 4)


@pytest.mark.parametrize("missing", ["fence", "barrier", "acquired"])
def test_nothing_less_orders_blocks(missing: str) -> None:
    body = _BLOCKS.format(**{**_ORDERED, missing: ""})
    with pytest.raises(Fault, match="with nothing to order them"):
        launch(body, blocks=4, unwritten=False)


# The same where lanes of a warp meet in place of a barrier: the first thread counts, and reads.
_OF_WARPS = """
    mov.u32 %r10, %ctaid.x;
    mul.wide.u32 %rd5, %r10, 4;
    add.s64 %rd5, %rd5, %rd1;
    setp.ne.s32 %p1, %r1, {writer};
    @%p1 bra $written;
    st.global.u32 [%rd5], %r10;
$written:
    {fence}
    {met}
    setp.ne.s32 %p2, %r1, 0;
    mov.u32 %r6, 0;
    @%p2 bra $counted;
    atom.global.add.u32 %r6, [%rd1+252], 1;
$counted:
    {after}
    setp.ne.s32 %p3, %r6, 10;
    @%p3 bra $end;
    {acquired}
    ld.global.u32 %r8, [%rd1+4];
$end:
"""
_MEET = "bar.warp.sync -1;"
_MET = {"writer": "5", "fence": "membar.gl;", "met": _MEET, "after": _MEET, "acquired": "membar.gl;"}


@pytest.mark.parametrize("late", [True, False])
def test_warps_of_blocks_are_ordered_by_fences_meetings_and_a_count(late: bool) -> None:
    written = launch(_OF_WARPS.format(**_MET), blocks=4, threads=64, late=late, unwritten=False)
    assert (written[:4].tolist(), written[63]) == ([0, 1, 2, 3], 7 + 4)


@pytest.mark.parametrize(
    "changed", [{"fence": ""}, {"met": ""}, {"after": ""}, {"acquired": ""}, {"writer": "32"}], ids=str
)
def test_nothing_less_orders_warps_of_blocks(changed: dict[str, str]) -> None:
    """Nor does a meeting of the writer's warp tell others of its block."""
    with pytest.raises(Fault, match="with nothing to order them"):
        launch(_OF_WARPS.format(**{**_MET, **changed}), blocks=4, threads=64, unwritten=False)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("ld.shared.u32 %r6, [%r4];" + _KEEP, "shared memory is read that has not been written"),
        (_STORE + _READ + _KEEP, "is read that another thread wrote since"),
        (_STORE + _BARRIER + _READ + _STORE + _KEEP, "is written that another thread read since"),
        (_STORE + "st.shared.u32 [%r5], %r1;", "is written that another thread wrote since"),
        ("st.shared.u32 [memory], %r1;", "two threads write to the same shared memory at once"),
        ("st.shared.u32 [%r4+256], %r1;", "outside of the 256 bytes"),
        ("st.shared.u32 [%r4+-4], %r1;", "outside of the 256 bytes"),
        ("st.shared.u32 [%r4+2], %r1;", "4 bytes wide"),
        (_COPY + _OWN, "read while a copy into it is under way"),
        (_COPY + "st.shared.u32 [%r4], %r1;", "written while a copy into it is under way"),
        (_COPY + _COPY, "written while a copy into it is under way"),
        (_COPY + _WAIT.replace("0", "1") + _OWN, "read while a copy into it is under way"),
        (_COPY + _WAIT + _READ, "is read that another thread wrote since"),
        (_COPY.replace("cp.async.commit_group;", "") + _WAIT + _OWN, "read while a copy into it is under way"),
        (_COPY.replace("[%r4]", "[memory]"), "two threads copy to the same shared memory at once"),
        (_STORE + _BARRIER + _READ + _COPY, "is written that another thread read since"),
        (_COPY.replace("4, 4;", "4, 2;"), "to read 2 bytes of 4"),
        ("ld.global.u32 %r6, [%rd2+256];", "byte 256 is accessed of an operand of 256 bytes"),
        ("ld.global.u32 %r6, [%rd2+-4];", "byte -4 is accessed"),
        ("ld.global.u32 %r6, [%rd2+1];", "no multiple of 4"),
        ("ld.global.v2.u32 {%r6, %r7}, [%rd2+4];", "no multiple of 8"),
        ("ld.global.u32 %r6, [%rd3];", "no operand lies in"),
        ("st.global.u32 [%rd2], %r1;", "for reading"),
        ("ld.global.u32 %r6, [%rd4];", "memory is read that has not been written"),
        ("st.global.u32 [%rd1], %r1;", "two threads write to the same memory at once"),
        (f"st.global.u32 [%rd4], %r1; {_NEIGHBOUR} ld.global.u32 %r6, [%rd6];", "with nothing to order them"),
        (f"st.global.u32 [%rd4], %r1; {_NEIGHBOUR} st.global.u32 [%rd6], %r1;", "with nothing to order them"),
        ("atom.global.add.u32 %r6, [%rd2], 1;", "for reading"),
        ("add.s32 %r6, %r7, 1;", "%r7 is read that has not been written"),
        ("setp.eq.s32 %p1, %r1, 0; @%p1 mov.u32 %r7, 1; add.s32 %r6, %r7, 1;", "%r7 is read that has not been written"),
        ("setp.lt.s32 %p1, %r1, 16; @%p1 bra $end; bar.sync 0; $end:", "a part of a warp"),
        ("setp.eq.s32 %p1, %r1, 0; @%p1 bra $end;"
         "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r6, %r7, %r8, %r9}, [memory]; $end:", "a part of a warp"),
    ],
)  # fmt: skip
def test_what_is_undefined_is_refused(body: str, what: str) -> None:
    with pytest.raises(Fault) as fault:
        launch(body)
    assert what in str(fault.value)


def test_a_kernel_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MOST_BLOCKS", 50)
    with pytest.raises(Fault, match="has not ended after 50"):
        launch("$again: bra $again;")


def test_lanes_that_are_ahead_wait_for_their_warp() -> None:
    body = "bra $test; $on: {} bar.sync 0; bra $end; $test: setp.lt.s32 %p1, %r1, 16; @%p1 bra $on; bra $on; $end:"
    launch(body.format("bar.warp.sync -1;"))
    with pytest.raises(Fault, match="a part of a warp executes"):
        launch(body.format(""))
    with pytest.raises(Fault, match="waits for the others, which never come"):
        launch("setp.lt.s32 %p1, %r1, 16; @%p1 bra $end; bar.warp.sync -1; $end:")


def test_a_barrier_that_a_warp_never_reaches_is_refused() -> None:
    body = "setp.lt.s32 %p1, %r1, 32; @%p1 bra $end; bar.sync 0; $end:"
    with pytest.raises(Fault, match="the others never reach"):
        launch(body, threads=64)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("vote.sync.ballot.b32 %r6, %p2, 0;", "is not known"),
        ("ld.volatile.shared.u32 %r6, [%r4];", "is not known"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};", "is not known"),
        ("bar.sync 1;", "is not known"),
        ("add.s32 %r6, %r99, 1;", "%r99"),
        ("mov.u32 %r6, elsewhere;", "elsewhere is not declared"),
        ("bra $nowhere;", "no such label"),
        ("mov.b64 %r6, 1;", "as if it were of type u8"),
    ],
)
def test_what_is_not_known_is_refused(body: str, what: str) -> None:
    with pytest.raises(PtxError) as error:
        launch(body)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "threads", "what"),
    [
        ((np.zeros(4, np.uint32),), 32, "1 arguments are given for 2"),
        ((np.zeros(4, np.uint32), np.int32(1)), 32, "k_param_1 is of type u64"),
        ((np.zeros((4, 4), np.uint32)[:, ::2], np.uint64(0)), 32, "has gaps"),
        ((np.zeros(4, np.uint32), np.uint64(0)), 96, "at most 64 threads"),
        ((np.zeros(4, np.uint32), np.uint64(0)), 40, "whole warps"),
    ],
)
def test_a_launch_that_does_not_fit_the_kernel_is_refused(arguments: tuple[Any, ...], threads: int, what: str) -> None:
    with pytest.raises(Fault, match=what):
        Kernel(_TEXT.format(body=""))((1, 1, 1), (threads, 1, 1), arguments)


@pytest.mark.parametrize("form", tensor.KINDS)
def test_each_element_of_a_fragment_is_in_one_place(form: str) -> None:
    """Every element of A, of B and of D is held by one register of one lane."""
    fragments = tensor.KINDS[form].fragments
    for (rows, columns), shape in (
        (fragments.a, (16, fragments.depth)), (fragments.b, (fragments.depth, 8)), (tensor._D, (16, 8))
    ):  # fmt: skip
        held = np.zeros(shape, dtype=int)
        np.add.at(held, (rows, columns), 1)
        assert (held == 1).all()
