"""What an interchange file has, ours or the reference's, before it is merged."""

from __future__ import annotations

from cache_engine.errors import CorruptEntry, UsageError
from cache_engine.evaluations.entry import Entry, decode_entry
from cache_engine.evaluations.reference import is_reference, read_reference
from cache_engine.evaluator.cost import EVALUATOR
from cache_engine.evaluator.hardware import Hardware
from cache_engine.store.results.file import Snapshot, decode_snapshot
from cache_engine.store.results.interchange import check_names

Contents = tuple[Hardware, list[Entry], list[tuple[str, str]], Snapshot | None]


def read_results(data: bytes, chip: Hardware | None = None) -> Contents:
    """The accelerator, its results, keys of refused results with the reason, and the file itself if it is ours.

    Arguments and errors are those of ``Evaluations.import_file``.
    """
    if is_reference(data):
        check_names(data)
        return (*read_reference(data, chip), None)
    theirs = decode_snapshot(data)
    check_names(data)
    if theirs.evaluator != EVALUATOR:
        raise UsageError(
            f"the results come from evaluator {theirs.evaluator[:40]!r}; only results of {EVALUATOR} are stored"
        )
    hardware = Hardware.from_dict(theirs.architecture, "architecture")
    if theirs.arch_fingerprint not in ("", hardware.fingerprint()):
        raise UsageError(
            f"arch_fingerprint {theirs.arch_fingerprint[:40]!r} is not that of the file's architecture, which is "
            f"{hardware.fingerprint()}; leave it empty if another tool wrote the file"
        )
    entries, refused = [], []
    for name, raw in theirs.cache_entries.items():
        try:
            entries.append(decode_entry(raw))
        except CorruptEntry as error:
            refused.append((name, str(error)))
    return hardware, entries, refused, theirs
