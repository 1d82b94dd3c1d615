"""Measurements of kernels on disk: a file for each device, in the format of ``results``.

A measurement is a JSON object ``{"checksum", "measurement"}``. The checksum covers the inner object's exact bytes in
the file, so this version can read and check one with fields of a later version. Each measurement has a unique name in
its device's file, so none replaces another.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine._version import __version__
from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.measurement import Measurement
from cache_engine.process import holds, renew_after_fork
from cache_engine.store.layout import StoreLayout

if TYPE_CHECKING:
    from cache_engine.store.results import Judge, ResultFile

_log = logging.getLogger(__name__)

KIND = "timings"
"""The kind of results in the snapshot of a device's measurements."""


class _Envelope(msgspec.Struct):
    checksum: str
    measurement: msgspec.Raw


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_measurement = msgspec.json.Decoder(Measurement).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class TimedDevice:
    """A device that has measurements; ``name`` is empty if its file cannot be read."""

    fingerprint: str
    name: str
    count: int
    last_at: float


class Timings:
    """The measurements of a store. Safe to use from several threads and processes."""

    def __init__(self, layout: StoreLayout, *, durable: bool = True, lock_timeout_s: float = 60.0) -> None:
        """Opens nothing yet.

        Args:
            durable: whether measurements are synced to disk before they count as stored.
        """
        self._layout = layout.for_timings()
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """In a forked child: makes a new lock, because the parent may have held the old one."""
        self._lock = threading.RLock()
        self._files: dict[str, ResultFile] = {}

    def exist(self) -> bool:
        """Whether the store has any measurements; takes one disk access."""
        return self._layout.timings.is_dir()

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Stores measurements.

        Raises:
            CorruptEntry: when one is invalid, because readers would refuse it; then none is stored.
            LockTimeout, OSError: when the store cannot be written.
            UnknownResults: when another version of this program wrote the device's file.
        """
        from cache_engine.store.results import NewResult

        by_device: dict[DeviceFingerprint, list[NewResult]] = {}
        for one in measurements:
            if one.fault:
                raise CorruptEntry(f"a timing of {one.key[:12]} is invalid: {one.fault}")
            name = f"{one.key[:12]}-{secrets.token_hex(12)}"
            by_device.setdefault(one.device, []).append(NewResult(name, one.measured_at, 0.0, encode(one)))
        self._layout.timings.mkdir(mode=0o700, exist_ok=True)
        with self._lock:
            for device, new in by_device.items():
                self._file(device.digest(), device).append(new)

    def close(self) -> None:
        """Frees the memory of measurements that were read; writes nothing."""
        if not holds(self._lock):  # in a signal handler, the interrupted code finishes its own writes
            with self._lock:
                self._files.clear()

    def fingerprints(self) -> list[str]:
        """The fingerprints of devices with measurements."""
        from cache_engine.store.results import stored_fingerprints

        return stored_fingerprints(self._layout) if self.exist() else []

    def devices(self) -> list[TimedDevice]:
        """The devices with measurements, most recently measured first.

        Skips a device that cannot be read, with a warning.
        """
        found = []
        for fingerprint in self.fingerprints():
            there = self.of_device(fingerprint)
            if there:
                found.append(TimedDevice(fingerprint, there[0].device.name, len(there), there[0].measured_at))
        return sorted(found, key=lambda device: -device.last_at)

    def of_device(self, fingerprint: str) -> list[Measurement]:
        """A device's measurements, newest first. Skips damaged ones, with a warning."""
        try:
            return self.read_device(fingerprint)
        except (OSError, StoreError) as error:
            _log.warning("timings of device %s cannot be read: %s", fingerprint[:12], error)
            return []

    def read_device(
        self, fingerprint: str, on_damage: Callable[[str, CorruptEntry], None] | None = None
    ) -> list[Measurement]:
        """A device's measurements, newest first, without those that are damaged.

        Args:
            on_damage: a function called with the name and the error of each damaged measurement; by default a warning
                is logged.

        Raises:
            UnknownResults: when another version wrote them.
            LockTimeout, OSError: when they cannot be read now.
        """
        on_damage = on_damage or (lambda _, error: _log.warning("%s; it is skipped", error))
        with self._lock:
            stored = list(self._file(fingerprint).load().cache_entries.items())
        found = []
        for name, raw in stored:
            try:
                one = decode(raw)
                if one.device.digest() != fingerprint:
                    raise CorruptEntry(f"a timing of {one.device.name[:40]!r} is in another device's file")
                found.append(one)
            except CorruptEntry as error:
                on_damage(name, error)
        return sorted(found, key=lambda one: -one.measured_at)

    def __iter__(self) -> Iterator[Measurement]:
        """All measurements, newest first."""
        found = [one for fingerprint in self.fingerprints() for one in self.of_device(fingerprint)]
        return iter(sorted(found, key=lambda one: -one.measured_at))

    def of_key(self, key: str) -> list[Measurement]:
        """A kernel's measurements, newest first."""
        return [one for one in self if one.key == key]

    def mend(self, fingerprint: str) -> None:
        """Copies a device's damaged files to quarantine, and writes them again with their undamaged measurements."""
        with self._lock:
            self._file(fingerprint).mend()

    def _file(self, fingerprint: str, device: DeviceFingerprint | None = None) -> ResultFile:
        from cache_engine.store.results import ResultFile, empty_snapshot

        file = self._files.get(fingerprint)
        if file is None or (device is not None and not file.snapshot.architecture):
            about = {} if device is None else msgspec.structs.asdict(device)
            new = empty_snapshot(__version__, KIND, fingerprint, about)
            file = self._files[fingerprint] = ResultFile(
                self._layout,
                new,
                judge_of(fingerprint),
                durable=self._durable,
                lock_timeout_s=self._lock_timeout_s,
            )
        return file


def judge_of(device: str) -> Judge:
    """A function that checks that a stored timing is undamaged and of the device with this fingerprint."""

    def judge(name: str, raw: bytes | msgspec.Raw) -> str:
        with suppress(CorruptEntry):
            if decode(raw).device.digest() == device:
                return name
        return ""

    return judge


def encode(measurement: Measurement) -> bytes:
    """The bytes in which a measurement is stored."""
    inner = msgspec.json.encode(measurement)
    return msgspec.json.encode(_Envelope(f"xxh3:{xxh3_64_hexdigest(inner)}", msgspec.Raw(inner)))


def decode(data: bytes | msgspec.Raw) -> Measurement:
    """Decodes a stored measurement.

    Raises:
        CorruptEntry: when the bytes are not a measurement, or do not match the checksum.
    """
    try:
        envelope = _decode_envelope(data)
        if envelope.checksum != f"xxh3:{xxh3_64_hexdigest(bytes(envelope.measurement))}":
            raise CorruptEntry("a timing does not match its checksum")
        measurement = _decode_measurement(envelope.measurement)
    except _UNREADABLE as error:
        raise CorruptEntry(f"a timing cannot be read: {error}") from error
    if measurement.fault:
        raise CorruptEntry(f"a timing of {measurement.key[:12]} is invalid: {measurement.fault}")
    return measurement
