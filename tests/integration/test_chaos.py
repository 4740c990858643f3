"""Runs of suites killed at random moments, two at once over one store, with files edited, backdated and
swapped between them, and clocks that are wrong: no verdict is stale, and none is lost.

QNN_CI_CHAOS=50 makes 50 rounds of the few that the tests make.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT

ROUNDS = int(os.environ.get("QNN_CI_CHAOS", "3"))
NAMES = ("a", "b", "c", "d")
NET = """
from pathlib import Path
HERE = Path(__file__).parent
def make(name): return (HERE / f"{name}.txt").read_text()
"""
CASE = """
[case.{name}]
factory = "net:make"
arguments = {{ name = "{name}" }}
[[case.{name}.run]]
scheme = "fp16"
socs = ["SM8650"]
thresholds = {{ sqnr_db = 20 }}
"""


class Clone:
    def __init__(self, folder: Path, base: Path, chance: random.Random) -> None:
        self.folder, self.base, self.chance = folder, base, chance
        self.number = 0
        (folder / ".git").mkdir(parents=True)
        (folder / "net.py").write_text(NET)
        (folder / "suite.toml").write_text("schema = 1\n" + "".join(CASE.format(name=n) for n in NAMES))
        for name in NAMES:
            self.path(name).write_text("100")

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.txt"

    def edit(self) -> None:
        """One file gets another text of the same length, and maybe its old times, or another inode."""
        path = self.path(self.chance.choice(NAMES))
        times = path.stat()
        text = str(self.chance.randrange(100, 1000))
        if self.chance.random() < 0.3:
            new = path.with_suffix(".new")
            new.write_text(text)
            new.replace(path)
        else:
            path.write_text(text)
        if self.chance.random() < 0.5:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def start(self, shift: float = 0) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.support.chaos_suite", str(self.base)]
        return subprocess.Popen(
            [*command, str(self.folder / "suite.toml"), str(shift)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def expected(self) -> dict[str, str]:
        return {name: self.path(name).read_text() for name in NAMES}


def _texts(process: subprocess.Popen[str]) -> dict[str, str]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return {name: text for name, (_, text) in json.loads(out).items()}


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_no_verdict_is_stale_and_none_is_lost(tmp_path: Path) -> None:
    chance = random.Random(7)
    clones = [Clone(tmp_path / name, tmp_path, chance) for name in ("one", "two")]
    for number in range(ROUNDS):
        for clone in clones:
            if chance.random() < 0.7:
                clone.edit()
        running = [clone.start(chance.choice([0, 0, -86400, 86400])) for clone in clones]
        if number % 3 < 2:
            time.sleep(chance.uniform(0.1, 2.5))
            for process in running:
                process.kill()
                process.communicate()
        else:
            for clone, process in zip(clones, running, strict=True):
                assert _texts(process) == clone.expected()
    for clone in clones:
        assert _texts(clone.start()) == clone.expected()
        out, _ = clone.start().communicate(timeout=120)
        assert all(cached for cached, _ in json.loads(out).values())
