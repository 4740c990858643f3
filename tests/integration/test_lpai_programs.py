"""LPAI programs on a QNN without LPAI: quantized for it, and never said to be compiled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from provisioning.base.findings import Outcome
from provisioning.base.settings import MANIFESTS
from tests.support.elves import Library
from tests.support.lowering_suites import environment, run, suite
from tests.support.sdk import sdk_root

pytestmark = [pytest.mark.heavy, pytest.mark.whole, pytest.mark.timeout(900)]

SUITE = MANIFESTS / "suites" / "lpai.toml"
LIBRARY = "lib/x86_64-linux-clang/libQnnLpai.so"
LPAI = {"soc": "SM8850", "scheme": "8a8w", "run": 'backend = "lpai"'}


def test_the_missing_library_is_named_and_nothing_is_taken_for_a_program(tmp_path: Path) -> None:
    done = run("test_lowering", tmp_path, "--suite", SUITE, "-k", "resnet10/", "-k", "vit_layer/")

    assert (done.code, done.report.outcome) == (3, Outcome.ERROR)
    assert done.rules("resnet10") == done.rules("vit_layer") == {"lpai-library"}
    (missing,) = [finding for finding in done.report.findings if finding.subject.startswith("resnet10/")]
    assert LIBRARY in missing.message and "--profile qnn-2.48" in missing.fix
    assert not list(tmp_path.rglob("*.pte"))
    emulated = run("test_emulator", tmp_path, "--suite", SUITE, "-k", "resnet10/")
    assert (emulated.code, emulated.rules("resnet10")) == (3, {"lpai-library"})


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

    assert (done.code, done.rules("net")) == (1, {"lowering-compile"})
    # It has none of QNN's functions.
    assert f"{LIBRARY}: undefined symbol" in done.report.findings[0].message
    assert not list(tmp_path.rglob("*.pte"))
