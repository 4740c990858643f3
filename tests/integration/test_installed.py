"""The command as a wheel installs it: our files in one package, run from a folder of the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from provisioning.base import toml
from provisioning.base.errors import EnvironmentLacking, UpstreamError, UsageError
from provisioning.base.settings import ROOT, store_path
from provisioning.manifest import load_profile, load_socs
from tests.support import programs
from tests.support.builds import write_build
from tests.support.installed import installed_site
from tests.support.onnx_models import conv_model, write
from tests.support.scripts import locked_environment
from tests.support.sdk import sdk_root

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_site(tmp_path_factory) / "qnn_ci"


@pytest.fixture
def qnn_ci(package: Path, tmp_path: Path) -> Command:
    """Run the command where the user's own packages have our names; stand-ins for the environments."""
    for name in ("tools", "executorch", "onnx"):
        locked_environment(tmp_path / "environments", name)
    for name in ("ci", "provisioning", "tests", "manifests"):
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "__init__.py").write_text("raise SystemExit('the package of the user')\n")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("QNN_CI_")}
    variables |= {
        "QNN_CI_ENVIRONMENTS": str(tmp_path / "environments"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    start = "import sys; sys.path[0] = sys.argv.pop(1); import qnn_ci; sys.exit(qnn_ci.main())"

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        command, environ = [sys.executable, "-c", start, str(package.parent), *arguments], variables | more
        return subprocess.run(
            command, cwd=tmp_path / "home", env=environ, capture_output=True, text=True, check=False
        )

    return run


def test_verbs_are_ours_and_paths_the_users(qnn_ci: Command, tmp_path: Path) -> None:
    """Both packages, a child process of the gate, and the reports of all."""
    home = tmp_path / "home"
    assert qnn_ci("store", "list", "--store", "mine").stdout == f"no trees in {home / 'mine'}\n"
    assert "14001" in qnn_ci("diagnose", "14001").stdout
    done = qnn_ci("gate", "--only", "validate", "--store", "mine")
    assert done.returncode == 3, done.stderr
    assert {path.name for path in (home / "reports").glob("*.json")} >= {"gate.json", "validate.json"}


def test_the_text_for_an_issue_names_the_installed_version(qnn_ci: Command, tmp_path: Path) -> None:
    (tmp_path / "home" / "run.log").write_text("Failed to load skel, error: 1008\n")
    told = qnn_ci("diagnose", "--bundle", "run.log")
    assert told.returncode == 0, told.stderr
    version = toml.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"| qnn-ci | {version} |" in told.stdout


def files_of(package: Path) -> list[Path]:
    """Without bytecode, which Python writes there as it does for any package."""
    return sorted(path for path in package.rglob("*") if "__pycache__" not in path.parts)


BUILT_HERE = "from provisioning.base.settings import outputs_path; print(outputs_path() / 'dist')"


@pytest.mark.heavy
def test_what_was_built_goes_into_a_bundle_and_the_bundle_to_a_device(
    qnn_ci: Command, package: Path, tmp_path: Path
) -> None:
    before = files_of(package)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    asked = [sys.executable, "-B", "-c", BUILT_HERE]
    done = subprocess.run(asked, cwd=package, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    write_build(Path(done.stdout.strip()) / "aarch64-linux" / "wheel")
    build_id = load_profile("wheels").components["qnn-sdk"].build_id
    assert build_id is not None
    data = programs.context("SM8650", 75, build_id=build_id)
    model = programs.program(data=data, spec=programs.options(load_socs()["SM8650"].id, 75))
    (tmp_path / "home" / "model.pte").write_bytes(model)
    chosen = ("--target", "aarch64-linux", "--soc", "SM8650")
    without = qnn_ci("run_device", "--target", "aarch64-linux", "--ssh", "nobody@127.0.0.1")
    assert without.returncode == UsageError.exit_code, without.stderr
    bundled = qnn_ci("bundle", *chosen, "model.pte", QNN_SDK_ROOT=str(sdk_root()))
    assert bundled.returncode == 0, bundled.stderr
    # The bundle is found, and no device.
    ran = qnn_ci("run_device", "--target", "aarch64-linux", "--ssh", "nobody@127.0.0.1")
    assert ran.returncode in (EnvironmentLacking.exit_code, UpstreamError.exit_code), ran.stderr
    assert files_of(package) == before


NET = """\
import torch
def net():
    return torch.nn.Linear(4, 4), (torch.ones(1, 4),)
"""


@pytest.mark.long("imports torch in a process of its own")
def test_a_model_in_a_package_called_ci_is_compiled(qnn_ci: Command, tmp_path: Path) -> None:
    package = tmp_path / "home" / "ci"
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(NET)
    store = ("--store", str(store_path()))
    words = ("compile", "ci.models:net", "--verify", "none", "-o", "out", *store)
    done = qnn_ci(*words, QNN_EXECUTOR_RUNNER="/none")
    assert done.returncode == 0 and "not run" in done.stdout, done.stderr
    assert (tmp_path / "home" / "out" / "models-net-SM8650-fp16.pte").is_file()


@pytest.mark.whole
def test_inputs_are_the_users_own_files(qnn_ci: Command, tmp_path: Path) -> None:
    home, store = tmp_path / "home", ("--store", str(store_path()))
    write(conv_model(), home / "net.onnx")
    (home / "samples").mkdir()
    numpy.save(home / "samples" / "0.npy", numpy.ones((1, 3, 8, 8), numpy.float32))
    assert qnn_ci("compile", "net.onnx", "-o", "out", *store).returncode == 0
    compiled, given = "out/net_ctx.onnx", ("--input", "samples/0.npy")
    for command in (("run", compiled, "-o", "outputs"), ("run", compiled, *store)):
        done = qnn_ci(*command, *given)
        assert done.returncode == 0, done.stderr
    assert (home / "outputs" / "y.npy").is_file()


def test_what_needs_a_clone_is_no_verb(qnn_ci: Command) -> None:
    assert "compile" in qnn_ci("--help").stdout and " lint " not in qnn_ci("--help").stdout
    assert qnn_ci("lint").returncode == 2
    assert qnn_ci("shell", "--image", "wheels").returncode == 2


def test_nothing_is_written_beside_the_package(qnn_ci: Command, package: Path, tmp_path: Path) -> None:
    before = {path for path in package.rglob("*") if "__pycache__" not in path.parts}
    done = qnn_ci("build_runner", "--dry-run", "--store", "mine")
    assert str(package / "dist") not in done.stdout and str(package / "build") not in done.stdout
    assert str(tmp_path / "cache") in done.stdout, done.stderr
    assert {path for path in package.rglob("*") if "__pycache__" not in path.parts} == before
