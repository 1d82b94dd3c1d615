"""What a signature is worth: by the file of signers, its bounds, and changes of it; and packs that require one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cache_engine.cache.cache import open_cache
from cache_engine.errors import ExtraMissing, Unproved, UsageError
from cache_engine.model.key import CacheKey
from cache_engine.settings import Settings
from cache_engine.settings.extras import how_to_install
from cache_engine.store.codec import decode_record, encode_record, signed_part, with_signature
from cache_engine.store.disk import DiskStore
from cache_engine.store.journal import Journal
from cache_engine.store.pack import Pack, write_pack
from cache_engine.store.signatures import proof_for, sshsig
from cache_engine.store.signatures.signers import NAMESPACE, Standing, TrustedSigners
from cache_engine.upkeep.packs import export_pack, import_pack, look_into
from tests.helpers import fill, make_store, publish, record_file
from tests.trust.keys import Builder, signers_file

NOW = 1_800_000_000.0  # 2027-01-15 08:00 UTC


@pytest.fixture
def record(store: DiskStore) -> bytes:
    return record_file(store, publish(store)).read_bytes()


def _signers(folder: Path, *lines: str) -> TrustedSigners:
    return TrustedSigners(signers_file(folder, *lines), clock=lambda: NOW)


def test_a_signature_covers_the_record_and_changes_nothing_of_it(record: bytes, builder: Builder) -> None:
    signed = builder.key.sign(record)
    assert signed_part(signed)[0] == signed_part(record)[0]
    key = CacheKey(msgspec.json.decode(record)["record"]["key"])
    assert decode_record(key, signed) == decode_record(key, record)
    assert encode_record(decode_record(key, signed)) == record  # without one, a record's bytes are those of before


def test_a_trusted_signer_is_named(record: bytes, builder: Builder, tmp_path: Path) -> None:
    signers = _signers(tmp_path, "# ours", "", f"builder@example.com {builder.line} a comment")
    found = signers.check(builder.key.sign(record))
    assert (found.standing, found.signer) == (Standing.GOOD, "builder@example.com")
    signers.require(builder.key.sign(record))


def test_others_are_not_trusted(record: bytes, builder: Builder, stranger: Builder, tmp_path: Path) -> None:
    signers = _signers(tmp_path, f"builder {builder.line}")
    found = signers.check(stranger.key.sign(record))
    assert (found.standing, found.signer) == (Standing.UNKNOWN, stranger.key.fingerprint)
    assert signers.check(record).standing is Standing.NONE
    for data in (record, stranger.key.sign(record)):
        with pytest.raises(Unproved, match="trusted_signers names who is trusted"):
            signers.require(data)


def test_a_signature_of_another_record_is_bad(store: DiskStore, builder: Builder, tmp_path: Path) -> None:
    """As is one moved to another kernel, and one of a record whose code was replaced."""
    first, second = (record_file(store, publish(store, seed)).read_bytes() for seed in (1, 2))
    signers = _signers(tmp_path, f"builder {builder.line}")
    moved = with_signature(second, signed_part(builder.key.sign(first))[1])
    assert signers.check(moved).standing is Standing.BAD
    digest = msgspec.json.decode(first)["record"]["blob"]["digest"]
    forged = builder.key.sign(first).replace(digest.encode(), b"0" * 64)
    assert signers.check(forged).standing is Standing.BAD
    assert signers.check(with_signature(first, "no signature")).standing is Standing.BAD


def test_a_signature_for_another_purpose_is_bad(record: bytes, builder: Builder, tmp_path: Path) -> None:
    """Such as that of a git commit with the same key."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private = load_ssh_private_key(builder.file.read_bytes(), None)
    text = sshsig.sign(private, signed_part(record)[0], "git")  # type: ignore[arg-type]
    signers = _signers(tmp_path, f"builder {builder.line}")
    found = signers.check(with_signature(record, text))
    assert (found.standing, found.why) == (Standing.BAD, "the signature is for 'git'")


@pytest.mark.parametrize(
    ("options", "standing", "why"),
    [
        (f'namespaces="{NAMESPACE}"', Standing.GOOD, ""),
        ('namespaces="git,kernel@*"', Standing.GOOD, ""),
        ('namespaces="git"', Standing.UNKNOWN, "may not sign"),
        ('namespaces="*,!kernel@*"', Standing.UNKNOWN, "may not sign"),
        ('namespaces="[k]ernel@gemm-cache"', Standing.UNKNOWN, "may not sign"),
        ('valid-after="20270115Z"', Standing.GOOD, ""),
        ('valid-after="20270116Z"', Standing.UNKNOWN, "valid from 2027-01-16 00:00 UTC"),
        ('valid-before="202701150801Z"', Standing.GOOD, ""),
        ('valid-before="20270115080000Z"', Standing.UNKNOWN, "valid until 2027-01-15 08:00 UTC"),
        ('valid-before="19700101Z"', Standing.UNKNOWN, "valid until 1970-01-01"),
        (f'valid-after="20260101Z",valid-before="20280101Z",namespaces="{NAMESPACE}"', Standing.GOOD, ""),
        ("cert-authority", Standing.UNKNOWN, "does not have it"),
    ],
)
def test_a_line_bounds_what_its_key_may_sign(
    record: bytes, builder: Builder, tmp_path: Path, options: str, standing: Standing, why: str
) -> None:
    found = _signers(tmp_path, f"builder {options} {builder.line}").check(builder.key.sign(record))
    assert found.standing is standing
    assert why in found.why


@pytest.mark.parametrize(
    "bad",
    [
        'valid-before="tomorrow"',
        'valid-before="20271399Z"',
        "valid-before=20270101Z",
        "valid-before",
        'no-such-option="x"',
        'cert-authority="yes"',
        'namespaces="git',
        'namespaces="git",namespaces="*"',
    ],
)
def test_a_line_that_cannot_be_read_trusts_nothing_and_the_others_count(
    record: bytes, builder: Builder, stranger: Builder, tmp_path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    signers = _signers(tmp_path, f"one {bad} {stranger.line}", f"other {builder.line}")
    assert "line 1 trusts nothing" in caplog.text
    assert signers.check(stranger.key.sign(record)).standing is Standing.UNKNOWN
    assert signers.check(builder.key.sign(record)).standing is Standing.GOOD


def test_a_key_is_rotated_and_revoked_while_a_program_runs(
    record: bytes, builder: Builder, stranger: Builder, tmp_path: Path
) -> None:
    signers = _signers(tmp_path, f"old {builder.line}")
    old, new = builder.key.sign(record), stranger.key.sign(record)
    signers_file(tmp_path, f"old {builder.line}", f"new {stranger.line}")
    assert [signers.check(data).standing for data in (old, new)] == [Standing.GOOD, Standing.GOOD]
    signers_file(tmp_path, f"new {stranger.line}")
    assert [signers.check(data).standing for data in (old, new)] == [Standing.UNKNOWN, Standing.GOOD]
    signers.path.unlink()  # type: ignore[union-attr]
    with pytest.raises(Unproved, match="cannot be checked: cannot read the trusted signers"):
        signers.require(new)


@pytest.mark.parametrize("break_", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_a_comment_ends_with_its_line_as_openssh_reads_it(
    record: bytes, builder: Builder, tmp_path: Path, break_: str
) -> None:
    signers = _signers(tmp_path, f"# old keys:{break_}old {builder.line}")
    assert signers.check(builder.key.sign(record)).standing is Standing.UNKNOWN


def test_a_day_that_utc_cannot_express_is_said(
    record: bytes, builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last second of 9999 in New York is in the year 10000 of UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        signers = _signers(tmp_path, f'builder valid-after="99991231235959" {builder.line}')
        assert "valid from 9999-12-31" in signers.check(builder.key.sign(record)).why
        signers = _signers(tmp_path, f'builder valid-before="99991231235959" {builder.line}')
        assert signers.check(builder.key.sign(record)).standing is Standing.GOOD
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = signers_file(tmp_path, "")
    os.chown(path, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        TrustedSigners(path)


def test_a_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = signers_file(tmp_path, "")
    path.chmod(0o666)
    with pytest.raises(UsageError, match=r"can be written by everyone; .* chmod go-w"):
        TrustedSigners(path)
    TrustedSigners(path, trust=True)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: None], ids=["folder", "pipe", "nothing"])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "signers")
    with pytest.raises(UsageError, match="cannot read the trusted signers"):
        TrustedSigners(tmp_path / "signers")


# ---- Packs ----


@pytest.fixture
def keys(store: DiskStore) -> list[CacheKey]:
    return sorted(fill(store, 3))


def _pack(store: DiskStore, folder: Path, builder: Builder | None) -> Path:
    path = folder / "some.gemmpack"
    export_pack(store, path, sign=builder.key.sign if builder else lambda data: data, replace=True)
    return path


def test_a_signed_pack_serves_and_an_unsigned_one_does_not(
    store: DiskStore, keys: list[CacheKey], builder: Builder, stranger: Builder, tmp_path: Path
) -> None:
    prove = TrustedSigners(signers_file(tmp_path, f"builder {builder.line}")).require
    pack = Pack(_pack(store, tmp_path, builder), prove=prove)
    assert [pack.get(key) for key in keys] == [store.get(key) for key in keys]
    for by in (None, stranger):
        with pytest.raises(Unproved):
            Pack(_pack(store, tmp_path, by), prove=prove).get(keys[0])
    assert Pack(_pack(store, tmp_path, None)).get(keys[0]) == store.get(keys[0])


def test_code_that_was_replaced_behind_a_signed_record_is_refused(
    store: DiskStore, keys: list[CacheKey], builder: Builder, tmp_path: Path
) -> None:
    """With XXH3, which is not made against attackers, a forger could fit other code to the checksum in the record."""
    prove = TrustedSigners(signers_file(tmp_path, f"builder {builder.line}")).require
    entries = []
    for key in keys:
        stored = store.stored(key)
        assert stored is not None
        record_data, blob = stored
        entries.append((key, builder.key.sign(record_data), blob[:-1] + bytes([blob[-1] ^ 1])))
    write_pack(tmp_path / "forged.gemmpack", entries)
    with pytest.raises(Exception, match="does not match"):
        Pack(tmp_path / "forged.gemmpack", prove=prove).get(keys[0])
    assert Pack(tmp_path / "forged.gemmpack").get(keys[0]) == store.get(keys[0])  # only the log was changed


def test_import_takes_only_what_is_signed_and_keeps_the_signatures(
    store: DiskStore, keys: list[CacheKey], builder: Builder, stranger: Builder, tmp_path: Path
) -> None:
    other = make_store(tmp_path / "other")
    journal = Journal(other.layout.journal, 3600.0)
    signers = TrustedSigners(signers_file(tmp_path, f"builder {builder.line}"))
    poisoned = Pack(_pack(store, tmp_path, stranger), prove=signers.require)
    assert [entry.refused[:14] for entry in look_into(other, poisoned)] == ["unknown signer"] * 3
    found = import_pack(other, journal, poisoned)
    assert (found.taken, len(found.refused), list(other.keys())) == (0, 3, [])
    found = import_pack(other, journal, Pack(_pack(store, tmp_path, builder), prove=signers.require))
    assert (found.taken, found.refused) == (3, ())
    for key in keys:
        stored = other.stored(key)
        assert stored is not None
        assert str(signers.check(stored[0])) == "good, by builder"
    # And on to a third store, without the key.
    onward = Pack(_pack(other, tmp_path, None), prove=signers.require)
    assert onward.get(keys[0]) is not None


def test_a_cache_skips_what_is_not_signed_with_a_warning_and_counts_it(
    store: DiskStore, keys: list[CacheKey], builder: Builder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack, signers = _pack(store, tmp_path, None), signers_file(tmp_path, f"b {builder.line}")
    with open_cache(tmp_path / "here", packs=pack, trusted_signers=signers) as cache:
        assert cache.get(keys[0]) is None
        assert cache.stats().totals.failures == {"pack": 1}
    assert "not signed: the kernel has no signature" in caplog.text
    _pack(store, tmp_path, builder)
    with open_cache(tmp_path / "here", packs=pack, trusted_signers=signers) as cache:
        assert cache.get(keys[0]) is not None


def test_without_the_file_no_pack_is_used_and_the_program_runs(
    store: DiskStore, keys: list[CacheKey], builder: Builder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pack = _pack(store, tmp_path, builder)
    with open_cache(tmp_path / "here", packs=pack, trusted_signers=tmp_path / "missing") as cache:
        assert cache.packs == ()
        assert cache.get(keys[0]) is None
        with pytest.raises(UsageError, match=r"cannot read the trusted signers in .*missing: No such file"):
            cache.admin.import_pack(pack)
    assert "cannot read the trusted signers" in caplog.text


def test_without_the_package_no_pack_is_used_and_the_extra_is_named(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cache_engine.settings.extras.find_spec", lambda name: None)
    pack = _pack(store, tmp_path, None)
    with open_cache(tmp_path / "here", packs=pack, trusted_signers=signers_file(tmp_path)) as cache:
        assert cache.packs == ()
    assert how_to_install("team") in caplog.text
    with pytest.raises(ExtraMissing):
        proof_for(Settings(trusted_signers=signers_file(tmp_path)))
