"""A farm on the page Compile, with a real Redis: neither lies nor silence of the broker break it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from cache_engine.model.gemm import GemmProblem
from cache_engine.team.board import Board, Run
from cache_engine.team.broker import FARMS, Broker, CompileMessage, connected
from tests.helpers import make_store
from tests.pages.opening import HERE, Open, Reader, frames, sound
from tests.team.conftest import Redis
from tests.team.test_board import JOB, KEYS, beats, fill_with_lies, silent_broker


@pytest.fixture(scope="module")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def broker(shared_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> str:
    client = connected(shared_redis.url, 5.0)
    client.flushall()
    client.zadd(FARMS, {KEYS.farm: client.time()[0]})
    monkeypatch.setenv("GEMM_CACHE_BROKER", shared_redis.url)
    return shared_redis.url


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store").layout.root


def _texts(app: AppTest) -> str:
    return "\n".join(str(one.value) for one in (*app.text, *app.caption, *app.warning))


def test_without_a_broker_the_page_says_what_a_farm_is_and_where_to_read_how_to_start_one(
    open_page: Open, store: Path
) -> None:
    app = sound(open_page(store, "farm"))
    assert "export GEMM_CACHE_BROKER=redis://host:6379/0" in [code.value for code in app.code]
    (link,) = (one.proto for one in app.get("page_link") if one.proto.label == "Start a farm")
    assert (link.page, link.query_string) == ("docs", "document=farm")


def test_workers_runs_and_failures_are_shown_and_a_run_can_be_canceled(
    open_page: Open, reader: Reader, store: Path, broker: str
) -> None:
    board = Board(broker, KEYS)
    beats(broker)
    board.follows(JOB, Run("Llama-3.1-8B", ["sm_90a"], 50, 10, 30, board.now(), 90.0))
    app = sound(open_page(store, "farm"))
    assert "1 worker, up to 4 kernels at a time. 0 waiting, 0 in work." in _texts(app)
    *_, jobs, table = frames(app)
    assert jobs.iloc[0][["State", "Command", "Where"]].to_list() == [
        "▶ running", "farm compile Llama-3.1-8B for sm_90a", "farm",
    ]  # fmt: skip
    assert jobs["Progress"][0] == "20 of 50 kernels; about 1 min 30 s left (predicted)"
    assert (table["Worker"][0], table["Processes"][0], table["State"][0]) == ("north:7", 4, "here")
    # Who may not delete may not cancel either, whatever was drawn.
    reader.request = replace(HERE, bound_to="0.0.0.0")
    assert next(one for one in sound(app.run()).button if one.label == "Cancel").disabled
    reader.request = HERE
    next(one for one in sound(app.run()).button if one.label == "Cancel").click().run()
    assert Broker(broker, KEYS).is_canceled(JOB)
    sound(app.run())
    assert not [one for one in app.button if one.label == "Cancel"]
    assert next(one for one in frames(app) if "State" in one)["State"][0] == "■ canceled"


def test_what_failed_is_shown_with_its_text(open_page: Open, store: Path, broker: str) -> None:
    from cache_engine.cache.cache import open_cache

    with open_cache(store) as cache:
        message = CompileMessage.of(JOB, cache.select(GemmProblem(16, 48, 32, arch="sm_80")))
    Board(broker, KEYS).ends("north:7", message, compiled=False, error="ptxas ended with code 1")
    app = sound(open_page(store, "farm"))
    *_, hours, failures = frames(app)
    assert failures["Cause"][0] == "ptxas ended with code 1"
    assert hours["Failed"].sum() == 1
    assert len(hours) == 24


def test_hostile_text_is_only_ever_text(open_page: Open, store: Path, broker: str) -> None:
    fill_with_lies(broker)
    app = sound(open_page(store, "farm"))
    assert "<script>" in str(next(one for one in frames(app) if "Worker" in one)["Worker"][0])
    for markdown in (*app.markdown, *app.caption, *app.title, *app.header, *app.info, *app.warning, *app.success):
        assert "script" not in markdown.value


def test_a_silent_broker_is_said_in_words(open_page: Open, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with silent_broker() as url:
        monkeypatch.setenv("GEMM_CACHE_BROKER", url)
        app = sound(open_page(store, "farm"))
    assert "The farm's queue does not answer." in _texts(app)
    assert "the broker has not answered within 0.3 s" in _texts(app)
    assert [button.label for button in app.button if button.label == "Compile"], "the rest of the page is there"
