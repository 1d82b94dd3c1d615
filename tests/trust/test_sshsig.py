"""Signatures are those of ssh-keygen, both ways, and no changed one is accepted."""

from __future__ import annotations

import base64
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cache_engine.store.signatures import sshsig
from tests.trust.keys import Builder, signers_file

needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")

# ssh-keygen -t ed25519 -N '' -f k; printf hello > m; ssh-keygen -Y sign -f k -n kernel@gemm-cache m (OpenSSH 9.2p1)
BY_OPENSSH = """\
-----BEGIN SSH SIGNATURE-----
U1NIU0lHAAAAAQAAADMAAAALc3NoLWVkMjU1MTkAAAAgY7avUgYdztEx7Gw7Wp9QdWTE9U
+D8H778tLZbA4EKIEAAAARa2VybmVsQGdlbW0tY2FjaGUAAAAAAAAABnNoYTUxMgAAAFMA
AAALc3NoLWVkMjU1MTkAAABASiRBWi9e427aYdrEwsYZy4lBKERGqK8jVuACFPHCaBBmku
ElLrC+MWPg4ifNDRLB7x+4hI3YOdg4Opan/ROhBA==
-----END SSH SIGNATURE-----
"""
FINGERPRINT = "SHA256:qihbr5MtmZhSHPC31jk3/ehKh4c9daNXtmYtm4vPecs"


def test_a_signature_of_openssh_fits_its_message_alone() -> None:
    signature = sshsig.parse(BY_OPENSSH)
    assert (signature.namespace, signature.digest) == ("kernel@gemm-cache", "sha512")
    assert sshsig.fingerprint(signature.key) == FINGERPRINT
    assert signature.fits(b"hello")
    assert not signature.fits(b"hello ")
    assert not signature.fits(b"")


@needs_ssh_keygen
@pytest.mark.parametrize("message", [b"", b"hello", bytes(range(256)) * 50], ids=["empty", "short", "binary"])
def test_ssh_keygen_accepts_ours(builder: Builder, tmp_path: Path, message: bytes) -> None:
    private = Ed25519PrivateKey.generate()
    line = base64.b64encode(sshsig.key_blob(private.public_key().public_bytes_raw())).decode()
    signers = signers_file(tmp_path, f"me@example.com {sshsig.KEY_TYPE} {line}")
    (tmp_path / "sig").write_text(sshsig.sign(private, message, "kernel@gemm-cache"))
    verify = ("ssh-keygen", "-Y", "verify", "-f", signers, "-I", "me@example.com", "-s", tmp_path / "sig", "-n")
    done = subprocess.run([*verify, "kernel@gemm-cache"], input=message, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([*verify, "git"], input=message, capture_output=True).returncode != 0
    assert subprocess.run([*verify, "kernel@gemm-cache"], input=b"x", capture_output=True).returncode != 0


@needs_ssh_keygen
def test_we_accept_those_of_the_ssh_keygen_here(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True)
    done = subprocess.run(
        ["ssh-keygen", "-Y", "sign", "-f", tmp_path / "k", "-n", "a name"],
        input=b"text",
        capture_output=True,
        check=True,
    )
    assert sshsig.parse(done.stdout.decode()).fits(b"text")


def test_no_signature_with_a_changed_byte_fits() -> None:
    """Every byte of the decoded signature, with three other values each."""
    data = bytearray(base64.b64decode("".join(BY_OPENSSH.split("\n")[1:-2])))
    generator = random.Random(1)
    fitting = 0
    for place in range(len(data)):
        for change in generator.sample(range(1, 256), 3):
            changed = bytearray(data)
            changed[place] ^= change
            try:
                fitting += sshsig.parse(_armored(bytes(changed))).fits(b"hello")
            except ValueError:
                continue
    assert fitting == 0
    assert sshsig.parse(_armored(bytes(data))).fits(b"hello")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not an SSH signature"),
        ("U1NIU0lH", "not an SSH signature"),
        (BY_OPENSSH.replace("U1NIU0lH", "U1NIU0l!"), "base64"),
        (BY_OPENSSH + "x", "not an SSH signature"),
        (BY_OPENSSH.replace("\n-----END", "AAAA\n-----END"), "base64"),
        ("-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----", "not an SSH signature"),
        ("-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----", "cut short"),
        ("-----BEGIN SSH SIGNATURE-----\n" + "A" * 9000 + "\n-----END SSH SIGNATURE-----", "too long"),
    ],
)
def test_what_is_no_signature_is_named(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sshsig.parse(text)


def test_a_key_of_another_type_is_refused() -> None:
    rsa = b"\x00\x00\x00\x07ssh-rsa\x00\x00\x00\x01x"
    with pytest.raises(ValueError, match="ssh-rsa; only ssh-ed25519 is accepted"):
        sshsig.key_of(rsa)


def _armored(data: bytes) -> str:
    return f"-----BEGIN SSH SIGNATURE-----\n{base64.b64encode(data).decode()}\n-----END SSH SIGNATURE-----\n"
