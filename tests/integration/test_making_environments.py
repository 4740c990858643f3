"""Making a locked environment, by a real uv or pip and of packages of a few bytes: what is installed and what
is refused, and where a project, the network or the disk are in the way."""

from __future__ import annotations

import errno
import hashlib
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ci.suite.ready_environment import ready_environment
from lab.lock.files import record_torch
from provisioning.base.errors import EnvironmentLacking, UpstreamError
from provisioning.base.settings import DEFAULT_TARGET, ROOT, Selection
from provisioning.lock_files import LOCKS, entries_in
from provisioning.python_environments import STAMP, PythonEnvironments, environments_folder
from tests.support.scripts import script
from tests.support.small_disk import with_small
from tests.support.wheels import make_wheel

WHEEL = "mine-1.0-py3-none-any.whl"
CPU, PLAIN = "torch-2.13.0+cpu-py3-none-any.whl", "torch-2.13.0-py3-none-any.whl"
UV = str(Path(sys.executable).with_name("uv"))
BOTH = pytest.mark.parametrize("uv", [UV, pytest.param(None, marks=pytest.mark.whole)], ids=["uv", "pip"])


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PythonEnvironments:
    """A lock file of one package, which a folder of the user's has."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for folder in ("links", "locks", "torch", "home", "project"):
        (tmp_path / folder).mkdir()
    (tmp_path / "links" / WHEEL).write_bytes(make_wheel(WHEEL))
    (tmp_path / "locks" / "small.txt").write_text(pin(WHEEL, make_wheel(WHEEL)))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    settings = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CACHE": "1", "UV_HTTP_RETRIES": "0"}
    settings |= {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path / "nowhere")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return PythonEnvironments(tmp_path / "environments", print, tmp_path / "torch", tmp_path / "locks")


@pytest.fixture
def links(environments: PythonEnvironments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of wheels. There is no index, and no other wheel."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return tmp_path / "links"


def pin(wheel: str, content: bytes) -> str:
    name, version, *_ = wheel.split("-")
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"


def record(links: Path, wheel: str, content: bytes = b"other bytes") -> None:
    """A build of torch is on record by the hash of its bytes."""
    (links.parent / "torch" / ("cpu.txt" if wheel == CPU else "index.txt")).write_text(pin(wheel, content))


@pytest.fixture
def with_torch(links: Path) -> Path:
    """Of the environment with torch the links; none of the builds on record is there yet."""
    lock = links.parent / "locks" / "small.txt"
    lock.write_text(f"# torch: torch==2.13.0\n{lock.read_text()}")
    for wheel in (CPU, PLAIN):
        record(links, wheel)
    return links


def made_by(uv: str | None, environments: PythonEnvironments) -> set[str]:
    """What is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PythonEnvironments, "_uv_for", lambda *_: uv)
        python = Path(environments.interpreter("small"))
    return {path.name for path in python.parents[1].glob("lib/python*/site-packages/*")}


@pytest.mark.parametrize(("wheel", "uv"), [(CPU, UV), pytest.param(PLAIN, None, marks=pytest.mark.whole)])
def test_an_environment_has_the_build_of_torch_that_is_on_record_and_what_is_locked(
    environments: PythonEnvironments, with_torch: Path, wheel: str, uv: str | None
) -> None:
    (with_torch / wheel).write_bytes(content := make_wheel(wheel))
    record(with_torch, wheel, content)
    torch = f"torch-{wheel.split('-')[1]}.dist-info"
    assert made_by(uv, environments) >= {torch, "torch", "mine", "mine-1.0.dist-info"}


def test_another_build_is_refused_with_the_command_that_accepts_it(
    environments: PythonEnvironments, with_torch: Path
) -> None:
    for wheel in (CPU, PLAIN):
        (with_torch / wheel).write_bytes(make_wheel(wheel))
    with pytest.raises(EnvironmentLacking, match="not on record") as refused:
        made_by(UV, environments)
    assert "nox -s lock -- --torch" in refused.value.fix
    assert not [*environments.folder.glob("**/torch*")]


@pytest.mark.whole
def test_the_command_records_what_the_users_index_has(
    environments: PythonEnvironments, with_torch: Path, tmp_path: Path
) -> None:
    (with_torch / CPU).write_bytes(make_wheel(CPU))
    record_torch("torch==2.13.0", tmp_path / "torch")
    assert "torch-2.13.0+cpu.dist-info" in made_by(UV, environments)


@BOTH
@pytest.mark.parametrize("wheel", [CPU, WHEEL])
def test_nothing_is_installed_of_a_changed_wheel(
    environments: PythonEnvironments, with_torch: Path, wheel: str, uv: str | None
) -> None:
    (with_torch / CPU).write_bytes(make_wheel(CPU))
    record(with_torch, CPU, make_wheel(CPU))
    (with_torch / wheel).write_bytes(make_wheel(wheel, more={"forged.py": "figure = 99"}))
    with pytest.raises(EnvironmentLacking):
        made_by(uv, environments)
    assert not [*environments.folder.glob("**/forged.py")]


@pytest.mark.parametrize("lock", sorted(path.stem for path in LOCKS.glob("*.txt")))
def test_no_requirement_of_a_lock_file_is_lost_as_it_is_read(lock: str) -> None:
    text = (ROOT / "manifests" / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
    entries = entries_in(text)
    hashes = sum(len(entry.hashes) for entry in entries)
    assert (len(entries), hashes) == (len(re.findall("(?m)^\\w", text)), text.count("--hash=sha256:"))


def test_a_clone_keeps_its_environments_where_nox_and_the_printed_fixes_look() -> None:
    assert environments_folder() == ROOT / ".nox"


def test_it_is_made_once_and_again_for_another_lock(
    environments: PythonEnvironments, links: Path, tmp_path: Path
) -> None:
    python = tmp_path / "environments" / "small" / "bin" / "python"
    assert environments.current_python("small") == ""
    assert environments.interpreter("small") == environments.current_python("small") == str(python)
    begun = (python.parent.parent / STAMP).stat().st_mtime_ns
    assert environments.interpreter("small") == str(python)
    assert (python.parent.parent / STAMP).stat().st_mtime_ns == begun
    lock = tmp_path / "locks" / "small.txt"
    lock.write_text(f"# another\n{lock.read_text()}")
    assert environments.current_python("small") == ""


@pytest.mark.parametrize("line", ['required-version = ">=99"', 'exclude-newer = "2001-01-01T00:00:00Z"'])
def test_the_users_project_does_not_steer_it(
    environments: PythonEnvironments, links: Path, tmp_path: Path, line: str
) -> None:
    project = f'[project]\nname = "theirs"\nversion = "1"\n[tool.uv]\n{line}\n'
    (tmp_path / "project" / "pyproject.toml").write_text(project)
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
    environments: PythonEnvironments, links: Path, tmp_path: Path
) -> None:
    copies = [replace(environments, shared=True), replace(environments, shared=True)]
    older, again = (copy.interpreter("small") for copy in copies)
    assert again == older
    lock = tmp_path / "locks" / "small.txt"
    lock.write_text(f"# of a newer version\n{lock.read_text()}")
    newer = copies[1].interpreter("small")
    assert newer != older and Path(older).is_file()

    # What nobody started for 30 days goes when another one is made.
    for days, stays in ((29, True), (31, False)):
        for stamp in (tmp_path / "environments").glob(f"*/{STAMP}"):
            os.utime(stamp, (time.time() - days * 86400,) * 2)
        started = copies[1].interpreter("small")
        lock.write_text(f"# after {days} days\n{lock.read_text()}")
        copies[1].interpreter("small")
        assert Path(started).is_file() and Path(older).exists() is stays


INTERPRETER = """\
import sys
from pathlib import Path
from provisioning.python_environments import PythonEnvironments
folder = Path(sys.argv[1])
PythonEnvironments(folder / "environments", print, folder / "torch", folder / "locks").interpreter("small")
"""


@pytest.mark.whole
def test_a_verb_in_another_environment_is_given_the_one_that_is_there(
    environments: PythonEnvironments, links: Path, tmp_path: Path
) -> None:
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "other"], check=True)
    environments.interpreter("small")
    before = environments.home("small").stat().st_ino
    command = [str(tmp_path / "other" / "bin" / "python"), "-c", INTERPRETER, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert not done.stdout and environments.home("small").stat().st_ino == before


def test_on_a_terminal_it_needs_no_package_that_draws(links: Path, tmp_path: Path) -> None:
    """As in the Python of a user who installed qnn-ci and nothing else."""
    code = f"import sys; sys.modules['rich'] = None\n{INTERPRETER}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], env=environ, stdout=theirs, stderr=theirs, stdin=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):
            while block := os.read(ours, 1 << 16):
                shown += block
    os.close(ours)
    assert not process.returncode and b"The small environment took" in shown, shown


@pytest.mark.small_disk
def test_a_full_disk_of_uvs_cache_is_named(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.delenv("UV_NO_CACHE")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "UV_CACHE_DIR": str(cache)}
    command = with_small(cache, 8, sys.executable, "-c", INTERPRETER, str(tmp_path))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
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
