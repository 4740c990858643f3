"""A session as nox runs it, with a stand-in for the Python of its environment."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from provisioning.base.settings import MANIFESTS, ROOT

STAND_IN = """\
import pathlib, signal, sys, time
here = pathlib.Path({here!r})
def tidy(number, frame):
    time.sleep(0.7)  # nox's own patience is 0.3
    (here / "tidied").touch()
    raise SystemExit(130)
signal.signal({listens_to}, tidy)
(here / "arguments").write_text(" ".join(sys.argv[1:]))
(here / "started").touch()
time.sleep(60)
"""


def _heed_interrupts() -> None:
    """A shell's background jobs are begun deaf to them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("tell", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="both-by-a-terminal"),
        pytest.param(os.kill, signal.SIGTERM, id="only-nox-by-kill"),
    ],
)
def test_an_interrupted_session_has_time_to_tidy_up(
    tmp_path: Path, tell: Callable[[int, int], None], number: signal.Signals
) -> None:
    _environment(tmp_path, "executorch", STAND_IN.format(here=str(tmp_path), listens_to=int(number)))
    process = subprocess.Popen(
        [sys.executable, "-m", "nox", "--", "--only", "validate"],
        cwd=ROOT,
        env={**os.environ, "QNN_CI_ENVIRONMENTS": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        tell(process.pid, number)
        assert process.wait(60) == 130
        assert (tmp_path / "tidied").exists()
        assert (tmp_path / "arguments").read_text() == "-m ci gate --only validate"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_relative_path_counts_from_where_nox_was_started(tmp_path: Path) -> None:
    _environment(tmp_path, "tools", f'exec "{sys.executable}" "$@"\n', shell="/bin/sh")
    nox = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py")]
    done = subprocess.run(
        [*nox, "-s", "store", "--", "list", "--store", "mine"],
        cwd=tmp_path,
        env={**os.environ, "QNN_CI_ENVIRONMENTS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"no trees in {tmp_path / 'mine'}\n"


@pytest.fixture(scope="module")
def noxfile() -> ModuleType:
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    assert spec is not None and spec.loader is not None
    noxfile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(noxfile)
    return noxfile


@pytest.mark.parametrize(
    ("pip", "uv"),
    [
        ({"PIP_FIND_LINKS": "/srv/a /srv/b"}, {"UV_FIND_LINKS": "/srv/a,/srv/b"}),
        ({"PIP_FIND_LINKS": "/srv/a", "UV_FIND_LINKS": "/srv/mine"}, {}),
        ({"PIP_INDEX_URL": "", "PIP_FIND_LINKS": ""}, {}),
    ],
)
def test_where_pip_finds_packages_is_told_to_uv_in_its_own_way(
    noxfile: ModuleType, pip: dict[str, str], uv: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name, value in pip.items():
        monkeypatch.setenv(name, value)
    assert noxfile._uv_settings() == uv


@pytest.mark.parametrize(("said", "flags"), [("1", ["--no-index"]), ("true", ["--no-index"]), ("0", [])])
def test_uv_asks_no_index_where_pip_may_not(
    noxfile: ModuleType, said: str, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", said)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    command = noxfile._installer(Path("/env/bin/python"))
    assert command == [
        "/usr/bin/uv",
        "pip",
        "install",
        "--quiet",
        *flags,
        "--python",
        "/env/bin/python",
    ]


def _environment(folder: Path, name: str, program: str, shell: str = sys.executable) -> None:
    """One that is there already, as in an image, with a program in Python's place."""
    python = folder / name / "bin/python"
    python.parent.mkdir(parents=True)
    shutil.copyfile(MANIFESTS / f"locks/{name}.txt", folder / name / "lock.txt")
    python.write_text(f"#!{shell}\n{program}")
    python.chmod(0o755)
