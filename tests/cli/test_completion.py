"""What a shell completes, in a real bash where it can be, else by the protocol between click and the shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from click.shell_completion import ShellComplete

from cache_engine.cli.main import commands
from cache_engine.cli.support import completion
from cache_engine.cli.support.completion import _MOST_KEYS
from cache_engine.model.architecture import ARCHITECTURES
from cache_engine.store.layout import key_of_record_name
from tests.helpers import make_store

PROGRAM = str(Path(sys.executable).with_name("gemm-cache"))


def _offered(*words: str, typed: str = "") -> list[str]:
    complete = ShellComplete(commands, {}, "gemm-cache", "_GEMM_CACHE_COMPLETE")
    return [item.value for item in complete.get_completions(list(words), typed)]


def test_targets_models_types_and_compilers_are_completed() -> None:
    assert _offered("compile", "1", "2", "3", "--arch", typed="sm_9") == ["sm_90", "sm_90a"]
    assert _offered("ls", "--arch") == list(ARCHITECTURES)
    assert _offered("warm", typed="llama-3.1-8") == ["Llama-3.1-8B"]
    assert _offered("compile", "--dtype", typed="fp8") == ["fp8_e4m3", "fp8_e5m2"]
    assert _offered("tune", "1", "2", "3", "--compiler", typed="nv") == ["nvrtc", "nvcc"]
    assert _offered("warm", "--family", typed="t") == ["tensor_core", "triton"]
    assert "--dtype" in _offered("ls", typed="--d")
    assert "--store" in _offered("ls", typed="--s")


def test_keys_of_the_store_are_completed_wherever_a_verb_takes_one(compiled_store: Path) -> None:
    keys = sorted(make_store(compiled_store).keys())
    short = [key[:12] for key in keys]
    store = ("--store", str(compiled_store))
    for words in (("show",), ("show", short[0]), ("clean", "--key"), ("timings", "--key")):
        assert _offered(*store, *words) == short
    assert _offered("show", *store, typed=keys[0][:3]) == short[:1], "a store named after the verb counts"
    assert _offered(*store, "show", typed=keys[0][:20]) == [keys[0][:20]]
    assert _offered(*store, "show", typed="zz") == []


def test_without_a_usable_store_nothing_is_offered_and_nothing_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "default"))  # the user may have one
    (tmp_path / "file").write_text("")
    for place in ("none", "file", "bad\0name"):
        assert _offered("--store", str(tmp_path / place), "show") == []
    (tmp_path / "broken.toml").write_text("max_entrys = 1")
    assert _offered("--settings-file", str(tmp_path / "broken.toml"), "show") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.toml", "file"]


def test_of_many_keys_the_first_digits_are_offered(tmp_path: Path) -> None:
    store = _large_store(tmp_path, entries=_MOST_KEYS * 3)
    assert _offered("--store", str(store), "show") == [f"{shard:02x}" for shard in range(256)]
    some = _offered("--store", str(store), "show", typed="0a")
    assert some
    assert all(len(key) == 12 and key.startswith("0a") for key in some)


def _large_store(folder: Path, *, entries: int) -> Path:
    """A store with the names of so many entries, which is all that completing looks at."""
    shards = [f"{number:02x}" for number in range(256)]
    for shard in shards:
        (folder / "metadata" / shard).mkdir(parents=True)
    for number in range(entries):
        shard = shards[number % 256]
        (folder / "metadata" / shard / f"{shard}{number:062x}.json").touch()
    return folder


def test_of_ten_thousand_keys_a_few_hundred_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(_large_store(tmp_path, entries=10_000))
    look = Mock(side_effect=key_of_record_name)
    monkeypatch.setattr(completion, "key_of_record_name", look)
    for typed in ("", "0", "0a", "0a00"):
        look.reset_mock()
        assert _offered("--store", store, "show", typed=typed)
        assert 1 <= look.call_count <= _MOST_KEYS + 40  # a shard has 39 or 40


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes(compiled_store: Path) -> None:
    script = subprocess.run(
        [PROGRAM], env={**os.environ, "_GEMM_CACHE_COMPLETE": "bash_source"}, capture_output=True, text=True, check=True
    ).stdout

    def completed(line: str) -> list[str]:
        words = line.split(" ")
        code = (
            f"{script}\nCOMP_WORDS=({' '.join(words[:-1])} '{words[-1]}'); COMP_CWORD={len(words) - 1}\n"
            f"_gemm_cache_completion gemm-cache; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        place = {**os.environ, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, env=place)
        assert "Traceback" not in done.stderr
        return done.stdout.split()

    assert completed("gemm-cache compile 1 2 3 --arch sm_12") == [name for name in ARCHITECTURES if "sm_12" in name]
    key = min(make_store(compiled_store).keys())
    assert completed(f"gemm-cache --store {compiled_store} show {key[:4]}") == [key[:12]]
    assert completed("gemm-cache do") == ["doctor"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_answered_as_they_ask(shell: str) -> None:
    asked = {"_GEMM_CACHE_COMPLETE": f"{shell}_complete", "COMP_CWORD": "3" if shell == "zsh" else "sm_90a"}
    words = {"COMP_WORDS": "gemm-cache ls --arch sm_90a"}
    done = subprocess.run([PROGRAM], env={**os.environ, **asked, **words}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sm_90a" in done.stdout
    source = {"_GEMM_CACHE_COMPLETE": f"{shell}_source"}
    done = subprocess.run([PROGRAM], env={**os.environ, **source}, capture_output=True, text=True, check=True)
    assert f"{shell}_complete" in done.stdout
