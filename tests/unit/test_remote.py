"""The cache that machines share: what one remembers another takes, and no server makes a failure pass."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ci.engine.closed import closed
from ci.engine.memo import CachedResult, Miss
from ci.sharing.remote import ENTRIES, action_result, files_of, remote_of, writing
from provisioning.base import secrets
from provisioning.base.errors import UpstreamError, UsageError
from tests.support.cache_machines import KEY, OURS, Machine, pems
from tests.support.cache_server import SLOW, CacheServer, serving

THEIRS = Ed25519PrivateKey.generate()
LARGEST_TEXT = 1 << 20


@pytest.fixture
def server() -> Iterator[CacheServer]:
    with serving() as server:
        yield server


@pytest.fixture
def writer(tmp_path: Path, server: CacheServer) -> Machine:
    writer = Machine(tmp_path / "writer", server.url, server.token, writes=True)
    writer.work()
    return writer


@pytest.fixture
def reader(tmp_path: Path, server: CacheServer, writer: Machine) -> Machine:
    return Machine(tmp_path / "reader", server.url, server.token)


def test_what_one_machine_remembers_another_takes_and_then_has_itself(
    writer: Machine, reader: Machine, server: CacheServer
) -> None:
    entry = reader.find()
    assert isinstance(entry, CachedResult) and (entry.result, entry.origin) == ({"value": 7}, "remote")
    assert entry.folder and (entry.folder / "out" / "net.pte").read_text() == "program 1"
    requests_before = len(server.requests)
    again = reader.find()
    assert isinstance(again, CachedResult) and again.origin == "store"
    assert len(server.requests) == requests_before


def test_another_input_is_a_miss_and_both_versions_are_kept(writer: Machine, reader: Machine) -> None:
    reader.weights("2")
    assert isinstance(reader.find(), Miss)
    writer.weights("2")
    writer.work(8)
    for text, value in (("2", 8), ("1", 7)):
        reader.weights(text)
        entry = reader.find()
        assert isinstance(entry, CachedResult) and entry.result == {"value": value}


def test_work_that_failed_here_is_not_passed_by_another_machine(writer: Machine, reader: Machine) -> None:
    reader.fail()
    assert isinstance(reader.find(), Miss)
    reader.work(9)
    assert isinstance(reader.find(), CachedResult)
    for path in (reader.store / "cache/memo/test").glob("??/*/*.json"):
        path.unlink()
    entry = reader.find()
    assert isinstance(entry, CachedResult) and entry.origin == "remote"


def test_a_failure_without_the_remote_cache_counts_when_it_is_switched_on(
    writer: Machine, reader: Machine
) -> None:
    reader.shares = False
    reader.fail()
    reader.shares = True
    assert isinstance(reader.find(), Miss)


def test_a_failing_edit_blocks_its_own_content_alone(writer: Machine, reader: Machine) -> None:
    reader.weights("broken")
    reader.fail()
    reader.weights("1")
    assert isinstance(reader.find(), CachedResult)
    writer.weights("broken")
    writer.work(8)
    reader.weights("broken")
    assert isinstance(reader.find(), Miss)


def test_a_failure_that_nobody_knows_the_inputs_of_blocks_the_key(writer: Machine, reader: Machine) -> None:
    reader.memo().forget(KEY)
    assert isinstance(reader.find(), Miss)


def test_a_writers_later_failure_takes_its_pass_back(writer: Machine, reader: Machine) -> None:
    writer.fail()
    assert isinstance(reader.find(), Miss)
    writer.work(8)
    entry = reader.find()
    assert isinstance(entry, CachedResult) and entry.result == {"value": 8}


def test_a_reader_sends_nothing(reader: Machine, server: CacheServer) -> None:
    reader.weights("3")
    before = dict(server.kept)
    reader.work()
    assert server.kept == before


def entry_of(server: CacheServer) -> tuple[str, bytes]:
    """The address of the one key, and the signed payload of its one entry."""
    (place,) = [path for path in server.kept if path.startswith("/ac/")]
    (digest,) = [digest for path, digest, _ in files_of(server.kept[place]) if path.startswith("entries/")]
    return place, server.kept[f"/cas/{digest}"].partition(b"\n")[2]


def signed(payload: bytes, key: Ed25519PrivateKey = OURS) -> bytes:
    return key.sign(payload).hex().encode() + b"\n" + payload


def poisoned(server: CacheServer, *entries: bytes) -> None:
    """What a server can do that is consistent in itself: other entries under their true digests."""
    place, _ = entry_of(server)
    named = []
    for text in entries:
        digest = hashlib.sha256(text).hexdigest()
        server.kept[f"/cas/{digest}"] = text
        named.append((f"entries/{digest}", digest, len(text)))
    server.kept[place] = action_result(named)


def unsigned(payload: bytes) -> bytes:
    return b"\n" + payload


def changed(payload: bytes) -> bytes:
    return signed(payload).replace(b'"value": 7', b'"value": 8')


def by_another(payload: bytes) -> bytes:
    return signed(payload, THEIRS)


def of_another_key(payload: bytes) -> bytes:
    return signed(json.dumps({**json.loads(payload), "key": "0" * 64}).encode())


def no_entry(payload: bytes) -> bytes:
    return b"{}"


def nested(payload: bytes) -> bytes:
    return b"[" * 100_000


def nested_and_signed(payload: bytes) -> bytes:
    return signed(b"[" * 100_000)


def no_text(payload: bytes) -> bytes:
    return b"\xff\n" * 100


def too_large(payload: bytes) -> bytes:
    return signed(payload) + b" " * LARGEST_TEXT


@pytest.mark.parametrize(
    "change",
    [unsigned, changed, by_another, of_another_key, no_entry, nested, nested_and_signed, no_text, too_large],
)
def test_a_poisoned_entry_is_a_miss_and_said_once_and_hides_no_other(
    change: Callable[[bytes], bytes],
    reader: Machine,
    server: CacheServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader.remote.largest_text = LARGEST_TEXT
    good = entry_of(server)[1]
    poisoned(server, change(good))
    assert isinstance(reader.find(), Miss) and isinstance(reader.find(), Miss)
    assert capsys.readouterr().err.count("it is not used") == 1
    assert not reader.remote.off
    poisoned(server, change(good), signed(good))
    assert isinstance(reader.find(), CachedResult)


def test_only_as_many_entries_of_a_key_are_fetched_as_a_machine_keeps(
    reader: Machine, server: CacheServer
) -> None:
    good = entry_of(server)[1]
    poisoned(server, *(b"%d\n{}" % number for number in range(50)), signed(good))
    before = len(server.requests)
    assert isinstance(reader.find(), Miss)
    assert len(server.requests) - before == 1 + ENTRIES


def test_a_signed_entry_may_not_write_outside_its_folder(reader: Machine, server: CacheServer) -> None:
    entry = json.loads(entry_of(server)[1])
    entry["document"]["files"] = {"../../../escaped": next(iter(entry["document"]["files"].values()))}
    poisoned(server, signed(json.dumps(entry).encode()))
    assert isinstance(reader.find(), Miss)
    assert not list(reader.store.rglob("escaped"))


def test_a_changed_program_is_a_miss(reader: Machine, server: CacheServer) -> None:
    for path, content in server.kept.items():
        server.kept[path] = content.replace(b"program 1", b"program 2")
    assert isinstance(reader.find(), Miss)
    assert not list(reader.store.rglob("*.pte"))


@pytest.mark.parametrize(
    "fault",
    ["slow", "late", "trickle", "trickling-head", "cut", "error", "other-bytes", "absent", "endless"],
)
def test_a_servers_trouble_is_a_miss_said_once_and_costs_one_budget_of_seconds(
    fault: str,
    reader: Machine,
    server: CacheServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reader.remote.good_answer, reader.remote.patience = 0.1, 0.4
    server.fault = fault
    if fault == "absent":
        reader.remote = replace(reader.remote, url="http://127.0.0.1:1")
    if fault == "late":
        # Each answer is in time, and all together are not.
        poisoned(server, *(b"%d\n{}" % number for number in range(50)))
    began = time.monotonic()
    assert isinstance(reader.find(), Miss)
    # From here on it is not asked, unless it answered at once what is of no use.
    assert reader.remote.off or fault in ("other-bytes", "endless")
    assert isinstance(reader.find(), Miss)
    # Far less than the server takes, however busy this machine is.
    assert time.monotonic() - began < SLOW / 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_token_is_sent_and_never_shown(tmp_path: Path, server: CacheServer) -> None:
    server.token = "hush"
    Machine(tmp_path / "writer", server.url, server.token, writes=True).work()
    assert isinstance(Machine(tmp_path / "reader", server.url, server.token).find(), CachedResult)
    server.token, server.kept = "another", {}
    writer = Machine(tmp_path / "late", server.url, server.token, writes=True)
    writer.remote = replace(writer.remote, token="user:hush", url=server.url.replace("//", "//user:hush@"))
    with pytest.raises(UpstreamError) as refused:
        writer.work()
    assert "answers 401" in refused.value.message and "hush" not in refused.value.message


# Variables


def test_keys_come_from_variables_or_files(tmp_path: Path) -> None:
    public, private = pems(OURS)
    (tmp_path / "keys").write_text(public + pems(THEIRS)[0])
    url, file = {secrets.URL: "https://c.example"}, {f"{secrets.PUBLIC_KEYS}_FILE": str(tmp_path / "keys")}
    reading = remote_of({**url, **file})
    assert reading is not None and len(reading.writers) == 2
    assert len(writing({**url, **file, secrets.SIGNING_KEY: private})[0].writers) == 2
    assert len(writing({**url, secrets.SIGNING_KEY: private})[0].writers) == 1
    assert remote_of({}) is None


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {secrets.PUBLIC_KEYS: "nonsense"},
        {f"{secrets.PUBLIC_KEYS}_FILE": "/no/such/file"},
        {secrets.URL: "ftp://x", secrets.PUBLIC_KEYS: pems(OURS)[0]},
    ],
)
def test_a_remote_cache_that_nobody_could_trust_is_a_usage_error(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        remote_of({secrets.URL: "https://c.example", **variables})


def test_users_models_do_not_see_the_tokens() -> None:
    names = {secrets.TOKEN: "x", secrets.READ_TOKEN: "x", f"{secrets.SIGNING_KEY}_FILE": "x"}
    assert not closed({**names, "PATH": "y"}).keys() & names


def test_an_action_result_is_read_as_it_was_written_and_nonsense_is_empty() -> None:
    files = [("a/b", "0" * 64, 0), ("c", "f" * 64, 1 << 40)]
    whole = action_result(files)
    assert files_of(whole) == files
    for end in range(1, len(whole)):
        with contextlib.suppress(RecursionError):
            assert len(files_of(whole[:end])) <= 2
    assert files_of(b"\xff" * 100) == [] and files_of(b"not found") == []
