"""Who is to blame for a failure: an exception, how a process ended, what it printed, how long it took."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ci.suite.runner import call_runner
from ci.work.jobs import idle_seconds
from ci.work.outcome import Failure
from ci.work.trouble import (
    InTrouble,
    Trouble,
    trouble_of_ending,
    trouble_of_error,
    trouble_of_places,
    trouble_of_timeout,
)
from provisioning.base.errors import CheckFailed, EnvironmentLacking


def numbered(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)


def caused_by(cause: BaseException) -> CheckFailed:
    error = CheckFailed("QNN cannot compile it")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (numbered(errno.ENOSPC, "/disk/file"), "disk", "/disk/file: No space left on device"),
        (numbered(errno.EDQUOT, "/disk/file"), "disk", "Disk quota exceeded"),
        (numbered(errno.EROFS, "/disk/file"), "disk", "Read-only file system"),
        (numbered(errno.EIO, "/disk/file"), "disk", "Input/output error"),
        (numbered(errno.EFBIG, "/disk/file"), "disk", "File too large"),
        (numbered(errno.EMFILE, "/disk/file"), "disk", "Too many open files"),
        (numbered(errno.ENOMEM), "memory", "Cannot allocate memory"),
        (MemoryError("Unable to allocate 3 GiB"), "memory", "3 GiB"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "memory", "allocate"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), "memory", "not enough"),
        (RuntimeError("Failed to allocate memory for requested buffer"), "memory", "buffer"),
        (RuntimeError("std::bad_alloc"), "memory", "bad_alloc"),
        (RuntimeError("can't start new thread"), "memory", "thread"),
        (RuntimeError("Failed to write context cache file."), "disk", "context cache"),
        (caused_by(numbered(errno.ENOSPC, "/disk/file")), "disk", "/disk/file: No space"),
        (caused_by(MemoryError()), "memory", "memory ran out"),
        (EnvironmentLacking("no licence", fix="accept it"), "lacking", "no licence"),
        (InTrouble(Trouble("disk", "full", "free it")), "disk", "full"),
    ],
)
def test_the_machine_is_to_blame_for_what_no_model_causes(
    error: BaseException, kind: str, words: str
) -> None:
    trouble = trouble_of_error(error)
    assert trouble is not None and trouble.kind == kind and words in trouble.message and trouble.fix


@pytest.mark.parametrize(
    "error",
    [
        numbered(errno.ENOENT, "weights.bin"),
        numbered(errno.EACCES, "weights.bin"),
        numbered(errno.EISDIR, "weights.bin"),
        CheckFailed("QNN cannot compile it: error 1002"),
        caused_by(RuntimeError("shape '[3]' is invalid")),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        ValueError("the model has no memory of it"),
    ],
)
def test_what_a_model_causes_is_its_own(error: BaseException, tmp_path: Path) -> None:
    assert trouble_of_error(error, [tmp_path]) is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-signal.SIGKILL, "killed"),
        (-signal.SIGTERM, "killed"),
        (-signal.SIGINT, "killed"),
        (-signal.SIGHUP, "killed"),
        (137, "killed"),
        (143, "killed"),
        (-signal.SIGXFSZ, "disk"),
        (-signal.SIGBUS, "disk"),
        (-signal.SIGXCPU, "timeout"),
        (-signal.SIGSEGV, None),
        (-signal.SIGABRT, None),
        (-signal.SIGILL, None),
        (-signal.SIGFPE, None),
        (1, None),
        (70, None),
        (0, None),
    ],
)
def test_a_signal_from_outside_is_not_the_works_own(code: int, kind: str | None) -> None:
    trouble = trouble_of_ending("process", code)
    assert (trouble and trouble.kind) == kind


@pytest.mark.parametrize(
    ("code", "words", "own"),
    [
        (-signal.SIGSEGV, "", True),
        (-signal.SIGABRT, "terminate called", True),
        (-signal.SIGKILL, "", False),
        (1, "the process was ended by SIGSEGV", False),
    ],
)
def test_a_crash_is_its_own_by_the_signal_of_its_process_and_not_of_one_that_it_names(
    tmp_path: Path, code: int, words: str, own: bool
) -> None:
    (tmp_path / "log").write_text(words)
    assert Failure.from_end(code, tmp_path / "log", [tmp_path]).is_own_crash == own


@pytest.mark.parametrize(("used", "blamed"), [(0.0, True), (29.0, True), (30.0, False), (110.0, False)])
def test_time_is_the_works_own_if_it_had_the_processor_for_half_of_it(used: float, blamed: bool) -> None:
    trouble = trouble_of_timeout(60, used)
    assert (trouble is not None) == blamed
    assert trouble is None or ("60 s" in trouble.message and f"{used:.1f} s" in trouble.message)


@pytest.mark.parametrize(("idle", "blamed"), [(0.0, True), (53.0, True), (54.0, False), (110.0, False)])
def test_work_that_waits_while_a_processor_is_free_waits_for_itself(idle: float, blamed: bool) -> None:
    assert (trouble_of_timeout(60, 0.0, idle_seconds=idle) is not None) == blamed


def test_the_idle_seconds_of_a_machine_grow_and_are_none_where_it_says_none(tmp_path: Path) -> None:
    assert idle_seconds() > 0 == idle_seconds(tmp_path / "stat")


def test_the_processors_that_a_container_may_not_use_are_not_free_for_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 9 0 9 900600\ncpu0 9 0 9 400\ncpu1 9 0 9 200\ncpu2 0 0 0 900000\nintr 5 5 5 5\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert idle_seconds(stat, tmp_path) == 600 / os.sysconf("SC_CLK_TCK")
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert idle_seconds(stat, tmp_path) == 0


PROBE = """\
import sys
from pathlib import Path
from ci.work import Failure, trouble_of_ending, trouble_of_error
places = [Path(sys.argv[1]) / "not there yet"]
trouble = trouble_of_error(RuntimeError("cannot write it"), places)
print(trouble.kind if trouble else "", trouble.message if trouble else "")
ending = trouble_of_ending("runner", 1, "No space left on device", places)
print(trouble is not None and ending.fix == trouble.fix)
print(trouble_of_ending("runner", 1, "std::bad_alloc", places).kind)
print(Failure.from_end(1, Path("/nowhere"), places).kind)
"""


@pytest.mark.parametrize(("room", "kind"), [(300 << 10, "disk"), (16 << 20, "")])
def test_an_error_that_does_not_name_a_full_disk_is_blamed_on_it(
    tmp_path: Path, room: int, kind: str
) -> None:
    """A limit on the length of files stands for a full disk: anybody may set it."""
    run = subprocess.run(
        [sys.executable, "-c", PROBE, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert run.stdout.split(" ")[0].strip() == kind
    assert run.stdout.split()[-3:] == [str(bool(kind)), "memory", kind or "crash"]
    assert not kind or str(tmp_path) in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_nowhere_blames_nobody() -> None:
    assert trouble_of_places([Path("/proc/none/at/all")]) is None


def test_last_words_tell_what_an_exit_code_does_not() -> None:
    words = "terminate called after throwing an instance of 'std::bad_alloc'"
    trouble = trouble_of_ending("runner", -signal.SIGABRT, words)
    assert trouble is not None and trouble.kind == "memory"
    assert trouble_of_ending("runner", 0, words) is None


@pytest.mark.parametrize(
    ("does", "by_machine"),
    [
        ("kill -KILL $$", True),
        ("echo 'error: std::bad_alloc'; exit 1", True),
        ("echo 'error: no such program'; exit 1", False),
        ("kill -SEGV $$", False),
    ],
)
def test_a_runner_that_the_machine_ended_says_nothing_of_its_program(
    does: str, by_machine: bool, tmp_path: Path
) -> None:
    command = ["sh", "-c", does]
    if by_machine:
        with pytest.raises(EnvironmentLacking):
            call_runner(command, tmp_path / "log", os.environ, 60)
    else:
        assert "the runner" in call_runner(command, tmp_path / "log", os.environ, 60)
