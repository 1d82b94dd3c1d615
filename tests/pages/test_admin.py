"""Admin: every tab in its states, and nothing done that was not shown and confirmed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.presenters.cleaning import RULES
from app.presenters.command import equal
from cache_engine.model.events import CLEAN, DISCARD, REPAIR, RESTORE, Event
from cache_engine.store.journal import Journal, read_journal
from cache_engine.upkeep.cleanup import GRACE_S
from tests.cli.test_cli import document
from tests.helpers import blob_file, damage_record, fill, make_entry, make_store, publish
from tests.pages.opening import Open, frames, sound
from tests.pages.test_all_pages import HOLD_MIRROR

TABS = ("Cleanup", "Integrity", "Quarantine", "Packs", "Results", "Index", "Settings", "Audit log", "Decisions")
TOKEN = "correct-horse-battery"


def _button(app: AppTest, label: str) -> Any:
    return next(button for button in app.button if button.label == label)


def _press(app: AppTest, label: str) -> AppTest:
    _button(app, label).click()
    return app.run()


def _table(app: AppTest, *columns: str) -> Any:
    return next(table for table in frames(app) if set(columns) <= set(table.columns))


def _said(app: AppTest) -> str:
    return "\n".join(element.value for element in (*app.caption, *app.text, *app.info, *app.success, *app.warning))


def _acts(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_journal(folder / "journal").recent if event.kind == kind]


@pytest.mark.parametrize("tab", TABS)
def test_every_tab_on_an_empty_store(open_page: Open, tmp_path: Path, tab: str) -> None:
    """Each says what it is for, or that there is nothing."""
    assert _said(sound(open_page(tmp_path / "empty", "admin", tab=tab)))


@pytest.mark.parametrize("tab", TABS)
def test_a_store_that_cannot_be_written_is_looked_at_and_nothing_can_be_done(
    open_page: Open, compiled_store: Path, tab: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(compiled_store).quarantine(next(make_store(compiled_store).keys()))
    access = os.access
    root = str(compiled_store)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != root and access(path, mode))  # root may do all
    app = sound(open_page(compiled_store, "admin", tab=tab, rule="all"))
    assert "Read-only store" in app.info[0].value
    acting = ("Repair", "Delete", "Restore", "Cannot restore", "Import")
    assert all(button.disabled for button in app.button if button.label.startswith(acting))
    assert all(box.disabled for box in app.text_input if str(box.key).startswith("confirm"))


# ---- Cleanup ----


_RULES: tuple[tuple[str, dict[str, object]], ...] = (
    ("settings", {}), ("expired", {"days": 2.0}), ("stale", {}), ("entries", {"keep": 1}), ("bytes", {"size": "30 kB"}),
    ("disk", {"share": 1}), ("archs", {"archs": ["sm_80"]}), ("keys", {}), ("foreign", {}), ("all", {}),
)  # fmt: skip


@pytest.mark.parametrize(("rule", "values"), _RULES, ids=[rule for rule, _ in _RULES])
def test_the_command_of_a_rule_deletes_what_the_page_previews(
    open_page: Open, compiled_store: Path, rule: str, values: dict[str, object]
) -> None:
    keys = sorted(make_store(compiled_store).keys())
    of_link = {"keys": keys[2]} if rule == "keys" else {}
    app = sound(open_page(compiled_store, "admin", rule=rule, **of_link))
    for name, value in values.items():
        widgets: Any = (app.number_input, app.text_input, app.slider, app.multiselect)
        next(widget for kind in widgets
             for widget in kind if widget.key == name).set_value(value).run()  # fmt: skip
    shown = {key for table in frames(app) if "Why" in table for key in table["Key"]}
    command = equal("Storage", {"rule": rule, **values, **of_link}, "sm_90")
    assert command is not None
    assert f"gemm-cache --store {compiled_store} {shlex.join(command)}" in [code.value for code in app.code]
    plan = document(*command, store=compiled_store)
    assert {victim["key"][:12] for victim in plan["victims"]} == shown
    assert shown or rule in ("settings", "expired", "stale", "disk", "foreign")


def test_the_preview_marks_the_limits_in_force(open_page: Open, compiled_store: Path) -> None:
    """Those of the rule, else those of the settings."""
    app = sound(open_page(compiled_store, "admin", rule="entries", keep="3"))
    assert (app.metric[0].label, app.metric[0].value) == ("Kernels", "4 → 3")
    entries, size = (bar.proto.text for bar in app.get("progress"))
    assert entries == "100.0% of the limit, 3"
    assert size.endswith(" of the limit, 5.0 GiB")
    app = sound(open_page(compiled_store, "admin", rule="bytes", size="20MiB"))
    assert [bar.proto.text.partition(" of ")[2] for bar in app.get("progress")] == [
        "the limit, 5,000", "the limit, 20.0 MiB",
    ]  # fmt: skip


def test_the_rules_of_the_page_are_those_of_the_test() -> None:
    assert [rule for rule, _ in _RULES] == sorted(RULES, key=[rule for rule, _ in _RULES].index)
    assert equal("Storage", {"rule": "archs"}, "sm_90") is None, "no target is chosen"


def test_cleanup_shows_a_preview_and_asks_for_confirmation(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin"))
    assert "Will delete 0 kernels" in _said(app)
    assert "Nothing to delete" in _said(app)
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    assert "Will delete 3 kernels" in _said(sound(app))
    victims = _table(app, "Why")
    assert list(victims["Why"]) == ["too many entries"] * 3
    assert all(re.fullmatch(r"\d+×\d+×\d+ .* sm_\d+ · .*", name) for name in victims["Kernel"])
    assert _table(app, "Target", "Kernels")["Kernels"].sum() == 3
    assert _button(app, "Delete 3 kernels").disabled
    app.text_input(key="confirm").set_value("2").run()
    assert _button(app, "Delete 3 kernels").disabled
    assert len(list(make_store(compiled_store).keys())) == 4
    app.text_input(key="confirm").set_value("3").run()
    _press(app, "Delete 3 kernels")
    assert sound(app).success[0].value.startswith("Deleted 3 kernels")
    assert len(list(make_store(compiled_store).keys())) == 1
    assert [event.by.endswith("(dashboard)") for event in _acts(compiled_store, CLEAN)] == [True, True]


def test_the_rule_and_its_values_are_in_the_address(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin", rule="entries", keep="1"))
    assert "Will delete 3 kernels" in _said(app)
    app.radio(key="rule").set_value("all").run()
    assert app.query_params["rule"] == "all"
    assert "Will delete 4 kernels" in _said(sound(app))
    app.query_params["rule"] = "stale"
    assert "no longer in use" in _said(sound(app.run()))
    assert app.radio(key="rule").value == "stale"
    app.radio(key="rule").set_value("settings").run()
    assert "rule" not in sound(app).query_params
    app = sound(open_page(compiled_store, "admin", rule="no such rule"))
    assert app.radio(key="rule").value == "settings"


def test_entries_of_another_format_go_by_their_own_rule_alone(open_page: Open, compiled_store: Path) -> None:
    record = next((compiled_store / "metadata").rglob("*.json"))
    record.write_text('{"format": 99}')
    app = sound(open_page(compiled_store, "admin", rule="all"))
    assert "Will delete 3 kernels" in _said(app)
    assert "Will keep 1 kernel (" in _said(app)
    assert ", 1 of them of another format." in _said(app)
    app.radio(key="rule").set_value("foreign").run()
    assert "Will delete 1 kernel (" in _said(sound(app))
    assert list(_table(app, "Why")["Why"]) == ["another format version"]
    app.text_input(key="confirm").set_value("1").run()
    _press(app, "Delete 1 kernel")
    assert sound(app).success[0].value.startswith("Deleted 1 kernel")
    assert not record.exists()
    assert len(list(make_store(compiled_store).keys())) == 3


def test_targets_are_chosen_from_those_there_are(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin", rule="archs"))
    assert "Will delete 0 kernels" in _said(app)
    assert app.multiselect(key="archs").options == ["sm_75", "sm_80", "sm_90"]
    app.multiselect(key="archs").set_value(["sm_90"]).run()
    assert "Will delete 2 kernels" in _said(sound(app))
    assert list(_table(app, "Why")["Why"]) == ["target selected"] * 2


def test_exactly_the_kernels_in_the_address_are_deleted(open_page: Open, compiled_store: Path) -> None:
    keys = sorted(make_store(compiled_store).keys())
    address = f"{keys[0]},{keys[2].upper()},<b>nonsense</b>,{'0' * 64}"
    app = sound(open_page(compiled_store, "admin", keys=address))
    assert app.radio(key="rule").value == "keys"
    assert "3 kernels from the link" in _said(app)
    assert "1 invalid key in the link" in _said(app)
    assert "Will delete 2 kernels" in _said(app)
    app.text_input(key="confirm").set_value("2").run()
    _press(app, "Delete 2 kernels")
    assert sorted(make_store(compiled_store).keys()) == [keys[1], keys[3]]
    sound(app)


def test_a_long_plan_is_paged(open_page: Open, tmp_path: Path) -> None:
    fill(make_store(tmp_path / "store"), 60)
    app = sound(open_page(tmp_path / "store", "admin", rule="all"))
    assert len(_table(app, "Why")) == 50
    assert "1–50 of 60" in _said(app)
    app.session_state["victims-page"] = 2
    assert len(_table(sound(app.run()), "Why")) == 10
    assert not _button(app, "Refresh preview").disabled


def test_an_invalid_size_is_reported(open_page: Open, compiled_store: Path) -> None:
    app = open_page(compiled_store, "admin")
    app.radio(key="rule").set_value("bytes").run()
    app.text_input(key="size").set_value("lots").run()
    assert not app.exception
    assert "is not a size" in app.text[0].value


def test_exactly_the_previewed_kernels_are_deleted(open_page: Open, compiled_store: Path) -> None:
    """Another process compiles between the preview and the click."""
    app = sound(open_page(compiled_store, "admin"))
    app.radio(key="rule").set_value("entries").run()
    app.number_input(key="keep").set_value(1).run()
    planned = list(_table(app, "Why")["Key"])
    new = fill(make_store(compiled_store), 2)
    app.text_input(key="confirm").set_value("3").run()
    assert list(_table(app, "Why")["Key"]) == planned
    _press(app, "Delete 3 kernels")
    assert sound(app).success[0].value.startswith("Deleted 3 kernels")
    kept = set(make_store(compiled_store).keys())
    assert set(new) <= kept
    assert not kept & {key for key in kept if key[:12] in planned}


def test_two_people_cleaning_at_once_see_no_error(open_page: Open, compiled_store: Path) -> None:
    one, other = (sound(open_page(compiled_store, "admin", rule="all")) for _ in range(2))
    for app in (one, other):
        app.text_input(key="confirm").set_value("4").run()
    _press(one, "Delete 4 kernels")
    _press(other, "Delete 4 kernels")
    assert sound(one).success[0].value.startswith("Deleted 4 kernels")
    assert "Deleted" in sound(other).success[0].value
    assert "Nothing to delete" in _said(other)


def test_while_the_mirror_cannot_be_read_the_plan_is_made_all_the_same(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin", rule="all"))
    command = [sys.executable, "-c", HOLD_MIRROR, str(compiled_store / "mirror.duckdb")]
    fill(make_store(compiled_store), 1)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        _press(app, "Refresh preview")
        assert not app.exception
        assert "Will delete 5 kernels" in _said(app)
        holder.communicate()
    assert len(_table(sound(app.run()), "Why")) == 5


# ---- Integrity and quarantine ----


def _damage(folder: Path) -> None:
    store = make_store(folder)
    keys = list(store.keys())
    damage_record(store, keys[0])
    blob_file(store, keys[1]).write_bytes(b"")
    stale = store.layout.temp / "stale"
    stale.touch()
    os.utime(stale, (time.time() - GRACE_S - 1,) * 2)


def test_damage_is_found_and_repaired(open_page: Open, compiled_store: Path) -> None:
    app = _press(sound(open_page(compiled_store, "admin", tab="Integrity")), "Run check")
    assert "No problems found. 4 kernels checked." in _said(sound(app))
    _damage(compiled_store)
    _press(app, "Run check")
    assert "3 findings" in sound(app).warning[0].value
    assert "4 files" in _said(app)
    assert "1 file (0 B) deleted" in _said(app)
    files = set(_table(app, "Finding", "File", "Size")["File"])
    assert files >= {"temp/stale"}
    assert _button(app, "Repair 3 findings").disabled
    app.checkbox(key="agreed").set_value(True).run()
    _press(app, "Repair 3 findings")
    shown = [success.value for success in sound(app).success]
    assert any(text.startswith("Repaired 3 findings.") for text in shown)
    assert any(text.startswith("No problems found.") for text in shown)
    assert len(list(make_store(compiled_store).keys())) == 2
    (event,) = _acts(compiled_store, REPAIR)
    assert event.by.endswith("(dashboard)")


def test_a_sample_says_that_it_is_one(open_page: Open, tmp_path: Path) -> None:
    fill(make_store(tmp_path / "store"), 100)
    app = sound(open_page(tmp_path / "store", "admin", tab="Integrity"))
    app.slider(key="check-share").set_value(20).run()
    _press(app, "Run check")
    assert "a random sample of about 20%" in _said(sound(app))
    assert "100 kernels read" not in _said(app)


def test_quarantined_items_are_examined_restored_and_deleted(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    keys = sorted(store.keys())
    _damage(compiled_store)
    app = _press(sound(open_page(compiled_store, "admin", tab="Integrity")), "Run check")
    app.checkbox(key="agreed").set_value(True).run()
    _press(app, "Repair 3 findings")
    sound_key = keys[2]
    store.quarantine(sound_key)
    app = sound(open_page(compiled_store, "admin", tab="Quarantine"))
    assert len(_table(app, "Quarantined")) == 3
    assert _table(app, "Quarantined").loc[0, "Why"] == "reason unknown"
    app.selectbox(key="item").set_value(keys[1]).run()
    facts = dict(_table(sound(app), "Property").to_numpy().tolist())
    assert facts["Why"].startswith("truncated")
    assert _button(app, "Restore").disabled
    app.selectbox(key="item").set_value(sound_key).run()
    facts = dict(_table(sound(app), "Property").to_numpy().tolist())
    assert facts["State"] == "valid: can be restored"
    _press(app, "Restore")
    assert sound(app).success[0].value == f"Restored {sound_key[:12]}."
    assert store.get(sound_key) is not None
    assert _button(app, "Delete 2 items permanently").disabled
    app.text_input(key="confirm-delete").set_value("2").run()
    _press(app, "Delete 2 items permanently")
    assert sound(app).success[0].value.startswith("Deleted 2 items")
    assert "Quarantine is empty" in _said(app)
    assert [len(_acts(compiled_store, kind)) for kind in (RESTORE, DISCARD)] == [1, 2]


def test_a_changed_quarantine_needs_a_new_confirmation(open_page: Open, compiled_store: Path) -> None:
    store = make_store(compiled_store)
    keys = sorted(store.keys())
    store.quarantine(keys[0])
    app = sound(open_page(compiled_store, "admin", tab="Quarantine"))
    app.text_input(key="confirm-delete").set_value("1").run()
    assert not _button(app, "Delete 1 item permanently").disabled
    for path in store.layout.quarantine.iterdir():
        path.unlink()
    store.quarantine(keys[1])
    _press(app, "Delete 1 item permanently")
    assert _button(sound(app), "Delete 1 item permanently").disabled
    assert len(list(store.layout.quarantine.iterdir())) == 2


def test_another_store_in_place_of_the_one_that_was_shown_needs_a_new_confirmation(
    open_page: Open, compiled_store: Path, tmp_path: Path
) -> None:
    """A copy has the same items under the same names."""
    store = make_store(compiled_store)
    store.quarantine(min(store.keys()))
    app = sound(open_page(compiled_store, "admin", tab="Quarantine"))
    app.text_input(key="confirm-delete").set_value("1").run()
    other = shutil.copytree(compiled_store, tmp_path / "other")
    compiled_store.rename(tmp_path / "moved")
    compiled_store.symlink_to(other)
    _press(app, "Delete 1 item permanently")
    assert _button(sound(app), "Delete 1 item permanently").disabled
    assert len(list((other / "quarantine").iterdir())) == 2


# ---- Index, settings, audit ----


def test_the_mirror_is_synced_and_rebuilt(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin", tab="Index"))
    assert _state_of_index(app)["Kernels"] == "4"
    store = make_store(compiled_store)
    # A folder that changes is read again as a whole, and the records of this copy of a store look changed.
    shards = {key[:2] for key in sorted(store.keys())}
    for seed in [seed for seed in range(100) if make_entry(seed)[0][:2] not in shards][:2]:
        publish(store, seed)
    _press(app, "Sync now")
    assert "2 kernels added or updated" in sound(app).success[0].value
    _press(app, "Rebuild index")
    assert "Rebuilt: 6 kernels" in sound(app).success[0].value
    state = _state_of_index(app)
    assert list(state) == [
        "Last change",
        "Kernels",
        "Usage counts",
        "Journal events",
        "Unreadable records",
        "Unreadable records, results, timings and journal lines",
        "Size",
        "Generation",
        "Schema",
    ]
    assert state["Kernels"] == "6"


def _state_of_index(app: AppTest) -> dict[str, str]:
    rows = _table(app, "Property")
    return dict(zip(rows["Property"], rows["Value"], strict=True))


def test_settings_tell_value_origin_variable_and_meaning(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_MAX_BYTES", "2GiB")
    monkeypatch.setenv("GEMM_CACHE_ADMIN_TOKEN", TOKEN)
    app = sound(open_page(compiled_store, "admin", tab="Settings"))
    table = _table(app, "Setting").set_index("Setting")
    assert tuple(table.loc["max_entries", ["Value", "Origin"]]) == ("5000", "default")
    assert tuple(table.loc["max_bytes", ["Value", "Origin"]]) == ("2.0 GiB (2147483648)", "environment")
    assert table.loc["enable_caching", "Origin"] == "argument"
    assert tuple(table.loc["dir", ["Value", "Environment variable"]]) == (str(compiled_store), "GEMM_CACHE_DIR")
    assert table.loc["admin_token", "Value"] == "set"
    assert TOKEN not in str(app)


def test_the_audit_log_is_paged_and_names_the_user(open_page: Open, compiled_store: Path) -> None:
    journal = Journal(compiled_store / "journal", 3600.0)
    for number in range(60):
        journal.event(CLEAN, detail=f"run {number}", by="<b>ada</b>", stored_bytes=2048)
    journal.event(REPAIR, detail="3 of 3 findings")
    journal.close()
    app = sound(open_page(compiled_store, "admin", tab="Audit log"))
    app.multiselect(key="kind").set_value(["repair run", "cleanup run"]).run()
    table = _table(sound(app), "What")
    assert len(table) == 50
    assert list(table.loc[0, ["What", "By", "Details"]]) == ["repair run", "unknown", "3 of 3 findings"]
    assert list(table.loc[1, ["What", "By", "Details"]]) == ["cleanup run", "<b>ada</b>", "run 59, 2.0 KiB"]
    assert "1–50 of 61" in _said(app)
    app.session_state["log-page"] = 2
    assert len(_table(sound(app.run()), "What")) == 11
    app.multiselect(key="kind").set_value(["repair run"]).run()
    assert len(_table(sound(app), "What")) == 1
    app.multiselect(key="kind").set_value(["deleted from quarantine"]).run()
    assert "Nothing matches" in _said(sound(app))
    app.multiselect(key="kind").set_value([]).run()
    assert "61 entries" not in _said(sound(app))
    assert {"miss: ", "cleanup run: 60"} <= {word for word in ("miss: ", "cleanup run: 60") if word in _said(app)}
