"""The machine's instructions of sm_90a: what they do, and what is refused, on kernels of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import maps, tiles
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.parse import PtxError

# Two buffers of 8 KiB at 0 and 8192, and barriers from 16384 on, of which the first two are initialised.
_TEXT = """
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1, .param .u64 k_param_2,
    .param .align 64 .b8 k_param_3[128], .param .align 64 .b8 k_param_4[128])
.maxntid 384, 1, 1
{{
    .reg .pred %p<9>;
    .reg .b32 %r<20>;
    .reg .f32 %f<9>;
    .reg .b64 %rd<20>;
    ld.param.u64 %rd1, [k_param_0];
    mov.b64 %rd2, k_param_3;
    cvta.param.u64 %rd3, %rd2;
    mov.b64 %rd4, k_param_4;
    cvta.param.u64 %rd5, %rd4;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, memory;
    add.s32 %r3, %r2, 16384;
    mul.wide.u32 %rd6, %r1, 16;
    add.s64 %rd7, %rd1, %rd6;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra $ready;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    mbarrier.init.shared::cta.b64 [%r3+8], 1;
    fence.proxy.async.shared::cta;
$ready:
    bar.sync 0;
{body}
    ret;
}}
"""
_LINES, _COLUMNS = 60, 72  # of the tensor that is copied from: a box of 64 × 64 does not fit, nor does a second one
_BOX = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
_TAKE_A = f"{_BOX} [%r2], [%rd3, {{%r10, %r11, 0}}], [%r3];"
_TAKE_B = f"{_BOX} [%r2+8192], [%rd5, {{0, 0, 0}}], [%r3];"
_FROM_0 = "mov.u32 %r10, 0; mov.u32 %r11, 0;"
_EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 8192;"
_WAIT = """
$again:
    {{ .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%r3], {parity}; selp.u32 %r5, 1, 0, q; }}
    setp.eq.s32 %p2, %r5, 0;
    @%p2 bra $again;
"""
_WAITED = _WAIT.format(parity=0)
_LOAD = "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r4]; st.global.v4.u32 [%rd7], {%r6, %r7, %r8, %r9};"
_OWN = "shl.b32 %r4, %r1, 4; add.s32 %r4, %r4, %r2;"


def one(body: str, label: str = "sent") -> str:
    """What thread 0 alone executes."""
    return f"@%p1 bra ${label};{body}${label}:"


def launch(body: str, *, threads: int = 128, late: bool = True, box_b: tuple[int, int, int] = (64, 8, 1)) -> Any:
    """Runs a kernel; returns the 16 bytes that each thread has written, what A's map is of, and what B's is."""
    kernel = Kernel(_TEXT.format(body=body), late=late)
    generator = np.random.default_rng(5)
    a = generator.integers(-7, 8, (1, _LINES, _COLUMNS)).astype(np.float32)
    b = generator.integers(-7, 8, (1, 64, 64)).astype(np.float32)
    stored = [(one.view(np.uint32) >> 16).astype(np.uint16) for one in (a, b)]
    written = np.full((256, 4), 7, dtype=np.uint32)
    for one in stored:
        one.flags.writeable = False
    given = [
        maps.encode(9, one.ctypes.data, one.shape[::-1], (one.shape[2] * 2, one[0].nbytes), box, maps.SWIZZLE_128B)
        for one, box in zip(stored, ((64, 64, 1), box_b), strict=True)
    ]
    kernel.unwritten = (written,)
    kernel((1, 1, 1), (threads, 1, 1), (written, *stored, *given), shared_mem=16384 + 128)
    return written, a[0], b[0]


def _padded(a: Any, column: int, line: int) -> Any:
    padded = np.zeros((_LINES + 64, _COLUMNS + 64), dtype=np.float32)
    padded[:_LINES, :_COLUMNS] = a
    return padded[line : line + 64, column : column + 64]


def _box_of(written: Any) -> Any:
    """The lines of which each thread wrote 16 bytes as they are in shared memory: 128 bytes, with pieces exchanged."""
    found = (written[:128].view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(16, 8, 8)
    return np.stack([found[row, np.arange(8) ^ row % 8] for row in range(16)]).reshape(16, 64)


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(("column", "line"), [(0, 0), (40, 24), (8, 60)])
def test_a_box_lands_swizzled_with_zeroes_where_there_is_nothing(column: int, line: int, late: bool) -> None:
    start = f"mov.u32 %r10, {column}; mov.u32 %r11, {line};"
    body = one(start + _EXPECT + _TAKE_A) + _WAITED + _OWN + _LOAD
    written, a, _ = launch(body, late=late)
    assert np.array_equal(_box_of(written), _padded(a, column, line)[:16])


def test_one_thread_may_wait_for_all_at_a_barrier_of_the_block() -> None:
    body = one(_FROM_0 + _EXPECT + _TAKE_A + _WAITED) + "bar.sync 0;" + _OWN + _LOAD
    written, a, _ = launch(body)
    assert np.array_equal(_box_of(written), _padded(a, 0, 0)[:16])


_SENT = one(_FROM_0 + _EXPECT + _TAKE_A)
_INIT = "mbarrier.init.shared::cta.b64 [%r3+16], 1;"


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (_SENT + _OWN + _LOAD, "read while a copy into it is under way"),
        (_SENT + _WAIT.format(parity=1) + _OWN + _LOAD, "read while a copy into it is under way"),
        (_SENT, "ended while copies were under way"),
        (_SENT.replace("8192;", "8176;") + _WAITED, "a phase of an mbarrier that never ends"),
        (_SENT.replace("8192;", "8208;") + _WAITED, "a phase of an mbarrier that never ends"),
        (_SENT.replace(_EXPECT, "") + _WAITED, "a phase of an mbarrier that never ends"),
        (_SENT.replace(_EXPECT, _EXPECT + _EXPECT), "a thread more arrives"),
        (_SENT.replace("8192;", "1048576;"), "the most is 1,048,575"),
        (_SENT.replace(_TAKE_A, _TAKE_A + _TAKE_A), "written while a copy into it is under way"),
        (_SENT.replace("[%r2]", "[%r2+64]"), "which is no multiple of 128"),
        (_SENT.replace("[%r2]", "[%r2+16384]"), "is outside of the 16512 bytes"),
        (one(_TAKE_B.replace("8192", "15488")), "to overwrite a barrier"),
        (one("st.shared.u32 [%r3], %r1;"), "written in which a barrier lies"),
        (one("ld.shared.u32 %r1, [%r3];"), "read in which a barrier lies"),
        (_SENT.replace("[%r3];", "[%r3+16];"), "there is no barrier that was initialised"),
        (_SENT.replace("[%r3];", "[%r3+4];"), "which is no multiple of 8"),
        (_SENT.replace("tensor.3d", "tensor.2d").replace(", 0}", "}"), "of 2 dimensions, its tensor of 3"),
        (_SENT.replace("%rd3,", "%rd1,"), "of no tensor map"),
        (one(_FROM_0 + _INIT + _EXPECT.replace("%r3", "%r3+16") + _TAKE_A.replace("[%r3]", "[%r3+16]")),
         "initialised with no proxy fence since"),
        (one("mbarrier.init.shared::cta.b64 [%r3], 1;"), "that is one already"),
        (one("mbarrier.init.shared::cta.b64 [%r3+16], 0;"), "is to wait for 0 arrivals"),
        (one(_INIT) + "setp.eq.s32 %p3, %r1, 64; @%p3 mbarrier.arrive.shared::cta.b64 _, [%r3+16];",
         "has not waited for who initialised it"),
        # The first warp alone has waited.
        (_SENT + "setp.gt.u32 %p3, %r1, 31; @%p3 bra $past;" + _WAITED + "$past:" + _OWN + _LOAD,
         "while a copy into it is under way"),
        # A store, and then a copy to the same place, with no fence between; and with one, but no barrier.
        (_OWN + "st.shared.u32 [%r4], %r1; bar.sync 0;" + _SENT, "with no proxy fence between"),
        (_OWN + "st.shared.u32 [%r4], %r1; fence.proxy.async.shared::cta;" + _SENT, "who wrote it"),
        # What was copied is read by all, and is overwritten by the first warp, which does not know of the others.
        (_SENT + _WAITED + _OWN + _LOAD + one(_EXPECT + _TAKE_A, "more"), "for who reads it"),
        ("elect.sync _|%p3, 0xffffffff; @!%p3 bra $end; elect.sync _|%p3, 0xffffffff; $end:", "a part of a warp"),
        ("setmaxnreg.inc.sync.aligned.u32 240; setmaxnreg.inc.sync.aligned.u32 232;", "which is the other way"),
        ("setmaxnreg.dec.sync.aligned.u32 256;", "which is the other way"),
    ],
)  # fmt: skip
def test_what_is_undefined_is_refused(body: str, what: str) -> None:
    with pytest.raises(Fault) as fault:
        launch(body)
    assert what in str(fault.value)


@pytest.mark.parametrize("late", [True, False])
def test_a_warp_that_has_not_waited_is_seen_even_when_the_copy_has_landed(late: bool) -> None:
    """It knows that the first warp has been somewhere, and that was before the copy."""
    body = f"""
    setp.gt.u32 %p3, %r1, 31;
    @%p3 bra $second;
    {one(_FROM_0 + _EXPECT + _TAKE_A + "mbarrier.arrive.shared::cta.b64 _, [%r3+8];")}
    {_WAITED}
    bra $end;
$second:
    {_WAITED.replace("again", "repeat").replace("[%r3]", "[%r3+8]")}
    {_OWN} {_LOAD}
$end:
    """
    with pytest.raises(Fault, match="under way" if late else "has not waited for who wrote it"):
        launch(body, late=late)


_SUMS = "{%f1, %f2, %f3, %f4}"
_BOTH = one(_FROM_0 + _EXPECT.replace("8192", "9216") + _TAKE_A + _TAKE_B) + _WAITED
_DESCRIBED = """
    shr.u32 %r12, %r2, 4;
    cvt.u64.u32 %rd10, %r12;
    or.b64 %rd11, %rd10, 4611686293305360384;
    add.s64 %rd12, %rd11, 512;
    setp.ne.s32 %p3, %r2, 0;
    setp.eq.s32 %p4, %r2, 0;
"""
_PRODUCT = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {_SUMS}, %rd11, %rd12, "
_FIRST, _NEXT = _PRODUCT + "%p4, 1, 1, 0, 0;", _PRODUCT + "%p3, 1, 1, 0, 0;"
_FURTHER = "add.s64 %rd11, %rd11, 2; add.s64 %rd12, %rd12, 2;"
_FENCE, _COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
_DONE = "wgmma.wait_group.sync.aligned 0;"
_STORE = "st.global.v4.f32 [%rd7], {%f1, %f2, %f3, %f4};"
_AGAIN = one(_EXPECT.replace("8192", "9216") + _TAKE_A, "more")
_RIGHT = _BOTH + _DESCRIBED + _FENCE + _FIRST + _FURTHER + _NEXT + _COMMIT + _DONE + _STORE


def _product_of(written: Any) -> Any:
    """64 × 8, by the ISA's picture of D: lane l of warp w holds row 16 w + l / 4, columns 2 (l % 4) and the next."""
    found = written[:128].view(np.float32)
    product = np.full((64, 8), np.nan)
    for thread in range(128):
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        product[row, column : column + 2], product[row + 8, column : column + 2] = found[thread, :2], found[thread, 2:]
    return product


@pytest.mark.parametrize("late", [True, False])
def test_a_warp_group_multiplies_what_was_copied(late: bool) -> None:
    written, a, b = launch(_RIGHT, late=late)
    assert np.array_equal(_product_of(written), _padded(a, 0, 0)[:, :32] @ b[:8, :32].T)


@pytest.mark.parametrize("late", [True, False])
def test_matrices_may_be_stored_across_k(late: bool) -> None:
    """A line of the box is then one k, and 16 of them are 2048 bytes."""
    body = _RIGHT.replace("1, 1, 0, 0;", "1, 1, 1, 1;").replace(", 2;", ", 128;").replace("9216", "16384")
    written, a, b = launch(body, late=late, box_b=(64, 64, 1))
    assert np.array_equal(_product_of(written), _padded(a, 0, 0)[:32].T @ b[:32, :8])


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        (_FENCE, "", "no wgmma.fence"),
        (_WAITED, "", "under way"),
        (_COMMIT, "", "products that they are of are under way"),
        (_DONE, "", "products that they are of are under way"),
        (_DONE, "wgmma.wait_group.sync.aligned 1;", "products that they are of are under way"),
        (_STORE, "", None),
        (_STORE, _EXPECT + _TAKE_A, "a thread more arrives"),
        (_DONE, _AGAIN + _DONE, "while it is being read asynchronously"),
        (_DONE + _STORE, "", "ended while products were under way"),
        (_NEXT, "mov.f32 %f1, 0f00000000;" + _NEXT, "are under way"),
        (_FIRST, "mov.f32 %f1, 0f00000000;" + _FIRST, "no wgmma.fence"),
        (_NEXT, _NEXT.replace("%f1, %f2", "%f2, %f1"), "of another shape"),
        ("4611686293305360384", "4611686018427387904", None),
        ("4611686293305360384", "13835058330160136192", "is swizzled in mode 3"),
        ("4611686293305360384", "4612249243258781696", "bits that must be 0"),
        (_FENCE, "setp.lt.u32 %p5, %r1, 96; @!%p5 bra $end;" + _FENCE, "a part of a warp group"),
        (_FENCE, "and.b32 %r13, %r1, 64; cvt.u64.u32 %rd13, %r13; add.s64 %rd12, %rd12, %rd13;" + _FENCE,
         "give different matrices"),
        ("add.s64 %rd12, %rd11, 512;", "add.s64 %rd12, %rd11, 600;", "has not been written"),
    ],
)  # fmt: skip
def test_products_that_are_undefined_are_refused(right: str, wrong: str, what: str | None) -> None:
    assert right in _RIGHT
    body = _RIGHT.replace(right, wrong, 1) + "$end:"
    if what is not None:
        with pytest.raises(Fault) as fault:
            launch(body)
        assert what in str(fault.value)
        return
    written, a, b = launch(body)
    assert not np.array_equal(_product_of(written), _padded(a, 0, 0)[:, :32] @ b[:8, :32].T)


def test_every_element_of_a_matrix_is_read_once() -> None:
    for across in (False, True):
        chunks = tiles.Descriptor(1024, 8192, 1024).chunks(64, 2, across)
        assert len(np.unique(chunks)) == chunks.size
        assert (chunks.min() >= 1024, chunks.max() < 1024 + 8192) == (True, True)


# Warps 4 to 7 hand 8 boxes to warps 0 to 3, through two buffers.
_RING = """
    setp.gt.u32 %p3, %r1, 127;
    mov.u32 %r14, 0;
    mov.u32 %r15, 0;
    @%p3 bra $give;
    setmaxnreg.inc.sync.aligned.u32 256;
    {own}
$take:
    and.b32 %r16, %r15, 1;
    {full}
    ld.shared.u32 %r6, [%r4];
    add.s32 %r14, %r14, %r6;
    {arrive}
    add.s32 %r15, %r15, 1;
    setp.lt.u32 %p5, %r15, 8;
    @%p5 bra $take;
    st.global.u32 [%rd7], %r14;
    bra $end;
$give:
    setmaxnreg.dec.sync.aligned.u32 24;
    setp.ne.u32 %p4, %r1, 128;
    @%p4 bra $end;
$more:
    and.b32 %r16, %r15, 1;
    xor.b32 %r16, %r16, 1;
    {empty}
    mov.u32 %r10, 0;
    mov.u32 %r11, %r15;
    {send}
    add.s32 %r15, %r15, 1;
    setp.lt.u32 %p5, %r15, 8;
    @%p5 bra $more;
$end:
"""
_RING_PARTS = {
    "own": _OWN,
    "full": _WAIT.format(parity="%r16"),
    "empty": _WAIT.format(parity="%r16").replace("again", "free").replace("[%r3]", "[%r3+8]"),
    "arrive": "mbarrier.arrive.shared::cta.b64 _, [%r3+8];",
    "send": _EXPECT + _TAKE_A,
}


def _ring(**changed: str) -> str:
    """With a second barrier that waits for all 128 threads that take."""
    start = (
        "@%p1 bra $set; mbarrier.init.shared::cta.b64 [%r3+16], 128; fence.proxy.async.shared::cta; $set: bar.sync 0;"
    )
    return start + _RING.format(**{**_RING_PARTS, **changed}).replace("[%r3+8]", "[%r3+16]")


@pytest.mark.parametrize("late", [True, False])
def test_warp_groups_hand_boxes_to_each_other(late: bool) -> None:
    written, a, _ = launch(_ring(), threads=256, late=late)
    bits = (a.view(np.uint32) >> 16).astype(np.uint16)
    pairs = np.ascontiguousarray(bits).view(np.uint32)
    expected = np.zeros(8, dtype=np.uint32)
    for line in range(8):
        expected += pairs[line].reshape(-1, 4)[:8, 0]
    assert np.array_equal(written[:8, 0], expected)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("full", ""),
        ("full", _WAIT.format(parity="0")),
        ("empty", ""),
        ("empty", _WAIT.format(parity="1").replace("again", "free").replace("[%r3]", "[%r3+8]")),
        ("arrive", ""),
        ("arrive", "setp.lt.u32 %p6, %r1, 64; @%p6 mbarrier.arrive.shared::cta.b64 _, [%r3+8];"),
        ("send", _EXPECT),
        ("send", _TAKE_A),
    ],
)
@pytest.mark.parametrize("late", [True, False])
def test_a_ring_with_a_mistake_is_refused(part: str, wrong: str, late: bool) -> None:
    with pytest.raises(Fault):
        launch(_ring(**{part: wrong}), threads=256, late=late)


def test_the_first_attempt_to_wait_may_end_in_vain() -> None:
    """A kernel that does not try again goes on too early."""
    once = "{ .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%r3], 0; selp.u32 %r5, 1, 0, q; }"
    with pytest.raises(Fault, match="under way"):
        launch(_SENT + once + _OWN + _LOAD)


def test_a_warp_votes() -> None:
    """One lane of the second warp is for it."""
    body = "mov.u32 %r10, 0xffffffff; setp.eq.s32 %p2, %r1, 40; vote.sync.any.pred %p3, %p2, %r10;"
    written, *_ = launch(body + "selp.u32 %r6, 1, 0, %p3; st.global.u32 [%rd7], %r6;")
    assert written[:128, 0].tolist() == [0] * 32 + [1] * 32 + [0] * 64
    with pytest.raises(Fault, match="a part of a warp is to vote"):
        launch(body.replace("0xffffffff", "0xffff"))


def test_warp_groups_cannot_take_more_registers_than_there_are() -> None:
    with pytest.raises(Fault, match="more than there are"):
        launch("setmaxnreg.inc.sync.aligned.u32 256;", threads=384)


@pytest.mark.parametrize(
    "text",
    [
        "setmaxnreg.inc.sync.aligned.u32 260;",
        "mbarrier.try_wait.shared::cta.b64 %p3, [%r3], %rd6;",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%f1}, %rd6, %rd6, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd6, %rd6, %p1, 1, -1, 0, 0;",
        "elect.sync _|%p3, 0x0000ffff;",
        "vote.sync.all.pred %p3, %p2, -1;",
        "fence.proxy.async.global;",
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], "
        "[%rd3, {0, 0, 0}], [%r3];",
        "barrier.cluster.wait;",
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];",
    ],
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(PtxError, match=r"is not known|must be 24"):
        launch(text)
