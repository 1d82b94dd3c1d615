"""Every page in every state, run for real by Streamlit's own test runner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app import context
from cache_engine.assets import dashboard_script
from cache_engine.device.probe import local_arch
from cache_engine.jobs import DONE, RUNNING, Job
from cache_engine.model.key import CacheKey
from cache_engine.store.codec import encode_record
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.leftovers import GRACE_S
from tests.helpers import blob_file, fill, make_store, publish, record_file

PAGES = ("overview", "kernels", "compare", "architectures", "compile", "evaluations", "admin")

Open = Callable[..., AppTest]


@pytest.fixture
def open_page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a page of the dashboard on a store, as a browser would, with these query parameters."""

    def opened(store: Path, page: str, **parameters: str) -> AppTest:
        monkeypatch.setenv("GEMM_CACHE_DIR", str(store))
        app = AppTest.from_file(str(dashboard_script()), default_timeout=60)
        app.run()
        for name, value in parameters.items():
            app.query_params[name] = value
        app.switch_page(f"../pages/{page}.py").run()
        return app

    st.cache_resource.clear()
    st.cache_data.clear()
    yield opened
    if "GEMM_CACHE_DIR" in os.environ and Path(os.environ["GEMM_CACHE_DIR"]).is_dir():
        for child in context.jobs()._children.values():
            child.wait(timeout=60)
    st.cache_resource.clear()
    st.cache_data.clear()


def sound(app: AppTest) -> AppTest:
    """The app, if no page broke."""
    assert not app.exception, app.exception
    assert not app.error, [error.value for error in app.error]
    return app


@pytest.mark.parametrize("page", PAGES)
def test_a_page_on_a_filled_store(open_page: Open, compiled_store: Path, page: str) -> None:
    assert sound(open_page(compiled_store, page)).title[0].value == page.capitalize()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_on_an_empty_store(open_page: Open, tmp_path: Path, page: str) -> None:
    app = sound(open_page(tmp_path / "empty", page))
    assert app.title[0].value == page.capitalize()
    if page in ("overview", "architectures"):
        assert "The store is empty" in app.info[0].value


@pytest.mark.parametrize("page", PAGES)
def test_a_store_that_cannot_be_opened_is_told_plainly(open_page: Open, tmp_path: Path, page: str) -> None:
    (tmp_path / "file").touch()
    app = open_page(tmp_path / "file", page)
    assert not app.exception
    assert [error.value for error in app.error] == ["This page could not be made."]
    assert "is a file; a store is a directory" in app.text[0].value


def test_the_overview_tells_size_hits_and_savings(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Kernels"] == "4"
    assert shown["Hit rate"] == "20.0%"
    assert set(shown) == {"Kernels", "On disk", "Hit rate", "Compiling saved", "Compiling spent"}
    events, busiest = (table.value for table in app.dataframe)
    assert list(events["What"]) == ["compiled"] * 4
    assert list(busiest["Hits"]) == [1]


def test_the_overview_warns_of_troubles(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    record_file(store, next(iter(store.keys()))).write_text("{")
    app = sound(open_page(compiled_store, "overview"))
    assert "1 record cannot be read now" in app.warning[0].value


def test_troubles_of_long_ago_are_no_longer_shown(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    Journal(store.layout.journal, 3600.0, now=lambda: time.time() - 8 * 86_400).event("corrupt", key="gone")
    assert not sound(open_page(compiled_store, "overview")).warning
    Journal(store.layout.journal, 3600.0).event("corrupt", key="gone")
    Journal(store.layout.journal, 3600.0).event("unpublished", key="full", detail="No space left")
    shown = [warning.value for warning in sound(open_page(compiled_store, "overview")).warning]
    assert "1 kernel could not be kept" in shown[0]
    assert "1 damaged entry" in shown[1]


def test_deleting_the_mirror_loses_nothing(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "overview"))
    before = [metric.value for metric in app.metric]
    (compiled_store / "mirror.duckdb").unlink()
    assert [metric.value for metric in sound(app.run()).metric] == before


def test_a_kernel_compiled_meanwhile_appears(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    assert len(app.dataframe[0].value) == 4
    fill(make_store(compiled_store), 2)
    assert len(sound(app.run()).dataframe[0].value) == 6


@pytest.mark.parametrize(("text", "count"), [("sm_90", 2), ("SM_90 fp16", 1), ("128×256×192", 2), ("simt", 1)])
def test_search_narrows_the_list(open_page: Open, compiled_store: Path, text: str, count: int) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.text_input(key="q").set_value(text).run()
    assert len(sound(app).dataframe[0].value) == count


def test_a_search_that_finds_nothing_says_so(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "kernels")
    app.text_input(key="q").set_value("no such kernel").run()
    assert "No kernel matches" in sound(app).info[0].value


def test_filters_and_sorting(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "kernels"))
    app.multiselect(key="dtype").set_value(["bf16"])
    app.multiselect(key="arch").set_value(["sm_80", "sm_90"])
    app.selectbox(key="sort").set_value("architecture")
    app.toggle(key="asc").set_value(True).run()
    table = sound(app).dataframe[0].value
    assert list(table["Target"]) == ["sm_80", "sm_90"]
    assert set(table["Dtype"]) == {"bf16"}


def test_pages_of_the_list(open_page: Open, store: DiskStore) -> None:
    keys = fill(store, 60)
    app = sound(open_page(store.layout.root, "kernels"))
    seen = list(app.dataframe[0].value["Key"])
    for number in (2, 3):
        app.pagination(key="page").set_value(number).run()
        seen += list(sound(app).dataframe[0].value["Key"])
    assert app.pagination(key="page").value == 3
    assert sorted(seen) == sorted(key[:12] for key in keys)
    # Another search starts at its own first page.
    app.text_input(key="q").set_value("sm_80").run()
    assert len(sound(app).dataframe[0].value) == 15
    assert "1–15 of 15" in app.caption[0].value


@pytest.mark.parametrize("part", ["Summary", "Key", "Source", "PTX", "SASS", "Log"])
def test_the_inspector_shows_every_part(open_page: Open, compiled_store: Path, part: str) -> None:
    store = make_store(compiled_store)
    record = next(record for record in store.records() if record.family == "tensor_core")
    app = sound(open_page(compiled_store, "kernels", key=record.key))
    assert app.code[0].value == f"{record.name}\n{record.key}"
    app.segmented_control(key="part").set_value(part).run()
    sound(app)
    if part == "Summary":
        listed, facts, occupancy = (table.value for table in app.dataframe)
        assert len(listed) == 4
        assert str(record.resources.registers) in dict(facts.itertuples(index=False))["Registers"]
        assert list(occupancy["Limit"]) == ["registers", "shared memory", "warps", "blocks"]
        assert occupancy["Binds"].any()
        assert any("instructions" in caption.value or "in the code" in caption.value for caption in app.caption)
    elif part == "Key":
        assert dict(app.dataframe[-1].value.itertuples(index=False)) == dict(record.components)
    else:
        expected = {"Source": "KERNEL(THREADS)", "PTX": ".target", "SASS": "HMMA", "Log": "Used"}
        assert expected[part] in app.code[1].value


def test_the_mirror_built_anew_shows_what_is_there_now(open_page: Open, compiled_store: Path) -> None:
    """Not what an earlier mirror had answered."""
    app = sound(open_page(compiled_store, "kernels"))
    for count in (1, 2):
        fill(make_store(compiled_store), count)
        (compiled_store / "mirror.duckdb").unlink()
        assert len(sound(app.run()).dataframe[0].value) == 4 + count


def test_a_kernel_that_cannot_be_disassembled_shows_the_rest(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    record = next(store.records())
    blob = blob_file(store, CacheKey(record.key))
    blob.write_bytes(bytes(blob.stat().st_size))
    app = sound(open_page(compiled_store, "kernels", key=record.key))
    assert [subheader.value for subheader in app.subheader] == ["Theoretical occupancy"]
    assert any(text.value.startswith("instructions were not counted: ") for text in app.text)


def test_two_kernels_are_compared(open_page: Open, compiled_store: Path) -> None:
    by_arch = {record.arch: record for record in make_store(compiled_store).records() if record.problem.dtype == "bf16"}
    first, second = by_arch["sm_90"], by_arch["sm_80"]
    app = sound(open_page(compiled_store, "compare", a=first.key[:10], b=second.key))
    assert [code.value for code in app.code] == [f"{each.name}\n{each.key}" for each in (first, second)]
    tables = dict(zip([each.value for each in app.subheader], [each.value for each in app.dataframe], strict=True))
    assert tables["Key components that differ"]["What"][0] == "arch"
    resources = tables["Resources"].set_index("What")
    assert list(resources.loc["registers per thread"])[:2] == [
        str(each.resources.registers) for each in (first, second)
    ]
    assert "HMMA" in set(tables["Instructions in the code"]["What"])
    app.toggle(key="sass").set_value(True).run()
    assert sound(app).code[2].value.startswith(f"--- {first.key[:12]} ")


def test_a_kernel_compared_with_itself_differs_in_nothing(open_page: Open, compiled_store: Path) -> None:
    key = next(iter(make_store(compiled_store).keys()))
    app = sound(open_page(compiled_store, "compare", a=key, b=key))
    assert "The keys are equal" in app.info[0].value
    assert [subheader.value for subheader in app.subheader] == [
        "Resources", "Theoretical occupancy", "Instructions in the code"
    ]  # fmt: skip
    assert not any(table.value["Change"].any() for table in app.dataframe)


@pytest.mark.parametrize("key", ["0" * 64, "nonsense", "<script>alert(1)</script>"])
def test_comparing_with_no_kernel_is_told_plainly(open_page: Open, compiled_store: Path, key: str) -> None:
    app = open_page(compiled_store, "compare", a=next(iter(make_store(compiled_store).keys())), b=key)
    assert not app.exception
    assert [error.value for error in app.error] == ["There is no such kernel."]
    assert len(app.dataframe[0].value) == 4


@pytest.mark.parametrize("key", ["0" * 64, "nonsense", "<script>alert(1)</script>", "../../etc/passwd"])
def test_a_link_to_no_kernel_is_told_plainly(open_page: Open, compiled_store: Path, key: str) -> None:
    app = open_page(compiled_store, "kernels", key=key)
    assert not app.exception
    assert [error.value for error in app.error] == ["This kernel cannot be shown."]


def test_a_damaged_part_is_told_plainly(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    key = next(iter(store.keys()))
    blob_file(store, key).write_bytes(b"damaged")
    app = open_page(compiled_store, "kernels", key=key)
    app.segmented_control(key="part").set_value("PTX").run()
    assert not app.exception
    assert [error.value for error in app.error] == ["The PTX cannot be shown."]


HOSTILE = (
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "**bold** $x^2$ :material/delete: :red[x]",
    "=cmd|'/C calc'!A0",
    "\u202egnp.exe\x00\x1b[31m",
)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("page", PAGES)
def test_hostile_text_is_only_ever_text(open_page: Open, store: DiskStore, page: str, text: str) -> None:
    """A record made up by someone else, hostile in every field that is text."""
    (key,) = fill(store, 1)
    record = next(store.records())
    forged = msgspec.structs.replace(
        record,
        name=text,
        family=text,
        compiler=text,
        compiler_version=text,
        arch=text,
        created_by=text,
        components=((text, text),),
        problem=msgspec.structs.replace(record.problem, dtype=text, out_dtype=text, layout=text),
        created_at=1e12,
    )
    record_file(store, key).write_bytes(encode_record(forged))
    app = sound(
        open_page(store.layout.root, page, key=key) if page == "kernels" else open_page(store.layout.root, page)
    )
    for markdown in (*app.markdown, *app.caption, *app.title, *app.subheader, *app.info, *app.warning, *app.success):
        assert text not in markdown.value


def test_architectures_have_plots_and_a_table(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "architectures"))
    assert list(app.dataframe[0].value["Target"]) == ["sm_75", "sm_80", "sm_90"]
    assert list(app.dataframe[0].value["Kernels"]) == [1, 1, 2]
    assert len(app.get("plotly_chart")) == 4


def _job_of(app: AppTest) -> str:
    named = app.query_params["job"]
    return named if isinstance(named, str) else named[0]


def _wait_for_job(app: AppTest) -> AppTest:
    deadline = time.monotonic() + 60
    while context.jobs().load(_job_of(app)).state == RUNNING and time.monotonic() < deadline:
        time.sleep(0.05)
    return app.run()


def _submit(app: AppTest) -> AppTest:
    next(button for button in app.button if button.label == "Get kernel").click()
    return app.run()


def test_compile_misses_then_hits(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    app.number_input(key="n").set_value(96)
    app.number_input(key="k").set_value(64)
    app.selectbox(key="arch").set_value("sm_80")
    _wait_for_job(sound(_submit(app)))
    assert app.success[0].value.startswith("Miss: compiled in")
    assert {metric.label for metric in app.metric} == {"Registers", "Spilled", "Shared memory", "Code"}
    _wait_for_job(_submit(sound(app)))
    assert app.success[0].value.startswith("Hit (disk): found in")


def test_a_link_to_a_job_shows_what_was_asked_and_found(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "compile"))
    asked = {"m": 33, "n": 96, "k": 64, "batch": 3}
    for name, value in asked.items():
        app.number_input(key=name).set_value(value)
    chosen = {"dtype": "fp16", "out_dtype": "fp32", "layout": "tn", "arch": "sm_80"}
    for name, text in chosen.items():
        app.selectbox(key=name).set_value(text)
    _wait_for_job(sound(_submit(app)))
    linked = sound(open_page(compiled_store, "compile", job=_job_of(app)))
    assert {name: linked.number_input(key=name).value for name in asked} == asked
    assert {name: linked.selectbox(key=name).value for name in chosen} == chosen
    (record,) = [record for record in make_store(compiled_store).records() if record.problem.m == 33]
    assert f"{record.name}\n{record.key}" in [code.value for code in linked.code]


@pytest.mark.parametrize("size", [str(10**12), "-1", "0", "x"])
@pytest.mark.parametrize("result", ["", "[]", '{"key": 1}', '{"tier": [], "size_bytes": "<b>"}'])
def test_a_job_file_that_says_nonsense_breaks_no_page(
    open_page: Open, compiled_store: Path, size: str, result: str
) -> None:
    job = Job(id="1f-2e", command=["compile", size, "8", "8", "--arch", "../.."], state=DONE, result=result)
    (compiled_store / "jobs" / "1f-2e.json").write_bytes(msgspec.json.encode(job))
    app = open_page(compiled_store, "compile", job="1f-2e")
    assert not app.exception
    assert [error.value for error in app.error] == ["The result of this job cannot be read."]
    assert app.number_input(key="m").value == 4096


def test_compile_says_that_timing_needs_a_gpu(open_page: Open, compiled_store: Path) -> None:
    if local_arch() is not None:
        pytest.skip("this machine has a GPU")
    app = sound(open_page(compiled_store, "compile"))
    assert "Timing needs an NVIDIA GPU, and no NVIDIA driver is installed" in app.info[0].value


def test_compile_refuses_what_cannot_be_right_and_starts_nothing(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "compile")
    app.selectbox(key="arch").set_value("sm_75")
    _submit(app)
    assert [error.value for error in app.error] == ["This cannot be compiled."]
    assert "sm_75 computes: fp16, fp32, fp64, int8" in app.text[0].value
    assert "job" not in app.query_params


@pytest.mark.parametrize("job", ["nonsense", "../../store", "123-abc"])
def test_a_link_to_no_job_is_told_plainly(open_page: Open, compiled_store: Path, job: str) -> None:
    app = open_page(compiled_store, "compile", job=job)
    assert not app.exception
    assert [error.value for error in app.error] == ["This job cannot be shown."]


def test_cleanup_shows_what_would_go_and_asks_before_it_does(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin"))
    assert "Would evict 0 kernels" in app.caption[0].value
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    assert "Would evict 3 kernels" in sound(app).caption[0].value
    victims = app.dataframe[0].value
    assert list(victims["Why"]) == ["too many entries"] * 3
    assert all(name.startswith("gemm_") for name in victims["Kernel"])
    evict = next(button for button in app.button if button.label == "Evict 3 kernels")
    assert evict.disabled
    app.text_input(key="confirm").set_value("2").run()
    assert next(button for button in app.button if button.label == "Evict 3 kernels").disabled
    assert len(list(make_store(compiled_store).keys())) == 4
    app.text_input(key="confirm").set_value("3").run()
    next(button for button in app.button if button.label == "Evict 3 kernels").click().run()
    assert sound(app).success[0].value.startswith("Evicted 3 kernels")
    assert len(list(make_store(compiled_store).keys())) == 1


def test_a_size_that_cannot_be_read_is_told_plainly(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "admin")
    app.radio(key="rule").set_value("bytes").run()
    app.text_input(key="size").set_value("lots").run()
    assert not app.exception
    assert "is not a size" in app.text[0].value


def test_a_bad_size_leaves_the_other_tabs_alone(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "admin")
    app.radio(key="rule").set_value("bytes").run()
    app.text_input(key="size").set_value("lots").run()
    labels = {button.label for button in app.button}
    assert {"Check the store", "Rebuild the mirror"} <= labels


def test_what_is_confirmed_is_what_was_previewed(open_page: Open, compiled_store: Path) -> None:
    """Another process compiles between the preview and the click."""
    app = sound(open_page(compiled_store, "admin"))
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    planned = list(app.dataframe[0].value["Key"])
    new = fill(make_store(compiled_store), 2)
    app.text_input(key="confirm").set_value("3").run()
    assert list(app.dataframe[0].value["Key"]) == planned
    _press(app, "Evict 3 kernels")
    assert sound(app).success[0].value.startswith("Evicted 3 kernels")
    kept = set(make_store(compiled_store).keys())
    assert set(new) <= kept
    assert not kept & {key for key in kept if key[:12] in planned}


def _press(app: AppTest, label: str) -> AppTest:
    next(button for button in app.button if button.label == label).click()
    return app.run()


def test_damage_is_found_and_repaired(open_page: Open, compiled_store: Path) -> None:
    app = _press(sound(open_page(compiled_store, "admin")), "Check the store")
    assert "Nothing is wrong." in [success.value for success in sound(app).success]
    store = make_store(compiled_store)
    keys = list(store.keys())
    record_file(store, keys[0]).write_text("{")
    blob_file(store, keys[1]).write_bytes(b"")
    stale = store.layout.temp / "stale"
    stale.touch()
    os.utime(stale, (time.time() - GRACE_S - 1,) * 2)
    _press(app, "Check the store")
    assert "3 findings" in sound(app).warning[0].value
    assert next(button for button in app.button if button.label == "Repair 3 findings").disabled
    app.checkbox(key="agreed").set_value(True).run()
    _press(app, "Repair 3 findings")
    shown = [success.value for success in sound(app).success]
    assert any(text.startswith("Repaired 3 findings.") for text in shown)
    assert "Nothing is wrong." in shown
    assert len(list(store.keys())) == 2


def test_the_mirror_is_rebuilt(open_page: Open, compiled_store: Path) -> None:
    app = _press(sound(open_page(compiled_store, "admin")), "Rebuild the mirror")
    assert "Built anew: 4 kernels" in sound(app).success[0].value


def test_settings_tell_value_variable_and_meaning(open_page: Open, compiled_store: Path) -> None:
    table = sound(open_page(compiled_store, "admin")).dataframe[-1].value.set_index("Setting")
    assert table.loc["max_entries", "Value"] == "5000"
    assert table.loc["dir", "Environment"] == "GEMM_CACHE_DIR"
    assert table.loc["dir", "Value"] == str(compiled_store)


HOLD_MIRROR = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


def test_while_the_mirror_cannot_be_read_the_last_answers_are_shown_with_their_age(
    open_page: Open, compiled_store: Path
) -> None:
    app = sound(open_page(compiled_store, "overview"))
    assert app.metric[0].value == "4"
    publish(make_store(compiled_store), 50)
    command = [sys.executable, "-c", HOLD_MIRROR, str(compiled_store / "mirror.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        sound(app.run())
        assert app.metric[0].value == "4"
        assert "what was there" in app.warning[0].value
        assert "another program" in app.text[0].value
        holder.communicate()
    sound(app.run())
    assert app.metric[0].value == "5"
    assert not [warning for warning in app.warning if "what was there" in warning.value]
