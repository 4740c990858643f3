"""A folder on a device: ours alone, and one run's at a time."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.device.bundle.manifest import LOCK
from ci.device.session import Holder, claimed, this_process
from provisioning.base.commands import quoted
from provisioning.base.errors import EnvironmentLacking, UsageError
from tests.support.local_device import Local


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"{tmp_path}/a device's folder"


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def hold(folder: str, holder: str) -> Path:
    """As another run would."""
    lock = Path(folder) / LOCK
    lock.mkdir(parents=True)
    (lock / "holder").write_text(f"{holder}\n", encoding="utf-8")
    return lock


def test_a_second_run_gets_the_holders_name(folder: str) -> None:
    with claimed(Local(), folder):
        with pytest.raises(EnvironmentLacking, match=rf"process {this_process().process}\b"):
            claimed(Local(), folder).__enter__()
        assert (Path(folder) / LOCK).is_dir()


def test_what_somebody_else_took_meanwhile_is_left_to_them(folder: str) -> None:
    """A user removed the claim by hand, as the message says, and began another run."""
    holder = Path(folder) / LOCK / "holder"
    with claimed(Local(), folder):
        holder.write_text("another-boot/1 7 1 ann\n", encoding="utf-8")
    assert holder.read_text(encoding="utf-8") == "another-boot/1 7 1 ann\n"


def test_what_a_killed_run_of_this_machine_left_is_taken_over(folder: str) -> None:
    me = this_process()
    hold(folder, Holder(me.machine, ended_process(), "1", "somebody").encode())
    with claimed(Local(), folder):
        holder = Holder.decode((Path(folder) / LOCK / "holder").read_text(encoding="utf-8"))
        assert holder is not None and holder.process == me.process


def test_what_another_machine_holds_is_left_alone(folder: str) -> None:
    lock = hold(folder, Holder("another-boot/1", ended_process(), "1", "ann on builder, process 7").encode())
    with pytest.raises(EnvironmentLacking, match="ann on builder, process 7") as caught:
        claimed(Local(), folder).__enter__()
    assert lock.is_dir() and quoted("rm", "-r", f"{folder}/{LOCK}") in caught.value.fix


def test_a_holder_that_has_not_written_its_name_yet_holds(folder: str) -> None:
    (Path(folder) / LOCK).mkdir(parents=True)
    with pytest.raises(EnvironmentLacking, match=folder):
        claimed(Local(), folder).__enter__()


def test_of_many_at_once_each_has_it_alone(folder: str) -> None:
    inside: list[int] = []
    most: list[int] = []

    def one(number: int) -> None:
        with claimed(Local(), folder, wait=60, poll=0.01):
            inside.append(number)
            most.append(len(inside))
            Local().shell("true")
            inside.remove(number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert most == [1] * 8


@pytest.mark.parametrize("entry", ["bin", ".hidden", "a file"])
def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path: Path, entry: str) -> None:
    """`--device-dir /usr` would cost the device its programs."""
    (tmp_path / "usr" / entry).mkdir(parents=True)
    with pytest.raises(UsageError, match=str(tmp_path)) as caught:
        claimed(Local(), f"{tmp_path}/usr").__enter__()
    assert [path.name for path in (tmp_path / "usr").iterdir()] == [entry]
    assert caught.value.fix.endswith(f"--device-dir {tmp_path}/usr/qnn-ci")
