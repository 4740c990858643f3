from __future__ import annotations

import hashlib
import io
import logging
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.addresses import file_name, redact
from provisioning.base.errors import (
    IntegrityError,
    ToolkitError,
    UpstreamError,
)
from provisioning.base.progress import Progress
from provisioning.download import fetch
from provisioning.http_answers import BUNDLE_VARIABLES, Patience
from tests.support import chains
from tests.support.http_server import FileServer, Reply

BODY = random.Random(1).randbytes(400_000)
SHA = hashlib.sha256(BODY).hexdigest()
OTHER = random.Random(2).randbytes(300_000)
HALF = 200_000


class Kept(Progress):
    """Keeps what is started, and the notes."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.notes: list[str] = []

    def start(self, name: str, total: int | None, done: int = 0) -> None:
        self.started.append(name)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def patience() -> Patience:
    return Patience(attempts=3, sleep=lambda seconds: None)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "a new store" / "downloads" / "file.bin"


def files(into: Path) -> list[str]:
    return sorted(p.name for p in into.parent.iterdir())


def test_another_hash_is_refused_and_nothing_is_kept(into: Path) -> None:
    with FileServer(OTHER) as server, pytest.raises(IntegrityError) as caught:
        fetch(server.url(), into, sha256=SHA, size=None)
    assert f"expected sha256 {SHA}, found {hashlib.sha256(OTHER).hexdigest()}" in caught.value.message
    assert "nothing was kept" in caught.value.message
    assert files(into) == []


@pytest.mark.parametrize(
    "fault",
    [
        Reply(cut=HALF),
        Reply(cut=HALF, reset=True),
        Reply(cut=HALF, stall=True),
        Reply(cut=HALF, chunked=True),
    ],
)
def test_a_broken_transfer_goes_on_where_it_stopped(fault: Reply, into: Path, patience: Patience) -> None:
    if fault.stall:
        patience = replace(patience, stall_timeout=1)
    with FileServer(BODY, [fault]) as server:
        fetched = fetch(server.url(), into, sha256=SHA, size=None, patience=patience)
    # On a busy machine the second one may seem to stall too.
    first, second = server.requests[:2]
    assert fetched.path.read_bytes() == BODY
    assert "range" not in first.headers
    # A reset may take bytes with it that were sent and not yet read.
    start = int(second.headers["range"].removeprefix("bytes=").removesuffix("-"))
    assert 0 < start <= HALF


def test_a_server_may_ask_for_a_pause_but_for_no_long_one(into: Path) -> None:
    waits: list[float] = []
    patience = Patience(attempts=3, first_delay=0.01, longest_retry_after=7, sleep=waits.append)
    busy = [Reply(status=503, headers={"Retry-After": seconds}) for seconds in ("86400", "3")]
    with FileServer(BODY, busy) as server:
        fetch(server.url(), into, sha256=SHA, size=None, patience=patience)
    assert waits == [7, 3]


@pytest.mark.parametrize(
    ("reply", "size"),
    [
        (Reply(body=b"<html>sign in</html>", headers={"Content-Type": "text/html; charset=utf-8"}), None),
        (Reply(body=b"<html>sign in</html>", headers={"Content-Type": "Application/XHTML+XML"}), None),
        (Reply(body=b""), None),
        (Reply(body=BODY[:HALF], chunked=True), len(BODY)),
    ],
    ids=["a page", "a page of XML", "nothing", "a part of it"],
)
def test_what_is_not_the_file_is_not_kept_though_no_hash_says_so(
    reply: Reply, size: int | None, into: Path, patience: Patience
) -> None:
    with FileServer(BODY, [reply] * 3) as server, pytest.raises((IntegrityError, UpstreamError)):
        fetch(server.url("/sdk.zip"), into, sha256=None, size=size, patience=patience)
    assert not into.exists()


def test_credentials_go_to_their_host_only(into: Path) -> None:
    with FileServer(BODY) as server:
        there = server.url("/real.bin", host="localhost")
        server.script(Reply(status=302, body=b"", headers={"Location": there}))
        fetch(server.url(userinfo="me:secret@"), into, sha256=SHA, size=None)
    first, second = server.requests
    assert first.headers["authorization"].startswith("Basic ")
    assert "authorization" not in second.headers


def test_more_bytes_than_expected_stop_at_once(into: Path) -> None:
    endless = Reply(body=bytes(50_000_000), chunked=True)
    with (
        FileServer(BODY, [endless]) as server,
        pytest.raises(IntegrityError, match=rf"\b{len(BODY)}\b"),
    ):
        fetch(server.url(), into, sha256=SHA, size=len(BODY))
    assert server.body_bytes < 50_000_000
    assert files(into) == []


@pytest.mark.parametrize("sha256", [None, hashlib.sha256(OTHER).hexdigest()])
def test_a_content_that_changed_starts_from_the_beginning(
    sha256: str | None, into: Path, patience: Patience
) -> None:
    with FileServer(BODY, [Reply(cut=HALF), Reply(fresh_body=OTHER)]) as server:
        fetched = fetch(server.url(), into, sha256=sha256, size=None, patience=patience)
    assert fetched.path.read_bytes() == OTHER


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"v2"', "Content-Range": f"bytes {HALF}-{len(BODY) - 1}/{len(BODY)}"},
        {"Content-Range": f"bytes {HALF}-{len(BODY) - 1}/{len(BODY) + 9}"},
        {"Content-Range": f"bytes 0-{len(BODY) - 1}/{len(BODY)}"},
        {"Content-Range": "nonsense"},
    ],
)
def test_a_range_of_something_else_is_not_taken(
    headers: dict[str, str], into: Path, patience: Patience
) -> None:
    lying = Reply(status=206, body=bytes(len(BODY) - HALF), headers=headers)
    with FileServer(BODY, [Reply(cut=HALF), lying]) as server:
        fetched = fetch(server.url(), into, sha256=SHA, size=None, patience=patience)
    assert fetched.path.read_bytes() == BODY


def test_without_a_hash_nothing_is_resumed(into: Path, patience: Patience) -> None:
    with FileServer(BODY, [Reply(cut=HALF)]) as server:
        fetched = fetch(server.url(), into, sha256=None, size=None, patience=patience)
    assert fetched.path.read_bytes() == BODY
    assert all("range" not in request.headers for request in server.requests)


def test_a_resumed_part_that_proves_wrong_is_fetched_anew(into: Path, patience: Patience) -> None:
    progress = Kept()
    with FileServer(BODY, [Reply(cut=HALF, status=200), Reply(status=403)]) as server:
        with pytest.raises(UpstreamError):
            fetch(server.url(), into, sha256=SHA, size=None, patience=patience)
        part = into.with_name("file.bin.part")
        part.write_bytes(b"?" * part.stat().st_size)
        fetched = fetch(server.url(), into, sha256=SHA, size=None, patience=patience, progress=progress)
    assert fetched.path.read_bytes() == BODY
    assert any("another hash" in note for note in progress.notes)


def test_a_damaged_finished_file_is_fetched_again(into: Path) -> None:
    progress = Kept()
    into.parent.mkdir(parents=True)
    into.write_bytes(BODY[:-1] + b"?")
    with FileServer(BODY) as server:
        fetched = fetch(server.url(), into, sha256=SHA, size=len(BODY), progress=progress)
    assert fetched.path.read_bytes() == BODY
    assert any("damaged" in note for note in progress.notes)


@pytest.mark.parametrize("kept", [BODY, BODY + b"?", BODY[:-1] + b"?", b""])
def test_a_part_of_any_length_ends_as_the_file(kept: bytes, into: Path) -> None:
    into.parent.mkdir(parents=True)
    into.with_name("file.bin.part").write_bytes(kept)
    with FileServer(BODY) as server:
        fetched = fetch(server.url(), into, sha256=SHA, size=None)
    assert fetched.path.read_bytes() == BODY and files(into) == ["file.bin"]
    assert len(server.requests) == {BODY: 0, b"": 1}.get(kept, 2)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that is logged, of any level."""
    stream, level = io.StringIO(), logging.root.level
    handler = logging.StreamHandler(stream)
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.DEBUG)
    yield stream
    logging.root.setLevel(level)
    logging.root.removeHandler(handler)


def test_secrets_are_shown_nowhere(into: Path, patience: Patience, logged: io.StringIO) -> None:
    progress = Kept()
    with FileServer(BODY, [Reply(status=503, body=b""), Reply(cut=HALF)], usual=Reply(status=403)) as server:
        url = server.url("/sdk.zip?sig=TOPSECRET&plainTOPSECRET", userinfo="me:TOPSECRET@")
        with pytest.raises(ToolkitError) as caught:
            fetch(url, into, sha256=SHA, size=None, progress=progress, patience=patience)
    for shown in (
        caught.value.message,
        caught.value.fix,
        *progress.notes,
        logged.getvalue(),
        str(progress.started),
    ):
        assert "TOPSECRET" not in shown


def test_secrets_are_not_in_tracebacks(into: Path, patience: Patience) -> None:
    import traceback

    with (
        FileServer(BODY, usual=Reply(stall=True, cut=0)) as server,
        pytest.raises(UpstreamError) as caught,
    ):
        url = server.url("/a.zip?sig=TOPSECRET", userinfo="me:TOPSECRET@")
        fetch(url, into, sha256=SHA, size=None, patience=replace(patience, attempts=1, stall_timeout=0.4))
    shown = "".join(traceback.format_exception(caught.value))
    assert "nothing arrived" in shown
    assert "TOPSECRET" not in shown.replace('userinfo="me:TOPSECRET@"', "").replace("sig=TOPSECRET", "")


def test_a_server_that_sends_next_to_nothing_is_given_up(into: Path, patience: Patience) -> None:
    slow = Reply(pause=0.05, chunk=10)
    impatient = replace(patience, stall_timeout=0.4, least_speed=9999)
    with FileServer(BODY, usual=slow) as server, pytest.raises(UpstreamError):
        fetch(server.url(), into, sha256=SHA, size=None, patience=impatient)
    assert into.with_name(into.name + ".part").stat().st_size < HALF


def test_a_server_whose_headers_drip_is_given_up(into: Path, patience: Patience) -> None:
    impatient = replace(patience, stall_timeout=0.4)
    start = time.monotonic()
    with FileServer(BODY, usual=Reply(drip=0.05)) as server, pytest.raises(UpstreamError, match="headers"):
        fetch(server.url(), into, sha256=SHA, size=None, patience=impatient)
    assert time.monotonic() - start < 5


def test_a_redirect_to_a_file_is_the_server_s_fault(into: Path, patience: Patience) -> None:
    away = Reply(status=302, body=b"", headers={"Location": "file:///etc/passwd"})
    with FileServer(BODY, usual=away) as server, pytest.raises(UpstreamError, match="no address of a server"):
        fetch(server.url(), into, sha256=SHA, size=None, patience=patience)


def test_a_file_of_this_machine_passes_the_same_checks(into: Path, tmp_path: Path) -> None:
    local = tmp_path / "local file.bin"
    local.write_bytes(OTHER)
    with pytest.raises(IntegrityError, match=SHA):
        fetch(local.as_uri(), into, sha256=SHA, size=None, name="local.bin")
    assert files(into) == []


@pytest.mark.parametrize("is_pipe", [False, True])
def test_a_file_of_this_machine_that_cannot_be_read_is_named(
    is_pipe: bool, into: Path, tmp_path: Path
) -> None:
    local = tmp_path / "local.bin"
    if is_pipe:
        os.mkfifo(local)
    with pytest.raises(UpstreamError, match=re.escape(str(local))):
        fetch(local.as_uri(), into, sha256=SHA, size=None)
    assert files(into) == []


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key in the same file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), chains.name("test")
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    signed = chains.certificate(name, key, name, key, ca=False, extension=address)
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        signed.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return path


def test_a_custom_ca_bundle_is_honoured(
    certificate: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BUNDLE_VARIABLES[0], str(certificate))
    with FileServer(BODY, certificate=certificate) as server:
        assert fetch(server.url(), into, sha256=SHA, size=None).size == len(BODY)


def test_a_redirect_away_from_tls_stops_before_the_other_host(
    certificate: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with FileServer(BODY) as plain, FileServer(b"", certificate=certificate) as server:
        server.script(Reply(status=302, body=b"", headers={"Location": plain.url("/x?sig=TOPSECRET")}))
        with pytest.raises(UpstreamError, match="TLS") as caught:
            fetch(server.url(), into, sha256=SHA, size=None)
    assert plain.requests == []
    assert "TOPSECRET" not in caught.value.message


SECRETS = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=8, max_size=20)


@given(user=SECRETS, password=SECRETS, token=SECRETS, fragment=SECRETS)
def test_redaction_leaves_no_secret(user: str, password: str, token: str, fragment: str) -> None:
    url = f"https://{user}:{password}@host.example:8443/a/b.zip?x-sig={token}&{token}#{fragment}"
    assert redact(url) == "https://***@host.example:8443/a/b.zip?x-sig=***&***"


@given(st.text())
def test_file_names_are_one_safe_component(text: str) -> None:
    name = file_name(f"https://host.example/{text}")
    assert name not in ("", ".", "..")
    assert not set(name) & set("/\\\0\n ")
    assert len(name) <= 150
