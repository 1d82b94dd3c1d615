"""What the machine is worth: each mistake that is put into a right kernel is seen.

``make test`` takes a sample of them that changes daily, ``make soak`` all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.helpers import of_today
from tests.ptx import grouped, hopper_mistakes, tensor_core_mistakes
from tests.ptx.mistakes import Mistake, in_ptx, in_templates
from tests.ptx.problems import kernel_of, source_of

MISTAKES: Sequence[Mistake] = (
    *tensor_core_mistakes.IN_TEMPLATES,
    *tensor_core_mistakes.IN_PTX,
    *hopper_mistakes.MISTAKES,
    *grouped.MISTAKES,
)
_PARTS, _IN_PART = 6, 5


@pytest.mark.parametrize("part", range(_PARTS))
def test_a_sample_of_the_mistakes_is_seen(part: int) -> None:
    for mistake in of_today(MISTAKES, _PARTS * _IN_PART)[part::_PARTS]:
        print(mistake)
        assert mistake.is_seen()


@pytest.mark.soak
@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_every_mistake_is_seen(mistake: Mistake) -> None:
    assert mistake.is_seen()


def test_every_row_is_of_the_templates_of_today() -> None:
    """All of them each day, as they are only looked for: after a change of a template, adapt the rows it touched."""
    for mistake in MISTAKES:
        assert mistake.is_in_ptx or mistake.source() != source_of(mistake.case), mistake


@pytest.mark.soak
@pytest.mark.parametrize("mistake", {mistake.case: mistake for mistake in MISTAKES}.values(), ids=str)
def test_the_kernels_are_right_before(mistake: Mistake) -> None:
    assert not mistake.what_is_wrong(mistake.case, kernel_of(mistake.case))


def test_a_row_that_makes_no_mistake_fails() -> None:
    """Its text is not in the template, or there twice, or not in the PTX; or the kernel is still right."""
    right = tensor_core_mistakes.IN_TEMPLATES[0].case
    for text in ("no such text", "int"):
        with pytest.raises(AssertionError, match="no longer holds"):
            in_templates((right, "nothing", text, ""))[0].is_seen()
    with pytest.raises(AssertionError, match="is not in the PTX any more"):
        in_ptx((right, "nothing", "no such text", "", 0))[0].is_seen()
    assert not in_ptx((right, "nothing", "ret", "ret", 0))[0].is_seen()
