"""Downloads on full disks and into forbidden folders, of any size, and from servers that do anything.

Kills and crowds are in test_store_faults, where downloads are hit too.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from provisioning.addresses import MIRROR_VARIABLE
from provisioning.base.errors import EnvironmentLacking, ToolkitError
from provisioning.base.files import hash_file
from provisioning.base.settings import ROOT
from provisioning.download import fetch
from provisioning.http_answers import BUNDLE_VARIABLES, Patience
from tests.support.http_server import FileServer, Reply

BODY = random.Random(3).randbytes(3_000_000)
SHA = hashlib.sha256(BODY).hexdigest()


SCRIPT = """
import os, re, sys
from pathlib import Path
import filelock, requests
from provisioning.addresses import (MIRROR_VARIABLE)
from provisioning.http_answers import (Patience)
from provisioning.http_answers import (BUNDLE_VARIABLES)
from provisioning.download import (fetch)
from provisioning.base.errors import ToolkitError
url, into, sha256, size, account = sys.argv[1:]
if account:
    os.setgroups([])
    os.setgid(int(account))
    os.setuid(int(account))
try:
    fetched = fetch(url, Path(into), sha256=sha256 or None, size=int(size) if size else None,
                    patience=Patience(attempts=3, first_delay=0.01))
    print(fetched.sha256, fetched.size)
except ToolkitError as error:
    print(type(error).__name__, error.message)
    print(error.fix)
    sys.exit(error.exit_code)
finally:
    # Not ru_maxrss, which counts the process that started this one too.
    print("peak", int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def run_fetch(
    url: str,
    into: Path,
    *,
    sha256: str = "",
    size: int | None = None,
    account: str = "",
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """fetch() in a new interpreter, started by way of the command `before`."""
    command = [sys.executable, "-c", SCRIPT, url, str(into), sha256, str(size or ""), account]
    return subprocess.run(
        [*before, *command], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )


def test_what_a_full_disk_stopped_is_reported_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    into = tmp_path / "file.bin"
    with FileServer(BODY, usual=Reply(chunk=60_000)) as server:
        stopped = run_fetch(server.url(), into, sha256=SHA, before=["prlimit", "--fsize=1000000"])
        assert stopped.returncode == EnvironmentLacking.exit_code, stopped.stdout + stopped.stderr
        assert "QNN_CI_STORE" in stopped.stdout and "Traceback" not in stopped.stderr
        assert into.with_name("file.bin.part").stat().st_size == 1_000_000
        fetch(server.url(), into, sha256=SHA, size=None)
    assert into.read_bytes() == BODY
    assert server.requests[1].headers["range"] == "bytes=1000000-"


def test_a_folder_that_may_not_be_written_is_reported(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    # Root may write there, so the process becomes another account.
    account = "65534" if os.geteuid() == 0 else ""
    with FileServer(BODY) as server:
        done = run_fetch(server.url(), tmp_path / "file.bin", sha256=SHA, account=account)
    assert done.returncode == EnvironmentLacking.exit_code, done.stdout + done.stderr
    assert f"EnvironmentLacking {tmp_path}: " in done.stdout
    assert server.requests == []


def test_memory_stays_flat_for_any_size(tmp_path: Path) -> None:
    size = 250_000_000
    big = tmp_path / "big"
    with big.open("wb") as stream:
        stream.truncate(size)
    half = Reply(chunk=1 << 20, cut=size // 2)
    with FileServer(big, [half], usual=Reply(chunk=1 << 20)) as server:
        done = run_fetch(server.url(), tmp_path / "file.bin", sha256=hash_file(big), size=size)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "file.bin").unlink()
    digest, peak = done.stdout.splitlines()
    assert digest.split()[1] == str(size)
    assert server.requests[1].headers["range"] == f"bytes={size // 2}-"
    assert int(peak.split()[1]) < 150


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_server_does_the_end_is_the_file_or_a_clear_error(seed: int, tmp_path: Path) -> None:
    """Faults in any order, over several calls: never a wrong file, never a traceback, never stuck."""
    chance = random.Random(seed)
    kinds: list[Callable[[], Reply]] = [
        lambda: Reply(cut=chance.randrange(len(BODY))),
        lambda: Reply(cut=chance.randrange(len(BODY)), reset=True),
        lambda: Reply(cut=chance.randrange(len(BODY)), chunked=True),
        lambda: Reply(cut=chance.randrange(len(BODY)), stall=True),
        lambda: Reply(ranges=False, cut=chance.randrange(len(BODY))),
        lambda: Reply(status=chance.choice([403, 404, 408, 416, 429, 500, 503, 504]), body=b"no"),
        lambda: Reply(body=b"<html>busy</html>", headers={"Content-Type": "text/html"}),
        lambda: Reply(status=206, body=b"zz", headers={"Content-Range": "bytes 7-8/9"}),
        lambda: Reply(headers={"Content-Length": str(chance.randrange(len(BODY)))}),
        lambda: Reply(status=302, body=b"", headers={"Location": "/elsewhere"}),
        lambda: Reply(body=BODY[::-1]),
    ]
    patience = Patience(attempts=3, first_delay=0.001, stall_timeout=0.15)
    into = tmp_path / "file.bin"
    errors: list[ToolkitError] = []
    with FileServer(BODY, [chance.choice(kinds)() for _ in range(20)]) as server:
        while not into.exists():
            try:
                fetch(server.url(), into, sha256=SHA, size=None, patience=patience)
            except ToolkitError as error:
                errors.append(error)
                assert not into.exists()
            assert len(errors) <= 20
    assert into.read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]
    assert all(error.message and error.fix for error in errors)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*BUNDLE_VARIABLES, MIRROR_VARIABLE, "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
