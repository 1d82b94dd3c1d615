"""The verbs that share kernels through an object store: ``remote status``, ``push`` and ``pull``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cache_engine.cli import terminal
from cache_engine.cli.documents import moving
from cache_engine.cli.keeping.packs import print_refused, signing_key
from cache_engine.cli.support import Verb, VerbGroup, emit, json_option, open_cache
from cache_engine.cli.terminal import print_fields
from cache_engine.config import Settings
from cache_engine.errors import UsageError
from cache_engine.model.architecture import architecture
from cache_engine.model.artifact import Record
from cache_engine.trust import proof_for
from cache_engine.units import counted, human_bytes, printable
from cache_engine.upkeep.admission import local_user

if TYPE_CHECKING:
    from cache_engine.engine.cache import Cache
    from cache_engine.remote.base import Remote
    from cache_engine.remote.moving import Compared

_F = TypeVar("_F", bound=Callable[..., Any])
_MISSING = "The extra remote or trust is not installed."
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

    URL, or the setting remote, names it; credentials come from the environment, as for the provider's own
    tools. Kernels are signed by who pushes them, and pulled only if the setting trusted_signers has the key.
    """


@remote_verb.command(
    "status",
    cls=Verb,
    examples=("remote status s3://bucket/kernels",),
    done="What both have is printed.",
    failed="The remote does not answer.",
    missing="The extra remote is not installed.",
)
@_url_argument
@json_option
@click.pass_obj
def status_verb(settings: Settings, /, url: str | None, as_json: bool) -> None:
    """Compare the store with a remote."""
    remote = _remote(settings, url)
    with open_cache(settings, create=False) as cache:
        document = moving.remote_state(remote.url, _compared(cache, remote))
    emit(document, as_json, lambda: _print_status(document))


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
@click.option(
    "--sign",
    type=click.Path(path_type=Path),
    metavar="KEY",
    help="Sign each kernel with this private key of OpenSSH (Ed25519). Without it only kernels that were imported with "
    "a signature are sent.",
)
@click.option("--arch", multiple=True, help="Only this target (repeatable).")
@json_option
@click.pass_obj
def push_verb(settings: Settings, /, url: str | None, sign: Path | None, arch: tuple[str, ...], as_json: bool) -> None:
    """Send kernels that the remote lacks.

    Each kernel is verified first. One that the remote has stays there as it is.
    """
    from cache_engine.remote.moving import push

    remote = _remote(settings, url)
    targets = {architecture(name).name for name in arch}
    key = None if sign is None else signing_key(sign)

    def wanted(record: Record) -> bool:
        return not targets or record.arch in targets

    with open_cache(settings, create=False) as cache:
        compared = _compared(cache, remote)
        with terminal.progress("Sending", len(compared.here)) as (bar, task):
            done = push(
                cache.store,
                remote,
                compared.here,
                wanted=wanted,
                sign=key.sign if key else None,
                on_entry=lambda: bar.advance(task),
            )
    document = moving.pushed(remote.url, done, compared.both)
    emit(document, as_json, lambda: _print_pushed(document), failed=document.refused)


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

    Each kernel is verified, and who signed it. A kernel is a program for your GPU: with --unsigned, everyone who can
    write to the remote decides what runs on it.
    """
    from cache_engine.remote.moving import pull

    remote = _remote(settings, url)
    prove = (lambda _: None) if unsigned else proof_for(settings)
    if prove is None:
        raise UsageError(
            "a remote is only as safe as who can write to it; name the keys that you trust in the setting "
            "trusted_signers (docs/trust.md), or take kernels of unknown makers with --unsigned"
        )
    with open_cache(settings.with_overrides({"enable_caching": True})) as cache:
        compared = _compared(cache, remote)
        with terminal.progress("Fetching", len(compared.there)) as (bar, task):
            done = pull(
                cache.store,
                cache.journal,
                remote,
                compared.there,
                prove=prove,
                dry_run=dry_run,
                on_entry=lambda: bar.advance(task),
                by=local_user(),
            )
    document = moving.pulled(remote.url, done, compared.both, dry_run=dry_run)
    emit(document, as_json, lambda: _print_pulled(document), failed=document.refused)


def _remote(settings: Settings, url: str | None) -> Remote:
    from cache_engine.remote.opening import KINDS, open_remote

    named = url or settings.remote
    if not named:
        raise UsageError(f"name the remote, or set GEMM_CACHE_REMOTE; it starts with one of: {', '.join(KINDS)}")
    return open_remote(named)


def _compared(cache: Cache, remote: Remote) -> Compared:
    from cache_engine.remote.moving import compare

    with terminal.progress("Listing", None) as (bar, task):
        return compare(cache.store, remote, lambda some: bar.advance(task, some))


# ---- For people ----


def _print_status(d: moving.RemoteReport) -> None:
    print_fields(
        {
            "remote": printable(d.url),
            "kernels there": f"{d.there:,}, {human_bytes(d.there_bytes)}",
            "in both": f"{d.both:,}",
            "only here": f"{d.only_here:,}",
            "only there": f"{d.only_there:,}",
            **({"other objects": f"{d.others:,}, left alone"} if d.others else {}),
        }
    )


def _print_pushed(d: moving.PushReport) -> None:
    print_refused(d.refused, "left out")
    kernels = counted(d.sent, "kernel")
    print(printable(f"Sent {kernels}, {human_bytes(d.sent_bytes)}, to {d.url}; {d.present:,} already there."))


def _print_pulled(d: moving.PullReport) -> None:
    print_refused(d.refused, "refused")
    verb = "Would import" if d.dry_run else "Imported"
    kernels = f"{counted(d.taken, 'kernel')}, {human_bytes(d.taken_bytes)}"
    print(printable(f"{verb} {kernels}, from {d.url}; {d.present:,} already in the store."))
