"""The cache that machines share on nginx, configured as docs/cache.md says."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.engine.memo import CachedResult, Miss
from ci.sharing.remote import Remote
from provisioning.base.errors import UpstreamError
from provisioning.base.settings import ROOT
from tests.support import needs
from tests.support.cache_machines import Machine
from tests.support.ports import free_port

pytestmark = pytest.mark.needs("nginx")
TOKEN = "ci:hush"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the folder with its files."""
    home = tmp_path_factory.mktemp("nginx")
    home.chmod(0o755)
    with free_port() as port:
        yield from _served(home, port)


def _served(home: Path, port: int) -> Iterator[tuple[str, Path]]:
    (server,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/cache.md").read_text(), re.S)
    for shown, here in {
        "listen 8080": f"listen 127.0.0.1:{port}",
        "/srv/qnn-ci-cache": str(home / "cache"),
        "/etc/nginx/qnn-ci-cache.passwords": str(home / "passwords"),
    }.items():
        assert shown in server, shown
        server = server.replace(shown, here)
    user, _, password = TOKEN.partition(":")
    command = ["openssl", "passwd", "-apr1", password]
    hashed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (home / "passwords").write_text(f"{user}:{hashed}")
    (home / "cache").mkdir()
    places = "".join(f"{kind}_temp_path {home}/{kind};" for kind in ("fastcgi", "proxy", "scgi", "uwsgi"))
    text = f"daemon off; pid {home}/pid; events {{}} http {{ access_log off; {places} {server} }}"
    (home / "nginx.conf").write_text(f"user root;\n{text}")
    process = subprocess.Popen(
        [needs.program("nginx"), "-c", str(home / "nginx.conf"), "-e", str(home / "errors")]
    )
    try:
        until = time.monotonic() + 20
        while True:
            assert process.poll() is None and time.monotonic() < until, (home / "errors").read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", home / "cache"
    finally:
        process.terminate()
        process.wait(20)


def test_two_stores_share_what_one_of_them_did(nginx: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = nginx
    writer, reader = Machine(tmp_path / "w", url, TOKEN, writes=True), Machine(tmp_path / "r", url)
    assert isinstance(reader.find(), Miss)
    writer.work()
    entry = reader.find()
    assert isinstance(entry, CachedResult) and entry.origin == "remote"
    # A program is larger than what nginx takes by default.
    content = b"x" * (3 << 20)
    writer.remote.put(f"cas/{'0' * 64}", content)
    assert reader.remote.get(f"cas/{'0' * 64}", len(content)) == content


def test_who_has_no_credential_reads_and_does_not_write(nginx: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = nginx
    before = sorted(folder.rglob("*"))
    for number, token in enumerate(("", "ci:wrong")):
        writer = Machine(tmp_path / str(number), url, token, writes=True)
        writer.weights(f"only here {number}")
        with pytest.raises(UpstreamError) as refused:
            writer.work()
        assert "answers 401 to an upload" in refused.value.message
    assert sorted(folder.rglob("*")) == before


def test_an_upload_that_broke_off_is_not_there(nginx: tuple[str, Path]) -> None:
    import base64

    url, folder = nginx
    name = "a" * 64
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as stream:
        head = f"PUT /cas/{name} HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
        head += f"Authorization: Basic {base64.b64encode(TOKEN.encode()).decode()}\r\n\r\n"
        stream.sendall(head.encode() + b"half")
    assert Remote(url).get(f"cas/{name}", 1 << 20) is None
    assert not (folder / "cas" / name).exists()
