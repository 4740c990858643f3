"""Driving elfsigner, with the stand-in in its place."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ci.signing import signed_library, verification
from ci.signing.lpai import elfsigner
from ci.signing.lpai.elfsigner import Elfsigner, SignerFailed, SignerOffline
from provisioning.base.errors import EnvironmentLacking
from tests.support import hexagon_sdk
from tests.support.skels import Skel


@dataclass
class Bench:
    sdk: Path
    library: Path
    out: Path
    asked: list[str] = field(default_factory=list)

    def driver(self, *, seconds: float = 60, consent: Callable[[str], bool] | None = None) -> Elfsigner:
        script = self.sdk / "tools" / "elfsigner" / "elfsigner.py"
        return Elfsigner(script, Path(sys.executable), seconds, consent or self._consent)

    def _consent(self, text: str) -> bool:
        self.asked.append(text)
        return True


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (out := tmp_path / "out").mkdir()
    library = Skel(arch=81).write(tmp_path / "libQnnLpaiSkel.so")
    return Bench(hexagon_sdk.hexagon_sdk(tmp_path), library, out)


def test_a_library_is_signed_and_is_the_same_program(bench: Bench) -> None:
    made = bench.driver().sign(bench.library, bench.out)
    assert not verification.verify_file(made).failed
    assert signed_library.differences(bench.library.read_bytes(), made.read_bytes()) == []


def test_a_question_in_other_words_is_answered_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elfsigner, "_SILENT_SECONDS", 0.3)
    hexagon_sdk.behave(bench.sdk, behaviour="odd-prompt")
    assert bench.driver().sign(bench.library, bench.out).is_file()


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ("status", SignerFailed, "status 7.*certificate expired"),
        ("old-glibc", SignerFailed, "status 1.*C library of this host or image is older"),
        ("no-output", SignerFailed, "wrote no file"),
        ("empty", SignerFailed, "wrote an empty file"),
        ("network", SignerOffline, "could not reach its server"),
        ("network-silent", SignerOffline, "wrote no file"),
        ("no-imp", EnvironmentLacking, "no module imp"),
        ("endless", SignerFailed, "without end"),
    ],
)
def test_every_way_to_fail_is_told_apart(
    bench: Bench, behaviour: str, error: type[Exception], words: str
) -> None:
    hexagon_sdk.behave(bench.sdk, behaviour=behaviour)
    with pytest.raises(error, match=words):
        bench.driver().sign(bench.library, bench.out)


def test_a_hang_is_ended_at_the_time_limit(bench: Bench) -> None:
    hexagon_sdk.behave(bench.sdk, behaviour="hang")
    started = time.monotonic()
    with pytest.raises(SignerFailed, match=r"did not end within 1\.5 s"):
        bench.driver(seconds=1.5).sign(bench.library, bench.out)
    assert time.monotonic() - started < 30


def test_time_spent_reading_the_disclaimer_does_not_count(bench: Bench) -> None:
    def slow(text: str) -> bool:
        time.sleep(1.5)
        return True

    hexagon_sdk.behave(bench.sdk, behaviour="no-output")
    driver = bench.driver(seconds=1.4, consent=slow)
    with pytest.raises(SignerFailed, match="wrote no file"):
        driver.sign(bench.library, bench.out)


def test_cancelling_ends_a_run(bench: Bench) -> None:
    hexagon_sdk.behave(bench.sdk, behaviour="hang")
    driver = bench.driver()
    threading.Timer(0.5, driver.cancelled.set).start()
    with pytest.raises(SignerFailed, match="was stopped"):
        driver.sign(bench.library, bench.out)


def test_it_learns_nothing_of_our_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_SIGNING_PASSPHRASE", "hush")
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    bench.driver().sign(bench.library, bench.out)
    environ = hexagon_sdk.runs(bench.sdk)[0]["environ"]
    assert "hush" not in environ.values()
    assert environ["HTTPS_PROXY"] == "http://127.0.0.1:1"


def test_it_runs_outside_the_sdk_and_leaves_no_bytecode_in_it(bench: Bench) -> None:
    bench.driver().sign(bench.library, bench.out)
    assert hexagon_sdk.runs(bench.sdk)[0]["cwd"] == str(bench.out)
    assert list((bench.sdk / "tools").rglob("*.pyc")) == []
