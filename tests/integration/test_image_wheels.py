"""A folder with every distribution of a locked environment, fetched by the user's own pip."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from ci.image.contents import fetch_wheels, load_images
from provisioning.base.errors import EnvironmentLacking, UpstreamError
from tests.support.scripts import script
from tests.support.wheels import make_wheel

SYSTEM = load_images().system
PURE = "demo-1.0-py3-none-any.whl"
TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks at."""
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / PURE).write_bytes(make_wheel(PURE))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def lock(index: Path, tmp_path: Path) -> Path:
    path = tmp_path / "demo.txt"
    digest = hashlib.sha256((index / PURE).read_bytes()).hexdigest()
    path.write_text(f"# a comment\ndemo==1.0 \\\n    --hash=sha256:{digest}\n")
    return path


def test_the_distributions_and_the_lock_are_fetched_again_only_when_one_changed(
    lock: Path, index: Path, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    fetch_wheels(lock, wheels, SYSTEM)
    assert sorted(path.name for path in wheels.iterdir()) == [PURE, "lock.txt", "request.txt"]
    number = (wheels / PURE).stat().st_ino
    fetch_wheels(lock, wheels, SYSTEM)
    assert (wheels / PURE).stat().st_ino == number
    (wheels / PURE).write_bytes(b"something else")
    fetch_wheels(lock, wheels, SYSTEM)
    assert (wheels / PURE).read_bytes() == (index / PURE).read_bytes()


def test_another_lock_leaves_nothing_of_the_old_one(lock: Path, tmp_path: Path) -> None:
    fetch_wheels(lock, tmp_path / "wheels", SYSTEM)
    (tmp_path / "wheels" / "old-1.whl").write_text("")
    lock.write_text(lock.read_text() + "# changed\n")
    fetch_wheels(lock, tmp_path / "wheels", SYSTEM)
    assert not (tmp_path / "wheels" / "old-1.whl").exists()


def test_other_bytes_are_refused(lock: Path, index: Path, tmp_path: Path) -> None:
    (index / PURE).write_bytes(make_wheel(PURE, padding=1))
    with pytest.raises(UpstreamError, match="HASH"):
        fetch_wheels(lock, tmp_path / "wheels", SYSTEM)


def test_torch_comes_as_a_cpu_build_that_is_on_record(lock: Path, index: Path, tmp_path: Path) -> None:
    recorded = tmp_path / "cpu.txt"
    (index / TORCH).write_bytes(make_wheel(TORCH))
    digest = hashlib.sha256((index / TORCH).read_bytes()).hexdigest()
    lock.write_text(f"# torch: torch==2.13.0\n{lock.read_text()}")
    recorded.write_text(f"torch==2.13.0+cpu --hash=sha256:{'0' * 64}\n")
    with pytest.raises(EnvironmentLacking) as caught:
        fetch_wheels(lock, tmp_path / "wheels", SYSTEM, tmp_path)
    assert "nox -s lock -- --torch" in caught.value.fix
    recorded.write_text(f"torch==2.13.0+cpu --hash=sha256:{digest}\n")
    fetch_wheels(lock, tmp_path / "wheels", SYSTEM, tmp_path)
    assert (tmp_path / "wheels" / TORCH).is_file()


@pytest.mark.whole
def test_where_the_index_has_no_cpu_build_of_torch_pytorchs_own_is_taken_if_it_is_on_record(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, recorded = tmp_path / "elsewhere" / TORCH, tmp_path / "cpu.txt"
    wheel.parent.mkdir()
    wheel.write_bytes(make_wheel(TORCH))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    pylock = f'[[packages]]\nwheels = [{{ url = "{wheel.as_uri()}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    (tmp_path / "pylock.toml").write_text(pylock)
    asked = f'echo "$@" > {tmp_path}/asked'
    answers = f'{asked}; while [ "$1" != --output-file ]; do shift; done; cp {tmp_path}/pylock.toml "$2"'
    script(tmp_path / "bin" / "uv", answers)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    lock.write_text(f"# torch: torch==2.13.0\n{lock.read_text()}")
    recorded.write_text(f"torch==2.13.0+cpu \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(EnvironmentLacking):
        fetch_wheels(lock, tmp_path / "wheels", SYSTEM, tmp_path)
    recorded.write_text(f"torch==2.13.0+cpu \\\n    --hash=sha256:{digest}\n")
    fetch_wheels(lock, tmp_path / "wheels", SYSTEM, tmp_path)
    assert (tmp_path / "wheels" / TORCH).is_file()
    # As pip is told here.
    assert "--no-index" in (tmp_path / "asked").read_text().split()
    wheel.write_bytes(wheel.read_bytes() + b"0")
    shutil.rmtree(tmp_path / "wheels")
    with pytest.raises(UpstreamError):
        fetch_wheels(lock, tmp_path / "wheels", SYSTEM, tmp_path)
