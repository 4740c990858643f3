"""A device: what is sent, how it is asked, what its silence means, and whose its folder is."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.device import run_bundle, session
from ci.device.claim import LOCK, Holder, claim_folder, this_process
from ci.device.transport import Adb, CommandResult, TimedOut
from ci.diagnose.rules import failure_rules
from ci.gate.supervision import death
from provisioning.base.commands import quote_command
from provisioning.base.errors import EnvironmentLacking, UpstreamError, UsageError
from provisioning.base.findings import Severity
from provisioning.base.stage_run import StageRun
from tests.support.local_device import Local
from tests.support.scripts import script


def files(folder: Path, **contents: str) -> dict[str, Path]:
    placed = {}
    for name, text in contents.items():
        (folder / name).write_text(text, encoding="utf-8")
        placed[f"lib/{name}.so"] = folder / name
    return placed


def test_only_what_changed_is_sent_and_what_an_earlier_bundle_left_is_removed(tmp_path: Path) -> None:
    folder = f"{tmp_path}/a device"
    pushed = session.push(Local(), folder, files(tmp_path, one="1", two="22"))
    both = ["lib/one.so", "lib/two.so"]
    assert pushed == {"pushed": both, "removed": [], "unchanged": 0, "pushed_bytes": 3}
    pushed = session.push(Local(), folder, files(tmp_path, one="1", two="3"))
    assert (pushed["pushed"], pushed["unchanged"]) == (["lib/two.so"], 1)
    pushed = session.push(Local(), folder, files(tmp_path, one="1"))
    assert (pushed["removed"], Path(folder, "lib/two.so").exists()) == (["lib/two.so"], False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """On the device already; its run.sh says what it was given."""
    folder = tmp_path / "device"
    folder.mkdir()
    text = '#!/bin/sh\nprintf "%s|" "$@"\necho "$QNN_CI_WRAPPER"\n: > outputs/made\nexit 7\n'
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return folder


def test_a_run_gives_the_runners_own_exit_code_and_outputs(bundle: Path, tmp_path: Path) -> None:
    (bundle / "outputs").mkdir()
    (bundle / "outputs" / "old").touch()
    ran = session.run(Local(), str(bundle), ["--flag", "two words", "it's"], wrapper="qemu -L /x")
    assert (ran.code, ran.out) == (7, "--flag|two words|it's|qemu -L /x\n")
    outputs = session.fetch_outputs(Local(), str(bundle), tmp_path / "here")
    assert [path.name for path in outputs] == ["made"]


def test_an_input_list_is_rewritten_for_the_device(tmp_path: Path) -> None:
    for name in ("a.raw", "b c.raw", "d.raw"):
        (tmp_path / name).touch()
    listed = tmp_path / "list.txt"
    listed.write_text('a.raw "b c.raw"\n# a comment\nd.raw a.raw\n', encoding="utf-8")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    staged = session.stage_inputs(listed, scratch)
    assert staged[session.INPUT_LIST].read_text(encoding="utf-8").splitlines() == [
        "inputs/0000_0.raw inputs/0000_1.raw",
        "inputs/0002_0.raw inputs/0002_1.raw",
    ]


@pytest.mark.parametrize("text", ["missing.raw\n", "\n", 'a "b\n'])
def test_an_input_list_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="--inputs"):
        session.stage_inputs(listed, tmp_path)


def test_a_broken_connection_is_not_an_exit_code(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError):
        Adb(str(script(tmp_path / "adb", "echo half of an answ"))).shell("true")


class Late(Local):
    """Its runs time out here and go on there."""

    def shell(self, script: str, *, seconds: float = 0) -> CommandResult:
        if "run.sh" in script:
            self.running = subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL)
            while not (self.folder / "run.pid").is_file() or not (self.folder / "ready").is_file():
                time.sleep(0.01)
            raise TimedOut("ssh", 1, "step 1\n")
        return super().shell(script)

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def test_a_runner_that_takes_too_long_and_ignores_being_asked_to_end_is_killed(bundle: Path) -> None:
    (bundle / "run.sh").write_text("trap '' TERM\n: > ready\nwhile :; do sleep 0.1; done\n", encoding="utf-8")
    device = Late(bundle)
    ran = session.run(device, str(bundle), [], stop_seconds=1)
    assert (ran.code, ran.out, ran.still_running) == (None, "step 1\n", None)
    assert device.running.wait(timeout=30) == 137


@pytest.mark.parametrize(
    ("says", "wanted", "severity"),
    [
        ("639", "SM8750", None),
        ("618", "SA8797", Severity.ERROR),
        ("603", "SM8550", Severity.NOTE),  # QCS8550: another chip of the same make
        ("460", "SM8350", Severity.NOTE),  # SA8295: the same Hexagon with more VTCM
        ("439", "SA8295", Severity.ERROR),
        ("9999", "SM8750", Severity.NOTE),
        ("cat: /sys/devices/soc0/soc_id: Permission denied", "SM8750", Severity.NOTE),
    ],
)
def test_a_bundle_for_another_chip_is_refused_before_it_is_sent(
    says: str, wanted: str, severity: Severity | None
) -> None:
    class Chip(Local):
        def shell(self, script: str, *, seconds: float = 0) -> CommandResult:
            return CommandResult(0, f"{says}\n")

    finding = run_bundle.wrong_chip(Chip(), wanted)
    assert (finding.severity if finding else None) == severity


def test_a_device_whose_log_no_cause_explains_says_who_speaks_and_what_to_collect(tmp_path: Path) -> None:
    run = StageRun("run_device", "wheels", "aarch64-android", "qnn-ci run_device")
    run_bundle.report_failure(
        session.RunResult(1, "[ERROR] QnnDsp <E> it broke somehow\n"), Local(), tmp_path, run, 5
    )
    (note,) = (finding for finding in run.findings if finding.rule == "device-diagnosis")
    assert "told by QNN" in note.message and note.fix.startswith("collect ")


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
    with claim_folder(Local(), folder):
        with pytest.raises(EnvironmentLacking, match=rf"process {this_process().process}\b"):
            claim_folder(Local(), folder).__enter__()
        assert (Path(folder) / LOCK).is_dir()


def test_what_somebody_else_took_meanwhile_is_left_to_them(folder: str) -> None:
    """A user removed the claim by hand, as the message says, and began another run."""
    holder = Path(folder) / LOCK / "holder"
    with claim_folder(Local(), folder):
        holder.write_text("another-boot/1 7 ann\n", encoding="utf-8")
    assert holder.read_text(encoding="utf-8") == "another-boot/1 7 ann\n"


def test_what_a_killed_run_of_this_machine_left_is_removed(folder: str) -> None:
    me = this_process()
    hold(folder, Holder(me.machine, ended_process(), "somebody").encode())
    with claim_folder(Local(), folder):
        holder = Holder.decode((Path(folder) / LOCK / "holder").read_text(encoding="utf-8"))
        assert holder is not None and holder.process == me.process


def test_what_another_machine_holds_is_left_alone(folder: str) -> None:
    lock = hold(folder, Holder("another-boot/1", ended_process(), "ann on builder, process 7").encode())
    with pytest.raises(EnvironmentLacking, match="ann on builder, process 7") as caught:
        claim_folder(Local(), folder).__enter__()
    assert lock.is_dir() and quote_command("rm", "-r", f"{folder}/{LOCK}") in caught.value.fix


def test_a_holder_that_has_not_written_its_name_yet_holds(folder: str) -> None:
    (Path(folder) / LOCK).mkdir(parents=True)
    with pytest.raises(EnvironmentLacking, match=folder):
        claim_folder(Local(), folder).__enter__()


def test_of_many_at_once_one_has_it(folder: str) -> None:
    ended = threading.Barrier(8)

    def has_it(_: int) -> bool:
        try:
            with claim_folder(Local(), folder):
                ended.wait(60)
                return True
        except EnvironmentLacking:
            ended.wait(60)
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(has_it, range(8))) == 1


@pytest.mark.parametrize("entry", ["bin", ".hidden", "a file"])
def test_a_folder_with_other_things_is_refused_and_left_as_it_is(tmp_path: Path, entry: str) -> None:
    """`--device-dir /usr` would cost the device its programs."""
    (tmp_path / "usr" / entry).mkdir(parents=True)
    with pytest.raises(UsageError, match=str(tmp_path)) as caught:
        claim_folder(Local(), f"{tmp_path}/usr").__enter__()
    assert [path.name for path in (tmp_path / "usr").iterdir()] == [entry]
    assert caught.value.fix.endswith(f"--device-dir {tmp_path}/usr/qnn-ci")


def test_a_device_a_stage_and_a_death_have_the_answer_that_diagnose_gives(tmp_path: Path) -> None:
    log, rule = tmp_path / "run.log", failure_rules()["stub-mismatch"]
    log.write_text(f"{rule.example}\n", encoding="utf-8")
    run = StageRun("run_device", "wheels", "aarch64-android", "qnn-ci run_device")
    ran = session.RunResult(1, log.read_text(encoding="utf-8"))
    run_bundle.report_failure(ran, Local(), tmp_path, run, 5)
    note = run.finish().findings[-1]
    assert rule.cause in note.message and note.fix == rule.fix
    died = death("test_delegate", 3, log, "qnn-ci test_delegate")
    assert rule.cause in died.message and rule.fix in died.fix
