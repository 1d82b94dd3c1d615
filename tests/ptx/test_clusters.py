"""Clusters on the machine: what blocks copy to each other, and what is refused, on a kernel of a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import maps
from tests.ptx.faults import Fault
from tests.ptx.machine import Kernel
from tests.ptx.parse import PtxError

# Two blocks fill a buffer of 8 KiB in each of them, a half each, and all threads read it; and once more, when all have
# read. Behind it are the barriers: of what has landed, and of what has been read.
_ROUND = """
    @%p1 bra $started{number};
    {room}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 8192;
    cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r5], [%rd3, {{0, %r6, 0}}], [%r3], %rs1;
$started{number}:
$full{number}:
    {{ .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%r3], {number}; selp.u32 %r7, 1, 0, q; }}
    setp.eq.s32 %p2, %r7, 0;
    @%p2 bra $full{number};
    ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r8];
    st.global.v4.u32 [%rd7+{place}], {{%r10, %r11, %r12, %r13}};
    add.s32 %r6, %r6, 64;
"""  # noqa: E501
_ROOM = """
$room:
    { .reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%r3+8], 0; selp.u32 %r7, 1, 0, q; }
    setp.eq.s32 %p2, %r7, 0;
    @%p2 bra $room;
"""
_FIRST, _SECOND = _ROUND.format(number=0, room="", place=0), _ROUND.format(number=1, room=_ROOM, place=8192)
_GIVE = """
    and.b32 %r14, %r1, 31;
    setp.gt.u32 %p3, %r14, 1;
    @%p3 bra $given;
    mapa.shared::cluster.u32 %r15, %r3, %r14;
    mbarrier.arrive.shared::cluster.b64 _, [%r15+8];
$given:
"""
_MEET = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
_START = f"""
    @%p1 bra $ready;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    mbarrier.init.shared::cta.b64 [%r3+8], 8;
    fence.proxy.async.shared::cta;
    fence.mbarrier_init.release.cluster;
$ready:
    {_MEET}
"""
_TEXT = f"""
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 memory[];
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1, .param .align 64 .b8 k_param_2[128])
.explicitcluster
.reqnctapercluster 2, 1, 1
.maxntid 128, 1, 1
{{
    .reg .pred %p<9>;
    .reg .b16 %rs<3>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<20>;
    ld.param.u64 %rd1, [k_param_0];
    mov.b64 %rd2, k_param_2;
    cvta.param.u64 %rd3, %rd2;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, memory;
    add.s32 %r3, %r2, 8192;
    mov.u16 %rs1, 3;
    mov.u32 %r4, %cluster_ctarank;
    shl.b32 %r6, %r4, 12;
    add.s32 %r5, %r2, %r6;
    shl.b32 %r6, %r4, 5;
    shl.b32 %r8, %r1, 6;
    add.s32 %r8, %r8, %r2;
    mov.u32 %r9, %ctaid.x;
    shl.b32 %r10, %r9, 7;
    add.s32 %r10, %r10, %r1;
    mul.wide.u32 %rd6, %r10, 16;
    add.s64 %rd7, %rd1, %rd6;
    setp.ne.s32 %p1, %r1, 0;
    {_START}
    {_FIRST}
    {_GIVE}
    {_SECOND}
    {_GIVE.replace("given", "given_again")}
    {_MEET}
    ret;
}}
"""


def _launched(text: str, *, late: bool = True, blocks: int = 4) -> tuple[Any, Any]:
    """What each round of each block has read, 16 bytes for each thread; and the tensor."""
    kernel = Kernel(text, late=late)
    tensor = np.random.default_rng(3).integers(0, 1 << 16, (1, 128, 64), dtype=np.uint16)
    tensor.flags.writeable = False
    read = np.zeros((2, 4, 128, 8), dtype=np.uint16)
    given = maps.encode(9, tensor.ctypes.data, (64, 128, 1), (128, tensor.nbytes), (64, 32, 1), maps.SWIZZLE_128B)
    kernel.unwritten = (read,)
    kernel((blocks, 1, 1), (128, 1, 1), (read, tensor, given), shared_mem=8192 + 16)
    return read, tensor[0]


@pytest.mark.parametrize("late", [True, False])
def test_blocks_copy_to_each_other(late: bool) -> None:
    """In each of two clusters: the first piece of a line, or the fifth, as the copy engine permutes them."""
    read, tensor = _launched(_TEXT, late=late)
    for number in (0, 1):
        lines = tensor[number * 64 : (number + 1) * 64].reshape(64, 8, 8)
        for block in range(4):
            for thread in range(128):
                line, piece = thread // 2, thread % 2 * 4
                assert np.array_equal(read[number, block, thread], lines[line, piece ^ line % 8])


_MEET_IN_BLOCK = "bar.sync 0;"
_UNSEEN = "that has not waited for who"
_MISTAKES = [
    ("no barrier at the start", _START, _START.replace(_MEET, _MEET_IN_BLOCK), "barrier"),
    ("arrival that releases nothing", _START, _START.replace("arrive.release", "arrive.relaxed"), "who initialised it"),
    ("no fence for other blocks", "fence.mbarrier_init.release.cluster;", "", "no fence.mbarrier_init since"),
    ("no fence for copies", "fence.proxy.async.shared::cta;", "", "with no proxy fence since"),
    ("a block that is not there", "%rs1, 3;", "%rs1, 7;", "to land in blocks 0x7 of a cluster of 2"),
    ("no block", "%rs1, 3;", "%rs1, 0;", "to land in blocks 0x0"),
    ("one block", "%rs1, 3;", "%rs1, 1;", "never ends"),
    ("half of the bytes", _FIRST, _FIRST.replace("8192;", "4096;"), "is under way"),
    ("both copy to one place", "add.s32 %r5, %r2, %r6;", "mov.u32 %r5, %r2;", "while a copy into it is under way"),
    ("no room is waited for", _ROOM, "", _UNSEEN),
    ("one block's warps are waited for", "[%r3+8], 8;", "[%r3+8], 4;", _UNSEEN),
    ("arrivals stay in the block", "mapa.shared::cluster.u32 %r15, %r3, %r14;",
     "mapa.shared::cluster.u32 %r15, %r3, %r4;", _UNSEEN),
    ("arrivals at one block", "mapa.shared::cluster.u32 %r15, %r3, %r14;",
     "mov.u32 %r16, 0; mapa.shared::cluster.u32 %r15, %r3, %r16;", "never ends"),
    ("an address that was not mapped", "mapa.shared::cluster.u32 %r15, %r3, %r14;", "mov.u32 %r15, %r3;",
     _UNSEEN),
    ("a rank that is not there", "mapa.shared::cluster.u32 %r15, %r3, %r14;",
     "add.s32 %r16, %r14, 1; mapa.shared::cluster.u32 %r15, %r3, %r16;", "to block 2 of a cluster of 2"),
    ("an address that was mapped already", "mapa.shared::cluster.u32 %r15, %r3, %r14;",
     "mapa.shared::cluster.u32 %r16, %r3, %r14; mapa.shared::cluster.u32 %r15, %r16, %r14;", "none of the block's own"),
    ("another block's address for this one's", "mbarrier.arrive.shared::cluster.b64", "mbarrier.arrive.shared::cta.b64",
     "is outside of the"),
    ("no barrier at the end", f"{_MEET}\n    ret;", "ret;", "a block"),
    ("a barrier of the block at the end", f"{_MEET}\n    ret;", f"{_MEET_IN_BLOCK} ret;", "a block"),
    ("nothing is released at the end", f"{_MEET}\n    ret;",
     f"{_MEET.replace('arrive.release', 'arrive.relaxed')} ret;", "has not waited for who accesses its shared memory"),
    ("arrives twice", _START, _START.replace(_MEET, f"barrier.cluster.arrive.release; {_MEET}"),
     "again before it has waited"),
    ("waits twice", _START, _START.replace(_MEET, f"{_MEET} barrier.cluster.wait.acquire;"),
     "where it has not arrived"),
    ("half of a block at the barrier", f"{_MEET}\n    ret;",
     f"setp.gt.u32 %p4, %r1, 63; @%p4 bra $on; {_MEET} $on: bar.sync 0; ret;", "that the others never reach"),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "what"), [one[1:] for one in _MISTAKES], ids=[one[0] for one in _MISTAKES])
def test_what_is_undefined_is_refused(right: str, wrong: str, what: str) -> None:
    """Whatever is executed first: with copies that land late, and early."""
    assert right in _TEXT
    for late in (True, False):
        with pytest.raises(Fault) as fault:
            _launched(_TEXT.replace(right, wrong), late=late)
        assert what in str(fault.value) or not late


def test_a_grid_is_whole_clusters() -> None:
    with pytest.raises(Fault, match="3 blocks wide, which is no multiple of 2"):
        _launched(_TEXT, blocks=3)


def test_clusters_along_other_axes_are_not_known() -> None:
    with pytest.raises(PtxError, match="along x alone"):
        _launched(_TEXT.replace("2, 1, 1", "1, 2, 1"))
