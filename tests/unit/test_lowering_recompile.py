"""Each thing that a program depends on: change it alone, and the program is compiled again, and then kept.

The worker is a stand-in; what is looked at (files, packages, the SDK) is real files.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.executorch import compile as compiling
from ci.executorch.compile import PACKAGES, Compiled, Settings, basis_of, compile_programs
from ci.executorch.suite import programs_of
from ci.suites.baseline import Baseline
from provisioning.base.settings import ROOT
from provisioning.environment import Environment
from tests.support.lowering import make_program

BUILD_ID = b"v2.49.40.260810104044"


class Setting:
    """A suite with its model, the installed packages and an SDK, in folders that a test may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.suite = folder / "suite"
        self.packages = folder / "packages"
        self.sdk = folder / "sdk"
        make_program(self.suite)
        for package in PACKAGES:
            info = self.packages / f"{package}-1.0.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            (info / "RECORD").write_text(f"{package}/__init__.py,sha256=aaaa,1\n")
        libraries = self.sdk / "lib/x86_64-linux-clang"
        libraries.mkdir(parents=True)
        (libraries / "libQnnHtp.so").write_bytes(b"\x7fELF" + BUILD_ID)
        (libraries / "libQnnSystem.so").write_bytes(b"\x7fELF")

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_bytes()
        assert old.encode() in text
        path.write_bytes(text.replace(old.encode(), new.encode()))

    def cached(self) -> bool:
        (program,) = programs_of(self.suite / "suite.toml")
        found = Environment("wheels", "x86_64-linux", "SM8650", {}, {}, (), (), ())
        settings = Settings(self.folder / "store", self.folder / "logs", jobs=1, timeout=60)
        settings.logs.mkdir(exist_ok=True)
        made = compile_programs(
            [program],
            found,
            {**os.environ, "PYTHONPATH": str(ROOT)},
            settings,
            basis_of(self.sdk),
            lambda _: Baseline(self.folder / "baseline.json"),
        )[program.name]
        assert isinstance(made, Compiled)
        return made.cached


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    made = Setting(tmp_path)
    monkeypatch.setattr(compiling, "WORKER", ("-m", "tests.support.lowering_worker"))
    monkeypatch.setattr(sys, "path", [str(made.packages), *sys.path])
    return made


def _replaced(file: str, old: str, new: str) -> Callable[[Setting], None]:
    return lambda setting: setting.replace(file, old, new)


def _suite(old: str, new: str) -> Callable[[Setting], None]:
    return _replaced("suite/suite.toml", old, new)


CHANGES: dict[str, Callable[[Setting], None]] = {
    "the model's source": _replaced("suite/net.py", "def make", "# changed\ndef make"),
    "a module that the model imports": _replaced("suite/layers.py", "WIDTH = 1", "WIDTH = 2"),
    "the weights": _replaced("suite/weights.bin", "0123", "0124"),
    "the model's arguments": _suite("width = 8", "width = 9"),
    "the inputs' shape": _suite("files =", "inputs = [{ shape = [1, 4] }]\nfiles ="),
    "how many inputs": _suite("files =", "inferences = 3\nfiles ="),
    "how many calibration inputs": _suite("tags =", "calibration = 3\ntags ="),
    "the scheme": _suite('"8a8w"', '"16a8w"'),
    "the chip": _suite('"SM8650"', '"SM8750"'),
    "the quantizer's options": _suite("tags =", "per_channel = false\ntags ="),
    "the partitioner's options": _suite("tags =", 'cpu_operators = ["aten.add.Tensor"]\ntags ='),
    **{
        f"{package}'s version": _replaced(
            f"packages/{package}-1.0.dist-info/METADATA", "Version: 1.0", "Version: 1.1"
        )
        for package in PACKAGES
    },
    "a file of executorch": _replaced("packages/executorch-1.0.dist-info/RECORD", "aaaa", "bbbb"),
    "the SDK's build id": _replaced("sdk/lib/x86_64-linux-clang/libQnnHtp.so", "104044", "104045"),
    "a library of the SDK": _replaced("sdk/lib/x86_64-linux-clang/libQnnSystem.so", "ELF", "ELG"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_compiles_it_again_and_once(setting: Setting, what: str) -> None:
    before = [setting.cached(), setting.cached()]
    CHANGES[what](setting)
    assert (before, [setting.cached(), setting.cached()]) == ([False, True], [False, True])


@pytest.mark.parametrize(
    ("old", "new"),
    [("sqnr_db = 20", "sqnr_db = 30"), ('["pr"]', '["nightly"]'), ("files =", "cpu_budget = 1\nfiles =")],
)
def test_what_is_only_judged_does_not(setting: Setting, old: str, new: str) -> None:
    before = [setting.cached(), setting.cached()]
    setting.replace("suite/suite.toml", old, new)
    assert (before, setting.cached()) == ([False, True], True)


def test_moving_the_suite_and_the_sdk_does_not(setting: Setting) -> None:
    before = [setting.cached(), setting.cached()]
    for name in ("suite", "sdk"):
        shutil.move(setting.folder / name, setting.folder / f"moved-{name}")
    setting.suite, setting.sdk = setting.folder / "moved-suite", setting.folder / "moved-sdk"
    assert (before, setting.cached()) == ([False, True], True)


def test_what_was_changed_back_is_found_again(setting: Setting) -> None:
    before = [setting.cached(), setting.cached()]
    setting.replace("suite/net.py", "def make", "# changed\ndef make")
    changed = setting.cached()
    setting.replace("suite/net.py", "# changed\ndef make", "def make")
    assert (before, changed, setting.cached()) == ([False, True], False, True)
