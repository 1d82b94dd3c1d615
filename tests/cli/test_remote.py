"""Two stores as two machines, and an object store between them, by the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_cli import document, run
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
