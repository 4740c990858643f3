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
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from ci.engine import remote
from ci.engine.closed import closed
from ci.engine.memo import Entry, Miss
from ci.engine.remote import action_result, files_of, remote_of
from provisioning.base.errors import UsageError
from tests.support.cache_machines import KEY, OURS, Machine
from tests.support.cache_server import SLOW, CacheServer, serving

THEIRS = Ed25519PrivateKey.generate()


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
    assert isinstance(entry, Entry) and (entry.result, entry.origin) == ({"value": 7}, "remote")
    assert entry.folder and (entry.folder / "out" / "net.pte").read_text() == "program 1"
    requests_before = len(server.requests)
    again = reader.find()
    assert isinstance(again, Entry) and again.origin == "store"
    assert len(server.requests) == requests_before


def test_another_input_is_a_miss_and_both_versions_are_kept(writer: Machine, reader: Machine) -> None:
    reader.weights("2")
    assert isinstance(reader.find(), Miss)
    writer.weights("2")
    writer.work(8)
    for text, value in (("2", 8), ("1", 7)):
        reader.weights(text)
        entry = reader.find()
        assert isinstance(entry, Entry) and entry.result == {"value": value}


def test_work_that_failed_here_is_not_passed_by_another_machine(writer: Machine, reader: Machine) -> None:
    reader.memo().forget(KEY)
    assert isinstance(reader.find(), Miss)
    reader.work(9)
    assert isinstance(reader.find(), Entry)


def test_a_reader_sends_nothing(reader: Machine, server: CacheServer) -> None:
    reader.weights("3")
    before = dict(server.kept)
    reader.work()
    assert server.kept == before


def entry_of(server: CacheServer) -> tuple[str, str, dict[str, str]]:
    """The address of the one key, and of its entry with its content."""
    (place,) = [path for path in server.kept if path.startswith("/ac/")]
    (digest,) = [digest for path, digest, _ in files_of(server.kept[place]) if path.startswith("entries/")]
    return place, f"/cas/{digest}", json.loads(server.kept[f"/cas/{digest}"])


def poisoned(server: CacheServer, entry: dict[str, str]) -> None:
    """What a server can do that is consistent in itself: another entry under its true digest."""
    place, _, _ = entry_of(server)
    text = json.dumps(entry).encode()
    digest = hashlib.sha256(text).hexdigest()
    server.kept[f"/cas/{digest}"] = text
    server.kept[place] = action_result([(f"entries/{digest}", digest, len(text))])


def unsigned(entry: dict[str, str]) -> dict[str, str]:
    return {"payload": entry["payload"], "signature": ""}


def changed(entry: dict[str, str]) -> dict[str, str]:
    return {**entry, "payload": entry["payload"].replace('"value": 7', '"value": 8')}


def by_another(entry: dict[str, str]) -> dict[str, str]:
    return {**entry, "signature": THEIRS.sign(entry["payload"].encode()).hex()}


def of_another_key(entry: dict[str, str]) -> dict[str, str]:
    payload = json.dumps({**json.loads(entry["payload"]), "key": "0" * 64})
    return {"payload": payload, "signature": OURS.sign(payload.encode()).hex()}


def no_entry(entry: dict[str, str]) -> dict[str, str]:
    return {}


@pytest.mark.parametrize("change", [unsigned, changed, by_another, of_another_key, no_entry])
def test_a_poisoned_entry_is_a_miss_and_said_once(
    change: Callable[[dict[str, str]], dict[str, str]],
    reader: Machine,
    server: CacheServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    poisoned(server, change(entry_of(server)[2]))
    assert isinstance(reader.find(), Miss) and isinstance(reader.find(), Miss)
    assert capsys.readouterr().err.count("it is not used") == 1


def test_a_signed_entry_may_not_write_outside_its_folder(reader: Machine, server: CacheServer) -> None:
    _, _, entry = entry_of(server)
    signed = json.loads(entry["payload"])
    signed["document"]["files"] = {"../../../escaped": next(iter(signed["document"]["files"].values()))}
    payload = json.dumps(signed)
    poisoned(server, {"payload": payload, "signature": OURS.sign(payload.encode()).hex()})
    assert isinstance(reader.find(), Miss)
    assert not list(reader.store.rglob("escaped"))


def test_a_changed_program_is_a_miss(reader: Machine, server: CacheServer) -> None:
    for path, content in server.kept.items():
        server.kept[path] = content.replace(b"program 1", b"program 2")
    assert isinstance(reader.find(), Miss)
    assert not list(reader.store.rglob("*.pte"))


@pytest.mark.parametrize("fault", ["slow", "cut", "error", "other-bytes", "absent", "endless"])
def test_a_servers_trouble_is_a_miss_said_once_and_costs_no_second_wait(
    fault: str,
    reader: Machine,
    server: CacheServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "PATIENCE", 0.1)
    monkeypatch.setattr(remote, "LARGEST_ANSWER", 1 << 20)
    server.fault = fault
    if fault == "absent":
        reader.remote = replace(reader.remote, url="http://127.0.0.1:1")
    began = time.monotonic()
    assert isinstance(reader.find(), Miss)
    # From here on it is not asked. Other bytes came at once.
    assert reader.remote.off or fault == "other-bytes"
    assert isinstance(reader.find(), Miss)
    # Far less than the server takes, however busy this machine is.
    assert time.monotonic() - began < SLOW / 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("fault", ["full", "error"])
def test_a_full_server_does_not_change_what_a_writer_remembers(
    fault: str, tmp_path: Path, server: CacheServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.fault = fault
    writer = Machine(tmp_path / "writer", server.url, server.token, writes=True)
    writer.work()
    writer.weights("2")
    writer.work()
    assert isinstance(writer.find(), Entry)
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not any(path.startswith("/ac/") for path in server.kept)


def test_a_token_is_sent_and_never_shown(
    tmp_path: Path, server: CacheServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.token = "hush"
    Machine(tmp_path / "writer", server.url, server.token, writes=True).work()
    assert isinstance(Machine(tmp_path / "reader", server.url, server.token).find(), Entry)
    server.token, server.kept = "another", {}
    writer = Machine(tmp_path / "late", server.url, server.token, writes=True)
    writer.remote = replace(writer.remote, token="user:hush", url=server.url.replace("//", "//user:hush@"))
    writer.work()
    printed = capsys.readouterr().err
    assert "answers 401" in printed and "hush" not in printed


# Variables


def pem(key: Ed25519PrivateKey) -> tuple[str, str]:
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(), public.decode()


def test_keys_come_from_variables_or_files(tmp_path: Path) -> None:
    private, public = pem(OURS)
    (tmp_path / "keys").write_text(public + pem(THEIRS)[1])
    url, file = {remote.URL: "https://c.example"}, {f"{remote.PUBLIC_KEYS}_FILE": str(tmp_path / "keys")}
    reading = remote_of({**url, **file})
    assert reading is not None and (len(reading.writers), reading.writes) == (2, False)
    writing = remote_of({**url, remote.SIGNING_KEY: private})
    assert writing is not None and (len(writing.writers), writing.writes) == (1, True)
    assert remote_of({}) is None


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {remote.PUBLIC_KEYS: "nonsense"},
        {remote.SIGNING_KEY: "nonsense"},
        {f"{remote.PUBLIC_KEYS}_FILE": "/no/such/file"},
        {remote.URL: "ftp://x", remote.PUBLIC_KEYS: pem(OURS)[1]},
    ],
)
def test_a_remote_cache_that_nobody_could_trust_is_a_usage_error(variables: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        remote_of({remote.URL: "https://c.example", **variables})


def test_users_models_do_not_see_the_keys() -> None:
    secrets = {remote.TOKEN: "x", f"{remote.SIGNING_KEY}_FILE": "x"}
    assert not closed({**secrets, "PATH": "y"}).keys() & secrets


def test_an_action_result_is_read_as_it_was_written_and_nonsense_is_empty() -> None:
    files = [("a/b", "0" * 64, 0), ("c", "f" * 64, 1 << 40)]
    whole = action_result(files)
    assert files_of(whole) == files
    for end in range(1, len(whole)):
        with contextlib.suppress(RecursionError):
            assert len(files_of(whole[:end])) <= 2
    assert files_of(b"\xff" * 100) == [] and files_of(b"not found") == []
