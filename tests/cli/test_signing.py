"""A pack is signed by who exports it, and taken by who trusts that key; ssh-keygen checks it without this program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Examine
from tests.cli.test_cli import document, run
from tests.trust.keys import Builder, signers_file

_PACKS = ("trusted signers", "pack")


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "key")


@pytest.fixture
def signed(compiled_store: Path, builder: Builder, tmp_path: Path) -> Path:
    """A pack of four kernels."""
    path = tmp_path / "signed.gemmpack"
    found = document("pack", "export", path, "--sign", builder.file, store=compiled_store)
    assert (found["entries"], found["signed_by"]) == (4, builder.key.fingerprint)
    return path


def test_a_signed_pack_is_imported_and_its_signer_shown(
    signed: Path, builder: Builder, compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, other = tmp_path / "plain.gemmpack", tmp_path / "other"
    document("pack", "export", plain, store=compiled_store)
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder@ci {builder.line}")))
    refused = document("pack", "import", plain, store=other, code=1)
    assert (refused["taken"], len(refused["refused"])) == (0, 4)
    assert "not signed: the kernel has no signature" in refused["refused"][0]["cause"]
    assert document("pack", "import", signed, store=other)["taken"] == 4
    found = document("verify", "--signatures", store=other)
    assert found["findings"] == []
    assert found["signatures"] == [{"standing": "good", "signer": "builder@ci", "kernels": 4, "why": "", "keys": []}]
    key = next(iter((other / "metadata").glob("*/*.json"))).stem
    assert document("show", key, store=other)["signature"] == "good, by builder@ci"
    assert re.search(r"signature +good, by builder@ci", run("show", key, store=other).stdout)
    monkeypatch.delenv("GEMM_CACHE_TRUSTED_SIGNERS")
    assert document("show", key, store=other)["signature"].startswith("unknown signer SHA256:")


def test_doctor_says_before_a_job_starts_whether_a_pack_would_be_served(
    signed: Path, builder: Builder, compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    examine: Examine,
) -> None:  # fmt: skip
    def of_packs() -> list[dict[str, str]]:
        found = json.loads(examine("--json", store=tmp_path, code=1).stdout)
        return [check for check in found["checks"] if check["name"] in _PACKS]

    document("pack", "export", tmp_path / "plain.gemmpack", store=compiled_store)
    monkeypatch.setenv("GEMM_CACHE_PACKS", str(tmp_path))
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder@ci {builder.line}")))
    checks = of_packs()
    assert [check["status"] for check in checks] == ["ok", "problem", "ok"]
    assert checks[0]["detail"].endswith("trusted_signers, 1 key")
    assert "4 of 4 are refused: not signed: the kernel has no signature" in checks[1]["detail"]
    assert checks[2]["detail"].endswith("; signed by builder@ci")
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(tmp_path / "missing"))
    (check,) = of_packs()
    assert check["status"] == "problem"
    assert check["detail"].endswith("no pack is used")


def test_a_bad_signature_fails_verify_and_says_what_to_do(signed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    document("pack", "import", signed, store=other)
    records = sorted((other / "metadata").glob("*/*.json"))
    first, second = (json.loads(path.read_bytes())["signature"] for path in records[:2])
    records[0].write_text(records[0].read_text().replace(json.dumps(first)[1:-1], json.dumps(second)[1:-1]))
    found = document("verify", "--signatures", store=other, code=1)
    assert found["findings"] == []
    (bad,) = [row for row in found["signatures"] if row["standing"] == "bad signature"]
    assert bad["keys"] == [records[0].stem]
    done = run("verify", "--signatures", store=other)
    assert f"gemm-cache clean --key {records[0].stem[:12]} --yes deletes the kernel" in done.stdout
    assert document("verify", store=other)["findings"] == []  # nothing is damaged


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_ssh_keygen_checks_a_record_as_the_docs_say(signed: Path, builder: Builder, tmp_path: Path) -> None:
    """The commands of docs/trust.md."""
    other = tmp_path / "other"
    document("pack", "import", signed, store=other)
    record = next(iter(sorted((other / "metadata").glob("*/*.json"))))
    signers = signers_file(tmp_path, f"builder@ci {builder.line}")
    page = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()
    (recipe,) = re.findall(r"```sh\n(python3 - .*?)```", page, re.DOTALL)
    script = recipe.replace("RECORD.json", str(record)).replace("trusted_signers", str(signers))
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'Good "kernel@gemm-cache" signature for builder@ci' in done.stdout
    record.write_text(record.read_text().replace('"registers":', '"registers":1'))
    assert subprocess.run(["sh", "-ec", script], capture_output=True, cwd=tmp_path).returncode != 0


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"not a key", 0o600, "is not a private key of OpenSSH"),
        (None, 0o644, "other users may read the key"),
        (None, None, "cannot open"),
    ],
)
def test_a_key_that_cannot_sign_is_refused_before_anything_is_written(
    compiled_store: Path, builder: Builder, tmp_path: Path, content: bytes | None, mode: int | None, why: str
) -> None:
    if content is not None:
        builder.file.write_bytes(content)
    if mode is None:
        builder.file.unlink()
    else:
        builder.file.chmod(mode)
    done = run("pack", "export", tmp_path / "a.gemmpack", "--sign", builder.file, store=compiled_store)
    assert (done.returncode, why in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "a.gemmpack").exists()


def test_a_key_with_a_passphrase_needs_a_terminal(compiled_store: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    from cache_engine.errors import UsageError
    from cache_engine.store.signatures.signers import SigningKey

    locked = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked").write_bytes(locked)
    (tmp_path / "locked").chmod(0o600)
    done = run("pack", "export", tmp_path / "a.gemmpack", "--sign", tmp_path / "locked", store=compiled_store)
    assert (done.returncode, "has a passphrase, and there is no terminal" in done.stderr) == (2, True), done.stderr
    assert SigningKey.read(tmp_path / "locked", lambda: "secret").fingerprint.startswith("SHA256:")
    with pytest.raises(UsageError, match="passphrase is wrong"):
        SigningKey.read(tmp_path / "locked", lambda: "wrong")
