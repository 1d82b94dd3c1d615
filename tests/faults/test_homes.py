"""Users without a home directory, such as those of a container, and paths below an unknown one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from cache_engine.cache import operator
from cache_engine.cache.cache import open_cache
from cache_engine.cache.operator import GemmOperator
from cache_engine.cli.main import commands
from cache_engine.errors import StoreUnusable
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.settings import Settings

PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The user of a container: the password file does not list it, and it has no variables."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "GEMM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    for made in (operator._in_force, operator._opened):
        made.cache_clear()
    yield
    for made in (operator._in_force, operator._opened):
        made.cache_clear()


@pytest.mark.usefixtures("no_home")
def test_without_a_home_kernels_are_cached_in_memory() -> None:
    one = GemmOperator(dtype="fp32", arch="sm_90")
    kernel = one.kernel(64, 48, 80)
    assert (kernel.tier, one.kernel(64, 48, 80).tier) == ("compiled", "memory")
    assert "this user has no home directory" in str(kernel.unpublished)
    with pytest.raises(StoreUnusable, match="name one with --store or GEMM_CACHE_DIR"):
        open_cache()


@pytest.mark.usefixtures("no_home")
def test_without_a_home_packs_are_served(tmp_path: Path) -> None:
    settings = Settings.load()
    with pytest.raises(StoreUnusable, match="no home directory"):
        open_cache(settings=settings)
    with open_cache(settings=settings.with_overrides({"packs": (tmp_path,)})) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"


@pytest.mark.usefixtures("no_home")
@pytest.mark.parametrize("verb", [["ls"], ["compile", "64", "48", "80"], ["verify"], ["evaluations"]])
def test_without_a_home_a_verb_asks_for_a_directory(verb: list[str]) -> None:
    done = CliRunner().invoke(commands, verb)
    assert isinstance(done.exception, StoreUnusable)


@pytest.mark.usefixtures("no_home", "without_compilers")
def test_without_a_home_doctor_says_so() -> None:
    done = CliRunner().invoke(commands, ["doctor", "--json"])
    store = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "store")
    assert (store["status"], "no home directory" in store["detail"]) == ("problem", True)


@pytest.mark.usefixtures("without_compilers")
def test_doctor_says_where_no_store_can_be_created(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path and access(path, mode))  # root may write all
    done = CliRunner().invoke(commands, ["--store", str(tmp_path / "a" / "store"), "doctor", "--json"])
    store = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "store")
    assert store["status"] == "problem"
    assert f"cannot be created, because you may not write {tmp_path};" in store["detail"]


def test_an_unknown_home_in_a_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(commands, ["--store", "~nobody-has-this-name/store", "ls"])
    assert isinstance(done.exception, StoreUnusable)
    monkeypatch.setenv("GEMM_CACHE_PACKS", "~nobody-has-this-name/a.gemmpack")
    with pytest.raises(StoreUnusable, match="the home directory ~nobody-has-this-name is unknown"):
        Settings.load()
