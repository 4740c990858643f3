"""The fault laboratory: a store, gates, a scripted server, small disks, kills and changed bytes in any order.

Its laws, after every step: no command ends with 70, each changed byte of a tree or a signed library is
refused or listed, the store and the gate recover by the same command, and nothing is written outside of the
test's folders. Every night it runs for ten minutes; what it finds becomes a test of its own.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ci.__main__ import VERBS as CI_VERBS
from ci.gate.options import GateOptions
from ci.gate.table import GateStage
from ci.gate.verb import run_gate
from ci.signing import signed_writer
from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.errors import INTERRUPTED, TERMINATED
from provisioning.base.guard import guard
from provisioning.base.settings import ROOT, Selection
from provisioning.store import Store
from tests.support import chains, laboratory_stage, small_disk
from tests.support.http_server import FileServer, Reply
from tests.support.own_manifests import own_manifests, write_profile
from tests.support.sdk_archives import component, sdk_files, sdk_zip
from tests.support.skels import Skel
from tests.support.system_calls import end_at_system_call, wait_for_tracer

FORESEEN = frozenset(range(5))
"""Exit codes of what may go wrong; 70 is an error of ours."""

HTP = "lib/x86_64-linux-clang/libQnnHtp.so"
SIGNED = signed_writer.sign_library(Skel().encode(), chains.signer())
REPLIES = (
    Reply(),
    Reply(status=404, body=b"not here"),
    Reply(body=b"<p>sign in</p>"),
    Reply(body=b"<html>", headers={"Content-Type": "text/html"}),
    Reply(body=b""),
    Reply(body=b"PK\x03\x04 and nothing else"),
    Reply(headers={"Content-Length": "7"}),
    Reply(status=302, body=b"", headers={"Location": "file:///etc/passwd"}),
)
DAMAGES = ("flip", "cut", "remove", "add a file", "add a folder", "write to all")
SECONDS = float(os.environ.get("QNN_CI_LABORATORY_SECONDS") or 600)
"""The time of a night's run."""
LONGEST = 300
"""A command that takes more seconds hangs."""

SUITE = """\
schema = 2
[case.net]
text = "letters.txt"
[[case.net.run]]
lane = "toy"
width = 3
socs = ["SM8650"]
"""
PROGRAM = "ababab"
"""What the suite's program is compiled to."""
PURPOSES = ("development", "production")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


class Laboratory(RuleBasedStateMachine):
    folder: Path
    """Given before a machine is made: each gets a folder of its own in it."""
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.home = self.folder / str(self.made)
        for name in ("suite", "user", "temporary"):
            (self.home / name).mkdir(parents=True)
        (self.home / "suite" / "suite.toml").write_text(SUITE)
        (self.home / "suite" / "letters.txt").write_text("ab")
        (self.home / "root.pem").write_bytes(chains.root_pem(chains.signer()))
        self.archive = sdk_zip(self.home / "sdk.zip")
        self.server = FileServer(self.archive)
        self.server.__enter__()
        self.manifests = own_manifests(self.home / "manifests")
        folder = self.manifests.__enter__()
        write_profile(folder, {"qnn-sdk": component(self.server.url("/sdk.zip"), self.archive)})
        self.patch = pytest.MonkeyPatch()
        # A limit on files would cut the bytecode beside our sources.
        self.patch.setattr(sys, "dont_write_bytecode", True)
        for name, value in self.variables(folder).items():
            self.patch.setenv(name, value)
        self.before = outside(self.home)
        self.provision()

    def variables(self, manifests: Path) -> dict[str, str]:
        return {
            "QNN_CI_STORE": str(self.store.path),
            "QNN_CI_REPORTS": str(self.reports),
            "HOME": str(self.home / "user"),
            "XDG_CACHE_HOME": str(self.home / "user" / ".cache"),
            "TMPDIR": str(self.home / "temporary"),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            laboratory_stage.MANIFESTS: str(manifests),
        }

    def teardown(self) -> None:
        self.patch.undo()
        self.manifests.__exit__(None, None, None)
        self.server.__exit__(None, None, None)
        shutil.rmtree(self.home)

    @property
    def store(self) -> Store:
        return Store(self.home / "store")

    @property
    def reports(self) -> Path:
        return self.home / "reports"

    def types(self, *words: str) -> int:
        """The exit code of a command, which is run in this process."""
        with silence():
            return main("python -m provisioning", "", {**VERBS, "signing": CI_VERBS["signing"]}, words)

    def provision(self) -> int:
        return self.types("provision")

    def forget(self) -> None:
        """Have the next `provision` fetch and unpack."""
        assert self.types("store", "gc", "--older-than", "0d", "--all-downloads") == 0

    @rule(reply=st.sampled_from(REPLIES))
    def a_server_answers(self, reply: Reply) -> None:
        self.forget()
        self.server.script(reply)
        assert self.provision() in FORESEEN

    @rule(step=st.integers(1, 400), number=st.sampled_from(SIGNALS))
    def a_provision_is_ended(self, step: int, number: signal.Signals) -> None:
        """At any of its system calls."""
        self.forget()
        code = ended_at(step, number, self.provision)
        assert code in {0, INTERRUPTED, TERMINATED, -number}, code

    @rule(room=st.integers(0, 20_000))
    def files_are_limited(self, room: int) -> None:
        self.forget()
        code = in_a_child(limit_files(room, self.provision))
        assert code in FORESEEN, code

    @rule(
        damage=st.sampled_from(DAMAGES),
        place=st.sampled_from(sorted(sdk_files())),
        at=st.integers(0, 1 << 20),
        stage=st.sampled_from([("env",), ("validate", "--rule", "store-tree")]),
    )
    def somebody_changes_a_tree(self, damage: str, place: str, at: int, stage: tuple[str, ...]) -> None:
        self.change_tree(damage, place, at)
        assert self.types("store", "verify") == 1
        code = self.types(*stage)
        names_differ = damage in ("remove", "add a file", "add a folder")
        assert code in FORESEEN and (code != 0 or (stage == ("env",) and not names_differ)), code

    def change_tree(self, damage: str, place: str, at: int) -> None:
        (tree,) = self.store.trees()
        spoil(tree.root / place, damage, at)
        assert self.store.quick_check(tree), (damage, place)

    @rule(at=st.integers(0, len(SIGNED) - 1), bit=st.integers(0, 7), purpose=st.sampled_from(PURPOSES))
    def a_signed_library_is_changed(self, at: int, bit: int, purpose: str) -> None:
        changed = bytearray(SIGNED)
        changed[at] ^= 1 << bit
        library, answer = self.home / "user" / "signed.so", self.home / "user" / "answer.json"
        library.write_bytes(changed)
        words = ("verify", str(library), "--for", purpose, "--root", str(self.home / "root.pem"))
        code = in_a_child(lambda: self.types("signing", *words, "--json", str(answer)))
        (file,) = json.loads(answer.read_text())["files"]
        is_listed = any(row["start"] <= at < row["end"] for row in file["unverified"])
        assert code == 1 or (code == 0 and purpose == "development" and is_listed), (code, at)
        library.unlink()
        answer.unlink()

    @invariant()
    def the_store_recovers_by_the_same_command(self) -> None:
        assert self.provision() == 0
        assert [self.store.verify(tree) for tree in self.store.trees()] == [[]]
        assert not list(self.store.staging.glob("*"))

    @invariant()
    def nothing_is_written_elsewhere(self) -> None:
        assert outside(self.home) == self.before


class GateLaboratory(Laboratory):
    """The same with gates and disks, which take seconds where all else takes tenths: they start processes."""

    def gate(self, *names: str) -> int:
        """The exit code of a gate, whose stages are processes of their own."""
        suite = ("--suite", str(self.home / "suite" / "suite.toml"))
        stages = [
            gate_stage("provision"),
            gate_stage("validate", flags=("--rule", "store-tree")),
            gate_stage("test_toy", lane="toy", flags=suite),
        ]
        selection = Selection("wheels", "x86_64-linux", "SM8650", self.store.path, self.reports)
        names = names or tuple(stage.name for stage in stages)
        with silence():
            return guard(lambda: run_gate(stages, names, GateOptions(selection, ())), debug=True)

    @precondition(lambda self: not small_disk.lacking())
    @rule(kilobytes=st.integers(4, 200))
    def a_disk_is_small_and_is_made_larger(self, kilobytes: int) -> None:
        """The same command works on the disk that it left full."""
        self.store.path.mkdir(exist_ok=True)
        first, second = codes_on_a_small_disk(self.store.path, kilobytes, "provision")
        assert first in FORESEEN and second == 0, (first, second)

    @rule(step=st.integers(1, 1200), number=st.sampled_from(SIGNALS), fresh=st.booleans())
    def a_gate_is_ended(self, step: int, number: signal.Signals, fresh: bool) -> None:
        if fresh:
            self.forget()
        code = ended_at(step, number, self.gate)
        assert code in {0, INTERRUPTED, TERMINATED, -number}, code
        self.the_gate_recovers()

    @rule(step=st.integers(1, 2000), number=st.sampled_from(SIGNALS), fresh=st.booleans())
    def a_stage_is_ended(self, step: int, number: signal.Signals, fresh: bool) -> None:
        """All stages of the gate end after so many steps; what one leaves is not green."""
        if fresh:
            self.forget()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(laboratory_stage.END, f"{step},{int(number)}")
            code = in_a_child(self.gate)
        assert code in FORESEEN | {INTERRUPTED, TERMINATED}, code
        self.the_gate_recovers()

    def the_gate_recovers(self) -> None:
        assert in_a_child(self.gate) == 0
        programs = [path.read_text() for path in self.store.path.glob("cache/**/program")]
        assert programs and {*programs} == {PROGRAM}, programs

    @rule(room=st.integers(0, 20_000))
    def files_of_a_gate_are_limited(self, room: int) -> None:
        self.forget()
        code = in_a_child(limit_files(room, self.gate))
        assert code in FORESEEN, code
        self.the_gate_recovers()

    @rule(
        damage=st.sampled_from(DAMAGES),
        place=st.sampled_from(sorted(sdk_files())),
        at=st.integers(0, 1 << 20),
    )
    def a_gate_meets_a_changed_tree(self, damage: str, place: str, at: int) -> None:
        self.change_tree(damage, place, at)
        assert in_a_child(lambda: self.gate("validate")) == 1

    @rule(
        damage=st.sampled_from(["flip", "cut", "remove"]),
        which=st.integers(0, 1 << 20),
        at=st.integers(0, 1 << 20),
    )
    def somebody_changes_a_result(self, damage: str, which: int, at: int) -> None:
        self.the_gate_recovers()
        files = sorted(path for path in self.store.path.glob("cache/**/*") if path.is_file())
        path = files[which % len(files)]
        if path.stat().st_size:
            spoil(path, damage, at)
        self.the_gate_recovers()


def gate_stage(name: str, lane: str = "", flags: tuple[str, ...] = ()) -> GateStage:
    return GateStage(name=name, program=laboratory_stage.MODULE, lane=lane, flags=flags)


def in_a_child(act: Callable[[], int]) -> int:
    """The exit code of what a fork of this process does, or minus the signal that ended it."""
    child = fork(act)
    deadline = time.monotonic() + LONGEST
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("it hangs")
        time.sleep(0.002)


def ended_at(step: int, number: int, act: Callable[[], int]) -> int:
    """The same for one that is sent a signal at one of its system calls."""

    def wait_and_act() -> int:
        wait_for_tracer()
        return act()

    return end_at_system_call(fork(wait_and_act), step, number)


def fork(act: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = act()
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def limit_files(room: int, act: Callable[[], int]) -> Callable[[], int]:
    """The same, where no file that it and its children write becomes larger."""

    def limit_and_act() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        return act()

    return limit_and_act


def codes_on_a_small_disk(folder: Path, kilobytes: int, verb: str) -> tuple[int, int]:
    """The exit codes of this verb where `folder` is a disk of this size, and again on a larger one with what
    the first left."""
    twice = '"$@" >&2; echo $?; mount -o remount,size=9M "$FOLDER"; "$@" >&2; echo $?'
    command = (sys.executable, "-m", laboratory_stage.MODULE, verb)
    words = small_disk.with_small(folder, kilobytes, "sh", "-c", twice, "sh", *command)
    environ = {**os.environ, "FOLDER": str(folder)}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True, timeout=2 * LONGEST)
    first, second = done.stdout.split()
    return int(first), int(second)


def outside(home: Path) -> set[Path]:
    """What is in the laboratory's folder beside the store and the reports, and in the folder above."""
    folders = {home / "store", home / "reports"}
    paths = {path for path in home.rglob("*") if folders.isdisjoint({path, *path.parents})}
    return paths | {path for path in home.parent.iterdir() if not path.name.isdecimal()}


def spoil(path: Path, damage: str, at: int) -> None:
    if damage == "remove":
        path.unlink()
    elif damage == "add a file":
        (path.parent / "libExtra.so").write_bytes(b"x")
    elif damage == "add a folder":
        (path.parent / "extra").mkdir()
    elif damage == "write to all":
        path.chmod(0o666)
    else:
        mode = path.stat().st_mode & 0o777
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= 1
        path.chmod(0o644)
        path.write_bytes(content if damage == "flip" else content[:-1])
        path.chmod(mode)


@contextmanager
def silence() -> Iterator[None]:
    """Keep what commands print to themselves."""
    with Path(os.devnull).open("w") as nowhere, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", nowhere)
        patch.setattr(sys, "stderr", nowhere)
        yield


def run(laboratory: type[Laboratory], folder: Path, examples: int, steps: int) -> None:
    folder.mkdir()
    laboratory.folder = folder
    run_state_machine_as_test(
        laboratory,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.long("provisions a dozen times")
@pytest.mark.timeout(2 * LONGEST)
@pytest.mark.parametrize(("laboratory", "steps"), [(Laboratory, 6), (GateLaboratory, 2)])
def test_the_laws_hold_for_a_moment(laboratory: type[Laboratory], steps: int, tmp_path: Path) -> None:
    run(laboratory, tmp_path / "home", examples=2, steps=steps)


@pytest.mark.whole
@pytest.mark.timeout(2 * SECONDS)
def test_the_laws_hold_for_a_night(tmp_path: Path) -> None:
    end = time.monotonic() + SECONDS
    number = 0
    while time.monotonic() < end:
        number += 1
        run(Laboratory, tmp_path / f"{number}-store", examples=5, steps=20)
        run(GateLaboratory, tmp_path / f"{number}-gate", examples=3, steps=4)
