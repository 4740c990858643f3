"""Driving elfsigner, with the stand-in in its place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.signing.lpai import elfsigner
from ci.signing.lpai.elfsigner import Elfsigner, SignerFailed
from ci.signing.lpai.libraries import load_table
from tests.support import hexagon_sdk
from tests.support.skels import Skel


@dataclass
class Bench:
    sdk: Path
    library: Path
    out: Path

    def driver(self, *, seconds: float = 60, consent: Callable[[str], bool] | None = None) -> Elfsigner:
        script = self.sdk / "tools" / "elfsigner" / "elfsigner.py"
        return Elfsigner(
            script, Path(sys.executable), seconds, consent or (lambda text: True), load_table().elfsigner
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (out := tmp_path / "out").mkdir()
    library = Skel(arch=81).write(tmp_path / "libQnnLpaiSkel.so")
    return Bench(hexagon_sdk.hexagon_sdk(tmp_path), library, out)


def test_a_question_in_other_words_is_answered_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elfsigner, "_SILENT_SECONDS", 0.3)
    hexagon_sdk.behave(bench.sdk, behaviour="odd-prompt")
    assert bench.driver().sign(bench.library, bench.out).is_file()


def test_output_without_end_is_an_error(bench: Bench) -> None:
    hexagon_sdk.behave(bench.sdk, behaviour="endless")
    with pytest.raises(SignerFailed, match="without end"):
        bench.driver().sign(bench.library, bench.out)


def test_time_spent_reading_the_disclaimer_does_not_count(bench: Bench) -> None:
    def slow(text: str) -> bool:
        time.sleep(1.5)
        return True

    hexagon_sdk.behave(bench.sdk, behaviour="no-output")
    driver = bench.driver(seconds=1.4, consent=slow)
    with pytest.raises(SignerFailed, match="wrote no file"):
        driver.sign(bench.library, bench.out)


def test_it_learns_nothing_of_our_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNN_CI_SIGNING_PASSPHRASE", "hush")
    monkeypatch.setenv("GITHUB_TOKEN", "hush")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    bench.driver().sign(bench.library, bench.out)
    environ = hexagon_sdk.runs(bench.sdk)[0]["environ"]
    assert "hush" not in environ.values()
    assert environ["HTTPS_PROXY"] == "http://127.0.0.1:1"
