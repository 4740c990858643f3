"""What an engine that is absent, refuses or is full means for the user."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import docker
from ci.image.engine import PATIENCE, Engine, connect, fault_of
from provisioning.errors import CheckFailed, EnvironmentLacking
from provisioning.settings import ROOT
from tests.support.http_server import FileServer


def test_no_engine_is_the_environments_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EnvironmentLacking, match="no container engine answers") as caught:
        connect()
    assert "docker.io" in caught.value.remedy


def test_a_socket_that_nobody_serves_is_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "s"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    with pytest.raises(EnvironmentLacking, match="no container engine answers"):
        connect()


def test_the_verb_ends_with_3_and_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ci", "image", "wheels", "--reports", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert '"outcome": "error"' in (tmp_path / "image.json").read_text()


def test_an_engine_may_be_silent_while_it_writes_a_large_image_but_must_answer_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FileServer(b'{"ApiVersion": "1.41", "ServerVersion": "20.10"}') as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://{urlsplit(server.url('')).netloc}")
        client = docker.from_env()
        before = client.api.timeout
        assert Engine(client).version == "20.10"
        assert (before, client.api.timeout) == (60, PATIENCE)


def raised(error: Exception, cause: Exception) -> Exception:
    """As libraries wrap: the cause is an argument of the error."""
    error.args = (*error.args, cause)
    return error


def test_a_socket_that_refuses_us_names_the_group_to_join() -> None:
    hidden = raised(OSError("Connection aborted."), PermissionError(13, "Permission denied"))
    fault = fault_of(raised(RuntimeError("fetching server API version"), hidden))
    assert isinstance(fault, EnvironmentLacking)
    assert "usermod -aG docker" in fault.remedy


def test_a_full_disk_says_what_frees_it() -> None:
    fault = fault_of(RuntimeError("500: write /var/lib/x: no space left on device"))
    assert isinstance(fault, EnvironmentLacking)
    assert "prune" in fault.remedy


def test_anything_else_is_told_as_the_engine_says_it() -> None:
    fault = fault_of(RuntimeError("driver not supported"))
    assert isinstance(fault, CheckFailed)
    assert "driver not supported" in fault.message
