"""``gemm-cache remote``: status, push, pull, verify and clean of the store that a team shares."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.cache.remote.base import without_query
from cache_engine.cli import terminal
from cache_engine.cli.support import (
    Days,
    Verb,
    VerbGroup,
    emit,
    for_targets,
    json_option,
    only_targets_option,
    open_cache,
    print_refused,
    print_unknown,
    sign_option,
    signing_key,
)
from cache_engine.cli.terminal import LEFT, RIGHT, print_fields, print_table
from cache_engine.errors import StoreUnusable, UsageError
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP, Event, Tally
from cache_engine.settings import Settings, parse_bytes
from cache_engine.store.signatures import proof_for
from cache_engine.units import counted, human_age, human_bytes, human_ms, printable
from cache_engine.upkeep.admission import local_user
from cache_engine.upkeep.packs import Refused

if TYPE_CHECKING:
    from cache_engine.cache.cache import Cache
    from cache_engine.cache.remote.base import Remote
    from cache_engine.cache.remote.transfer import Compared, Pushed
    from cache_engine.cache.remote.verification import DeletionPlan, Sound
    from cache_engine.model.key import CacheKey
    from cache_engine.store.journal import Journal
    from cache_engine.upkeep.packs import Imported

_F = TypeVar("_F", bound=Callable[..., Any])
_MISSING = "The extra team is not installed."
_FAILED = "The remote does not answer, or some kernels are refused."


def _url_argument(verb: _F) -> _F:
    return click.argument("url", required=False)(verb)


@click.group(
    "remote",
    cls=VerbGroup,
    examples=("remote status s3://bucket/kernels", "remote push s3://bucket/kernels --sign ~/.ssh/id_ed25519"),
    no_args_is_help=True,
)
def remote_verb() -> None:
    """Share kernels through S3, GCS, Azure, Redis or a directory.

    URL, or the setting remote, names the place; credentials come from the environment, as for the provider's own tools.
    push signs kernels, and pull accepts only those whose key is in the setting trusted_signers.
    """


@remote_verb.command(
    "status",
    cls=Verb,
    examples=("remote status s3://bucket/kernels",),
    done="What both have is printed.",
    failed="The remote does not answer.",
    missing="The extra team is not installed.",
)
@_url_argument
@json_option
@click.pass_obj
def status_verb(settings: Settings, /, url: str | None, as_json: bool) -> None:
    """Compare the store with a remote, and show its use."""
    from cache_engine.cache.remote.tier import YOUNG_S, outage

    remote = remote_named(settings, url)
    with open_cache(settings, create=False, optional=True) as cache:
        compared, tally = _compared(cache, remote), cache.tally() if cache.has_store else Tally()
        failed = outage(cache.layout.journal, remote.url, time.time()) if cache.has_store else None
    document = {
        "url": remote.url,
        "there": compared.both + len(compared.there),
        "there_bytes": compared.there_bytes,
        "both": compared.both,
        "only_here": len(compared.here),
        "only_there": len(compared.there),
        "others": compared.others,
        **_of_lookups(remote.url, settings, tally),
        # Processes that start do not ask it at first, as it has just failed another.
        "held_until": failed.at + YOUNG_S if failed else 0.0,
    }
    emit(document, as_json, lambda: _print_status(document))


def _of_lookups(url: str, settings: Settings, tally: Tally) -> dict[str, Any]:
    """The counts of this store's lookups in remotes, and the times when lookups last stopped and resumed at ``url``."""
    is_used = settings.remote is not None and without_query(settings.remote) == without_query(url)

    def last(kind: str) -> Event | None:
        # Events of older versions do not say which remote.
        its = (without_query(url), "") if is_used else (without_query(url),)
        return next((event for event in tally.recent if event.kind == kind and event.remote in its), None)

    down, up = last(REMOTE_DOWN), last(REMOTE_UP)
    if up is not None and down is not None and up.at < down.at:
        up = None
    totals = tally.totals
    return {
        "mode": settings.remote_mode,
        "hits": totals.hits.get(REMOTE, 0),
        "failures": totals.failures.get(REMOTE, 0),
        "sent": totals.remote_sent,
        "dropped": totals.remote_dropped,
        "down_at": down.at if down else 0.0,
        "down_why": down.detail if down else "",
        "up_at": up.at if up else 0.0,
        "is_used": is_used,
    }


@remote_verb.command(
    "push",
    cls=Verb,
    examples=(
        "remote push s3://bucket/kernels --sign ~/.ssh/id_ed25519",
        "remote push --sign key --arch sm_90a",
    ),
    done="The remote has all kernels that were chosen.",
    failed=_FAILED,
    missing=_MISSING,
)
@_url_argument
@sign_option(" Without it only kernels that were imported with a signature are sent.")
@only_targets_option
@json_option
@click.pass_obj
def push_verb(settings: Settings, /, url: str | None, sign: Path | None, archs: tuple[str, ...], as_json: bool) -> None:
    """Send kernels that the remote lacks.

    Each kernel is verified first. Kernels already in the remote stay as they are. With --sign, kernels that other
    frameworks keep in the store and snapshots (run --save) are sent too; host code only if the setting host_code is on.
    """
    from cache_engine.cache.remote.transfer import push

    remote = remote_named(settings, url)
    wanted, bundles = for_targets(archs)
    key = None if sign is None else signing_key(sign)
    with open_cache(settings, create=False) as cache:
        compared = _compared(cache, remote)
        with terminal.progress("Sending", len(compared.here)) as (bar, task):
            done = push(
                cache.store,
                remote,
                compared.here,
                wanted=wanted,
                bundles=bundles,
                sign=key.sign if key else None,
                host_code=settings.host_code,
                on_entry=lambda: bar.advance(task),
            )
    document = {"url": remote.url, **asdict(done), "present": done.present + compared.both}
    emit(document, as_json, lambda: _print_pushed(document, done), failed=done.refused)


@remote_verb.command(
    "pull",
    cls=Verb,
    examples=("remote pull s3://bucket/kernels --dry-run", "remote pull"),
    done="The store has all kernels of the remote.",
    failed=_FAILED,
    missing=_MISSING,
)
@_url_argument
@click.option("--dry-run", is_flag=True, help="Fetch and verify, and list what would be imported.")
@click.option("--unsigned", is_flag=True, help="Also take kernels that no trusted signer signed.")
@json_option
@click.pass_obj
def pull_verb(settings: Settings, /, url: str | None, dry_run: bool, unsigned: bool, as_json: bool) -> None:
    """Import kernels that the store lacks.

    The bytes and the signature of each kernel are verified. A kernel is a program for your GPU: with --unsigned,
    everyone who can write to the remote decides what runs on it.
    """
    from cache_engine.cache.remote.transfer import pull

    remote, prove = remote_named(settings, url), proof(settings, unsigned)
    with open_cache(settings.with_overrides({"enable_caching": True})) as cache:
        compared = _compared(cache, remote)
        with terminal.progress("Fetching", len(compared.there)) as (bar, task):
            done = pull(
                cache.store,
                cache.journal,
                remote,
                compared.there,
                prove=prove,
                bundles=compared.bundles,
                host_code=settings.host_code and not unsigned,
                dry_run=dry_run,
                on_entry=lambda: bar.advance(task),
                by=local_user(),
            )
    document = {"url": remote.url, "dry_run": dry_run, **asdict(done), "present": done.present + compared.both}
    emit(document, as_json, lambda: _print_pulled(document, done), failed=done.refused)


@remote_verb.command(
    "verify",
    cls=Verb,
    examples=("remote verify s3://bucket/kernels", "remote verify --sample 0.05 --rebuild 0.01"),
    done="All that was checked may be served.",
    failed="The remote does not answer, or has kernels that may not be served.",
    missing=_MISSING,
)
@_url_argument
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Check a random fraction of the kernels, e.g. 0.05.",
)
@click.option(
    "--rebuild",
    type=click.FloatRange(0, 1, min_open=True),
    help="Compile a random fraction of the kernels again, e.g. 0.01, and compare the code byte for byte.",
)
@click.option("--unsigned", is_flag=True, help="Do not check who signed them.")
@json_option
@click.pass_obj
def verify_verb(
    settings: Settings, /, url: str | None, sample: float, rebuild: float | None, unsigned: bool, as_json: bool
) -> None:
    """Check the kernels of a remote as a lookup would.

    Also compares them with this store's kernels of the same keys. --rebuild compiles kernels again, which checks the
    signers' work. Kernels of another toolchain cannot be compiled here, and are counted as left out.
    """
    from cache_engine.cache.remote import verification

    remote, prove = remote_named(settings, url), proof(settings, unsigned)
    with open_cache(settings, create=False, optional=True) as cache:
        compared = _compared(cache, remote)
        store = cache.store if cache.has_store else None
        # What is to be compiled is fetched too.
        keys = verification.sample_of(compared.all_there, max(sample, rebuild or 0.0))
        again = set(verification.sample_of(keys, min(1.0, rebuild / max(sample, rebuild)))) if rebuild else set()
        each = verification.verify(remote, keys, prove=prove, store=store, bundles=compared.bundles)
        found = _verified(cache, each, again, len(keys))
    document = {"url": remote.url, "there": len(compared.all_there), **asdict(found)}
    emit(document, as_json, lambda: _print_verified(document, found), failed=found.refused)


@remote_verb.command(
    "clean",
    cls=Verb,
    examples=("remote clean --days 30", "remote clean --days 30 --max-bytes 50GB --yes"),
    done="What was chosen is listed; with --yes, it is deleted.",
    failed="The remote does not answer.",
    missing="The extra team is not installed.",
)
@_url_argument
@click.option("--days", type=Days(), help="Delete kernels that were sent more than this many days ago.")
@click.option("--max-bytes", metavar="SIZE", help="Delete the oldest until the rest has at most this size, e.g. 50GB.")
@click.option("--yes", is_flag=True, help="Delete them. Without it, they are only listed.")
@click.option("--dry-run", is_flag=True, hidden=True)
@json_option
@click.pass_obj
def clean_verb(
    settings: Settings,
    /,
    url: str | None,
    days: float | None,
    max_bytes: str | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete old kernels from a remote.

    Lists them; --yes deletes them. Ages are by the remote's clock. To read that clock, a small object is written and
    deleted, also without --yes. A deleted kernel is compiled again when it is needed. Redis keeps no ages; let it evict
    (maxmemory-policy allkeys-lru). The audit log of the store in use records every deletion. Without a store, a line
    says that nothing records it.
    """
    from cache_engine.cache.remote import verification

    remote = remote_named(settings, url)
    limit, age_s = None if max_bytes is None else parse_bytes(max_bytes), None if days is None else days * 86_400
    with terminal.progress("Listing", None) as (bar, task):
        found = verification.plan(
            remote, older_than_s=age_s, max_bytes=limit, on_some=lambda some: bar.advance(task, some)
        )
    deletes = yes and not dry_run
    if deletes:
        with _audit_of(settings) as journal, terminal.progress("Deleting", len(found.going)) as (bar, task):
            verification.delete(remote, found.going, journal, by=local_user(), on_entry=lambda: bar.advance(task))
    document = {
        "url": remote.url,
        "dry_run": not deletes,
        "deleted": len(found.going),
        "deleted_bytes": found.going_bytes,
        "left": found.entries - len(found.going),
        "left_bytes": found.total_bytes - found.going_bytes,
        "keys": [one.key for one in found.going],
    }
    emit(document, as_json, lambda: _print_cleaned(remote.url, found, is_done=deletes))


@contextmanager
def _audit_of(settings: Settings) -> Iterator[Journal | None]:
    """Yields the journal of the store in use; without a store, yields ``None`` and prints that nothing is recorded."""
    with ExitStack() as stack:
        journal = None
        try:
            journal = stack.enter_context(open_cache(settings, create=False)).journal
        except StoreUnusable as error:
            print(printable(f"No audit log records this deletion: {error}"), file=sys.stderr)
        yield journal


def proof(settings: Settings, unsigned: bool) -> Callable[[bytes], None]:
    """The function that checks the signature of a record's bytes, and raises for bytes that are not accepted.

    Raises ``UsageError`` where no trusted key is set and ``unsigned`` is false.
    """
    prove = (lambda _: None) if unsigned else proof_for(settings)
    if prove is None:
        raise UsageError(
            "a remote is only as safe as who can write to it; name the keys that you trust in the setting "
            "trusted_signers (docs/trust.md), or take kernels of unknown makers with --unsigned"
        )
    return prove


@dataclass
class _Verified:
    """The result of a check of a remote.

    Attributes:
        checked: the number of kernels that were checked.
        code_bytes: the size of the compiled code of the sound kernels.
        refused: kernels that may not be served, each with the reason.
        rebuilt: the number of kernels compiled again to the same bytes.
        not_rebuilt: the number of kernels that could not be compiled here.
    """

    checked: int
    code_bytes: int = 0
    refused: list[Refused] = field(default_factory=list)
    rebuilt: int = 0
    not_rebuilt: int = 0


def _verified(cache: Cache, found: Iterable[Sound | Refused], again: set[CacheKey], total: int) -> _Verified:
    """Sums up the checks of a remote's kernels; compiles those in ``again`` once more, to compare the code."""
    from cache_engine.batch.migration import rebuild

    d = _Verified(total)
    with terminal.progress("Checking", total) as (bar, task):
        for one in found:
            bar.advance(task)
            if isinstance(one, Refused):
                d.refused.append(one)
                continue
            d.code_bytes += len(one.cubin)
            if one.record.key in again:
                made = rebuild(cache, one.record, one.cubin)
                d.rebuilt, d.not_rebuilt = d.rebuilt + (made.is_same is True), d.not_rebuilt + (made.is_same is None)
                if made.is_same is False:
                    d.refused.append(Refused(one.record.key, made.why))
    return d


def remote_named(settings: Settings, url: str | None) -> Remote:
    """The remote that ``url`` or, without it, the setting names. Raises ``UsageError`` where neither names one."""
    from cache_engine.cache.remote.client_process import KINDS, open_remote

    named = url or settings.remote
    if not named:
        raise UsageError(f"name the remote, or set GEMM_CACHE_REMOTE; it starts with one of: {', '.join(KINDS)}")
    return open_remote(named)


def _compared(cache: Cache, remote: Remote) -> Compared:
    from cache_engine.cache.remote.transfer import compare

    with terminal.progress("Listing", None) as (bar, task):
        return compare(cache.store if cache.has_store else None, remote, lambda some: bar.advance(task, some))


# ---- For people ----


def _print_status(d: dict[str, Any]) -> None:
    down = f"{human_age(time.time() - d['down_at'])}: {printable(d['down_why'])}"
    hold = human_ms(1e3 * max(0.0, d["held_until"] - time.time()))
    print_fields(
        {
            "remote": printable(d["url"]),
            "kernels there": f"{d['there']:,}, {human_bytes(d['there_bytes'])}",
            "in both": f"{d['both']:,}",
            "only here": f"{d['only_here']:,}",
            "only there": f"{d['only_there']:,}",
            **({"other objects": f"{d['others']:,}, left alone"} if d["others"] else {}),
            **(_lookups(d) if d["is_used"] else {"lookups": "do not ask it: the setting remote does not name it"}),
            **({"last failure": down} if d["down_at"] else {}),
            **({"answered again": human_age(time.time() - d["up_at"])} if d["up_at"] else {}),
            **({"on hold": f"for processes that start within {hold}"} if d["held_until"] else {}),
        }
    )


def _lookups(d: dict[str, Any]) -> dict[str, str]:
    return {
        "lookups": f"remote_mode = {d['mode']}; {counted(d['hits'], 'hit')}, {counted(d['failures'], 'failure')}",
        "sent behind": f"{counted(d['sent'], 'kernel')}, {d['dropped']:,} dropped",
    }


def _print_pushed(d: dict[str, Any], done: Pushed) -> None:
    print_refused(done.refused, "left out")
    print_unknown(done.unknown_format)
    sent = f"{counted(done.sent, 'kernel')}, {human_bytes(done.sent_bytes)}"
    print(printable(f"Sent {sent}, to {d['url']}; {d['present']:,} already there."))


def _print_verified(d: dict[str, Any], found: _Verified) -> None:
    print_refused(found.refused, "may not be served")
    of = f"{found.checked:,} of {counted(d['there'], 'kernel')} of {d['url']}"
    print(printable(f"Checked {of}; {len(found.refused):,} refused."))
    if found.rebuilt or found.not_rebuilt:
        print(f"Compiled again: {found.rebuilt:,} with the same code; {found.not_rebuilt:,} cannot be compiled here.")


def _print_cleaned(url: str, found: DeletionPlan, *, is_done: bool) -> None:
    if found.going and not is_done:
        print_table(
            {"key": LEFT, "size": RIGHT, "sent": LEFT},
            [(one.key[:12], human_bytes(one.size_bytes), human_age(one.age_s)) for one in found.going],
        )
        print()
    gone = f"{counted(len(found.going), 'kernel')}, {human_bytes(found.going_bytes)}"
    left = counted(found.entries - len(found.going), "kernel")
    left = f"{left}, {human_bytes(found.total_bytes - found.going_bytes)}, left"
    more = "" if is_done or not found.going else " --yes does it."
    print(printable(f"{'Deleted' if is_done else 'Would delete'} {gone}, of {url}; {left}.{more}"))


def _print_pulled(d: dict[str, Any], done: Imported) -> None:
    print_refused(done.refused, "refused")
    verb = "Would import" if d["dry_run"] else "Imported"
    kernels = f"{counted(done.taken, 'kernel')}, {human_bytes(done.taken_bytes)}"
    print(printable(f"{verb} {kernels}, from {d['url']}; {d['present']:,} already in the store."))
