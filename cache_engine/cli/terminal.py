"""How results look on a terminal. What is read by programs goes through ``--json`` instead."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cache_engine.config import Origin
from cache_engine.insight.description import described
from cache_engine.model.artifact import Record
from cache_engine.units import counted, human_age, human_bytes, human_ms, human_rate, printable

if TYPE_CHECKING:
    from rich.progress import Progress

    from cache_engine.bench.results import Line, Result, Size
    from cache_engine.cli.doctor import Check
    from cache_engine.engine.cache import CompiledKernel

Document = Mapping[str, Any]

LEFT, RIGHT = "left", "right"


def print_kernel(kernel: CompiledKernel) -> None:
    """What ``compile`` found or made."""
    record = kernel.record
    stages = ", ".join(f"{name.replace('_', ' ')} {human_ms(ms)}" for name, ms in kernel.stages_ms.items())
    tier = kernel.tier if kernel.tier == "compiled" else f"hit ({kernel.tier})"
    print_fields(
        {
            "result": tier if not kernel.unpublished else f"{tier}, but not kept: {kernel.unpublished}",
            **record_fields(record),
            "config from": kernel.config_from,
            "this time": stages,
        }
    )


def print_warnings(warnings: Sequence[str]) -> None:
    """What a compile warned of, on standard error: it is no part of the result."""
    for text in warnings:
        print(printable(f"warning: {text}"), file=sys.stderr)


def record_fields(record: Record) -> dict[str, str]:
    """A record, property by property."""
    words = described(record, human_age(time.time() - record.created_at))
    return {"key": record.key, "name": record.name, **{label.lower(): value for label, value in words.items()}}


def print_kernels(page: Document, there: Mapping[str, Sequence[str]]) -> None:
    """A page of kernels; when there are none, the values that ``there`` are to filter by."""
    first, shown, total = page["offset"] + 1, len(page["rows"]), page["total"]
    if not shown:
        print("No kernel matches." if not total else f"There are only {total:,}.")
        for column, values in there.items():
            if values and not total:
                print(printable(f"  {column} can be: {', '.join(values)}"))
        return
    now = time.time()
    columns = {
        "key": LEFT, "target": LEFT, "family": LEFT, "dtype": LEFT, "layout": LEFT, "m × n × k": RIGHT, "batch": RIGHT,
        "config": LEFT, "regs": RIGHT, "size": RIGHT, "compiled in": RIGHT, "hits": RIGHT, "last used": RIGHT,
    }  # fmt: skip
    rows = [
        (
            row["key"][:12], row["arch"], row["family"],
            row["dtype"] if row["dtype"] == row["out_dtype"] else f"{row['dtype']}→{row['out_dtype']}",
            row["layout"], f"{row['m']} × {row['n']} × {row['k']}", row["batch"], row["config"], row["registers"],
            human_bytes(row["size_bytes"]), human_ms(row["compile_ms"]), row["hits"],
            human_age(now - row["last_used_at"]),
        )
        for row in page["rows"]
    ]  # fmt: skip
    print_table(
        columns, rows, dispensable=("compiled in", "batch", "regs", "layout", "size", "config", "family", "hits")
    )
    print(f"\n{first:,}–{first + shown - 1:,} of {total:,}")


def print_timing(document: Document) -> None:
    """What ``time`` measured."""
    verdict = "right" if document["verified"] else "WRONG"
    print_fields(
        {
            "key": document["key"],
            "device": document["device"],
            "median": _short_time(document["median_us"] / 1e6),
            "10th to 90th": f"{_short_time(document['p10_us'] / 1e6)} to {_short_time(document['p90_us'] / 1e6)}, "
            f"{document['repeats']} launches with a cold L2",
            "speed": f"{document['tflops']:.1f} TFLOP/s",
            "beside": _beside(document),
            "SM clock": _clock(document),
            **({"device memory": _pool(document)} if "device_memory" in document else {}),
            "result": f"{verdict}; largest relative error {document['max_rel_error']:.2g}",
            **({"not kept": document["unkept"]} if document["unkept"] else {}),
        }
    )


def _beside(timing: Document) -> str:
    """What was timed in turn with a kernel, or why nothing was."""
    if timing["reference"] is None:
        return f"nothing: {timing['no_reference']}"
    return (
        f"{timing['reference']}: {_short_time(timing['reference_median_us'] / 1e6)}; "
        f"the kernel is {timing['speed_ratio']:.2f} times as fast"
    )


def _clock(timing: Document) -> str:
    clocks = timing["sm_clock_before_mhz"], timing["sm_clock_mhz"]
    return "cannot be read" if None in clocks else f"{clocks[0]} MHz before, {clocks[1]} MHz after"


def _pool(timing: Document) -> str:
    memory = timing["device_memory"]
    return (
        f"{human_bytes(memory['peak_bytes'])} at the most, in {counted(memory['allocations'], 'allocation')}; "
        f"{human_bytes(memory['cached_bytes'])} cached, fragmentation {human_rate(memory['fragmentation'])}"
    )


def print_synced(document: Document) -> None:
    """What ``sync`` took over."""
    print(
        f"{counted(document['added'], 'kernel')} new or changed, {document['removed']:,} gone, "
        f"{document['unreadable']:,} unreadable, {counted(document['events'], 'event')}, "
        f"{counted(document['results'], 'evaluation')}, {counted(document['timings'], 'timing')}; "
        f"in {human_ms(document['ms'])}."
    )
    if document["skipped"]:
        print(f"{counted(document['skipped'], 'item')} of the store cannot be mirrored; gemm-cache verify names each.")


def print_statistics(stats: Document) -> None:
    """What ``stats`` found."""
    where = {"memory": "in memory", "pack": "in packs", "disk": "on disk"}
    hits = ", ".join(f"{count:,} {where.get(tier, tier)}" for tier, count in stats["hits"].items()) or "none"
    published = stats["last_publish_at"]
    print_fields(
        {
            "entries": f"{stats['entries']:,} of {stats['max_entries']:,}",
            "on disk": f"{human_bytes(stats['stored_bytes'])} of {human_bytes(stats['max_bytes'])}",
            "journal": human_bytes(stats["journal_bytes"]),
            "hits": hits,
            "misses": f"{stats['misses']:,}",
            "hit rate": human_rate(stats["hit_rate"]),
            "compiling took": f"{human_ms(stats['compile_ms'])}, {counted(stats['compiles'], 'kernel')}",
            "hits saved": human_ms(stats["saved_ms"]),
            "evicted": f"{counted(stats['evictions'], 'entry', 'entries')}, {human_bytes(stats['evicted_bytes'])}",
            "found corrupt": f"{stats['corruptions']:,}",
            "tiers passed over": ", ".join(f"{n:,} × {tier}" for tier, n in stats["tier_failures"].items()) or "never",
            "waits for a lock": f"{stats['lock_waits']:,} of more than a second, {stats['lock_timeouts']:,} in vain",
            "not kept": f"{counted(stats['publish_failures'], 'kernel')} that could not be published",
            "last published": human_age(time.time() - published) if published else "never",
        }
    )
    if "architectures" in stats:
        print()
        print_table(
            {"target": LEFT, "entries": RIGHT, "code": RIGHT, "on disk": RIGHT, "compiling took": RIGHT, "hits": RIGHT},
            (
                (
                    row["arch"], row["entries"], human_bytes(row["size_bytes"]), human_bytes(row["stored_bytes"]),
                    human_ms(row["compile_ms"]), row["hits"],
                )
                for row in stats["architectures"]
            ),
        )  # fmt: skip


def print_cleaning(document: Document) -> None:
    """What ``clean`` would evict, or has evicted."""
    now = time.time()
    victims = document["victims"]
    if victims:
        print_table(
            {"key": LEFT, "on disk": RIGHT, "last used": RIGHT, "reason": LEFT},
            (
                (victim["key"][:12], human_bytes(victim["stored_bytes"]), human_age(now - victim["last_used_at"]),
                 victim["reason"])
                for victim in victims
            ),
        )  # fmt: skip
        print()
    for leftover in document["leftovers"]:
        print(printable(f"{leftover['path']}: {leftover['reason']}, {human_bytes(leftover['stored_bytes'])}"))
    left = len(document["leftovers"])
    cleaned = document["cleaned"]
    kept = f"{counted(document['kept_entries'], 'entry', 'entries')}, {human_bytes(document['kept_bytes'])}"
    if cleaned is None:
        planned = f"{counted(len(victims), 'entry', 'entries')}, {human_bytes(document['victim_bytes'])}"
        removed = f"; would remove {counted(left, 'file')} left behind" if left else ""
        print(f"Would evict {planned}; would keep {kept}{removed}.")
    else:
        skipped = f"; {cleaned['skipped']} in use were skipped" if cleaned["skipped"] else ""
        evicted = f"{counted(cleaned['evicted'], 'entry', 'entries')}, {human_bytes(cleaned['freed_bytes'])}"
        removed = f"; removed {counted(cleaned['leftovers'], 'file')} left behind" if cleaned["leftovers"] else ""
        print(f"Evicted {evicted}{skipped}; kept {kept}{removed}.")
    if document["kept_timings"]:
        print(f"Timings are never evicted; {counted(document['kept_timings'], 'timing')} kept.")


def print_verification(document: Document) -> None:
    """What ``verify`` found."""
    for finding in document["findings"]:
        fate = "done" if finding["repaired"] else "remedy"
        print(printable(f"{finding['kind']}: {finding['path']}: {finding['cause']}"))
        print(f"    {fate}: {finding['remedy']}")
    found = len(document["findings"])
    verdict = counted(found, "finding") if found else "nothing wrong"
    print(f"{counted(document['checked'], 'entry', 'entries')} checked, {verdict}.")


def print_quarantine(items: Sequence[Document]) -> None:
    """What is in quarantine."""
    now = time.time()
    for item in items:
        about = f"{human_bytes(item['stored_bytes'])}, set aside {human_age(now - item['set_aside_at'])}"
        print(printable(f"{item['kernel'] or item['files'][0]['original']}: {about}"))
        print(printable(f"    {item['name']}"))
        for said, text in (("why", item["why"]), ("now", item["cause"] or "sound: it can be put back")):
            if text:
                print(printable(f"    {said}: {text}"))
    size = sum(item["stored_bytes"] for item in items)
    print(f"{counted(len(items), 'item')} in quarantine, {human_bytes(size)}.")


def print_exported(document: Document) -> None:
    """What ``export`` has written."""
    _print_refused(document["refused"], "left out")
    size = human_bytes(document["bytes"])
    print(printable(f"{counted(document['entries'], 'kernel')} in {document['file']}, {size}."))


def print_imported(document: Document) -> None:
    """What ``import`` has taken in, or would take in."""
    _print_refused(document["refused"], "refused")
    verb = "Would take in" if document["dry_run"] else "Took in"
    taken = f"{counted(document['taken'], 'kernel')}, {human_bytes(document['taken_bytes'])}"
    print(f"{verb} {taken}; {document['present']:,} were there already.")


def _print_refused(refused: Sequence[Document], fate: str) -> None:
    for entry in refused:
        print(printable(f"{fate}: {entry['key'][:12]}: {entry['cause']}"), file=sys.stderr)


def print_sample(document: Document) -> None:
    """What ``sample`` has compiled."""
    for failure in document["failed"]:
        print(printable(f"failed: {failure['problem']}: {failure['error']}"), file=sys.stderr)
    took = human_ms(document["seconds"] * 1e3)
    compiled = counted(document["compiled"], "kernel")
    print(f"{compiled} compiled, {document['found']} found in {document['store']}, in {took}.")
    print(f"Asked for again, {document['found_again']} came from disk.")


def print_warmed(document: Document) -> None:
    """What ``warm`` has compiled and found; failures of one cause are told together."""
    by_cause: dict[str, list[str]] = {}
    for failure in document["failed"]:
        by_cause.setdefault(failure["error"], []).append(failure["problem"])
    for cause, problems in by_cause.items():
        more = f" and {len(problems) - 1:,} more" if len(problems) > 1 else ""
        print(printable(f"failed: {problems[0]}{more}: {cause}"), file=sys.stderr)
    failed = f", {len(document['failed']):,} failed" if document["failed"] else ""
    print(
        printable(
            f"{counted(document['compiled'], 'kernel')} compiled, {document['found']:,} found{failed}, for "
            f"{counted(document['problems'], 'problem')}, in {human_ms(document['seconds'] * 1e3)}; "
            f"{document['store']} has them."
        )
    )


def print_benchmark_heading() -> None:
    """Headings of the lines that ``print_benchmark`` prints."""
    print(f"{'measured':<52} {'median':>10}   {'ratio':>9}  {'beside':<34} {'median':>10}   goal")


def print_benchmark(line: Line) -> None:
    """One line of ``bench``, printed as soon as it is known."""
    from cache_engine.bench.results import LeftOut, Result

    if isinstance(line, LeftOut):
        print(f"not measured beside {line.name}: {printable(line.reason)}", flush=True)
        return
    if isinstance(line, Result):
        value, beside = _short_time(line.seconds), _short_time(line.beside_seconds)
    else:
        value, beside = human_bytes(round(line.size_bytes)), human_bytes(round(line.beside_bytes))
    text = f"{line.name:<52} {value:>10}   {_ratio(line.ratio):>9}  {line.beside:<34} {beside:>10}   {_goal(line)}"
    print(text.rstrip(), flush=True)


def _goal(line: Result | Size) -> str:
    """What was to be reached, and whether it was: ``"≤ 3 µs ✓"``, ``"≤ 0.125× ✗"``."""
    goals = []
    seconds = getattr(line, "goal_seconds", None)
    if seconds is not None:
        goals.append(f"≤ {human_ms(seconds * 1e3)}")
    if line.goal_ratio is not None:
        goals.append(f"≤ {line.goal_ratio:.3g}×")
    return f"{', '.join(goals)} {'✓' if line.met else '✗'}" if goals else ""


def _ratio(ratio: float) -> str:
    """A ratio with as many digits as tell something: ``"12.50×"``, ``"0.118×"``, ``"0.00051×"``."""
    return f"{ratio:.2f}×" if ratio >= 0.995 else f"{ratio:.3f}×" if ratio >= 0.01 else f"{ratio:.5f}×"


def _short_time(seconds: float) -> str:
    return (
        f"{seconds * 1e9:.0f} ns"
        if seconds < 1e-6
        else f"{seconds * 1e6:.1f} µs"
        if seconds < 1e-3
        else human_ms(seconds * 1e3)
    )


def print_checks(checks: Sequence[Check], settings: Sequence[Document]) -> None:
    """What ``doctor`` saw, and the settings that are not at their default."""
    signs = {"ok": "✓", "note": "·", "problem": "✗"}
    print_table(
        {"": LEFT, "what": LEFT, "seen": LEFT}, ((signs[check.status], check.name, check.detail) for check in checks)
    )
    changed = [setting for setting in settings if setting["origin"] != Origin.DEFAULT]
    if changed:
        print()
        rows = ((setting["name"], setting["value"], setting["origin"]) for setting in changed)
        print_table({"setting": LEFT, "value": LEFT, "from": LEFT}, rows)


def print_table(columns: Mapping[str, str], rows: Iterable[Sequence[object]], dispensable: Sequence[str] = ()) -> None:
    """Prints rows under headings, never cutting anything off.

    Args:
        columns: headings, and where each is aligned.
        dispensable: columns left out, one after the other, on a terminal too narrow for all.
    """
    texts = [[printable(str(value)) for value in row] for row in rows]
    shown = list(columns)
    widths = {name: max(len(name), *(len(row[i]) for row in texts), 0) for i, name in enumerate(columns)}
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None
    for name in dispensable:
        if room is None or sum(widths[name] + 2 for name in shown) - 2 <= room:
            break
        shown.remove(name)
    numbers = [number for number, name in enumerate(columns) if name in shown]
    for line in (list(columns), *texts):
        cells = (
            line[number].rjust(widths[name]) if columns[name] == RIGHT else line[number].ljust(widths[name])
            for number, name in zip(numbers, shown, strict=True)
        )
        print("  ".join(cells).rstrip())


def print_fields(fields: Mapping[str, object]) -> None:
    """Prints names and values, one pair to a line, aligned."""
    texts = {printable(name): printable(str(value)) for name, value in fields.items()}
    width = max(map(len, texts), default=0)
    for name, text in texts.items():
        print(f"{name:<{width}}  {text}")


@contextmanager
def progress(description: str, total: int | None) -> Iterator[tuple[Progress, Any]]:
    """A progress bar, on standard error, with the time left if the total is known; yields it with its task."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        yield bar, bar.add_task(description, total=total)
