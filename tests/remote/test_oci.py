"""Packs as OCI image layouts: what is written is what the specification says, and what is read may be hostile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cache_engine.errors import PackUnusable, UsageError
from cache_engine.store import oci
from cache_engine.store.disk import DiskStore
from cache_engine.store.oci import ARTIFACT, is_layout, pack_in, write_layout
from cache_engine.store.pack import Pack
from cache_engine.upkeep.packs import export_pack
from tests.cli.test_cli import document, run
from tests.helpers import fill
from tests.trust.keys import Builder, signers_file


@pytest.fixture
def layout(store: DiskStore, tmp_path: Path) -> Path:
    """A layout of a pack with three kernels."""
    fill(store, 3)
    folder = tmp_path / "kernels.oci"
    write_layout(folder, lambda path: export_pack(store, path), about=lambda done: f"{done.entries} kernels")
    return folder


def _read(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text())


def _blob(folder: Path, digest: str) -> Path:
    return folder / "blobs/sha256" / digest.removeprefix("sha256:")


def test_a_layout_is_as_the_specification_says(layout: Path) -> None:
    assert _read(layout, "oci-layout") == {"imageLayoutVersion": "1.0.0"}
    index = _read(layout, "index.json")
    assert (index["schemaVersion"], index["mediaType"]) == (2, "application/vnd.oci.image.index.v1+json")
    (named,) = index["manifests"]
    assert named["annotations"] == {"org.opencontainers.image.ref.name": "latest"}
    manifest = json.loads(_blob(layout, named["digest"]).read_text())
    assert (manifest["schemaVersion"], manifest["mediaType"]) == (2, named["mediaType"])
    assert manifest["artifactType"] == named["artifactType"] == ARTIFACT
    # "Guidelines for Artifact Usage": an artifact without a config has the empty one.
    assert manifest["config"] == {
        "mediaType": "application/vnd.oci.empty.v1+json", "size": 2,
        "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    }  # fmt: skip
    (layer,) = manifest["layers"]
    assert layer["annotations"] == {"org.opencontainers.image.title": "kernels.gemmpack"}
    for described in (named, manifest["config"], layer):
        data = _blob(layout, described["digest"]).read_bytes()
        assert len(data) == described["size"]
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == described["digest"]
    assert sorted(path.name for path in layout.iterdir()) == ["blobs", "index.json", "oci-layout"]
    assert len(list((layout / "blobs/sha256").iterdir())) == 3
    assert len(Pack(pack_in(layout))) == 3


def test_a_layout_is_whole_or_not_there(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"some")
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(OSError, match="No space left") as caught:
        write_layout(tmp_path / "x", fail, about=str)
    assert caught.value.filename == str(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match="exists"):
        write_layout(tmp_path / "there", fail, about=str)


def _change(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        value = _read(folder, name)
        change(value)
        (folder / name).write_text(json.dumps(value))

    return changed


def _manifest(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Another manifest, which the index names with its right digest."""

    def changed(folder: Path) -> None:
        index = _read(folder, "index.json")
        manifest = json.loads(_blob(folder, index["manifests"][0]["digest"]).read_text())
        change(manifest)
        data = json.dumps(manifest).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        _blob(folder, digest).write_bytes(data)
        index["manifests"][0] |= {"digest": digest, "size": len(data)}
        (folder / "index.json").write_text(json.dumps(index))

    return changed


def _linked(folder: Path) -> None:
    pack = pack_in(folder)
    pack.rename(folder.parent / "elsewhere")
    pack.symlink_to(folder.parent / "elsewhere")


def _piped(folder: Path) -> None:
    pack = pack_in(folder)
    pack.unlink()
    os.mkfifo(pack)


_NONE = "sha256:" + "0" * 64
_HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no index": (lambda f: (f / "index.json").unlink(), "it has no index.json"),
    "index of no JSON": (lambda f: (f / "index.json").write_text("{"), "cannot be read"),
    "deep index": (lambda f: (f / "index.json").write_text("[" * 100_000), "cannot be read"),
    "huge index": (lambda f: os.truncate(f / "index.json", 2**33), "bytes; at most"),
    "index of a wrong type": (_change("index.json", lambda v: v.update(manifests={"a": 1})), "cannot be read"),
    "a negative size": (_change("index.json", lambda v: v["manifests"][0].update(size=-1)), "cannot be read"),
    "many manifests": (_change("index.json", lambda v: v.update(manifests=v["manifests"] * 101)), "lists 101"),
    "an index in the index": (
        _change("index.json", lambda v: v["manifests"][0].update(mediaType=v["mediaType"])), "has 0 packs"),
    "a path": (_change("index.json", lambda v: v["manifests"][0].update(digest="sha256:../../x")), "no SHA-256"),
    "a path in the manifest": (_manifest(lambda v: v["layers"][0].update(digest="sha256:/etc/passwd")), "no SHA-256"),
    "another hash": (_change("index.json", lambda v: v["manifests"][0].update(digest="md5:" + "0" * 64)), "no SHA-256"),
    "no manifest": (_change("index.json", lambda v: v["manifests"][0].update(digest=_NONE)), "it has no"),
    "another manifest": (
        lambda f: _blob(f, _read(f, "index.json")["manifests"][0]["digest"]).write_text("{}"), "does not match"),
    "no pack": (lambda f: pack_in(f).unlink(), "is damaged"),
    "a pack that is changed": (lambda f: pack_in(f).write_bytes(b"x" * 1000), "does not match its digest"),
    "a pack of another size": (_manifest(lambda v: v["layers"][0].update(size=5)), "does not match its digest"),
    "a linked pack": (_linked, "is damaged"),
    "a pipe": (_piped, "is damaged|does not match"),
    "another artifact": (_manifest(lambda v: v["layers"][0].update(mediaType="text/plain")), "has 0 packs"),
    "two packs": (_manifest(lambda v: v.update(layers=v["layers"] * 2)), "has 2 packs"),
    "another layout": (_change("oci-layout", lambda v: v.update(imageLayoutVersion="2.0.0")), "version '2.0.0'"),
}  # fmt: skip


@pytest.mark.parametrize("what", _HOSTILE)
def test_a_hostile_layout_is_refused(layout: Path, what: str) -> None:
    harm, why = _HOSTILE[what]
    harm(layout)
    with pytest.raises(PackUnusable, match=why):
        pack_in(layout)


def test_what_is_no_layout_is_none(tmp_path: Path) -> None:
    assert not is_layout(tmp_path)
    assert not is_layout(tmp_path / "none")


def test_an_exported_layout_is_imported_with_its_signatures(
    store: DiskStore, tmp_path: Path, builder: Builder, stranger: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a registry."""
    fill(store, 2)
    place = store.layout.root
    made = document("pack", "export", tmp_path / "x.oci", "--format", "oci", "--sign", builder.file, store=place)
    assert (made["entries"], made["bytes"] > 1000) == (2, True)
    refused = run("pack", "export", tmp_path / "x.oci", "--format", "oci", "--force", store=place)
    assert (refused.returncode, "--force replaces a file" in refused.stderr) == (2, True)
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder {builder.line}")))
    taken = document("pack", "import", tmp_path / "x.oci", store=tmp_path / "other")
    assert (taken["taken"], taken["refused"], taken["file"]) == (2, [], str(tmp_path / "x.oci"))
    ready = run("pack", "check", tmp_path / "x.oci", "--arch", "sm_80", store=tmp_path / "none")
    assert "2 kernels" in ready.stdout
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"other {stranger.line}")))
    assert document("pack", "import", tmp_path / "x.oci", store=tmp_path / "third", code=1)["taken"] == 0


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")
def test_skopeo_copies_a_layout_and_changes_nothing(layout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    command = ["skopeo", "--insecure-policy", "copy", f"oci:{layout}:{oci.TAG}", f"oci:{copy}:v1"]
    subprocess.run(command, check=True, capture_output=True)
    assert pack_in(copy).read_bytes() == pack_in(layout).read_bytes()
