"""Images of caches that KServe mounts: what is in them, that they are hit where they are mounted, and hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from cache_engine.errors import PackUnusable, UsageError
from cache_engine.frameworks.image_check import check_image
from cache_engine.frameworks.images import Image, export_image, extract_image, is_image
from cache_engine.frameworks.values import Place
from tests.cli.test_cli import document, run
from tests.frameworks.fixtures import unpack
from tests.races.test_triton_deletion import _COMPILE as COMPILE

MOUNT = PurePosixPath("/kernels/triton")
_SECRET, _HOME = "hf_abcdefghijklmnop", "/home/builder/.config/vllm"


def _export(folder: Path, cache: Path, kind: str = "triton", *archs: str, mount: PurePosixPath = MOUNT) -> Image:
    return export_image(folder, Place(kind, cache, "given"), mount, archs, lambda: None)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _blob(folder: Path, digest: str) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _parts(folder: Path) -> tuple[dict[str, Any], Path]:
    """The config and the layer of an image, found as a registry does."""
    index = json.loads((folder / "index.json").read_text())
    manifest = json.loads(_blob(folder, index["manifests"][0]["digest"]).read_text())
    assert [layer["mediaType"] for layer in manifest["layers"]] == ["application/vnd.oci.image.layer.v1.tar+gzip"]
    return json.loads(_blob(folder, manifest["config"]["digest"]).read_text()), _blob(
        folder, manifest["layers"][0]["digest"]
    )


def _vllm(folder: Path) -> Path:
    """A cache as vLLM 0.15 lays it out: a graph with an artifact, and one that was compiled ahead."""
    graph = folder / "0123456789" / "rank_0_0" / "backbone"
    graph.mkdir(parents=True)
    environment = {"VLLM_TARGET_DEVICE": "cuda", "HF_TOKEN": _SECRET, "VLLM_CONFIG_ROOT": _HOME, "VLLM_PORT": None}
    factors = {"code_hash": "aa", "compiler_hash": "bb", "config_hash": "cc", "env": environment}
    (graph / "cache_key_factors.json").write_text(json.dumps(factors))
    (graph / "artifact_compile_range_1_8192_subgraph_0").write_bytes(b"artifact")
    (graph / "vllm_compile_cache.py").write_text("{}")
    ahead = folder / "torch_aot_compile" / "abcdef0123" / "rank_0_0"
    ahead.mkdir(parents=True)
    (ahead / "model").write_bytes(b"model")
    return folder


def test_an_image_of_triton_has_the_files_the_labels_and_the_manifest_of_the_format(tmp_path: Path) -> None:
    cache = unpack("triton", tmp_path)
    made = _files(cache)
    image = _export(tmp_path / "image", cache)
    config, layer = _parts(tmp_path / "image")
    labels = config["config"]["Labels"]
    assert labels["cache.triton.image/entry-count"] == "4"
    targets = json.loads(labels["cache.triton.image/summary"])["targets"]
    assert targets == [{"backend": "cuda", "arch": arch, "warp_size": 32} for arch in ("80", "90")]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(gzip.decompress(layer.read_bytes())).hexdigest()}"]

    extract_image(tmp_path / "image", tmp_path / "extracted")
    found = _files(tmp_path / "extracted")
    assert found.keys() == made.keys()
    groups = {name for name in made if "__grp__" in name}
    assert {name for name in made if made[name] != found[name]} == groups
    for name in groups:
        children = json.loads(found[name])["child_paths"]
        assert children == {
            child: str(MOUNT / Path(name).parent / child) for child in json.loads(made[name])["child_paths"]
        }
    assert labels["cache.triton.image/cache-size-bytes"] == str(sum(map(len, found.values()))) == str(image.size_bytes)
    rows = extract_image(tmp_path / "image", tmp_path / "again").manifest["triton"]
    hashes = {json.loads(text)["hash"] for name, text in made.items() if name.endswith(".json") and name not in groups}
    assert {row["hash"] for row in rows} == hashes
    assert {(row["backend"], row["arch"], row["warp_size"]) for row in rows} == {("cuda", "80", 32), ("cuda", "90", 32)}


def test_the_same_cache_makes_the_same_bytes(tmp_path: Path) -> None:
    cache = unpack("triton", tmp_path)
    for name in ("one", "other"):
        _export(tmp_path / name, cache)
    assert _files(tmp_path / "one") == _files(tmp_path / "other")


def test_an_unfinished_kernel_is_left_out_and_named(tmp_path: Path) -> None:
    cache = unpack("triton", tmp_path)
    lost = next(cache.rglob("*.cubin"))
    lost.unlink()
    image = _export(tmp_path / "image", cache)
    assert (image.entries, image.left) == (3, [f"{lost.parent.name}: partial"])
    assert not any(lost.parent.name in name for name in _files_of_layer(tmp_path / "image"))


def _files_of_layer(folder: Path) -> list[str]:
    with tarfile.open(_parts(folder)[1]) as tar:
        return tar.getnames()


def test_triton_hits_at_the_path_of_the_mount_and_misses_the_same_cache_unwritten(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    made, mount, plain = tmp_path / "made", tmp_path / "mount", tmp_path / "plain"

    def compile_into(cache: Path) -> dict[str, int]:
        """Compiles one kernel; the files of the cache after that, with the times when they were written."""
        program, stop = tmp_path / "compiles.py", tmp_path / "stop"
        program.write_text(COMPILE.replace("while not stop.exists():", "while count == 0:"))
        environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
        subprocess.run([sys.executable, program, stop, "0", "64"], env=environment, check=True, capture_output=True)
        return {file.name: file.stat().st_mtime_ns for file in cache.rglob("*") if file.is_file()}

    compile_into(made)
    _export(tmp_path / "image", made, mount=PurePosixPath(mount))
    extract_image(tmp_path / "image", mount)
    shutil.copytree(made, plain)
    shutil.rmtree(made)
    for cache, is_hit in ((mount, True), (plain, False)):
        for file in cache.rglob("*"):
            os.utime(file, ns=(10**18, 10**18))
        written = {at for at in compile_into(cache).values() if at != 10**18}
        assert (not written) == is_hit, cache


def test_an_image_of_vllm_says_where_it_is_mounted_and_hides_secrets(tmp_path: Path) -> None:
    cache = _vllm(tmp_path / "torch_compile_cache")
    with pytest.raises(UsageError, match="no CUBIN to read the target from; name the target with --arch"):
        _export(tmp_path / "image", cache, "vllm")
    assert not (tmp_path / "image").exists()
    image = _export(tmp_path / "image", cache, "vllm", "sm_90a", mount=PurePosixPath("/home/kserve/.cache/vllm"))
    config, layer = _parts(tmp_path / "image")
    labels = config["config"]["Labels"]
    assert labels["io.kserve.km/cache-mount-subpath"] == "torch_compile_cache"
    assert labels["io.kserve.km/cache-hash"] == "0123456789,abcdef0123"
    assert json.loads(labels["cache.vllm.image/summary"])["targets"][0]["arch"] == "sm_90"
    rows = {
        row["vllmHash"]: row["binary"][0]
        for row in extract_image(tmp_path / "image", tmp_path / "again").manifest["vllm"]
    }
    graph, ahead = rows["0123456789"], rows["abcdef0123"]
    assert (graph["rank"], graph["prefix"], graph["artifact_count"]) == ("rank_0_0", "backbone", 1)
    assert (graph["code_hash"], graph["env"]["HF_TOKEN"], graph["env"]["VLLM_PORT"]) == ("aa", "hidden", None)
    assert (ahead["cache_save_format"], ahead["artifact_names"]) == ("mega-aot", ["model"])
    assert image.hidden == ["HF_TOKEN"]
    assert _SECRET.encode() not in gzip.decompress(layer.read_bytes())
    assert "io.vllm.cache/torch_compile_cache/0123456789/rank_0_0/backbone/vllm_compile_cache.py" in _files_of_layer(
        tmp_path / "image"
    )


def test_what_would_miss_here_is_said_by_factor(tmp_path: Path) -> None:
    _export(tmp_path / "triton", unpack("triton", tmp_path / "made"))
    _, reasons = check_image(tmp_path / "triton", ["sm_90a"], {"TRITON_CACHE_DIR": str(MOUNT)})
    assert reasons == []
    _, reasons = check_image(tmp_path / "triton", ["sm_120"], {"HOME": "/root"})
    assert [reason.partition(":")[0] for reason in reasons] == ["target", "path"]
    assert "Triton looks in /root/.triton/cache" in reasons[1]

    _export(tmp_path / "vllm", _vllm(tmp_path / "torch_compile_cache"), "vllm", "sm_90")
    _, reasons = check_image(tmp_path / "vllm", ["sm_90"], {"HOME": "/home/builder"})
    assert reasons == []
    _, reasons = check_image(tmp_path / "vllm", ["sm_90"], {"HOME": "/root", "VLLM_TARGET_DEVICE": "cpu"})
    assert [reason.partition(" there")[0] for reason in reasons] == [
        f"VLLM_CONFIG_ROOT: {_HOME}", "VLLM_TARGET_DEVICE: cuda",
    ]  # fmt: skip


def _image_with(folder: Path, members: Callable[[tarfile.TarFile], None], summary: str = '{"targets":[]}') -> Path:
    """A hostile image: whole digests, and any names."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        members(tar)
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    labels = {"cache.triton.image/summary": summary, "cache.triton.image/entry-count": "9" * 400}
    config = put(json.dumps({"config": {"Labels": labels}}).encode(), "application/vnd.oci.image.config.v1+json")
    layer = put(data.getvalue(), "application/vnd.oci.image.layer.v1.tar+gzip")
    manifest = json.dumps({"schemaVersion": 2, "config": config, "layers": [layer]}).encode()
    index = {"schemaVersion": 2, "manifests": [put(manifest, "application/vnd.oci.image.manifest.v1+json")]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def _member(
    tar: tarfile.TarFile, name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(content) if kind == tarfile.REGTYPE else 0, kind, link
    tar.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    "name",
    [
        "io.triton.cache/../../out",
        "/etc/out",
        "io.triton.cache/K/../../../out",
        "../out",
        "io.triton.cache//{out}",
        "io.triton.cache/",
    ],
)  # the first of these two was written to the path
def test_a_name_that_leads_elsewhere_is_refused_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    name = name.format(out=tmp_path / "out")
    image = _image_with(tmp_path / "image", lambda tar: _member(tar, name))
    with pytest.raises(PackUnusable, match="leads elsewhere"):
        extract_image(image, tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["image"]


def test_links_and_devices_are_not_made(tmp_path: Path) -> None:
    def members(tar: tarfile.TarFile) -> None:
        _member(tar, "io.triton.cache/K", kind=tarfile.SYMTYPE, link="/tmp")
        _member(tar, "io.triton.cache/K/file", b"content")
        _member(tar, "io.triton.cache/hard", kind=tarfile.LNKTYPE, link="/etc/passwd")
        _member(tar, "io.triton.cache/device", kind=tarfile.CHRTYPE)

    extract_image(_image_with(tmp_path / "image", members), tmp_path / "target")
    assert _files(tmp_path / "target") == {"K/file": b"content"}
    assert not (tmp_path / "target" / "K").is_symlink()


def test_a_file_that_declares_to_be_huge_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    def members(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("io.triton.cache/K/huge")
        info.size = 2**40
        assert tar.fileobj is not None
        tar.fileobj.write(info.tobuf(tarfile.GNU_FORMAT))

    with pytest.raises(PackUnusable, match="larger than an image"):
        extract_image(_image_with(tmp_path / "image", members), tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_without_end_is_refused_before_it_is_in_memory(kind: bytes, tmp_path: Path) -> None:
    def members(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("long")
        info.type, info.size = kind, 8 * 1024**2
        assert tar.fileobj is not None
        tar.fileobj.write(info.tobuf(tarfile.GNU_FORMAT) + b"1" * info.size)
        _member(tar, "io.triton.cache/K/file")

    with pytest.raises(PackUnusable, match="larger than an image"):
        extract_image(_image_with(tmp_path / "image", members), tmp_path / "target")


def test_a_sparse_file_and_a_negative_size_are_refused(tmp_path: Path) -> None:
    def member(tar: tarfile.TarFile, headers: dict[str, str]) -> None:
        info = tarfile.TarInfo("io.triton.cache/K/file")
        info.pax_headers = headers
        tar.addfile(info)

    for number, headers in enumerate(({"GNU.sparse.map": "0,0", "GNU.sparse.size": "200000000"}, {"size": "-1"})):
        image = _image_with(tmp_path / f"image{number}", lambda tar, headers=headers: member(tar, headers))  # type: ignore[misc]
        with pytest.raises(PackUnusable):
            extract_image(image, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("names", [("K/f", "K/f"), ("K", "K/f"), ("n" * 300,)])
def test_names_that_cannot_be_together_are_a_fault_of_the_image(names: tuple[str, ...], tmp_path: Path) -> None:
    def members(tar: tarfile.TarFile) -> None:
        for name in names:
            _member(tar, f"io.triton.cache/{name}")

    image = _image_with(tmp_path / "image", members)
    with pytest.raises(PackUnusable, match="cannot be made"):
        extract_image(image, tmp_path / "target")
    assert sorted(os.listdir(tmp_path)) == ["image"]


def test_what_another_process_imports_to_the_same_target_stays(tmp_path: Path) -> None:
    other = tmp_path / ".target.importing"
    other.mkdir()
    (other / "file").touch()
    extract_image(
        _image_with(tmp_path / "image", lambda tar: _member(tar, "io.triton.cache/K/file")), tmp_path / "target"
    )
    assert (other / "file").exists()


def test_no_secret_of_either_machine_is_published_or_printed(tmp_path: Path) -> None:
    """Neither those of the image, nor those of the machine that checks it, which its log would have."""
    cache = _vllm(tmp_path / "torch_compile_cache")
    factors = next(cache.rglob("cache_key_factors.json"))
    document = json.loads(factors.read_text())
    proxy = "http://user:builder-password@proxy:3128"
    document["env"] |= {"REDIS_PASS": "builder-password", "ALL_PROXY": proxy, "VLLM_PASSWD": "builder-password"}
    factors.write_text(json.dumps(document))
    image = _export(tmp_path / "image", cache, "vllm", "sm_90")
    assert sorted(image.hidden) == ["ALL_PROXY", "HF_TOKEN", "REDIS_PASS", "VLLM_PASSWD"]
    assert b"builder-password" not in gzip.decompress(_parts(tmp_path / "image")[1].read_bytes())
    here = {"HOME": "/home/builder", "VLLM_TARGET_DEVICE": "http://u:local-password@x"}
    here |= dict.fromkeys(image.hidden, "local-password")
    _, reasons = check_image(tmp_path / "image", ["sm_90"], here)
    assert reasons == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "labels", "summary"])
def test_a_damaged_image_is_refused(damage: str, tmp_path: Path) -> None:
    image = _image_with(
        tmp_path / "image", lambda tar: _member(tar, "io.triton.cache/K/file", b"x" * 5000),
        summary="[" * 100_000 if damage == "summary" else '{"targets":[]}',
    )  # fmt: skip
    _, layer = _parts(image)
    if damage == "cut":
        layer.write_bytes(layer.read_bytes()[:-20])
    elif damage == "flipped":
        data = bytearray(layer.read_bytes())
        data[len(data) // 2] ^= 1
        layer.write_bytes(data)
    elif damage == "labels":
        shutil.rmtree(image)
        unpack("triton", image)
    if damage == "summary":
        assert extract_image(image, tmp_path / "target").targets == []
        return
    with pytest.raises(PackUnusable):
        extract_image(image, tmp_path / "target")
    assert is_image(image) is False
    assert not (tmp_path / "target").exists()


def test_the_verbs_write_an_image_and_check_it(tmp_path: Path) -> None:
    cache, image = unpack("triton", tmp_path), tmp_path / "i.oci"
    made = document(
        "caches", "export", image, "--kind", "triton", "--in", cache, "--mount-path", MOUNT, store=tmp_path / "s"
    )
    assert (made["entries"], made["targets"], made["mount_path"]) == (4, ["80", "90"], str(MOUNT))
    checked = run("pack", "check", image, "--arch", "sm_90a", "--json", store=tmp_path / "s")
    found = json.loads(checked.stdout)
    assert (checked.returncode, found["used"], found["kind"]) == (1, False, "triton")
    assert found["targets"] == ["sm_80", "sm_90"]
    assert found["reasons"][0].startswith("path: ")
    again = run("caches", "export", image, "--kind", "triton", "--in", cache, "--mount-path", MOUNT)
    assert (again.returncode, f"{image} exists" in again.stderr) == (2, True)
    for options, named in ((("--mount-path", "relative"), "absolute"), ((), "--mount-path")):
        refused = run("caches", "export", tmp_path / "x", "--kind", "triton", "--in", cache, *options)
        assert (refused.returncode, named in refused.stderr) == (2, True)
    empty = run(
        "caches", "export", tmp_path / "x", "--kind", "triton", "--in", tmp_path / "i.oci", "--mount-path", MOUNT
    )
    assert (empty.returncode, "no complete entry" in empty.stderr) == (2, True)
    assert not (tmp_path / "x").exists()
