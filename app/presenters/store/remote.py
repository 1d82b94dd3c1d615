"""The remote on Overview: what it served, how long lookups waited for it, and whether it is asked. No Streamlit."""

from __future__ import annotations

from collections.abc import Sequence

from app.presenters.shared import Row
from app.presenters.store.overview import FINE, LOOK, PLAIN, Check
from cache_engine.model.events import REMOTE, REMOTE_DOWN, REMOTE_UP
from cache_engine.settings import Settings
from cache_engine.store.journal.spans import distributions
from cache_engine.units import counted, human_age, human_ms, printable


def remote_check(row: Row, events: Sequence[Row], settings: Settings, now: float) -> Check | None:
    """The state of the remote; ``None`` where none is set.

    Args:
        row: the mirror's overview.
        events: the last events, newest first.
    """
    if not settings.remote:
        return None
    served = f"{counted(row[f'{REMOTE}_hits'], 'hit')}; {_waits(row)}"
    sent = f" {row['remote_sent']:,} sent, {row['remote_dropped']:,} dropped." if settings.writes_remote else ""
    words = f"{printable(settings.remote)}, {settings.remote_mode}: {served}.{sent}"
    if not (settings.reads_remote or settings.writes_remote):
        return Check("Remote", PLAIN, f"{words} It is off (remote_mode).")
    last = next((one for one in events if one["kind"] in (REMOTE_DOWN, REMOTE_UP)), None)
    failed = next((one for one in events if one["kind"] == REMOTE_DOWN), None)
    if last is None or failed is None:
        return Check("Remote", FINE, f"{words} It has not failed, as far as the last events go.")
    ago = human_age(now - failed["happened_at"])
    if last["kind"] == REMOTE_DOWN:
        words = f"{words} A process stopped asking it {ago}, and asks again by itself. Lookups do not wait meanwhile."
        return Check("Remote", LOOK, words, printable(failed["detail"]))
    again = human_age(now - last["happened_at"])
    return Check(
        "Remote", FINE, f"{words} It failed {ago} ({printable(failed['detail'])[:200]}), and was asked again {again}."
    )


def _waits(row: Row) -> str:
    """How long lookups waited for it."""
    waited = distributions(row["spans"] or {}).get(REMOTE)
    if waited is None or not waited.count:
        return "no lookup has waited for it"
    half, most = (human_ms(waited.quantile_ms(share)) for share in (0.5, 0.99))
    return f"{counted(waited.count, 'lookup')} waited for it, half of them within {half}, 99% within {most}"
