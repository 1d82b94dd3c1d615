"""Two stores as two machines, and an object store between them, by the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from app.presenters.overview import tier_table
from cache_engine.cache.cache import open_cache
from cache_engine.index import queries
from cache_engine.model.events import REMOTE_DOWN
from cache_engine.store.journal import Journal
from cache_engine.store.signatures.signers import TrustedSigners
from tests.cli.test_cli import document, run
from tests.helpers import make_store
from tests.trust.keys import Builder, signers_file


def test_what_one_machine_compiled_the_other_is_served(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, url, other = Builder(tmp_path / "key"), f"file://{tmp_path}/remote", tmp_path / "other"
    left_out = document("remote", "push", url, store=compiled_store, code=1)
    assert (left_out["sent"], len(left_out["refused"])) == (0, 4)
    one = document("remote", "push", url, "--sign", builder.file, "--arch", "sm_75", store=compiled_store)
    assert (one["sent"], one["present"]) == (1, 0)
    sent = document("remote", "push", url, "--sign", builder.file, store=compiled_store)
    assert (sent["sent"], sent["present"], sent["refused"]) == (3, 1, [])
    refused = run("remote", "pull", url, store=other)
    assert refused.returncode == 2
    assert "name the keys that you trust in the setting trusted_signers" in refused.stderr
    monkeypatch.setenv("GEMM_CACHE_REMOTE", url)
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder@ci {builder.line}")))
    would = document("remote", "pull", "--dry-run", store=other)
    took = document("remote", "pull", store=other)
    assert took == {**would, "dry_run": False}
    assert (took["taken"], took["refused"]) == (4, [])
    state = document("remote", "status", store=other)
    assert (state["there"], state["both"], state["only_here"], state["only_there"]) == (4, 4, 0, 0)
    assert [row["standing"] for row in document("verify", "--signatures", store=other)["signatures"]] == ["good"]
    assert "Imported 0 kernels, 0 B, from file://" in run("remote", "pull", store=other).stdout


def test_kernels_of_unknown_makers_are_taken_only_when_asked_for(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger, url = Builder(tmp_path / "key"), f"file://{tmp_path}/remote"
    document("remote", "push", url, "--sign", stranger.file, store=compiled_store)
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path)))
    refused = document("remote", "pull", url, store=tmp_path / "other", code=1)
    assert (refused["taken"], len(refused["refused"])) == (0, 4)
    assert document("remote", "pull", url, "--unsigned", store=tmp_path / "other")["taken"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status"], 2, "name the remote, or set GEMM_CACHE_REMOTE"),
        (["status", "ftp://x"], 2, "is not a remote; it starts with one of: s3://"),
        (["push", "file:///proc/none"], 2, "cannot be a remote: No such file or directory"),
        (["push", "file:///tmp/x", "--sign", "/none"], 2, "cannot open /none"),
    ],
)
def test_what_cannot_be_a_remote_is_one_line(arguments: list[str], code: int, said: str, compiled_store: Path) -> None:
    done = run("remote", *arguments, store=compiled_store)
    assert (done.returncode, said in done.stderr.splitlines()[-1]) == (code, True), done.stderr


def test_a_remote_is_checked_compiled_again_and_emptied(
    compiled_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, url = Builder(tmp_path / "key"), f"file://{tmp_path}/remote"
    monkeypatch.setenv("GEMM_CACHE_REMOTE", url)
    document("remote", "push", "--sign", builder.file, store=compiled_store)
    assert "trusted_signers" in run("remote", "verify", store=compiled_store).stderr
    monkeypatch.setenv("GEMM_CACHE_TRUSTED_SIGNERS", str(signers_file(tmp_path, f"builder@ci {builder.line}")))
    sound = document("remote", "verify", "--sample", "0.2", "--rebuild", "0.2", store=compiled_store)
    assert (sound["there"], sound["checked"], sound["rebuilt"], sound["not_rebuilt"]) == (4, 1, 1, 0)
    assert "Checked 4 of 4 kernels" in run("remote", "verify", store=compiled_store).stdout
    signers_file(tmp_path, "# none")
    assert len(document("remote", "verify", store=compiled_store, code=1)["refused"]) == 4
    state = document("remote", "status", store=compiled_store)
    assert (state["mode"], state["hits"], state["failures"], state["down_at"]) == ("read", 0, 0, 0.0)
    assert "remote_mode = read; 0 hits, 0 failures" in run("remote", "status", store=compiled_store).stdout
    assert "say what goes" in run("remote", "clean", store=compiled_store).stderr
    would = document("remote", "clean", "--max-bytes", "0", store=compiled_store)
    assert (would["deleted"], would["left"]) == (4, 0)
    assert document("remote", "clean", "--days", "1", "--yes", store=compiled_store)["deleted"] == 0
    elsewhere, now = f"file://{tmp_path}/elsewhere", time.time()
    with closing(Journal(make_store(compiled_store).layout.journal, 3600.0)) as journal:
        journal.event(REMOTE_DOWN, detail="connection refused", remote=elsewhere, waited_us=10**6)
    assert document("remote", "status", store=compiled_store)["down_at"] == 0.0
    other = document("remote", "status", elsewhere, store=compiled_store)
    assert (other["is_used"], other["down_why"], other["down_at"] >= now - 1) == (False, "connection refused", True)
    assert (other["held_until"], state["held_until"]) == (other["down_at"] + 60, 0.0)
    text = run("remote", "status", elsewhere, store=compiled_store).stdout
    assert "the setting remote does not name it" in text
    assert "failures" not in text
    assert "connection refused" in text
    assert "for processes that start within" in text
    listed = run("remote", "clean", "--max-bytes", "0", store=compiled_store).stdout
    assert all(key[:12] in listed for key in would["keys"])
    before = document("log", "--audit", store=compiled_store)["total"]
    assert document("remote", "clean", "--max-bytes", "0", "--yes", store=compiled_store) == {**would, "dry_run": False}
    audit = document("log", "--audit", store=compiled_store)
    act = audit["rows"][0]
    assert (audit["total"] - before, act["kind"], act["detail"]) == (2, "clean remote", f"4 kernels of {url}")
    assert (act["bytes"], bool(act["by"])) == (would["deleted_bytes"], True)
    assert document("remote", "status", store=compiled_store)["there"] == 0


def test_a_remote_is_cleaned_without_a_store_and_a_line_says_so(
    compiled_store: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_REMOTE", f"file://{tmp_path}/remote")
    document("remote", "push", "--sign", Builder(tmp_path / "key").file, store=compiled_store)
    done = run("remote", "clean", "--max-bytes", "0", "--yes", "--json", store=place)
    assert (done.returncode, json.loads(done.stdout)["deleted"]) == (0, 4)
    assert "No audit log records this deletion" in done.stderr
    assert not place.exists()


def test_the_three_commands_of_the_page_share_a_kernel(tmp_path: Path) -> None:
    """As a newcomer runs them, from the page itself."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    page = (Path(__file__).parents[2] / "docs" / "team.md").read_text()
    (commands,) = re.findall(r"## On one machine\n.*?```sh\n(.*?)```", page, re.DOTALL)
    script = commands.replace("/tmp/remote", f"{tmp_path}/remote")
    binary = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{binary}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    with open_cache(tmp_path / "two") as cache:
        assert cache.stats().totals.hits == {"remote": 1}
        (row,) = cache.search("sm_90")
        assert row["remote_hits"] == 1
        (tier,) = [line for line in tier_table(cache.query(queries.overview), packs=False, remote=True) if line["Hits"]]
        assert (tier["Tier"], tier["Hit rate"]) == ("Remote", 1.0)
        stored = cache.store.stored(row["key"])
    assert stored is not None
    assert str(TrustedSigners(tmp_path / "trusted_signers").check(stored[0])) == "good, by builder@example.com"
