"""LPAI programs on a QNN without LPAI: quantized, measured in PyTorch, and never said to be compiled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from provisioning.base.findings import Outcome
from provisioning.base.settings import MANIFESTS
from tests.support.elves import Library
from tests.support.lowering_suites import Done, environment, run, suite
from tests.support.sdk import sdk_root

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]

SUITE = MANIFESTS / "suites" / "lpai.toml"
LIBRARY = "lib/x86_64-linux-clang/libQnnLpai.so"
LPAI = {"soc": "SM8850", "scheme": "8a8w", "run": 'backend = "lpai"'}


def figures(done: Done) -> dict[str, float]:
    programs: Any = done.report.metrics["programs"]
    return {name: row["figures"]["sqnr_db"] for name, row in programs.items() if "figures" in row}


def test_programs_are_quantized_and_the_missing_library_is_named(tmp_path: Path) -> None:
    done = run("test_lowering", tmp_path, "--suite", SUITE, "--case", "resnet10", "--case", "vit_layer")

    assert (done.code, done.report.outcome) == (3, Outcome.ERROR)
    assert done.rules("resnet10") == {"lpai-library"}
    assert done.rules("vit_layer") == {"lpai-library", "lpai-annotation"}
    assert all(figure > 25 for figure in figures(done).values()) and len(figures(done)) == 2
    (missing,) = [finding for finding in done.report.findings if finding.subject.startswith("resnet10/")]
    assert LIBRARY in missing.message and "--profile qnn-2.48" in missing.fix
    (split,) = [finding for finding in done.report.findings if finding.rule == "lpai-annotation"]
    assert "expand" in split.message
    # Nothing half done is taken for a program, now or from memory.
    assert not list(tmp_path.rglob("*.pte"))
    again = run("test_lowering", tmp_path, "--suite", SUITE, "--case", "resnet10", "--case", "vit_layer")
    assert (again.code, figures(again)) == (3, figures(done))
    emulated = run("test_emulator", tmp_path, "--suite", SUITE, "--case", "resnet10")
    assert (emulated.code, emulated.rules("resnet10")) == (1, {"emulator-backend"})


def test_accuracy_is_held_before_the_library_is_missed(tmp_path: Path) -> None:
    cases = {"net": {**LPAI, "thresholds": "sqnr_db = 90"}}
    done = run("test_lowering", tmp_path, "--suite", suite(tmp_path, cases))

    assert done.code == 1
    assert done.rules("net") == {"lpai-accuracy", "lpai-library"}


def test_with_a_library_for_the_lpai_the_same_command_goes_on_to_the_compiler(tmp_path: Path) -> None:
    """A library that holds nothing stands in for it: no package here has the real one."""
    sdk = tmp_path / "sdk"
    shutil.copytree(sdk_root(), sdk, copy_function=os.link, symlinks=True)
    Library(soname="libQnnLpai.so").write(sdk / LIBRARY)

    done = run(
        "test_lowering",
        tmp_path,
        *("--suite", suite(tmp_path, {"net": LPAI})),
        environ=environment(QNN_SDK_ROOT=str(sdk)),
    )

    # ExecuTorch ends with a signal where a library has none of QNN's functions.
    assert (done.code, done.rules("net")) == (1, {"lowering-crash"})
    assert not list(tmp_path.rglob("*.pte"))
