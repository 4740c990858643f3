"""Making a locked environment where a project, the network or the disk are in the way, by a real uv."""

from __future__ import annotations

import errno
import hashlib
import os
import pty
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ci.suite.stage import ready_environment
from provisioning.base.errors import EnvironmentLacking, UpstreamError
from provisioning.base.settings import DEFAULT_TARGET, ROOT, Selection
from provisioning.python_environments import STAMP, PythonEnvironments, environments_folder
from tests.support.scripts import script
from tests.support.small_disk import with_small
from tests.support.wheels import make_wheel

WHEEL = "mine-1.0-py3-none-any.whl"


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PythonEnvironments:
    """A lock file of one package, which a folder of the user's has."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for folder in ("links", "locks", "torch", "home", "project"):
        (tmp_path / folder).mkdir()
    content = make_wheel(WHEEL)
    (tmp_path / "links" / WHEEL).write_bytes(content)
    hashed = hashlib.sha256(content).hexdigest()
    (tmp_path / "locks" / "small.txt").write_text(f"mine==1.0 \\\n    --hash=sha256:{hashed}\n")
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    settings = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CACHE": "1", "UV_HTTP_RETRIES": "0"}
    settings |= {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "nowhere")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return PythonEnvironments(tmp_path / "environments", print, tmp_path / "torch", tmp_path / "locks")


def test_a_clone_keeps_its_environments_where_nox_and_the_printed_fixes_look() -> None:
    assert environments_folder() == ROOT / ".nox"


def test_it_is_made_once_and_again_for_another_lock(
    environments: PythonEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    python = tmp_path / "environments" / "small" / "bin" / "python"
    assert environments.made("small") == ""
    assert environments.interpreter("small") == environments.made("small") == str(python)
    begun = (python.parent.parent / STAMP).stat().st_mtime_ns
    assert environments.interpreter("small") == str(python)
    assert (python.parent.parent / STAMP).stat().st_mtime_ns == begun
    lock = tmp_path / "locks" / "small.txt"
    lock.write_text(f"# another\n{lock.read_text()}")
    assert environments.made("small") == ""


@pytest.mark.parametrize("line", ['required-version = ">=99"', 'exclude-newer = "2001-01-01T00:00:00Z"'])
def test_the_users_project_does_not_steer_it(
    environments: PythonEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    project = f'[project]\nname = "theirs"\nversion = "1"\n[tool.uv]\n{line}\n'
    (tmp_path / "project" / "pyproject.toml").write_text(project)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    assert Path(environments.interpreter("small")).is_file()


def test_the_users_own_configuration_of_uv_is_read(environments: PythonEnvironments, tmp_path: Path) -> None:
    file = tmp_path / "home" / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'no-index = true\nfind-links = ["{tmp_path / "links"}"]\n')
    assert Path(environments.interpreter("small")).is_file()


def test_an_index_that_cannot_be_reached_is_one_line_of_the_network(
    environments: PythonEnvironments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/simple")
    with pytest.raises(UpstreamError) as raised:
        environments.interpreter("small")
    assert len(raised.value.message.splitlines()) == 1 and raised.value.fix


def test_a_stage_that_cannot_provision_for_the_network_says_so(
    environments: PythonEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    here = Selection("wheels", DEFAULT_TARGET, "SM8650", tmp_path / "store", tmp_path / "reports")
    with pytest.raises(UpstreamError, match="index"):
        ready_environment(here, os.environ)


def test_room_that_the_packages_need_is_looked_for_before_anything_is_made(
    environments: PythonEnvironments, tmp_path: Path
) -> None:
    lock = tmp_path / "locks" / "small.txt"
    lock.write_text(f"# room: {(shutil.disk_usage(tmp_path).free >> 20) + 1000} MB\n{lock.read_text()}")
    with pytest.raises(EnvironmentLacking, match="MB are needed"):
        environments.interpreter("small")
    assert not (tmp_path / "environments" / "small").exists()


def test_installed_copies_share_the_environment_of_one_lock_file(
    environments: PythonEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    copies = [replace(environments, shared=True), replace(environments, shared=True)]
    older, again = (copy.interpreter("small") for copy in copies)
    assert again == older
    lock = tmp_path / "locks" / "small.txt"
    lock.write_text(f"# of a newer version\n{lock.read_text()}")
    newer = copies[1].interpreter("small")
    assert newer != older and Path(older).is_file()

    # Nobody started the older one for long: it goes when another one is made.
    for stamp in (tmp_path / "environments").glob(f"*/{STAMP}"):
        os.utime(stamp, (0, 0))
    assert copies[1].interpreter("small") == newer
    lock.write_text(f"# of the newest\n{lock.read_text()}")
    copies[1].interpreter("small")
    assert Path(newer).is_file() and not Path(older).exists()


def test_on_a_terminal_it_needs_no_package_that_draws(
    environments: PythonEnvironments, tmp_path: Path
) -> None:
    """As in the Python of a user who installed qnn-ci and nothing else."""
    code = (
        "import sys; from pathlib import Path; sys.modules['rich'] = None\n"
        "from provisioning.python_environments import PythonEnvironments\n"
        "PythonEnvironments(*map(Path, sys.argv[1:2]), lambda line: sys.stderr.write(line + '\\n'),"
        " *map(Path, sys.argv[2:])).interpreter('small')"
    )
    folders = [str(tmp_path / name) for name in ("environments", "torch", "locks")]
    environ = {**os.environ, "UV_FIND_LINKS": str(tmp_path / "links"), "UV_NO_INDEX": "1"}
    environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, *folders], env=environ, stdout=theirs, stderr=theirs, stdin=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):
            while block := os.read(ours, 1 << 16):
                shown += block
    os.close(ours)
    assert not process.returncode and b"The small environment took" in shown, shown


INTERPRETER = """\
import sys
from pathlib import Path
from provisioning.python_environments import PythonEnvironments
folder = Path(sys.argv[1])
PythonEnvironments(folder / "environments", print, folder / "torch", folder / "locks").interpreter("small")
"""


@pytest.mark.small_disk
def test_a_full_disk_of_uvs_cache_is_named(
    environments: PythonEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": tmp_path / "links",
        "UV_CACHE_DIR": cache,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("UV_NO_CACHE")
    command = with_small(cache, 8, sys.executable, "-c", INTERPRETER, str(tmp_path))
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert f"{cache}: no space left" in done.stderr


@pytest.mark.parametrize(
    ("prints", "error"),
    [
        (f"error: failed to write: {os.strerror(errno.ENOSPC)} (os error 28)", EnvironmentLacking),
        ("error: failed\n  Caused by: dns error: failed to lookup address information", UpstreamError),
    ],
    ids=["disk", "network"],
)
def test_no_larger_build_of_torch_is_tried_for_a_full_disk_or_without_a_network(
    environments: PythonEnvironments, tmp_path: Path, prints: str, error: type[Exception]
) -> None:
    for name in ("cpu", "index"):
        (tmp_path / "torch" / f"{name}.txt").write_text("torch==2.13.0 \\\n    --hash=sha256:00\n")
    calls = tmp_path / "calls"
    uv = script(tmp_path / "bin" / "uv", f'echo "$@" >>{calls}; printf "%s" "{prints}" >&2; exit 2')
    with pytest.raises(error):
        environments.install_torch(tmp_path / "home", "torch==2.13.0", str(uv))
    assert len(calls.read_text().splitlines()) == 1
