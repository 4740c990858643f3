"""The runner drives QNN programs on the HTP emulator of the provisioned SDK."""

from __future__ import annotations

import array
import json
import shutil
from pathlib import Path

import pytest

from tests.support.runner import Home, dist, programs, runner_reports
from tests.support.sdk import qnn_environment

__all__ = ["dist", "programs", "runner_reports"]
pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    return qnn_environment()


@pytest.fixture(scope="module")
def home(dist: Path, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("htp") / "work"
    shutil.copytree(programs, folder)
    return Home(dist / "bin" / "qnn_executor_runner", folder)


def floats(data: bytes) -> list[float]:
    values = array.array("f")
    values.frombytes(data)
    return values.tolist()


def test_gives_what_eager_gives(home: Home, environ: dict[str, str]) -> None:
    ran = home.program("htp", "--metrics_path", "m.json", environ=environ)

    assert ran.code == 0, ran.err
    assert floats(home.read("out/output_0_0.raw")) == pytest.approx(
        floats(home.read("htp_ref0.raw")), abs=0.01
    )
    assert json.loads(home.read("m.json"))["backends"] == ["QnnBackend"]


def test_runtime_options_reach_the_backend(home: Home, environ: dict[str, str]) -> None:
    quiet = home.program("htp", "--log_level", "1", environ=environ)
    verbose = home.program("htp", "--log_level", "4", environ=environ)

    assert (quiet.code, verbose.code) == (0, 0)
    assert "<V>" in verbose.out + verbose.err
    assert "<V>" not in quiet.out + quiet.err


def test_without_the_sdk_it_says_which_variable_to_set(home: Home) -> None:
    before = home.files()

    ran = home.program("htp", "--output_folder_path", "none", environ={"LD_LIBRARY_PATH": ""})

    assert ran.code == 40
    assert "method forward of model 'htp.pte' could not be loaded" in ran.err
    assert "set LD_LIBRARY_PATH to the QNN SDK's library folder" in ran.err
    assert home.files() == before
