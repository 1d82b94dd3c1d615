"""Packs, rules of cleaning, samples and switches, as the command line has them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.store.lock import file_lock
from tests.cli.conftest import Examine
from tests.cli.test_cli import SHAPE, document, run
from tests.conftest import SAMPLE
from tests.helpers import blob_file, make_store


def test_a_pack_is_exported_imported_and_used_as_it_is(compiled_store: Path, tmp_path: Path) -> None:
    pack, other = tmp_path / "some.gemmpack", tmp_path / "other"
    exported = document("pack", "export", pack, store=compiled_store)
    assert (exported["entries"], exported["refused"], exported["bytes"]) == (4, [], pack.stat().st_size)
    only = document("pack", "export", tmp_path / "one.gemmpack", "--arch", "sm_75", store=compiled_store)
    assert only["entries"] == 1
    would = document("pack", "import", pack, "--dry-run", store=other)
    did = document("pack", "import", pack, store=other)
    assert [one["kind"] for one in document("log", "--audit", store=other)["rows"]] == ["import"], "none by the dry run"
    assert would == {**did, "dry_run": True}
    assert (did["taken"], did["present"]) == (4, 0)
    assert document("pack", "import", pack, store=other)["present"] == 4
    assert document("verify", store=other) == {"checked": 4, "findings": []}
    assert "exists" in run("pack", "export", pack, store=compiled_store).stderr
    assert run("pack", "export", pack, "--force", store=compiled_store).returncode == 0


def test_a_damaged_entry_is_left_out_and_a_damaged_pack_refused(compiled_store: Path, tmp_path: Path) -> None:
    store = make_store(compiled_store)
    path = blob_file(store, next(store.keys()))
    path.write_bytes(path.read_bytes()[:100])
    exported = document("pack", "export", tmp_path / "a.gemmpack", store=compiled_store, code=1)
    assert (exported["entries"], len(exported["refused"])) == (3, 1)
    (tmp_path / "a.gemmpack").write_bytes((tmp_path / "a.gemmpack").read_bytes()[:-1])
    done = run("pack", "import", tmp_path / "a.gemmpack", store=tmp_path / "other")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cut short" in done.stderr


def test_export_of_an_unknown_target_and_import_of_no_file_are_refused(compiled_store: Path, tmp_path: Path) -> None:
    done = run("pack", "export", tmp_path / "a.gemmpack", "--arch", "sm_1", store=compiled_store)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "a.gemmpack").exists()
    done = run("pack", "import", tmp_path / "none.gemmpack", store=tmp_path / "other")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = run("pack", "export", "/proc/a.gemmpack", store=compiled_store)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: cannot open /proc/a.gemmpack: No such file")


def test_packs_and_switches_are_set_in_the_environment(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    document("pack", "export", tmp_path / "some.gemmpack", store=compiled_store)
    monkeypatch.setenv("GEMM_CACHE_PACKS", str(tmp_path))
    assert document("compile", *SHAPE[:-1], "sm_75", store=tmp_path / "new")["tier"] == "pack"
    assert document("stats", store=tmp_path / "new")["hits"] == {"pack": 1}
    checks = json.loads(examine("--json", store=tmp_path / "new").stdout)["checks"]
    (check,) = [check for check in checks if check["name"] == "pack"]
    assert "some.gemmpack, 4 kernels, made by nvrtc 13.5 (build " in check["detail"]
    monkeypatch.setenv("GEMM_CACHE_ENABLE_CACHING", "0")
    uncached = document("compile", *SHAPE, store=tmp_path / "none")
    assert (uncached["tier"], uncached["unpublished"]) == ("compiled", "caching is switched off")
    assert not (tmp_path / "none").exists()
    assert document("ls", store=compiled_store)["total"] == 4, "looking is not using"
    monkeypatch.delenv("GEMM_CACHE_ENABLE_CACHING")
    monkeypatch.setenv("GEMM_CACHE_ENABLE_JIT", "0")
    done = run("compile", *SHAPE, store=tmp_path / "new")
    assert done.returncode == 1
    assert "enable_jit" in done.stderr


def test_stale_entries_go_when_asked_for(compiled_store: Path) -> None:
    assert document("clean", "--state", "stale", store=compiled_store)["victims"] == []
    store = make_store(compiled_store)
    before = set(store.keys())
    stale = _publish_stale(compiled_store)
    plan = document("clean", "--state", "stale", store=compiled_store)
    assert [(victim["key"], victim["reason"]) for victim in plan["victims"]] == [(stale, "stale toolchain")]
    assert document("clean", "--yes", "--state", "stale", store=compiled_store)["cleaned"]["evicted"] == 1
    assert set(store.keys()) == before


def _publish_stale(folder: Path) -> str:
    """An entry whose compiler is none of today's."""
    from tests.helpers import publish

    return publish(make_store(folder), 3)


def test_clean_by_share_of_the_disk_deletes_leftover_files_too(compiled_store: Path) -> None:
    (compiled_store / "temp" / "1-left").write_bytes(b"half")
    plan = document("clean", "--max-bytes", "0%", "--max-bytes", "1TB", store=compiled_store)
    assert {victim["reason"] for victim in plan["victims"]} == {"over disk-share limit"}
    assert [leftover["path"] for leftover in plan["leftovers"]] == ["temp/1-left"]
    old = run("clean", "--max-disk-share", "0", "--json", store=compiled_store)
    assert json.loads(old.stdout)["victims"] == plan["victims"]
    renamed, nothing = old.stderr.splitlines()
    assert renamed == "gemm-cache clean --max-disk-share is now: gemm-cache clean --max-bytes 0%"
    assert nothing == "Nothing is deleted without --yes."
    assert "1 leftover file" in run("clean", "--state", "expired", store=compiled_store).stdout
    assert document("clean", "--yes", "--state", "expired", store=compiled_store)["cleaned"]["leftovers"] == 1
    assert os.listdir(compiled_store / "temp") == []
    assert document("clean", "--yes", "--max-bytes", "0%", store=compiled_store)["cleaned"]["evicted"] == 4


def test_clean_takes_the_targets_and_the_keys_that_are_named(compiled_store: Path) -> None:
    records = list(make_store(compiled_store).records())
    one = next(record for record in records if record.arch == "sm_75")
    plan = document("clean", "--arch", "sm_80", "--key", one.key[:10], store=compiled_store)
    reasons = {victim["key"]: victim["reason"] for victim in plan["victims"]}
    assert reasons == {one.key: "selected"} | {r.key: "target selected" for r in records if r.arch == "sm_80"}
    assert (
        document("clean", "--yes", "--arch", "sm_80", "--key", one.key, store=compiled_store)["cleaned"]["evicted"] == 2
    )
    assert run("clean", "--yes", "--arch", "sm_1", store=compiled_store).returncode == 2
    assert run("clean", "--yes", "--key", one.key, store=compiled_store).returncode == 1, "it has gone"


def test_quarantined_items_are_listed_restored_and_deleted(compiled_store: Path) -> None:
    store = make_store(compiled_store)
    keys = sorted(store.keys())
    blob_file(store, keys[0]).write_bytes(b"damaged")
    (finding,) = document("verify", store=compiled_store, code=1)["findings"]
    assert [file["path"].partition("/")[0] for file in finding["files"]] == ["metadata", "kernels"]
    document("verify", "--repair", store=compiled_store)
    store.quarantine(keys[1])  # sound
    items = {item["key"]: item for item in document("verify", "--quarantined", store=compiled_store)["items"]}
    assert {key: item["restorable"] for key, item in items.items()} == {keys[0]: False, keys[1]: True}
    assert items[keys[0]]["why"].startswith("truncated: ")
    assert "valid: can be restored" in run("verify", "--quarantined", store=compiled_store).stdout
    assert run("verify", "--restore", keys[0], store=compiled_store).returncode == 1
    assert document("verify", "--restore", keys[1][:8], store=compiled_store) == {"restored": keys[1]}
    assert document("verify", "--delete", "--all", store=compiled_store)["deleted"] == 1
    assert keys[0] in run("verify", "--delete", "--all", store=compiled_store).stdout
    assert document("verify", "--delete", "--yes", keys[0], store=compiled_store)["deleted"] == 1
    assert document("verify", "--quarantined", store=compiled_store) == {"items": []}
    assert run("verify", "--delete", "--yes", store=compiled_store).returncode == 2
    assert document("verify", store=compiled_store)["checked"] == 3


def test_doctor_prints_settings_and_their_origin_but_no_secret(
    compiled_store: Path, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    monkeypatch.setenv("GEMM_CACHE_ADMIN_TOKEN", "correct-horse-battery")
    monkeypatch.setenv("GEMM_CACHE_MAX_ENTRIES", "77")
    printed, written = (examine(*form, store=compiled_store).output for form in ((), ("--json",)))
    assert "correct-horse-battery" not in printed + written
    settings = {item["name"]: item for item in json.loads(written)["settings"]}
    variable = "GEMM_CACHE_MAX_ENTRIES"
    assert settings["max_entries"] == {
        "name": "max_entries", "value": "77", "origin": "environment", "variable": variable,
    }  # fmt: skip
    assert (settings["admin_token"]["value"], settings["max_bytes"]["origin"]) == ("set", "default")


def test_doctor_names_the_settings_file_and_variables_that_set_nothing(
    tmp_path: Path, compiled_store: Path, monkeypatch: pytest.MonkeyPatch, examine: Examine
) -> None:
    (tmp_path / "mine.toml").write_text('max_entries = 9\ndefault_arch = "sm_\\u001b80"\n')
    monkeypatch.setenv("GEMM_CACHE_MAX_BITES", "5")
    done = run("--settings-file", str(tmp_path / "mine.toml"), "doctor", "--json", store=compiled_store)
    found = json.loads(done.stdout)
    settings = {item["name"]: item for item in found["settings"]}
    assert (settings["max_entries"]["value"], settings["max_entries"]["origin"]) == ("9", "settings file")
    assert settings["dir"]["origin"] == "argument"
    checks = {check["name"]: check for check in found["checks"]}
    assert checks["settings file"]["detail"] == str(tmp_path / "mine.toml")
    assert checks["environment"]["status"] == "note"
    assert checks["environment"]["detail"].endswith("sets nothing; did you mean GEMM_CACHE_MAX_BYTES?")
    assert done.stderr.count("GEMM_CACHE_MAX_BITES sets nothing") == 1
    printed = examine("--settings-file", tmp_path / "mine.toml", "--settings", store=compiled_store).stdout
    assert re.search(r"^max_entries +9 +settings file\b", printed, re.MULTILINE)
    assert re.search(r"^durability +durable +default\b", printed, re.MULTILINE)
    assert "sm_?80 " in printed
    refused = run("--settings-file", str(tmp_path / "missing.toml"), "ls", store=compiled_store)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 2)
    assert f"settings file {tmp_path}/missing.toml cannot be read" in refused.stderr


def test_an_address_that_is_not_ours_cannot_be_served(tmp_path: Path) -> None:
    done = run("dashboard", "--host", "203.0.113.1", store=tmp_path / "store")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "port 8501 of 203.0.113.1 is unavailable" in done.stderr


def test_a_sample_is_verified_and_another_version_is_no_damage(compiled_store: Path) -> None:
    assert document("verify", "--sample", "1", store=compiled_store)["checked"] == 4
    assert document("verify", "--sample", "0.0001", store=compiled_store)["checked"] < 4
    assert run("verify", "--sample", "0", store=compiled_store).returncode == 2
    record = next((compiled_store / "metadata").rglob("*.json"))
    record.write_text('{"format": 99}')
    found = document("verify", store=compiled_store)
    assert [finding["kind"] for finding in found["findings"]] == ["unknown format version"]


def test_cleaning_does_with_entries_of_another_format_what_its_dry_run_says(compiled_store: Path) -> None:
    """They are not "in use", and only --state unknown-format evicts them."""
    record = next((compiled_store / "metadata").rglob("*.json"))
    record.write_text('{"format": 99}')
    spared = "1 entry of another format version not evicted; --state unknown-format evicts such entries.\n"
    planned = document("clean", "--all", store=compiled_store)
    assert (len(planned["victims"]), planned["kept_entries"], planned["foreign"]) == (3, 1, 1)
    assert run("clean", "--all", store=compiled_store).stdout.endswith(spared)
    done = run("clean", "--yes", "--all", store=compiled_store).stdout
    assert "Evicted 3 entries" in done
    assert "; kept 1 entry" in done
    assert "in use" not in done
    assert done.endswith(spared)
    assert record.exists()
    planned = document("clean", "--state", "unknown-format", store=compiled_store)
    assert [victim["reason"] for victim in planned["victims"]] == ["another format version"]
    done = run("clean", "--yes", "--state", "unknown-format", store=compiled_store).stdout
    assert "Evicted 1 entry" in done
    assert done.endswith("; kept 0 entries, 0 B.\n")
    assert not record.exists()


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--dry-run", "--yes")], ids=" ".join)
def test_clean_deletes_nothing_without_yes(compiled_store: Path, options: tuple[str, ...]) -> None:
    """Nor with the old --dry-run, whatever else is given."""
    planned = document("clean", "--all", *options, store=compiled_store)
    assert (planned["dry_run"], planned["cleaned"], len(planned["victims"])) == (True, None, 4)
    assert "Nothing is deleted without --yes." in run("clean", "--all", *options, store=compiled_store).stdout
    assert len(list(make_store(compiled_store).keys())) == 4


def test_what_is_kept_is_counted_after_cleaning(compiled_store: Path) -> None:
    """An entry in use stays, whatever the plan said."""
    layout = make_store(compiled_store).layout
    with file_lock(layout.key_lock(next(make_store(compiled_store).keys())), 1):
        done = run("clean", "--yes", "--all", store=compiled_store).stdout
    assert "Evicted 3 entries" in done
    assert "; 1 skipped (in use or gone); kept 1 entry" in done


def test_clean_by_days_evicts_kernels_unused_for_that_long(compiled_store: Path) -> None:
    keys = set()
    for old in (compiled_store / "metadata").rglob("*.json"):
        os.utime(old, (1e9, 1e9))
        keys.add(old.stem.partition(".")[0])
    with open_cache(compiled_store, create=False) as cache:
        used = cache.select(SAMPLE[0]).key  # a moment ago, as the journal says
    plan = document("clean", "--days", "100", store=compiled_store)
    assert {victim["key"] for victim in plan["victims"]} == keys - {used}
    assert document("clean", "--days", "0", store=compiled_store)["victims"] != []
