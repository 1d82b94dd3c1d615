"""Packs on the admin page: what is exported, and what an import would bring is shown first."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.admin import move as packs
from cache_engine.model.events import IMPORT
from cache_engine.upkeep.packs import export_pack
from tests.helpers import make_entry, make_store
from tests.pages.opening import Open, components, sound
from tests.pages.test_admin import _acts, _button, _press, _said, _table


def test_a_pack_goes_out_as_it_was_asked_for(open_page: Open, compiled_store: Path) -> None:
    app = sound(open_page(compiled_store, "admin", tab="Packs"))
    app.multiselect(key="export-archs").set_value(["sm_90"]).run()
    _press(app, "Build pack")
    assert sound(app).download_button[0].label.startswith("Download 2 kernels")
    app.multiselect(key="export-archs").set_value([]).run()
    assert not sound(app).download_button, "another choice wants another pack"
    keys = sorted(make_store(compiled_store).keys())
    app = open_page(compiled_store, "admin", tab="Packs", keys=f"{keys[0]},{'0' * 64}")
    _press(app, "Build pack")
    assert sound(app).download_button[0].label.startswith("Download 1 kernel ")


def test_an_import_is_previewed_first(open_page: Open, compiled_store: Path, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other")
    pack = tmp_path / "some.gemmpack"
    export_pack(make_store(compiled_store), pack)
    app = sound(open_page(other.layout.root, "admin", tab="Packs"))
    app.file_uploader[0].set_value(("some.gemmpack", pack.read_bytes(), "application/octet-stream")).run()
    assert "Will import 4 kernels" in _said(sound(app))
    assert list(_table(app, "On import")["On import"]) == ["import"] * 4
    assert list(other.keys()) == []
    assert _button(app, "Import 4 kernels").disabled
    app.checkbox(key="trusted").set_value(True).run()
    _press(app, "Import 4 kernels")
    assert "Imported 4 kernels" in _said(sound(app))
    assert [one["to"] for one in components(app) if one.get("to")], "it is brought into view"
    assert len(list(other.keys())) == 4
    (event,) = _acts(other.layout.root, IMPORT)
    assert event.detail == "4 entries of some.gemmpack"
    assert event.by.endswith("(dashboard)")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a pack"),
        (b"GEMMPACK" + b"\xff" * 56, "is a pack of format"),
        (b"PK\x03\x04" * 40, "is not a pack"),
    ],
)
def test_a_file_that_is_no_pack_is_refused_without_naming_our_folders(
    open_page: Open, compiled_store: Path, content: bytes, said: str
) -> None:
    app = open_page(compiled_store, "admin", tab="Packs")
    app.file_uploader[0].set_value(("../../**evil**.gemmpack", content, "application/octet-stream")).run()
    assert not app.exception
    assert [error.value for error in app.error] == ["Invalid pack."]
    told = app.text[-1].value
    assert said in told
    assert "evil.gemmpack" in told
    assert "/tmp" not in told


def test_a_pack_of_damaged_kernels_is_reported_entry_by_entry(
    open_page: Open, compiled_store: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "some.gemmpack"
    export_pack(make_store(compiled_store), pack)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    app = open_page(tmp_path / "other", "admin", tab="Packs")
    app.file_uploader[0].set_value(("some.gemmpack", bytes(data), "application/octet-stream")).run()
    assert "1 rejected" in _said(sound(app))
    assert sum(text.startswith("reject") for text in _table(app, "On import")["On import"]) == 1


def test_a_pack_too_large_to_download_is_left_to_the_command_line(
    open_page: Open, compiled_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "MOST_BYTES", 1024**2)
    key, artifact, describe = make_entry(cubin_bytes=4 * 1024**2)
    make_store(compiled_store).publish(key, artifact, describe)
    app = _press(open_page(compiled_store, "admin", tab="Packs"), "Build pack")
    assert not app.exception
    assert f"gemm-cache --store {compiled_store} pack export FILE" in app.text[-1].value
    assert not app.download_button
