"""What is logged, at which level, and in which form; and that no text of a store reaches a terminal raw."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_engine import log_handlers, logs
from cache_engine.cache.cache import Cache, open_cache
from cache_engine.errors import NotCached, UsageError
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.upkeep.plan import Limits
from tests.helpers import blob_file, make_store

PROBLEM = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_75")


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    logger = logging.getLogger("cache_engine")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


def _said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The level and event of each message that has one."""
    return [(record.levelname, _fields(record)["event"]) for record in caplog.records if _fields(record)]


def _fields(record: logging.LogRecord) -> dict[str, str]:
    return getattr(record, "fields", {})


def test_misses_publishes_hits_and_evictions_are_logged(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "cache_engine"):
        cache.get_or_compile(PROBLEM)
        cache.get_or_compile(PROBLEM)
        with open_cache(cache.layout.root) as again:
            again.get_or_compile(PROBLEM)
            again.get_or_compile(PROBLEM, force=True)
        cache.admin.clean(Limits(everything=True))
    assert _said(caplog) == [
        ("INFO", "miss"), ("INFO", "publish"), ("DEBUG", "hit"), ("INFO", "hit"), ("INFO", "miss"), ("INFO", "publish"),
        ("DEBUG", "evict"), ("INFO", "clean"),
    ]  # fmt: skip
    whys = [_fields(record)["why"] for record in caplog.records if _fields(record).get("event") == "miss"]
    assert whys == ["no entry in memory, disk", "compiling was asked for"]
    assert any("is made from" in record.getMessage() and "sm_75" in record.getMessage() for record in caplog.records)


def test_a_miss_is_logged_where_compiling_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cache_engine")
    with open_cache(tmp_path / "s", enable_jit=False) as cache, pytest.raises(NotCached):
        cache.get_or_compile(PROBLEM)
    assert _said(caplog) == [("INFO", "miss")]


def test_a_damaged_entry_is_logged_with_what_is_done(compiled_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make_store(compiled_store)
    with open_cache(compiled_store) as cache:
        key = cache.get_or_compile(PROBLEM).key
    path = blob_file(store, key)
    path.write_bytes(path.read_bytes()[:100])
    with caplog.at_level(logging.INFO, "cache_engine"), open_cache(compiled_store) as cache:
        assert cache.get_or_compile(PROBLEM).tier == "compiled"
    assert ("INFO", "quarantine") in _said(caplog)
    assert any(
        record.levelname == "WARNING" and "disk tier skipped" in record.getMessage() for record in caplog.records
    )


def _printed(capsys: pytest.CaptureFixture[str], asked: str, text: str, *arguments: object) -> str:
    log_handlers.configure(asked)
    logging.getLogger("cache_engine.somewhere").info(text, *arguments, extra=logs.fields("test", key=text))
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


HOSTILE = "name\x1b[31m\r\nERROR: forged\x07\x9b"


def test_no_control_character_of_a_message_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = _printed(capsys, "info", "%s", HOSTILE)
    assert printed.endswith(" INFO cache_engine.somewhere: name?[31m??ERROR: forged??\n")
    assert printed.removesuffix("\n").isprintable()


def test_json_lines_have_the_fields_and_no_control_character(capsys: pytest.CaptureFixture[str]) -> None:
    printed = _printed(capsys, "debug:json", HOSTILE)
    assert printed.count("\n") == 1
    assert printed.removesuffix("\n").isprintable()
    line = json.loads(printed)
    assert (line["level"], line["logger"], line["message"]) == ("info", "cache_engine.somewhere", HOSTILE)
    assert (line["event"], line["key"]) == ("test", HOSTILE)
    assert line["time"] > 1e9


def test_a_level_can_be_changed_and_nothing_is_printed_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, "warning", "unseen") == ""
    assert _printed(capsys, "info", "seen").count("seen") == 1
    assert _printed(capsys, "error", "unseen") == ""


def test_a_library_configures_nothing_unless_it_is_asked(tmp_path: Path) -> None:
    code = (
        "import logging, sys, cache_engine\n"
        "cache_engine.open_cache(sys.argv[1], **eval(sys.argv[2])).close()\n"
        "logger = logging.getLogger('cache_engine')\n"
        "print(len(logging.getLogger().handlers), len(logger.handlers), logging.getLevelName(logger.level))\n"
    )
    for given, found in (("{}", "0 0 NOTSET"), ("{'log': 'debug'}", "0 1 DEBUG")):
        command = [sys.executable, "-c", code, str(tmp_path / "store"), given]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{found}\n"


def test_a_level_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="log is 'loud'; it must be one of: debug, info, warning, error; each also"):
        open_cache(tmp_path, log="loud")


def test_logging_is_imported_at_the_first_message_that_is_seen() -> None:
    """What nobody set up a logger for is dropped; a warning is printed, as the logging of any library does."""
    code = (
        "import sys\nfrom cache_engine.logs import Log\nlog = Log('cache_engine.there')\n"
        "log.info('dropped')\nassert 'logging' not in sys.modules\nlog.warning('%s', 'seen')\n"
        "import logging\nlogging.basicConfig(level='INFO', format='%(filename)s:%(lineno)d:%(message)s')\n"
        "log.info('now')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines() == ["seen", "<string>:9:now"]
