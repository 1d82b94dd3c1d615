"""One system call goes wrong: the process is killed there, or the call is refused. Every promise holds all the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.faults.campaign import Campaign
from tests.faults.result_operations import EVERY_OPERATION
from tests.helpers import of_today

Start = Callable[[str], Campaign]
# These are killed at every call that changes the disk, and every call of publish is refused. Of the other operations'
# calls that change the disk, and of the refusals, a part is tried, another part each day. The long run has all calls.
WHOLE = ("publish", "replace")
# Comparing the index with a rebuilt one takes half a second, so only one call of each name is tried.
MIRRORED = 1
# How many calls of each name are refused, with one error; None is all. The long run refuses all, with every error.
# Few where a refused compile in the background makes the test wait until it is certain that it did not begin.
REFUSED = {"publish": None, "get, compiled behind": 1}


@pytest.mark.parametrize("name", EVERY_OPERATION)
def test_killed_at_a_system_call_it_loses_nothing_and_serves_nothing_wrong(name: str, campaign: Start) -> None:
    trials = campaign(name)
    kills = trials.kills_at_changes(MIRRORED if trials.operation.indexed else None)
    if name not in WHOLE and not trials.operation.indexed:
        kills = of_today(kills, (len(kills) + 2) // 3)
    troubles = trials.run(kills)
    assert not troubles, "\n".join(troubles)


@pytest.mark.parametrize("name", [name for name in EVERY_OPERATION if name != "sync"])
def test_a_refused_system_call_does_no_harm(name: str, campaign: Start) -> None:
    trials = campaign(name)
    refusals = trials.refusals(REFUSED.get(name, 2), 1)
    troubles = trials.run(refusals if name == "publish" else of_today(refusals, (len(refusals) + 1) // 2))
    assert not troubles, "\n".join(troubles)


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY_OPERATION)
def test_killed_at_any_system_call_it_loses_nothing_and_serves_nothing_wrong(name: str, campaign: Start) -> None:
    trials = campaign(name)
    troubles = trials.run(trials.kills(), progress=True)
    assert not troubles, "\n".join(troubles)


@pytest.mark.soak
@pytest.mark.parametrize("name", EVERY_OPERATION)
def test_any_refusal_of_any_system_call_does_no_harm(name: str, campaign: Start) -> None:
    trials = campaign(name)
    troubles = trials.run(trials.refusals(), progress=True)
    assert not troubles, "\n".join(troubles)


def test_a_durable_publish_syncs_bytes_before_their_name_and_the_name_before_what_follows(campaign: Start) -> None:
    trace = campaign("replace").trace
    order = re.findall(r" (write|fsync|rename|unlink)\(", trace[trace.index("getsid(") : trace.rindex("getsid(")])
    written_whole = ["write", "fsync", "rename", "fsync"]
    assert order == [*written_whole, *written_whole, "unlink"]
