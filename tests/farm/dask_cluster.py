"""A real scheduler of Dask and its workers, processes of their own that talk TLS with certificates made here."""

from __future__ import annotations

import datetime
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cache_engine.remote.objects import Objects
from tests.trust.keys import Builder

_DAY = datetime.timedelta(days=1)


class Certificates:
    """An authority, and the one certificate that it gave to every machine of a cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.authority, self.machine = folder / "authority.pem", folder / "machine.pem"
        signer, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        self.authority.write_bytes(_certificate("authority", signer, signer).public_bytes(Encoding.PEM))
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.machine.write_bytes(private + _certificate("machine", key, signer).public_bytes(Encoding.PEM))

    @property
    def environment(self) -> dict[str, str]:
        """Names them to Dask, for a client as for a server."""
        files = {"CA_FILE": self.authority, **{f"{role}__CERT": self.machine for role in _ROLES}}
        return {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(file) for name, file in files.items()}


def require_dask() -> None:
    """Skips a test where Dask's scheduler is not installed; in CI it must be."""
    if find_spec("distributed") is None:
        assert not os.environ.get("CI"), "Dask's scheduler is not installed"
        pytest.skip("Dask's scheduler is not installed")


_ROLES = ("CLIENT", "SCHEDULER", "WORKER")


class Scheduler:
    """A scheduler, which keeps nothing: one that is killed has lost everything."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "certificates")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"tls://127.0.0.1:{self.port}"
        self.log = folder / "scheduler.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, empty."""
        command = [
            "scheduler", "--host", "127.0.0.1", "--protocol", "tls", "--port", self.port,
            "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
        ]  # fmt: skip
        self._process = dask(command, self.log, self.certificates.environment)
        deadline = time.monotonic() + 120
        while not _listens(self.port):
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """Kills it, and with it all that it had."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class DaskWorkers:
    """``dask worker`` processes, whose environment names the remote and the key that signs."""

    def __init__(self, folder: Path, scheduler: Scheduler, remote: Objects, builder: Builder) -> None:
        self._folder, self._scheduler, self._remote, self._builder = folder, scheduler, remote, builder
        self._running: list[subprocess.Popen[bytes]] = []
        self.log = folder / "workers.log"

    def start(self) -> None:
        """Starts one more, with a store of its own."""
        place = self._folder / f"worker-{len(list(self._folder.glob('worker-*')))}"
        environment = {
            **self._scheduler.certificates.environment,
            "GEMM_CACHE_DIR": str(place / "store"),
            "GEMM_CACHE_REMOTE": self._remote.url,
            "GEMM_CACHE_SIGNING_KEY": str(self._builder.file),
        }
        command = [
            "worker", self._scheduler.url, "--host", "127.0.0.1", "--nthreads", 1, "--no-nanny", "--no-dashboard",
            "--memory-limit", 0, "--local-directory", place,
        ]  # fmt: skip
        self._running.append(dask(command, self.log, environment))

    def kill(self) -> None:
        """Kills all of them."""
        for process in self._running:
            process.kill()
            process.wait()
        self._running.clear()


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def dask(command: list[object], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process of Dask's command line."""
    with log.open("ab") as written:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *map(str, command)], stdout=written, stderr=written,
            env={**os.environ, **environment}, cwd=Path(__file__).parents[2],
        )  # fmt: skip


def _certificate(name: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    is_authority, now = key is signer, datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )
