"""The fault laboratory: a store, a scripted server, small disks, kills and changed bytes, in any order.

Its laws, after every step: no command ends with 70, each changed byte of a tree or a signed library is
refused or listed, the store recovers by the same command, and nothing is written outside of the test's
folders. Every night it runs for ten minutes; what it finds becomes a test of its own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from ci.signing import signed_writer, verification
from ci.signing.verification import ExpectedSignature, Purpose
from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.store import Store
from tests.support import chains
from tests.support.http_server import FileServer, Reply
from tests.support.own_manifests import own_manifests, write_profile
from tests.support.sdk_archives import component, sdk_files, sdk_zip
from tests.support.skels import Skel

FORESEEN = frozenset(range(5))
"""Exit codes of what may go wrong; 70 is an error of ours."""

HTP = "lib/x86_64-linux-clang/libQnnHtp.so"
SIGNED = signed_writer.sign_library(Skel().encode(), chains.signer())
EXPECTED = ExpectedSignature(root=chains.signer().root, purpose=Purpose.DEVELOPMENT)
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
NIGHT_SECONDS = 600


class Laboratory(RuleBasedStateMachine):
    folder: Path
    """Given before a machine is made: each gets a folder of its own in it."""
    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self.home = self.folder / str(self.made)
        self.home.mkdir()
        self.archive = sdk_zip(self.home / "sdk.zip")
        self.server = FileServer(self.archive)
        self.server.__enter__()
        self.manifests = own_manifests(self.home / "manifests")
        folder = self.manifests.__enter__()
        write_profile(folder, {"qnn-sdk": component(self.server.url("/sdk.zip"), self.archive)})
        self.before = outside(self.home)
        self.provision()

    def teardown(self) -> None:
        self.manifests.__exit__(None, None, None)
        self.server.__exit__(None, None, None)

    @property
    def store(self) -> Store:
        return Store(self.home / "store")

    def types(self, *words: str) -> int:
        """The exit code of a command, which is run in this process."""
        places = {"QNN_CI_STORE": str(self.home / "store"), "QNN_CI_REPORTS": str(self.home / "reports")}
        with pytest.MonkeyPatch.context() as patch, silence():
            for name, value in places.items():
                patch.setenv(name, value)
            return main("python -m provisioning", "", VERBS, words)

    def provision(self) -> int:
        return self.types("provision")

    def in_a_child(self, prepare: Callable[[], None]) -> int:
        """The exit code, or minus the signal, of `provision` in a process that is prepared to fail."""
        child = os.fork()
        if child == 0:
            code = 70
            try:
                prepare()
                code = self.provision()
            finally:
                os._exit(code)
        deadline = time.monotonic() + 60
        while True:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError("provision did not end within 60 s")
            time.sleep(0.002)

    def forget(self) -> None:
        """Have the next `provision` fetch and unpack."""
        assert self.types("store", "gc", "--older-than", "0d", "--all-downloads") == 0

    @rule(reply=st.sampled_from(REPLIES))
    def a_server_answers(self, reply: Reply) -> None:
        self.forget()
        self.server.script(reply)
        assert self.provision() in FORESEEN

    @rule(step=st.integers(1, 400), number=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def a_process_is_ended(self, step: int, number: signal.Signals) -> None:
        """At any of the system calls that Python announces: opening, renaming, removing, connecting …"""
        self.forget()
        code = self.in_a_child(lambda: end_at(step, number))
        assert code in {0, 143, -number}, code

    @rule(room=st.integers(0, 20_000))
    def a_disk_is_small(self, room: int) -> None:
        self.forget()
        code = self.in_a_child(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))
        assert code in FORESEEN, code

    @rule(
        damage=st.sampled_from(DAMAGES),
        place=st.sampled_from(sorted(sdk_files())),
        at=st.integers(0, 1 << 20),
        stage=st.sampled_from([("env",), ("validate", "--rule", "store-tree")]),
    )
    def somebody_changes_a_tree(self, damage: str, place: str, at: int, stage: tuple[str, ...]) -> None:
        (tree,) = self.store.trees()
        path = tree.root / place
        spoil(path, damage, at)
        assert self.store.quick_check(tree), (damage, place)
        assert self.types("store", "verify") == 1
        code = self.types(*stage)
        names_differ = damage in ("remove", "add a file", "add a folder")
        assert code in FORESEEN and (code != 0 or (stage == ("env",) and not names_differ)), code

    @rule(at=st.integers(0, len(SIGNED) - 1), bit=st.integers(0, 7))
    def a_signed_library_is_changed(self, at: int, bit: int) -> None:
        changed = bytearray(SIGNED)
        changed[at] ^= 1 << bit
        result = verification.verify(bytes(changed), EXPECTED)
        is_listed = any(range_.start <= at < range_.end for range_ in result.unverified)
        assert result.verdict() != "verified" or is_listed, at

    @invariant()
    def the_store_recovers_by_the_same_command(self) -> None:
        assert self.provision() == 0
        assert [self.store.verify(tree) for tree in self.store.trees()] == [[]]
        assert not list(self.store.staging.glob("*"))

    @invariant()
    def nothing_is_written_elsewhere(self) -> None:
        assert outside(self.home) == self.before


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


def end_at(step: int, number: int) -> None:
    """End this process at a later step that Python announces."""
    left = step

    def count(event: str, _: object) -> None:
        nonlocal left
        if event.startswith(("open", "os.", "shutil.", "socket.", "tempfile.", "fcntl.")):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(count)


@contextmanager
def silence() -> Iterator[None]:
    """Keep what commands print to themselves."""
    with Path(os.devnull).open("w") as nowhere, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", nowhere)
        patch.setattr(sys, "stderr", nowhere)
        yield


def run(tmp_path: Path, examples: int, steps: int) -> None:
    Laboratory.folder = tmp_path
    run_state_machine_as_test(
        Laboratory,
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
def test_the_laws_hold_for_a_moment(tmp_path: Path) -> None:
    run(tmp_path, examples=1, steps=6)


@pytest.mark.whole
@pytest.mark.timeout(2 * NIGHT_SECONDS)
def test_the_laws_hold_for_ten_minutes(tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("QNN_CI_LABORATORY_SECONDS") or NIGHT_SECONDS)
    number = 0
    while time.monotonic() < end:
        number += 1
        (folder := tmp_path / f"round-{number}").mkdir()
        run(folder, examples=5, steps=20)
