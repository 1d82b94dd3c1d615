"""Only you and root can put anything into a store, and what others could have changed is not served."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cache_engine.batch.jobs import Jobs, LostJob
from cache_engine.cache.cache import open_cache
from cache_engine.errors import IndexUnavailable, PackUnusable, StoreUnusable, Untrusted
from cache_engine.index.sync import Index
from cache_engine.model.events import CORRUPT
from cache_engine.model.gemm import DType, GemmProblem
from cache_engine.model.kernel import KernelConfig
from cache_engine.model.key import CacheKey
from cache_engine.store.disk import DiskStore, open_store
from cache_engine.store.journal import SNAPSHOT, Journal, fold, read_journal
from cache_engine.store.lock import file_lock
from cache_engine.store.ownership import open_way
from cache_engine.store.pack import Pack
from cache_engine.store.timings import Timings
from cache_engine.upkeep.packs import export_pack
from tests.helpers import blob_file, fill, invented_timing, make_store, publish, record_file

OTHER = 12345
KERNEL = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_90")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def _give_to_group(path: Path) -> None:
    os.chown(path, -1, OTHER)
    path.chmod(path.stat().st_mode | 0o020)


def _give_away(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


WHO = pytest.mark.parametrize(
    ("change", "named"),
    [
        (_give_to_group, f"can be written by its group {OTHER}"),
        (lambda path: path.chmod(path.stat().st_mode | 0o002), "can be written by everyone"),
        (_give_away, f"belongs to user {OTHER}, not to you"),
    ],
    ids=["group", "everyone", "owner"],
)


# ---- Directories ----


@WHO
@pytest.mark.parametrize("which", ["up/up", "up", "up/up/store", "up/up/store/kernels", "up/up/store/journal"])
def test_a_directory_on_the_way_that_others_may_change_is_refused(
    tmp_path: Path, which: str, change: Callable[[Path], None], named: str
) -> None:
    """Its owner could move the store away and put another in its place."""
    root = tmp_path / "up" / "up" / "store"
    make_store(root)
    change(tmp_path / which)
    with pytest.raises(StoreUnusable, match=rf"^{tmp_path / which} {named}; .* export a pack"):
        open_store(root)
    assert open_store(root, trust=True).root == root


@WHO
def test_no_store_is_made_where_others_may_change_it(
    tmp_path: Path, change: Callable[[Path], None], named: str
) -> None:
    change(tmp_path)
    with pytest.raises(StoreUnusable, match=named):
        open_store(tmp_path / "new" / "store")
    assert list(tmp_path.iterdir()) == []


def test_a_sticky_directory_protects_its_entries(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    make_store(tmp_path / "store")
    assert open_store(tmp_path / "store").root == tmp_path / "store"
    os.chown(tmp_path, OTHER, OTHER)  # whose owner may rename anything in it
    with pytest.raises(StoreUnusable, match="belongs to user"):
        open_store(tmp_path / "store")


def test_a_sticky_directory_is_no_store(tmp_path: Path) -> None:
    """Others cannot delete there, but they can add files."""
    make_store(tmp_path / "store")
    (tmp_path / "store").chmod(0o1777)
    with pytest.raises(StoreUnusable, match="can be written by everyone"):
        open_store(tmp_path / "store")


def test_links_on_the_way_are_followed_if_only_you_and_root_may_change_them(tmp_path: Path) -> None:
    make_store(tmp_path / "real" / "store")
    (tmp_path / "there").symlink_to("real")
    (tmp_path / "over").mkdir()
    (tmp_path / "over" / "link").symlink_to(tmp_path / "over" / ".." / "there" / "store")
    link = tmp_path / "over" / "link"
    assert open_store(link).root == link
    os.chown(tmp_path / "there", OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(StoreUnusable, match=f"the link .*/there belongs to user {OTHER}"):
        open_store(link)
    os.chown(tmp_path / "there", 0, 0, follow_symlinks=False)
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(StoreUnusable, match=f"{tmp_path / 'real'} can be written by everyone"):
        open_store(link)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StoreUnusable, match="Too many levels of symbolic links"):
        open_store(tmp_path / "a" / "store")


def test_a_folder_of_a_store_is_no_link(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    (tmp_path / "store" / "kernels").rename(tmp_path / "elsewhere")
    (tmp_path / "store" / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnusable, match="kernels is a link, not a folder"):
        open_store(tmp_path / "store")
    assert open_store(tmp_path / "store", trust=True)


@pytest.mark.usefixtures("no_umask")
def test_everything_on_the_way_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    publish(make_store(tmp_path / "a" / "b" / "store"))
    made = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700, 0o600}


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach. Pytest closes the one above ``tmp_path`` when another session starts."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # the one of the tests is below that, too
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_group_of_the_user_alone_is_the_user(public: Path) -> None:
    """Many systems give each user a group, and new directories to that group as well. Here: the user ``daemon``."""
    import grp
    import pwd

    user = pwd.getpwnam("daemon")
    assert grp.getgrgid(user.pw_gid).gr_name == "daemon"
    assert not grp.getgrgid(user.pw_gid).gr_mem
    others = [grp.getgrnam(name).gr_gid for name in ("users", "bin")]  # ``bin`` is the group of another user alone
    for name, group in zip(("own", "users", "bin"), (user.pw_gid, *others), strict=True):
        (public / name).mkdir()
        os.chown(public / name, user.pw_uid, group)
        (public / name).chmod(0o770)
    code = (
        "import os, sys; from pathlib import Path; from cache_engine.store.disk import open_store\n"
        "import cache_engine.store.journal, portalocker, grp, pwd\n"
        "from cache_engine.errors import StoreUnusable\n"
        f"os.setgroups({others}); os.setgid({user.pw_gid}); os.setuid({user.pw_uid})\n"
        "for name in ('own', 'users', 'bin'):\n"
        "    try: print(open_store(Path(sys.argv[1], name, 'store')).marker.exists())\n"
        "    except StoreUnusable as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(public)], capture_output=True, text=True)
    own, *refused = done.stdout.splitlines()
    assert own == "True", done.stderr
    assert [line.partition(";")[0].rpartition(" ")[2] for line in refused] == ["users", "bin"]


# ---- Files ----


@WHO
@pytest.mark.parametrize("file", [record_file, blob_file])
def test_an_entry_that_others_may_change_is_no_hit(
    store: DiskStore, file: Callable[[DiskStore, CacheKey], Path], change: Callable[[Path], None], named: str
) -> None:
    """It was planted while they could write, and is sound in every byte."""
    key = publish(store)
    change(file(store, key))
    with pytest.raises(Untrusted, match=named):
        store.get(key)
    trusting = DiskStore(open_store(store.layout.root, trust=True))
    assert trusting.get(key) is not None


def test_a_planted_entry_is_compiled_again_and_moved_to_quarantine(compiled_store: Path) -> None:
    problem = GemmProblem(64, 48, 80, dtype=DType.FP32, arch="sm_75")  # one of those that are there
    with open_cache(compiled_store, memory_bytes=0) as cache:
        key = cache.get_or_compile(problem).key
        _give_away(blob_file(cache.store, key))
        assert cache.get_or_compile(problem).tier == "compiled"
        assert cache.get_or_compile(problem).tier == "disk"
        (event,) = [event for event in read_journal(cache.layout.journal).recent if event.kind == CORRUPT]
        assert f"belongs to user {OTHER}" in event.detail
        assert len(list(cache.layout.quarantine.iterdir())) == 2


@WHO
def test_a_marker_that_others_may_change_is_refused(
    store: DiskStore, change: Callable[[Path], None], named: str
) -> None:
    change(store.layout.marker)
    with pytest.raises(StoreUnusable, match=f"store.json {named}"):
        open_store(store.layout.root)


@WHO
def test_a_journal_that_others_may_change_does_not_count(
    store: DiskStore, change: Callable[[Path], None], named: str
) -> None:
    layout = store.layout

    def use() -> None:
        journal = Journal(layout.journal, 60.0)
        journal.hit(publish(store), "disk")
        journal.close()

    use()
    (first,) = layout.journal.iterdir()
    change(first)
    before = first.read_bytes()
    use()
    assert first.read_bytes() == before  # nothing is appended to it either
    assert read_journal(layout.journal).totals.hits == {"disk": 1}
    assert fold(layout.journal, layout.temp, keep=lambda _: True) == 1
    change(layout.journal / SNAPSHOT)
    assert read_journal(layout.journal).totals.hits == {}
    assert fold(layout.journal, layout.temp, keep=lambda _: True) == 0  # and it is left alone


@WHO
def test_results_that_others_may_change_do_not_count(
    store: DiskStore, change: Callable[[Path], None], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the evaluator and timings alike: both are stored in the same way."""
    timing = invented_timing(KERNEL, KernelConfig(64, 64, 32, 2, 2, 3), 5.0)
    Timings(store.layout, durable=False).add([timing])
    (file,) = store.layout.timings.glob("*.json")
    change(file)
    assert list(Timings(store.layout)) == []
    assert named in caplog.text
    again = Timings(store.layout, durable=False)
    again.add([timing])
    again.close()
    assert len(list(Timings(store.layout))) == 1
    assert [path.name.endswith(file.name) for path in store.layout.quarantine.iterdir()] == [True]


@WHO
def test_a_job_that_others_may_change_cannot_be_read(
    store: DiskStore, change: Callable[[Path], None], named: str
) -> None:
    path = store.layout.jobs / "1-2.json"
    path.write_text('{"id": "1-2", "command": ["compile"], "state": "done", "result": "planted"}')
    change(path)
    (job,) = Jobs(store.layout).recent()
    assert isinstance(job, LostJob)
    assert named in job.error


@WHO
def test_a_lock_that_others_may_change_is_no_lock(store: DiskStore, change: Callable[[Path], None], named: str) -> None:
    """They could hold it for ever."""
    lock = store.layout.key_lock(publish(store))
    lock.touch(mode=0o600)
    change(lock)
    with pytest.raises(PermissionError, match=named), file_lock(lock, 0):
        pass


def test_a_mirror_of_another_user_is_built_again(store: DiskStore) -> None:
    publish(store)
    index = Index(store)
    index.sync()
    _give_away(index.path)
    with pytest.raises(IndexUnavailable, match="is not your own"), index.read():
        pass
    assert index.sync().added == 1
    assert index.path.stat().st_uid == 0


# ---- Interruptions ----


def test_ctrl_c_right_after_a_folder_of_the_way_was_closed_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closed the folder a second time, and ended as an error of the store: bad file descriptor."""
    really, before = os.close, len(os.listdir("/proc/self/fd"))

    def interrupted(descriptor: int) -> None:
        monkeypatch.setattr(os, "close", really)
        really(descriptor)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_way(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


# ---- Packs ----


@WHO
@pytest.mark.parametrize("which", ["up/up/some.gemmpack", "up/up", "up"])
def test_a_pack_that_others_may_change_is_refused(
    store: DiskStore, tmp_path: Path, which: str, change: Callable[[Path], None], named: str
) -> None:
    fill(store, 1)
    pack = tmp_path / "up" / "up" / "some.gemmpack"
    pack.parent.mkdir(parents=True)
    export_pack(store, pack)
    assert len(Pack(pack)) == 1
    change(tmp_path / which)
    with pytest.raises(PackUnusable, match=rf"{tmp_path / which} {named}; .*copy the pack to a folder of your own"):
        Pack(pack)
    assert len(Pack(pack, trust=True)) == 1
