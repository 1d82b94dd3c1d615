"""Documents about a whole store: what it holds, what is wrong with it, and what upkeep did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from cache_engine.settings import BY_NAME, Settings, variable

if TYPE_CHECKING:
    pass


class CheckRow(msgspec.Struct, kw_only=True):
    """One thing that ``doctor`` checked: ``status`` is ``ok``, ``note`` or ``problem``."""

    name: str
    status: str
    detail: str


class SettingRow(msgspec.Struct, kw_only=True):
    """A setting in force, its origin, and its environment variable. Of a secret only whether it is set."""

    name: str
    value: str
    origin: str
    variable: str


class Diagnosis(msgspec.Struct, kw_only=True):
    """What ``doctor`` prints."""

    checks: list[CheckRow]
    ok: bool
    settings: list[SettingRow]


# ---- From the engine's values ----


def settings_in_force(settings: Settings) -> list[SettingRow]:
    """Each setting with its value and origin."""
    return [
        SettingRow(name=name, value=settings.shown(name), origin=settings.origin(name), variable=variable(name))
        for name in BY_NAME
    ]
