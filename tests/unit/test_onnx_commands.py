"""The commands' frame: one writer at a time, nothing half-written, and a worker that may go away."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ci.__main__ import VERBS
from ci.onnx import commands
from ci.onnx.process import Crashed, OnnxWorker, Refused
from ci.workers.parent import Setup
from provisioning.cli import main
from provisioning.errors import UsageError
from tests.support.onnx_models import conv_model, write

STUB = """\
import json, os, signal, sys
replies = os.fdopen(int(sys.argv[1]), "w")
def say(message):
    replies.write(json.dumps(message) + "\\n")
    replies.flush()
say({})
for line in sys.stdin:
    order = json.loads(line)
    if order["do"] == "die":
        open(order["log"], "w").write("the last words\\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    if order["do"] == "refuse":
        fault = {"kind": "UsageError", "exit_code": 2, "message": "no", "remedy": "other", "problems": [1]}
        say({"fault": fault, "resident": 1})
    say({"cwd": order["cwd"], "resident": 7})
"""


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    setup = Setup(("-c", STUB), dict(os.environ), tmp_path / "logs", 30, "onnxruntime", "nox -s test_onnx")
    started = OnnxWorker(setup)
    yield started
    started.end()


def test_an_order_is_answered_and_says_where_the_user_is(worker: OnnxWorker, tmp_path: Path) -> None:
    assert worker.order("look", tmp_path / "log")["cwd"] == str(Path.cwd())
    assert worker.resident == 7


def test_a_fault_keeps_its_exit_code_and_details(worker: OnnxWorker, tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        worker.order("refuse", tmp_path / "log")
    error = caught.value
    assert (error.exit_code, error.message, error.remedy) == (2, "no", "other")
    assert error.details["problems"] == [1]


def test_a_worker_that_crashes_is_told_with_its_signal_and_last_words(
    worker: OnnxWorker, tmp_path: Path
) -> None:
    with pytest.raises(Crashed) as caught:
        worker.order("die", tmp_path / "log")
    assert "SIGSEGV" in caught.value.message
    assert "the last words" in caught.value.message


class TestOutput:
    def test_what_was_made_appears_with_the_record_last(self, tmp_path: Path) -> None:
        out = tmp_path / "a" / "out"
        with commands._output(out) as (scratch, publish):
            for name in ("m_ctx.json", "m_ctx.onnx", "m_ctx_qnn.bin"):
                (scratch / name).write_text(name)
            made = scratch / "made"
            made.mkdir()
            for path in list(scratch.glob("m_*")):
                path.rename(made / path.name)
            assert [path.name for path in publish(made)] == ["m_ctx_qnn.bin", "m_ctx.onnx", "m_ctx.json"]
        assert sorted(path.name for path in out.iterdir()) == ["m_ctx.json", "m_ctx.onnx", "m_ctx_qnn.bin"]

    def test_a_fault_leaves_no_directory_behind(self, tmp_path: Path) -> None:
        with pytest.raises(KeyError), commands._output(tmp_path / "out") as (scratch, _):
            (scratch / "half").write_text("half")
            raise KeyError
        assert list(tmp_path.iterdir()) == []

    def test_what_was_there_before_stays_after_a_fault(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_text("mine")
        with pytest.raises(KeyError), commands._output(tmp_path / "out"):
            raise KeyError
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]

    def test_what_a_killed_compile_left_is_cleared_away(self, tmp_path: Path) -> None:
        (tmp_path / f"{commands.SCRATCH}1" / "made").mkdir(parents=True)
        (tmp_path / commands.LOCK).touch()
        (tmp_path / "mine").touch()
        with commands._output(tmp_path):
            pass
        assert [path.name for path in tmp_path.iterdir()] == ["mine"]

    def test_a_second_writer_is_refused(self, tmp_path: Path) -> None:
        with (
            FileLock(tmp_path / commands.LOCK),
            pytest.raises(UsageError, match="another compile is writing there"),
            commands._output(tmp_path),
        ):
            pass

    def test_a_file_in_its_place_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_text("mine")
        with pytest.raises(UsageError, match="cannot be written"), commands._output(tmp_path / "out"):
            pass

    def test_a_directory_without_permission_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(*args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied")

        # Root, who runs many a CI, may write everywhere.
        monkeypatch.setattr(Path, "mkdir", denied)
        with pytest.raises(UsageError, match="cannot be written: Permission denied"):
            commands._output(tmp_path / "out").__enter__()

    def test_a_lock_that_was_taken_away_while_waiting_for_it_does_not_count(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locks: list[int] = []

        def late(lock: int, how: int) -> None:
            # The first time, the compile before has removed its lock, and another has made a new one.
            if not locks:
                (tmp_path / commands.LOCK).unlink()
                (tmp_path / commands.LOCK).touch()
            locks.append(lock)

        monkeypatch.setattr(fcntl, "flock", late)
        held = commands._locked(tmp_path)
        assert len(locks) == 2 and os.path.samestat(os.fstat(held), (tmp_path / commands.LOCK).stat())
        os.close(held)


class TestLogs:
    @pytest.mark.parametrize("named", [True, False])
    def test_stay_only_where_the_error_names_them(self, named: bool) -> None:
        with pytest.raises(UsageError), commands._logs() as folder:
            raise UsageError("it broke", remedy=f"read {folder}/log" if named else "do it otherwise")
        assert folder.exists() == named
        shutil.rmtree(folder, ignore_errors=True)

    def test_go_after_a_success(self) -> None:
        with commands._logs() as folder:
            (folder / "log").touch()
        assert not folder.exists()


def onnx(*arguments: str) -> int:
    return main("python -m ci", "", {"onnx": VERBS["onnx"]}, ["onnx", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--soc", "SM8651"), "SM8650"),
        (("--option", "vtcm=4"), "did you mean vtcm_mb?"),
        (("--precision", "u16u9"), "did you mean u16u8?"),
        (("--dimension", "batch"), "expected NAME=N"),
        (("--dimension", "batch=0"), "expected NAME=N"),
    ],
)
def test_a_wrong_flag_is_exit_code_2_with_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    model = write(conv_model(), tmp_path / "net.onnx")
    assert onnx("compile", str(model), "-o", str(tmp_path / "out"), *arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert onnx("options") == 0
    said = capsys.readouterr().out
    assert "htp_performance_mode=balanced|burst" in said
    assert "u16u8" in said
