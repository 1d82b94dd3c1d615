"""What a cleanup would take and what a check found."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo

from app.presenters.shared import Row, moment
from cache_engine.integrity import Finding
from cache_engine.policy.plan import EvictionPlan


def victim_table(plan: EvictionPlan, names: dict[str, str], zone: tzinfo) -> list[Row]:
    """What a cleanup would evict, and why each."""
    return [
        {
            "Key": victim.key[:12],
            "Kernel": names.get(victim.key, ""),
            "On disk": victim.stored_bytes / 1024,
            "Last used": moment(victim.last_used_at, zone),
            "Why": victim.reason,
        }
        for victim in plan.victims
    ]


def finding_table(findings: Iterable[Finding]) -> list[Row]:
    """What a check found, and what repair would do."""
    return [
        {"Finding": finding.kind.value, "Repair would": finding.remedy, "Cause": finding.cause, "File": finding.path}
        for finding in findings
    ]
