"""Overview and Kernels, By target, show which families a GPU has proved or refused."""

from __future__ import annotations

from pathlib import Path

import msgspec

from app.presenters.architectures import proof_checks, proof_lines
from app.presenters.overview import FINE, LOOK
from cache_engine.model.key import CacheKey
from cache_engine.model.proof import HINT, PROVED, REFUSED, Proof
from cache_engine.store.disk import DiskStore
from cache_engine.store.layout import StoreLayout
from cache_engine.store.proofs import write_proof
from tests.helpers import INVENTED_GPU
from tests.pages.opening import Open, sound

HOSTILE = msgspec.structs.replace(INVENTED_GPU, name="**GPU** [x](http://x)")
PROOF = Proof(family="hopper", state=PROVED, device=HOSTILE, toolchain="nvrtc 13.0", at=1.0, cases=22)
REFUSAL = msgspec.structs.replace(
    PROOF, state=REFUSED, at=0.5, reason="it is wrong", case="a case", seed=34, command="gemm-cache time 1 2 3"
)


def _keep(layout: StoreLayout, *proofs: Proof) -> None:
    for number, proof in enumerate(proofs):
        write_proof(layout, CacheKey(f"{number:064x}"), proof, durable=False)


def test_a_refusal_is_shown_until_the_toolchain_changes(store: DiskStore) -> None:
    assert proof_checks(store.layout) == []
    _keep(store.layout, msgspec.structs.replace(PROOF, state=HINT))
    assert proof_checks(store.layout) == []
    _keep(store.layout, PROOF)
    assert [check.state for check in proof_checks(store.layout)] == [FINE]
    _keep(store.layout, PROOF, REFUSAL)
    (check,) = proof_checks(store.layout)
    assert (check.state, "a case, seed 34" in check.cause, "gemm-cache time" in check.cause) == (LOOK, True, True)
    assert HOSTILE.name not in check.words  # which is Markdown
    assert [line.split(": ")[1] for line in proof_lines(store.layout)][1].startswith("refused on")


def test_both_pages_show_it(open_page: Open, compiled_store: Path) -> None:
    _keep(StoreLayout(compiled_store), REFUSAL)
    app = sound(open_page(compiled_store, "overview"))
    assert any("A GPU refused this family" in one.value for one in app.warning)
    assert any("a case, seed 34" in one.value for one in app.text)
    app = sound(open_page(compiled_store, "architectures"))
    assert any(one.value.startswith("hopper, nvrtc 13.0: refused on **GPU**") for one in app.text)
