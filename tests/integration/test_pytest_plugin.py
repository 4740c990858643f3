"""The fixture `qnn` in a user's own tests, as the wheel's entry point gives it: docs/model.md."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from provisioning.base import toml
from provisioning.base.settings import ROOT
from qnn_ci import api
from tests.integration.test_installed import package
from tests.support.journey_files import FILES
from tests.support.journeys import Stage, journeys
from tests.support.runner import runner_reports

__all__ = ["package", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

TESTS = """\
import numpy
import pytest
from qnn_ci import Failed, Qnn, compile, run


def net():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), torch.randn(4, 8)


@pytest.mark.qnn(precision=["8a8w"], soc="SM8650")
def test_net(qnn: Qnn):
    model, x = net()
    done = qnn.compile(model, x)
    assert done.sqnr_db >= 20 and done.delegates == 1 and not done.on_cpu
    assert done.program.is_file() and model.training, "the net is left as it was"


def test_not_so_good(qnn: Qnn):
    assert qnn.compile("net.onnx", precision="fp16", soc="SM8650").sqnr_db >= 200


def test_function():
    with pytest.raises(Failed, match="8a8w"):
        compile("net.onnx", precision="8a8")


def test_onnx(qnn: Qnn):
    (output,) = run("net.onnx", numpy.ones((1, 3, 8, 8), numpy.float32)).outputs
    assert numpy.load(output).shape == (1, 4, 8, 8)


@pytest.mark.qnn(chip="SM8650")
def test_wrong_marker(qnn: Qnn):
    pass
"""
ALONE = """\
import sys, pytest
path, before = list(sys.path), set(sys.modules)
import qnn_ci.api, qnn_ci.pytest_plugin
from qnn_ci import Compiled, Qnn, audit, compile, run
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)), sys.path == path, "ci" in sys.modules)
"""


@pytest.fixture
def site(package: Path) -> Path:
    """The folder of the wheel's files, with what an installer writes of its entry points."""
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = package.parent / f"qnn_ci-{project['version']}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: qnn-ci\nVersion: {project['version']}\n")
    points = project["entry-points"]["pytest11"].items()
    lines = [f"{name} = {module}" for name, module in points]
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))
    return package.parent


INSTALLED = "import sys; sys.path.insert(0, sys.argv.pop(1)); import pytest; sys.exit(pytest.main())"
"""pytest where the wheel's files are. On PYTHONPATH each command would import torch anew."""


def test_it_imports_the_standard_library_and_pytest_alone(site: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[0] == "['qnn_ci'] True False"
    assert (site / "qnn_ci" / "py.typed").is_file()


ANSWERS = """\
import json, pathlib, sys
words = sys.argv[1:]
record = {"files": [words[words.index("--json") + 2]], "words": words}
pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps({"findings": [], "programs": [record]}))
"""


@pytest.mark.parametrize("named", [True, False])
def test_a_module_lies_in_the_folder_that_the_user_names_for_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    import torch

    (tmp_path / "command.py").write_text(ANSWERS)
    monkeypatch.setattr(api, "COMMAND", tmp_path / "command.py")
    folder = tmp_path / "out" if named else None
    samples = [torch.rand(1, 4), torch.rand(1, 4)]
    done = api.compile(torch.nn.Linear(4, 4), torch.rand(1, 4), calibrate=samples, output=folder)
    words = done.record["words"]
    model, data = Path(done.record["files"][0]), Path(words[words.index("--calibrate") + 1])
    assert model.is_file() is data.is_dir() is model.is_relative_to(tmp_path / "out") is named


def pytest_in(folder: Path, site: Path, variables: dict[str, str], *words: str) -> str:
    command = [
        sys.executable,
        "-c",
        INSTALLED,
        str(site),
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hydra_pytest",
        *words,
    ]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=900
    )
    return done.stdout + done.stderr


@pytest.mark.journey
def test_a_users_tests_hold_their_nets_to_figures_on_two_workers(
    site: Path, runner_reports: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    variables = Stage(tmp_path_factory, journeys()).variables
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "test_net.py").write_text(TESTS, encoding="utf-8")
    FILES["ONNX convolution"](folder / "net.onnx")
    said = pytest_in(folder, site, variables, "-n2", "--junitxml=junit.xml")
    assert "1 failed, 3 passed" in said and "1 error" in said, said
    assert "200" in said and "expected @pytest.mark.qnn(precision, soc)" in said
    # The interpreter of the work is said, and is not the tests' own word alone.
    assert "compiled and run by" in said
    (case,) = (
        node for node in ET.parse(folder / "junit.xml").iter("testcase") if "8a8w" in node.get("name", "")
    )
    properties = {element.get("name"): element.get("value", "") for element in case.iter("property")}
    assert float(properties["qnn_sqnr_db"]) > 20 and properties["qnn_python"]
    left = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    assert left == ["junit.xml", "net.onnx", "test_net.py"]
