"""The settings file: where it is looked for, what beats it, and that one that cannot be used is refused by name."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import platformdirs
import pytest

from cache_engine import settings as config
from cache_engine.errors import UsageError
from cache_engine.settings import BY_NAME, GIB, RETIRED, Origin, Settings, default_place


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """Of a user, where it is looked for by default; not made."""
    folder = tmp_path / "config" / "gemm-cache"
    folder.mkdir(parents=True)
    return folder / "gemm-cache.toml"


def _load(settings_file: Path, **variables: str) -> Settings:
    return Settings.load({"XDG_CONFIG_HOME": str(settings_file.parent.parent), **variables})


def test_an_argument_beats_the_environment_and_that_the_file_and_that_the_default(settings_file: Path) -> None:
    settings_file.write_text('max_entries = 1\nmax_bytes = "1GiB"\nexpire_days = 3\nenable_jit = false\n')
    variables = {"XDG_CONFIG_HOME": str(settings_file.parent.parent), "GEMM_CACHE_MAX_ENTRIES": "2"}
    settings = Settings.load({**variables, "GEMM_CACHE_EXPIRE_DAYS": "4"}, expire_days=5.0)
    assert (settings.expire_days, settings.origin("expire_days")) == (5.0, Origin.GIVEN)
    assert (settings.max_entries, settings.origin("max_entries")) == (2, Origin.ENVIRONMENT)
    assert (settings.max_bytes, settings.origin("max_bytes")) == (GIB, Origin.FILE)
    assert (settings.durability, settings.origin("durability")) == ("durable", Origin.DEFAULT)
    assert settings.enable_jit is False
    assert settings.file == settings_file


def test_a_policy_beats_an_expiry_that_is_given_less_directly(
    settings_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings_file.write_text('policy = "production"\nexpire_days = 3\n')
    assert _load(settings_file).expire_days == 3.0
    assert _load(settings_file, GEMM_CACHE_POLICY="development").expire_days == 1.0
    standard = _load(settings_file, GEMM_CACHE_POLICY="standard")
    assert (standard.expire_days, standard.origin("expire_days")) == (7.0, Origin.ENVIRONMENT)
    assert _load(settings_file, GEMM_CACHE_EXPIRE_DAYS="2").expire_days == 2.0
    assert "the setting policy goes with 0.4: set expire_days to its name" in caplog.text
    settings_file.write_text('expire_days = "development"\n')
    assert _load(settings_file).expire_days == 1.0


def test_an_argument_names_the_file_before_the_environment_and_that_before_the_users_own(settings_file: Path) -> None:
    settings_file.write_text("max_entries = 1\n")
    one, other = settings_file.with_name("one.toml"), settings_file.with_name("other.toml")
    one.write_text("max_entries = 2\n")
    other.write_text("max_entries = 3\n")
    environment = {"XDG_CONFIG_HOME": str(settings_file.parent.parent)}
    assert Settings.load(environment).max_entries == 1
    environment["GEMM_CACHE_CONFIG"] = str(one)
    assert Settings.load(environment).max_entries == 2
    assert Settings.load(environment, file=other).max_entries == 3
    assert Settings.load({**environment, "GEMM_CACHE_CONFIG": os.devnull}).max_entries == 5000, "no file at all"


def test_no_file_is_read_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "gemm-cache", tmp_path / ".config" / "gemm-cache"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gemm-cache.toml").write_text("max_entries = 1\n")
    for environment in ({}, {"HOME": ""}, {"HOME": "."}, {"XDG_CONFIG_HOME": "."}, {"XDG_CONFIG_HOME": ""}):
        assert Settings.load(environment).max_entries == 5000


def test_the_users_own_file_is_where_platformdirs_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (str(tmp_path / "elsewhere"), ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        assert default_place(os.environ) == platformdirs.user_config_path("gemm-cache") / "gemm-cache.toml"


def test_paths_in_a_file_are_relative_to_it(settings_file: Path) -> None:
    settings_file.write_text('dir = "store"\npacks = ["/a.gemmpack", "b.gemmpack", "~/c.gemmpack"]\n')
    settings, folder = _load(settings_file), settings_file.parent
    assert settings.directory() == folder / "store"
    assert settings.packs == (Path("/a.gemmpack"), folder / "b.gemmpack", Path("~/c.gemmpack").expanduser())
    settings_file.write_text('packs = "one.gemmpack"\ncompiler_flags = ["--fmad=false"]\nenable_caching = "packs"\n')
    settings = _load(settings_file)
    assert (settings.packs, settings.enable_caching) == ((folder / "one.gemmpack",), "packs")
    assert settings.compiler_flags == ("--fmad=false",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("max_entrys = 5", r"no setting 'max_entrys'; did you mean max_entries\?.*there are: dir, max_bytes"),
        ("[gemm-cache]\nmax_entries = 5", "no setting 'gemm-cache'.*tables are not used"),
        ("max_entries = 'many'", "max_entries is 'many'; it must be a whole number that is not negative"),
        ("max_entries = 1.5", "max_entries is 1.5; it must be a whole number"),
        ("max_entries = true", "max_entries is True; it must be a whole number"),
        ("max_entries = -1", "max_entries is -1; it must be a whole number that is not negative"),
        (f"max_entries = 1{'0' * 30}", "max_entries is 1000"),
        (f"max_entries = {'9' * 5000}", "not TOML"),
        ("max_bytes = '5 elephants'", "max_bytes is '5 elephants'; it must be a size, such as 5GiB"),
        ("expire_days = nan", "expire_days is nan; it must be a number"),
        ("max_disk_share = 1.5", "max_disk_share is 1.5; it must be a number above 0, at most 1"),
        ("fast_math = 'perhaps'", "fast_math is 'perhaps'; it must be yes or no"),
        ("max_disk_share = 0", "max_disk_share is 0; it must be a number above 0"),
        ("enable_jit = 'no'", "enable_jit is 'no'; it must be yes or no"),
        ("enable_caching = 'pack'", "enable_caching is 'pack'; it must be yes, no .* or packs"),
        ("durability = 'careless'", "durability is 'careless'; it must be one of: durable, fast"),
        ("policy = ['standard']", "policy is .*; it must be one of: standard, development, production"),
        ("dir = ''", "dir is ''; it must be a path"),
        ('dir = "a\\u0000b"', r"dir is 'a\\x00b'; it must be a path"),
        ("packs = ['']", "packs is .*; it must be a list of paths"),
        ("packs = [5]", "packs is .*; it must be a list of paths"),
        ("packs = {a = 1}", "packs is .*; it must be a list of paths"),
        ("compiler_flags = '--fmad=false'", "compiler_flags is '--fmad=false'; it must be a list of texts"),
        ("default_arch = 90", "default_arch is 90; it must be a text"),
        ("max_entries = 5\nmax_entries = 6", "not TOML"),
        ("max_entries = 5\nmax_bytes 7", "not TOML.*line 2"),
        ("a = " + "[" * 30_000, "not TOML"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_file_the_key_and_what_is_allowed(
    settings_file: Path, content: str, complaint: str
) -> None:
    settings_file.write_text(content)
    with pytest.raises(UsageError, match=f"(?s)settings file {settings_file}.*{complaint}") as refused:
        _load(settings_file)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1500


def test_a_secret_that_is_refused_is_not_shown(settings_file: Path) -> None:
    for secret in ("123456789", "'hunter2'"):
        settings_file.write_text(f"admin_token = {secret}\n")
        with pytest.raises(UsageError, match="admin_token") as refused:
            _load(settings_file)
        assert secret.strip("'") not in str(refused.value)


def test_bytes_that_are_no_settings_are_refused(settings_file: Path) -> None:
    settings_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        _load(settings_file)
    settings_file.write_text("# " + "x" * 100_000)
    with pytest.raises(UsageError, match="more than 64 KiB"):
        _load(settings_file)


def test_a_place_that_has_no_readable_file_is_refused_where_it_is_named_or_something_is_there(tmp_path: Path) -> None:
    missing = tmp_path / "gemm-cache" / "gemm-cache.toml"
    assert Settings.load({"XDG_CONFIG_HOME": str(tmp_path)}).file is None
    with pytest.raises(UsageError, match=f"settings file {missing} cannot be read: No such file"):
        Settings.load({"GEMM_CACHE_CONFIG": str(missing)})
    missing.mkdir(parents=True)
    with pytest.raises(UsageError, match="Is a directory"):
        Settings.load({"XDG_CONFIG_HOME": str(tmp_path)})
    missing.rmdir()
    os.mkfifo(missing)
    with pytest.raises(UsageError, match="not a regular file"):
        Settings.load({"XDG_CONFIG_HOME": str(tmp_path)})
    with pytest.raises(UsageError, match="empty"):
        Settings.load({}, file="")


def test_a_file_that_others_can_change_is_used_only_where_it_is_named(settings_file: Path) -> None:
    settings_file.write_text("max_entries = 1\n")
    settings_file.chmod(0o666)
    with pytest.raises(UsageError, match="can be written by everyone; change that, or name the file"):
        _load(settings_file)
    assert _load(settings_file, GEMM_CACHE_CONFIG=str(settings_file)).max_entries == 1


def test_a_mistyped_variable_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config._warn_of_unknown.cache_clear()
    monkeypatch.setenv("GEMM_CACHE_MAX_ENTRYS", "7")
    monkeypatch.setenv("GEMM_CACHE_SOMETHING_ELSE", "7")
    monkeypatch.setenv("GEMM_CACHE_CONFIG", os.devnull)
    with caplog.at_level(logging.WARNING, "cache_engine"):
        Settings.load()
        Settings.load()
    assert [record.getMessage() for record in caplog.records] == [
        "the environment variable GEMM_CACHE_MAX_ENTRYS sets nothing; did you mean GEMM_CACHE_MAX_ENTRIES?",
        "the environment variable GEMM_CACHE_SOMETHING_ELSE sets nothing; gemm-cache doctor --settings lists those "
        "that exist",
    ]


def test_a_setting_that_is_gone_is_ignored_with_a_warning(
    settings_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program, a file and an environment of an earlier version still work."""
    settings_file.write_text("compress_results = true\nmax_entries = 7\n")
    settings = _load(settings_file)
    assert (settings.max_entries, settings.file) == (7, settings_file)
    assert f"settings file {settings_file}: the setting compress_results is ignored: " in caplog.text
    assert settings.with_overrides({"save_results_later": True, "max_entries": 8}).max_entries == 8
    assert "the setting save_results_later is ignored: results that are found in a row" in caplog.text
    monkeypatch.setenv("GEMM_CACHE_PRELOAD_RESULTS", "SG2262")
    monkeypatch.setenv("GEMM_CACHE_CONFIG", os.devnull)
    Settings.load()
    assert "GEMM_CACHE_PRELOAD_RESULTS sets nothing any more: the first lookup" in caplog.text
    assert not {*RETIRED} & {*BY_NAME}


def test_a_setting_that_is_part_of_another_now_works_with_a_warning(
    settings_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags are in the order that keys of earlier versions have them in."""
    settings_file.write_text("fast_math = true\nuse_timings = false\n")
    settings = _load(settings_file, GEMM_CACHE_COMPILER_FLAGS="--fmad=false")
    assert (settings.compiler_flags, settings.timings_of) == (("--fmad=false",), "none"), "the environment is stronger"
    assert f"settings file {settings_file}: the setting fast_math goes with 0.4: set compiler_flags to" in caplog.text
    settings = _load(settings_file, GEMM_CACHE_FAST_MATH="no")
    assert settings.compiler_flags == ()
    settings_file.write_text('compiler_flags = ["--fmad=false"]\n')
    settings = _load(settings_file, GEMM_CACHE_FAST_MATH="yes", GEMM_CACHE_TIMINGS_OF="H100")
    assert (settings.compiler_flags, settings.timings_of) == (("--use_fast_math", "--fmad=false"), "H100")
    assert settings.origin("compiler_flags") == Origin.ENVIRONMENT
    assert "the environment: the setting fast_math goes with 0.4" in caplog.text
    given = settings.with_overrides({"fast_math": False, "use_timings": False})
    assert (given.compiler_flags, given.timings_of) == (("--fmad=false",), "none")
    caplog.clear()
    config._warn_of_unknown.cache_clear()
    monkeypatch.setenv("GEMM_CACHE_USE_TIMINGS", "yes")
    monkeypatch.setenv("GEMM_CACHE_CONFIG", os.devnull)
    assert Settings.load().timings_of is None
    assert "sets nothing" not in caplog.text
    with pytest.raises(UsageError, match="fast_math is 'perhaps'"):
        Settings.load({"GEMM_CACHE_FAST_MATH": "perhaps"})
