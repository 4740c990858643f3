"""The runner drives QNN programs on the HTP emulator of the provisioned SDK."""

from __future__ import annotations

import array
import json
import shutil
from pathlib import Path

import pytest

from tests.support.runner import Bench, dist, programs, runner_reports
from tests.support.sdk import qnn_environment

__all__ = ["dist", "programs", "runner_reports"]
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return qnn_environment()


@pytest.fixture(scope="module")
def bench(dist: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("htp") / "work"
    shutil.copytree(programs, folder)
    return Bench(dist / "bin" / "qnn_executor_runner", folder)


def floats(data: bytes) -> list[float]:
    values = array.array("f")
    values.frombytes(data)
    return values.tolist()


def test_gives_what_eager_gives(bench: Bench, environ: dict[str, str]) -> None:
    ran = bench.program("htp", "--metrics_path", "m.json", environ=environ)

    assert ran.code == 0, ran.err
    assert floats(bench.read("out/output_0_0.raw")) == pytest.approx(
        floats(bench.read("htp_ref0.raw")), abs=0.01
    )
    assert json.loads(bench.read("m.json"))["backends"] == ["QnnBackend"]


def test_runtime_options_reach_the_backend(bench: Bench, environ: dict[str, str]) -> None:
    quiet = bench.program("htp", "--log_level", "1", environ=environ)
    verbose = bench.program("htp", "--log_level", "4", environ=environ)

    assert (quiet.code, verbose.code) == (0, 0)
    assert "<V>" in verbose.out + verbose.err
    assert "<V>" not in quiet.out + quiet.err


def test_without_the_sdk_it_says_which_variable_to_set(bench: Bench) -> None:
    before = bench.files()

    ran = bench.program("htp", "--output_folder_path", "none", environ={"LD_LIBRARY_PATH": ""})

    assert ran.code == 40
    assert "method forward of model 'htp.pte' could not be loaded" in ran.err
    assert "set LD_LIBRARY_PATH to the QNN SDK's library folder" in ran.err
    assert bench.files() == before
