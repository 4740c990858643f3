"""`sign_lpai` as people type it, with the elfsigner stand-in inside a made-up Hexagon SDK."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.signing import lpai_libraries, signed_library, verification
from ci.signing.elfsigner import Consent, Elfsigner
from ci.signing.verification import ExpectedSignature, Purpose
from provisioning import licences
from provisioning.base.errors import CheckFailed
from provisioning.components import ELFSIGNER
from tests.support import hexagon_sdk
from tests.support.builds import gone
from tests.support.elfsigner_stand_in import DISCLAIMER, QUESTION
from tests.support.scripts import script
from tests.support.typed import typed

ACCEPT = {licences.VARIABLE: Consent.name(QUESTION)}


@dataclass
class World:
    """A QNN SDK, a Hexagon SDK, a store and a place to run in."""

    root: Path
    qnn: Path
    hexagon: Path

    @property
    def environ(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("QNN_CI_")},
            "QNN_SDK_ROOT": str(self.qnn),
            "HEXAGON_SDK_ROOT": str(self.hexagon),
            "QNN_CI_STORE": str(self.root / "store"),
        }

    def sign_lpai(self, *argv: object, **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **more}
        return typed(*self.sign, *map(str, argv), cwd=self.root, env=environ, timeout=120)

    @property
    def sign(self) -> tuple[str, ...]:
        return ("sign_lpai", "--soc", "SM8850", "--output", str(self.root / "dist" / "overlay"))

    @property
    def overlay(self) -> Path:
        return self.root / "dist" / "overlay" / "lib" / "lpai-v6" / "signed"

    def report(self) -> dict[str, Any]:
        text = (self.root / "reports" / "sign_lpai.json").read_text(encoding="utf-8")
        loaded: dict[str, Any] = json.loads(text)
        return loaded

    def rules(self) -> list[str]:
        return [f["rule"] for f in self.report()["findings"] if f["severity"] == "error"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, hexagon_sdk.qnn_sdk(tmp_path), hexagon_sdk.hexagon_sdk(tmp_path))


@pytest.fixture
def python(tmp_path: Path) -> str:
    """The stand-in needs no module imp: ours may pass for an older one."""
    answer = f'case "$1" in -c) echo 3 11;; *) exec {sys.executable} "$@";; esac'
    return str(script(tmp_path / "python-for-elfsigner", answer))


def test_the_skel_is_signed_into_the_overlay_and_the_sdk_is_left_alone(world: World, python: str) -> None:
    before = snapshot(world.qnn) | snapshot(world.hexagon / "tools")
    done = world.sign_lpai("--python", python, **ACCEPT)
    assert (done.returncode, done.stderr.count(DISCLAIMER.strip())) == (0, 1)
    signed = world.overlay / "libQnnLpaiSkel.so"
    original = world.qnn / "lib" / "lpai-v6" / "unsigned" / "libQnnLpaiSkel.so"
    development = ExpectedSignature(purpose=Purpose.DEVELOPMENT)
    assert not verification.verify_file(signed, development).failed
    assert signed_library.differences(original.read_bytes(), signed.read_bytes()) == []
    assert snapshot(world.qnn) | snapshot(world.hexagon / "tools") == before


def snapshot(directory: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")}


@pytest.mark.parametrize("question", ["not accepted", "another"])
def test_without_acceptance_of_this_very_question_nothing_is_signed(
    world: World, python: str, question: str
) -> None:
    if question == "another":
        hexagon_sdk.behave(world.hexagon, behaviour="tls-warning")
    accepted = ACCEPT if question == "another" else {}
    done = world.sign_lpai("--python", python, **accepted)
    assert done.returncode == 3
    shown = "self-signed certificate" if question == "another" else Consent.name(QUESTION)
    assert shown in done.stderr
    assert [path for path in world.overlay.rglob("*") if path.is_file()] == []
    assert not licences.recorded_licences(world.root / "store")


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        ("no-output", 1, "wrote no file"),
        ("empty", 1, "wrote no file"),
        ("partial", 1, "is not libQnnLpaiSkel.so signed"),
        ("unsigned", 1, "unsigned"),
        ("other-program", 1, "the content of segment"),
        ("endless", 1, "without end"),
        ("network-silent", 4, "urlopen error"),
        ("no-imp", 3, "module imp"),
    ],
)
def test_what_elfsigner_fails_at_never_reaches_the_overlay(
    world: World, python: str, behaviour: str, code: int, words: str
) -> None:
    hexagon_sdk.behave(world.hexagon, behaviour=behaviour)
    done = world.sign_lpai("--python", python, **ACCEPT)
    # A long path breaks lines elsewhere.
    printed = " ".join(f"{done.stdout} {done.stderr}".split())
    assert (done.returncode, words in printed) == (code, True)
    overlay = world.root / "dist" / "overlay"
    assert [path.name for path in overlay.rglob("*") if path.name != "lib"] == ["lpai-v6", "signed"]
    assert world.rules() and "Traceback" not in done.stdout + done.stderr
    unexpected = behaviour in ("no-output", "empty", "partial", "unsigned", "other-program")
    kept = [artifact for artifact in world.report()["artifacts"] if artifact["kind"] == "unexpected"]
    assert ("did something that we did not expect" in printed) is unexpected
    assert bool(kept) is (unexpected and behaviour != "no-output")


def test_the_signer_learns_nothing_of_our_environment(
    world: World, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_SIGNING_PASSPHRASE", "hush")
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert world.sign_lpai("--python", python, **ACCEPT).returncode == 0
    environ = hexagon_sdk.runs(world.hexagon)[0]["environ"]
    assert "hush" not in environ.values()
    assert environ["HTTPS_PROXY"] == "http://127.0.0.1:1"


@pytest.mark.parametrize("behaviour", ["hang", "hang without output"])
def test_a_signer_that_hangs_is_ended(world: World, python: str, tmp_path: Path, behaviour: str) -> None:
    hexagon_sdk.behave(world.hexagon, behaviour=behaviour)
    script = world.hexagon / ELFSIGNER
    table = lpai_libraries.load_table().elfsigner
    signer = Elfsigner(script, Path(python), 1, lambda _: True, table)
    (into := tmp_path / "into").mkdir()
    with pytest.raises(CheckFailed, match="did not end within 1 s"):
        signer.sign(world.qnn / "lib" / "lpai-v6" / "unsigned" / "libQnnLpaiSkel.so", into)
    (run,) = (world.hexagon / "runs").glob("*.json")
    assert not Path(f"/proc/{run.stem}").exists()


def test_an_interrupt_ends_the_signer_and_leaves_nothing(world: World, python: str) -> None:
    hexagon_sdk.behave(world.hexagon, behaviour="hang")
    child = subprocess.Popen(
        [sys.executable, "-m", "ci", *world.sign, "--python", python],
        cwd=world.root,
        env={**world.environ, **ACCEPT, "PYTHONPATH": str(hexagon_sdk.REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while not list((world.hexagon / "runs").glob("*.json")) and time.monotonic() < until:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 143
    finally:
        child.kill()
        child.wait()
    (run,) = (world.hexagon / "runs").glob("*.json")
    assert gone(int(run.stem))
    assert list((world.root / "dist").rglob(".signing-*")) == []
    assert world.report()["outcome"] == "error"
