"""Settings: defaults, environment, arguments, in rising order; and values that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cache_engine.errors import UsageError
from cache_engine.settings import GIB, SETTINGS, Origin, Settings, parse_bytes
from cache_engine.upkeep.plan import Limits


def test_a_batch_may_use_every_processor_unless_slots_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    assert Settings.load({}).slots == 5
    assert Settings.load({}).for_batch(None).slots == 6
    assert Settings.load({}).for_batch(3).slots == 3
    assert Settings.load({}, compile_slots=2).for_batch(8).slots == 2


def test_arguments_override_the_environment_and_that_the_defaults() -> None:
    environment = {"GEMM_CACHE_MAX_ENTRIES": "7", "GEMM_CACHE_MAX_BYTES": "2GiB", "GEMM_CACHE_ENABLE_JIT": "no"}
    settings = Settings.load(environment, max_entries=9)
    assert settings.max_entries == 9
    assert settings.max_bytes == 2 * GIB
    assert settings.enable_jit is False
    assert settings.expire_days == 7.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_ENTRIES", "many"),
        ("MAX_BYTES", "5 elephants"),
        ("EXPIRE_DAYS", "soon"),
        ("MAX_ENTRIES", "-1"),
        ("FAST_MATH", "perhaps"),
        ("DURABILITY", "careless"),
        ("MAX_DISK_SHARE", "2"),
        ("CLEANUP_INTERVAL_H", "-1"),
        ("POLICY", "relaxed"),
        ("ENABLE_JIT", "maybe"),
        ("DEVICE_MEMORY_BYTES", "0"),
        ("DEVICE_MEMORY_BYTES", "all"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_naming_the_setting(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"(?i){name}"):
        Settings.load({f"GEMM_CACHE_{name}": value})


@pytest.mark.parametrize(("policy", "days"), [("standard", 7.0), ("development", 1.0), ("production", 30.0)])
def test_a_policy_sets_when_entries_expire_unless_that_is_given(policy: str, days: float) -> None:
    assert Settings.load({"GEMM_CACHE_POLICY": policy}).expire_days == days
    assert Settings.load({}, policy=policy).expire_days == days
    assert Settings.load({"GEMM_CACHE_POLICY": policy, "GEMM_CACHE_EXPIRE_DAYS": "3"}).expire_days == 3.0
    assert Settings.load({}).with_overrides({"policy": policy}).expire_days == days
    assert Settings.load({"GEMM_CACHE_EXPIRE_DAYS": policy}).expire_days == days
    assert Settings(expire_days=policy).expire_days == days  # type: ignore[arg-type]


def test_a_setting_knows_where_its_value_is_from() -> None:
    environment = {"GEMM_CACHE_MAX_ENTRIES": "7", "GEMM_CACHE_ENABLE_JIT": "no", "GEMM_CACHE_POLICY": "production"}
    settings = Settings.load(environment, max_entries=9)
    assert settings.origin("max_entries") == Origin.GIVEN
    assert settings.origin("enable_jit") == settings.origin("expire_days") == Origin.ENVIRONMENT
    assert settings.origin("max_bytes") == Origin.DEFAULT
    later = settings.with_overrides({"max_bytes": 5})
    assert (later.origin("max_bytes"), later.origin("enable_jit")) == (Origin.GIVEN, Origin.ENVIRONMENT)
    assert later == Settings.load({**environment, "GEMM_CACHE_MAX_BYTES": "5"}, max_entries=9), "only values count"


def test_the_admin_token_is_long_and_never_shown() -> None:
    secret = "correct-horse-battery"
    settings = Settings.load({"GEMM_CACHE_ADMIN_TOKEN": secret})
    assert settings.admin_token == secret
    assert secret not in repr(settings)
    assert (settings.shown("admin_token"), Settings.load({}).shown("admin_token")) == ("set", "not set")
    with pytest.raises(UsageError, match="16 characters") as refused:
        Settings.load({"GEMM_CACHE_ADMIN_TOKEN": "nearly-secret"})
    assert "nearly-secret" not in str(refused.value)
    with pytest.raises(UsageError, match="easy to guess; it must have 8 different characters") as refused:
        Settings.load({"GEMM_CACHE_ADMIN_TOKEN": "12345671234567123456"})
    assert "1234567" not in str(refused.value)


def test_values_are_shown_as_people_read_them() -> None:
    settings = Settings.load({"GEMM_CACHE_COMPILER_FLAGS": "-a -b", "GEMM_CACHE_DIR": "/somewhere"})
    assert [settings.shown(name) for name in ("compiler_flags", "dir", "max_entries")] == [
        "-a -b",
        "/somewhere",
        "5000",
    ]


def test_packs_are_named_between_colons() -> None:
    assert Settings.load({"GEMM_CACHE_PACKS": "/a/b.gemmpack:/c::"}).packs == (Path("/a/b.gemmpack"), Path("/c"))


def test_compiler_flags_are_named_between_spaces() -> None:
    given = Settings.load({"GEMM_CACHE_COMPILER_FLAGS": " --fmad=false  --ftz=true "})
    assert given.compiler_flags == ("--fmad=false", "--ftz=true")
    for wrong in ("--fmad=false", ["--fmad=false"], (1,)):
        with pytest.raises(UsageError, match="compiler_flags"):
            Settings.load({}, compiler_flags=wrong)


def test_the_store_is_the_users_own_by_default() -> None:
    directory = Settings.load({}).directory()
    assert directory.is_absolute()
    assert directory.name == "gemm-cache"
    assert Settings.load({"GEMM_CACHE_DIR": "relative/store"}).directory() == Path("relative/store").absolute()


def test_every_setting_has_help() -> None:
    assert all(field.metadata["help"].endswith(".") for field in SETTINGS)


def test_a_program_gives_a_size_as_a_text_or_as_a_number() -> None:
    """As the message of a refused size says."""
    assert Settings.load({}, max_bytes="2GB").max_bytes == Settings.load({}, max_bytes=2 * 10**9).max_bytes == 2 * 10**9
    with pytest.raises(UsageError, match="max_bytes is 'two'; it must be a size, such as 5GiB or 2GB"):
        Settings.load({}, max_bytes="two")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("2GB", 2 * 10**9), ("2 gib", 2 * GIB), ("1.5K", 1536), ("3MB", 3 * 10**6), ("1T", 2**40)],
)
def test_sizes_are_read_with_units(text: str, size: int) -> None:
    assert parse_bytes(text) == Settings(max_bytes=text).max_bytes == Limits(max_bytes=text).max_bytes == size  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "GB", "-1", "2XB", "2 2", "1e9", "١GB"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_bytes(text)
    with pytest.raises(UsageError, match="must be a size"):
        Settings(memory_bytes=text)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a size"):
        Limits(max_bytes=text)  # type: ignore[arg-type]
