"""Which version of a framework is installed, and what is stale under it."""

from __future__ import annotations

import sys

import pytest

from cache_engine.frameworks.registry import PACKAGES, installed_version, is_stale


@pytest.mark.parametrize("kind", PACKAGES)
def test_the_framework_is_not_imported(kind: str) -> None:
    before = set(sys.modules)
    found = installed_version(kind)
    assert found is None or found[0].isdigit()
    assert not {name for name in set(sys.modules) - before if name.partition(".")[0] in ("triton", "tilelang")}


def test_of_a_framework_whose_entries_have_no_version_none_is_looked_for() -> None:
    assert installed_version("cupy") is None


@pytest.mark.parametrize(
    ("made_by", "here", "stale"),
    [("3.9.0", "3.9.0", False), ("3.2.0", "3.9.0", True), ("3.9.0+git1", "3.9.0+git2", False), ("3.2.0", None, False)],
)
def test_what_another_release_made_is_stale(made_by: str, here: str | None, stale: bool) -> None:
    assert is_stale(made_by, here) == stale
