"""Measurements of kernels on disk: for each device a snapshot and logs, kept as ``results`` keeps an evaluator's.

A measurement is a JSON object ``{"checksum", "measurement"}``, the checksum being that of the inner object's bytes as
they stand there, so one with fields of a later version can be read and checked by this one. Each has a name of its own
in its device's file; none ever takes another's place.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_hexdigest

from cache_engine._version import __version__
from cache_engine.errors import CorruptEntry, StoreError
from cache_engine.model.fingerprint import DeviceFingerprint
from cache_engine.model.measurement import Measurement
from cache_engine.process import renew_after_fork
from cache_engine.store.files import read_file
from cache_engine.store.layout import StoreLayout, fingerprint_of_results_name

if TYPE_CHECKING:
    from cache_engine.store.results.file import ResultFile, Snapshot

_log = logging.getLogger(__name__)

KIND = "timings"
"""What a snapshot of measurements says it holds."""

_LARGEST_BYTES = 2**31


class _Envelope(msgspec.Struct):
    checksum: str
    measurement: msgspec.Raw


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_measurement = msgspec.json.Decoder(Measurement).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class TimedDevice:
    """A device that there are measurements of; its name is empty where that cannot be read."""

    fingerprint: str
    name: str
    count: int
    last_at: float


class Timings:
    """The measurements of a store. Safe to use from several threads, and processes, at once."""

    def __init__(self, layout: StoreLayout, *, durable: bool = True, lock_timeout_s: float = 60.0) -> None:
        """Opens nothing yet.

        Args:
            durable: whether measurements are on disk before they count as kept.
        """
        self._layout = layout.for_timings()
        self._durable, self._lock_timeout_s = durable, lock_timeout_s
        self._start()
        renew_after_fork(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, ResultFile] = {}

    def renew_after_fork(self) -> None:
        """In a forked child: open logs are the parent's."""
        self._start()

    def exist(self) -> bool:
        """Whether there are any, for the price of one look at the disk."""
        return self._layout.timings.is_dir()

    def add(self, measurements: Iterable[Measurement]) -> None:
        """Keeps measurements.

        Raises:
            LockTimeout, OSError: when the store refuses.
            UnknownResults: when what there is of the device was written by another version of this program.
        """
        from cache_engine.store.results.file import NewResult

        by_device: dict[DeviceFingerprint, list[NewResult]] = {}
        for one in measurements:
            name = f"{one.key[:12]}-{secrets.token_hex(12)}"
            by_device.setdefault(one.device, []).append(NewResult(name, one.measured_at, 0.0, encode(one)))
        self._layout.timings.mkdir(mode=0o700, exist_ok=True)
        with self._lock:
            for device, new in by_device.items():
                self._file(device.digest(), device).append(new)

    def close(self) -> None:
        """Folds logs that are long beside their snapshots, and lets them go."""
        with self._lock:
            for file in self._files.values():
                with suppress(OSError, StoreError):
                    file.fold_if_long()
                file.close()
            self._files.clear()

    def fingerprints(self) -> list[str]:
        """Devices of which there are measurements."""
        from cache_engine.store.results.file import stored_fingerprints

        return stored_fingerprints(self._layout) if self.exist() else []

    def devices(self) -> list[TimedDevice]:
        """Those devices, the last measured on first; one whose measurements cannot be read is passed over, and said."""
        found = []
        for fingerprint in self.fingerprints():
            there = self.of_device(fingerprint)
            if there:
                found.append(TimedDevice(fingerprint, there[0].device.name, len(there), there[0].measured_at))
        return sorted(found, key=lambda device: -device.last_at)

    def of_device(self, fingerprint: str) -> list[Measurement]:
        """A device's measurements, newest first; what cannot be read is passed over, and said."""
        try:
            return self.read_device(fingerprint)
        except (OSError, StoreError) as error:
            _log.warning("timings of device %s cannot be read: %s", fingerprint[:12], error)
            return []

    def read_device(self, fingerprint: str) -> list[Measurement]:
        """The same; single measurements that are damaged are passed over, and said.

        A file that is damaged as a whole is set aside.

        Raises:
            UnknownResults: when they are another version's.
            LockTimeout, OSError: when they cannot be read now.
        """
        with self._lock:
            kept = list(self._file(fingerprint).load().cache_entries.values())
        found = []
        for raw in kept:
            try:
                one = decode(raw)
                if one.device.digest() != fingerprint:
                    raise CorruptEntry(f"a timing of {one.device.name[:40]!r} is among those of another device")
                found.append(one)
            except CorruptEntry as error:
                _log.warning("%s; it is passed over", error)
        return sorted(found, key=lambda one: -one.measured_at)

    def __iter__(self) -> Iterator[Measurement]:
        """All measurements, newest first."""
        found = [one for fingerprint in self.fingerprints() for one in self.of_device(fingerprint)]
        return iter(sorted(found, key=lambda one: -one.measured_at))

    def of_key(self, key: str) -> list[Measurement]:
        """A kernel's measurements, newest first."""
        return [one for one in self if one.key == key]

    def check(self, fingerprint: str) -> None:
        """Reads all that there is of a device. Changes nothing.

        Raises:
            CorruptEntry: saying what is damaged.
            UnknownResults, LockTimeout, OSError: as ``read_device``.
        """
        from cache_engine.store.results.file import decode_snapshot

        path = self._layout.results_file(fingerprint)
        data = read_file(path, _LARGEST_BYTES)
        # Loading would set a damaged one aside.
        told = 0 if data is None else decode_snapshot(data, fingerprint).statistics.corrupt_lines
        with self._lock:
            loaded = self._file(fingerprint).load()
        lines = loaded.statistics.corrupt_lines - told
        damaged = lines + sum(map(_is_damaged, loaded.cache_entries.values()))
        if damaged:
            raise CorruptEntry(f"{damaged:,} of {len(loaded.cache_entries) + lines:,} timings are damaged")

    def mend(self, fingerprint: str) -> None:
        """Sets what is damaged aside, whole files at that, and goes on with what is sound.

        Raises:
            UnknownResults, LockTimeout, OSError: as ``read_device``.
        """
        with self._lock:
            file = self._file(fingerprint)
            file.load()  # sets a snapshot aside that cannot be read at all
            self._layout.quarantine.mkdir(mode=0o700, exist_ok=True)
            for path in sorted(self._layout.timings.iterdir()):
                named = fingerprint_of_results_name(path.name)
                if named is not None and named[0] == fingerprint:
                    shutil.copyfile(path, self._layout.quarantine / f"{time.time_ns()}-{path.name}")
            file.fold(_drop_damaged)

    def _file(self, fingerprint: str, device: DeviceFingerprint | None = None) -> ResultFile:
        from cache_engine.store.results.file import ResultFile, empty_snapshot

        file = self._files.get(fingerprint)
        if file is None or (device is not None and not file.snapshot.architecture):
            about = {} if device is None else {field.name: getattr(device, field.name) for field in fields(device)}
            if file is not None:
                file.close()
            new = empty_snapshot(__version__, KIND, fingerprint, about)
            file = ResultFile(self._layout, new, durable=self._durable, lock_timeout_s=self._lock_timeout_s)
            self._files[fingerprint] = file
        return file


def _is_damaged(raw: msgspec.Raw) -> bool:
    try:
        decode(raw)
    except CorruptEntry:
        return True
    return False


def _drop_damaged(snapshot: Snapshot) -> None:
    for name in [name for name, raw in snapshot.cache_entries.items() if _is_damaged(raw)]:
        del snapshot.cache_entries[name]


def encode(measurement: Measurement) -> bytes:
    """A measurement as it is kept."""
    inner = msgspec.json.encode(measurement)
    return msgspec.json.encode(_Envelope(f"xxh3:{xxh3_64_hexdigest(inner)}", msgspec.Raw(inner)))


def decode(data: bytes | msgspec.Raw) -> Measurement:
    """The measurement in such bytes.

    Raises:
        CorruptEntry: when it is none, or not what its checksum was made of.
    """
    try:
        envelope = _decode_envelope(data)
        if envelope.checksum != f"xxh3:{xxh3_64_hexdigest(bytes(envelope.measurement))}":
            raise CorruptEntry("a timing does not match its checksum")
        measurement = _decode_measurement(envelope.measurement)
    except _UNREADABLE as error:
        raise CorruptEntry(f"a timing cannot be read: {error}") from error
    if measurement.fault:
        raise CorruptEntry(f"a timing of {measurement.key[:12]} cannot be right: {measurement.fault}")
    return measurement
