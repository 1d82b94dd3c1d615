"""Stores of boxes by the copy engine, as the machine executes them: what arrives, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import maps
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.parse import PtxError

# Two warps, and two boxes of 8 lines of 128 bytes. A lane fills 16 bytes of each with numbers from its own on.
_TEXT = """
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry k(.param .u64 k_param_0, .param .align 64 .b8 k_param_1[128], .param .align 64 .b8 k_param_2[128])
.maxntid 64, 1, 1
{{
    .reg .pred %p<9>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<20>;
    ld.param.u64 %rd1, [k_param_0];
    mov.b64 %rd2, k_param_1;
    cvta.param.u64 %rd3, %rd2;
    mov.b64 %rd4, k_param_2;
    cvta.param.u64 %rd5, %rd4;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, memory;
    setp.ne.s32 %p1, %r1, 0;
    shl.b32 %r4, %r1, 4;
    add.s32 %r4, %r4, %r2;
    mul.wide.u32 %rd6, %r1, 4;
    add.s64 %rd7, %rd1, %rd6;
    shl.b32 %r6, %r1, 2;
    add.s32 %r7, %r6, 1;
    add.s32 %r8, %r6, 2;
    add.s32 %r9, %r6, 3;
    mov.u32 %r10, {column};
    mov.u32 %r11, {row};
    mov.u32 %r12, 7;
{body}
    ret;
}}
"""
_ROWS, _COLUMNS = 12, 40  # of C: neither is a multiple of a box's 8 and 32
_FILL = "st.shared.v4.u32 [%r4], {%r6, %r7, %r8, %r9};"
_REFILL = _FILL.replace("%r4]", "%r4+1024]")
_FENCE, _MEET, _ALL = "fence.proxy.async.shared::cta;", "bar.warp.sync -1;", "bar.sync 0;"
_STORE = "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%rd3, {%r10, %r11, 0}], [%r2];"
_BELOW = "add.s32 %r11, %r11, 8;" + _STORE.replace("[%r2]", "[%r2+1024]")
_COMMIT = "cp.async.bulk.commit_group;"
_READ, _DONE = "cp.async.bulk.wait_group.read 0;", "cp.async.bulk.wait_group 0;"


def one(body: str, label: str = "stored") -> str:
    """What thread 0 alone executes."""
    return f"@%p1 bra ${label};{body}${label}:"


def launch(body: str, *, column: int = 0, row: int = 0, late: bool = True, is_read: bool = False) -> Any:
    """Runs a kernel on one block; returns C, with -1 where it was not stored to.

    Args:
        is_read: whether it may read C as it was.
    """
    kernel = Kernel(_TEXT.format(body=body, column=column, row=row), late=late)
    c = np.full((_ROWS, _COLUMNS), -1, dtype=np.int32).view(np.uint32)
    other = np.zeros((_ROWS, _COLUMNS), dtype=np.uint32)
    other.flags.writeable = False
    kernel.unwritten = () if is_read else (c,)
    given = [
        maps.encode(7, at.ctypes.data, (_COLUMNS, _ROWS, 1), (at.shape[1] * 4, at.nbytes), (32, 8, 1), 3)
        for at in (c, other)
    ]
    kernel((1, 1, 1), (64, 1, 1), (c, *given), shared_mem=2048)
    return c.view(np.int32)


_RIGHT = _FILL + _FENCE + _ALL + one(_STORE + _COMMIT + _DONE)
_TWICE = (
    _FILL + _FENCE + _ALL + one(_STORE + _COMMIT + _READ) + _ALL + _FILL + _FENCE + _ALL
    + one("add.s32 %r11, %r11, 8;" + _STORE + _COMMIT + _DONE, "again")
)  # fmt: skip
_BOTH = _FILL + _REFILL + _FENCE + _ALL + one(_STORE + _COMMIT + _BELOW + _COMMIT + "{}" + _ALL)


def _box() -> Any:
    """8 × 32 as they are stored: chunks of 16 bytes exchanged within their line."""
    lines = np.arange(256, dtype=np.int32).reshape(8, 8, 4)
    return np.stack([lines[row, [piece ^ row for piece in range(8)]] for row in range(8)]).reshape(8, 32)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("column", "row"), [(0, 0), (4, 3), (20, 8), (32, -2)])
def test_a_box_is_stored_and_what_is_outside_is_left_out(column: int, row: int, late: bool) -> None:
    c = launch(_RIGHT, column=column, row=row, late=late)
    expected = np.full((_ROWS + 16, _COLUMNS + 32), -1, dtype=np.int32)
    expected[row + 8 : row + 16, column : column + 32] = _box()
    assert np.array_equal(c, expected[8 : 8 + _ROWS, :_COLUMNS])


@pytest.mark.parametrize("late", [True, False])
def test_a_box_that_has_been_read_may_be_filled_again(late: bool) -> None:
    c = launch(_TWICE, late=late)
    assert np.array_equal(c[:, :32], np.concatenate([_box(), _box()[:4]]))


@pytest.mark.parametrize("late", [True, False])
def test_a_warp_stores_what_its_lanes_have_read_before_they_met(late: bool) -> None:
    read = "setp.lt.u32 %p2, %r1, 32; @%p2 ld.global.u32 %r13, [%rd7];"
    assert np.array_equal(launch(read + _RIGHT, late=late, is_read=True)[:8, :32], _box())
    for since in (_RIGHT.replace(_ALL, _ALL + read), read.replace("lt", "ge") + _RIGHT):
        with pytest.raises(Fault, match="that another thread has read"):
            launch(since, late=late, is_read=True)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (_RIGHT.replace(_FENCE, ""), "with no proxy fence between"),
        (_RIGHT.replace(_FENCE, one(_FENCE, "fenced")), "with no proxy fence between"),
        (_RIGHT.replace(_FENCE + _ALL, _MEET + _FENCE), "has not waited for who wrote it"),
        (_RIGHT.replace(_ALL, _MEET), "has not waited for who wrote it"),
        (_RIGHT.replace(_ALL, ""), "has not waited for who wrote it"),
        (_RIGHT.replace(_DONE, ""), "ended while boxes were being stored"),
        (_RIGHT.replace(_DONE, _READ), "ended while boxes were being stored"),
        (_RIGHT.replace(_DONE, _DONE.replace("0", "1")), "ended while boxes were being stored"),
        (_RIGHT.replace(_COMMIT, ""), "ended while boxes were being stored"),
        (_RIGHT.replace(_DONE + "$stored:", "$stored: setp.eq.s32 %p3, %r1, 1; @%p3 " + _DONE), "ended while boxes"),
        (_RIGHT.replace("[%r2];", "[%r2+64];"), "which is no multiple of 128"),
        (_RIGHT.replace("[%r2];", "[%r2+1152];"), "is outside of the 2048 bytes"),
        (_RIGHT.replace("[%r2];", "[%r2+1024];"), "has not been written"),
        (_RIGHT.replace("%rd3,", "%rd5,"), "of no array that the kernel was given for writing"),
        (_RIGHT.replace("%rd3,", "%rd1,"), "of no tensor map"),
        (_RIGHT.replace("tensor.3d", "tensor.2d").replace(", 0}", "}"), "of 2 dimensions, its tensor of 3"),
        (_RIGHT.replace(_STORE, _STORE + _STORE), "that a box is being stored to"),
        (_RIGHT.replace("@%p1 bra", "setp.gt.u32 %p1, %r1, 1; @%p1 bra"), "that a box is being stored to"),
        (_TWICE.replace(_READ, ""), "while it is being read asynchronously"),
        (_TWICE.replace(_READ, _READ.replace("0", "1")), "while it is being read asynchronously"),
        (_TWICE.replace(_COMMIT + _READ, _READ + _COMMIT), "while it is being read asynchronously"),
        (_TWICE.replace("$stored:" + _ALL, "$stored:"), "that another thread read since"),
        (_TWICE.replace("$stored:" + _ALL, "$stored:" + _MEET), "that another thread read since"),
        (_RIGHT.replace(_DONE, "ld.global.u32 %r13, [%rd1];" + _DONE), "that a box is being stored to"),
        (_RIGHT.replace(_DONE, "st.global.u32 [%rd1], %r12;" + _DONE), "that a box is being stored to"),
        ("st.global.u32 [%rd7], %r12;" + _RIGHT.replace(_ALL, _MEET, 0).replace(_ALL, ""), "has not waited for who"),
        (_RIGHT + "setp.eq.s32 %p3, %r1, 1; @%p3 st.global.u32 [%rd1], %r12;", "with nothing to order them"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("late", [True, False])
def test_what_is_undefined_is_refused(body: str, what: str, late: bool) -> None:
    with pytest.raises(Fault) as fault:
        launch(body, late=late)
    assert what in str(fault.value)


@pytest.mark.parametrize(("pending", "is_right"), [(0, True), (1, False)])
def test_groups_end_the_oldest_first(pending: int, is_right: bool) -> None:
    """Of two groups, the box of the first may be filled again when one is left, that of the second not."""
    start = _FILL + _REFILL + _FENCE + _ALL + one(_STORE + _COMMIT + _BELOW + _COMMIT + _READ.replace("0", "1")) + _ALL
    end = one(_DONE, "done")
    launch(start + _FILL + end)
    if is_right:
        launch(start + one(_READ, "read") + _ALL + _REFILL + end)
        return
    with pytest.raises(Fault, match="while it is being read asynchronously"):
        launch(start + _REFILL + end)


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.wait_group.write 0;",
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%rd3, {0, 0, 0}], [%r2];",
        "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group [%rd3, {0, 0, 0}], [%r2];",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(PtxError, match="is not known"):
        launch(text)
