"""What is cached is done again when what it was made from changes, in the lane and on the emulator.

Real programs, small ones. test_memo has each kind of input; here are those that torch itself reads, and what
the lane adds: the runner, the installed packages, ExecuTorch and our own code.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ci.pipeline.runner import find_runner
from provisioning.base.settings import ROOT
from tests.support.lowering_suites import Done, environment, run
from tests.support.runner import dist, runner_reports
from tests.support.wheels import make_wheel

__all__ = ["dist", "runner_reports"]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]

CASE = """
[case.{name}]
factory = "{factory}"
inputs = [{{ shape = [1, 16] }}]

[[case.{name}.run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
thresholds = {{ sqnr_db = 20 }}
"""

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        with torch.no_grad():
            self.linear.weight.mul_(float(scale))
    def forward(self, x):
        return torch.relu(self.linear(x))
"""

FILES = {
    "ci/loads.py": """
import os
from pathlib import Path
import torch
from nets import Net
HERE = Path(__file__).parent

def native(): return Net(1 + torch.from_file(str(HERE / "native.bin"), size=4).sum()).eval()
def tensors():
    from safetensors.torch import load_file
    return Net(load_file(HERE / "w.safetensors")["scale"]).eval()
def packaged():
    import scales
    return Net(scales.SCALE).eval()
def same(): return Net().eval()
""",
    "src/nets/__init__.py": NET,
}

CASES = {name: f"loads:{name}" for name in ("native", "tensors", "packaged", "same")}

WHY = {
    "native": "ci/native.bin changed",
    "tensors": "ci/w.safetensors changed",
}


class Clone:
    """A user's repository: the suite in ci/, a package in src/ on PYTHONPATH, and an installed wheel."""

    def __init__(self, folder: Path, packages: Path, cases: Collection[str] = tuple(CASES)) -> None:
        self.folder, self.packages, self.cases = folder, packages, cases
        self.suite = folder / "ci/models.toml"
        self.more: dict[str, str] = {}
        (folder / ".git").mkdir(parents=True)
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (folder / "ci/native.bin").write_bytes(bytes(16))
        save_file({"scale": torch.tensor(1.0)}, folder / "ci/w.safetensors")
        tables = (CASE.format(name=name, factory=CASES[name]) for name in cases)
        self.suite.write_text("schema = 2\n" + "".join(tables))

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.folder / 'src'}:{self.packages}"
        return environment(PYTHONPATH=path, **{**self.more, **more})

    def run(self, base: Path, stage: str = "test_emulator", *flags: str, **more: str) -> Done:
        return run(stage, base, "--suite", self.suite, "--why", *flags, environ=self.environment(**more))


def install(folder: Path, into: Path) -> None:
    """A wheel of a package, installed by pip."""
    wheel = folder / "scales-1.0-py3-none-any.whl"
    wheel.write_bytes(make_wheel(wheel.name, more={"scales/__init__.py": "SCALE = 1\n"}))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", str(into)]
    subprocess.run([*command, str(wheel)], check=True)


def reasons(log: str) -> list[dict[str, str]]:
    """Of each stage in turn (lowering, emulator): the cases that were done, and why."""
    parts = re.split(r"^.* cached, \d+ to do\n", log, flags=re.MULTILINE)[1:]
    line = re.compile(r"^  ([\w.-]+)/\S+: (.*?)(?: \(and \d+ more\))?$", re.MULTILINE)
    return [dict(line.findall(part)) for part in parts]


@pytest.fixture(scope="module")
def base(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


def remembered(base: Path, stage: str, cases: Collection[str] = tuple(CASES)) -> Clone:
    """After a run, and one that finds nothing to do."""
    packages = base / "site-packages"
    install(base, packages)
    clone = Clone(base / "clone", packages, cases)
    first, again = clone.run(base, stage), clone.run(base, stage)
    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert all(set(reason) == set(cases) for reason in reasons(first.err))
    assert not any(reasons(again.err)), first.err + again.err
    return clone


@pytest.fixture(scope="module")
def clone(base: Path) -> Clone:
    return remembered(base, "test_emulator")


@pytest.mark.whole
def test_of_some_programs_those_whose_inputs_changed_are_done_again(tmp_path: Path) -> None:
    cases = ("native", "tensors", "same")
    clone = remembered(tmp_path, "test_lowering", cases)
    (clone.folder / "ci/native.bin").write_bytes(b"\x00\x00\x80\x3f" * 4)
    save_file({"scale": torch.tensor(2.0)}, clone.folder / "ci/w.safetensors")
    (why,) = reasons(clone.run(tmp_path, "test_lowering").err)
    assert why == WHY


def lowered(
    clone: Clone, base: Path, case: str, *, python: str = sys.executable, cwd: Path = ROOT, path: str
) -> Mapping[str, str]:
    """Why that case is lowered by this Python from this checkout; nothing where it is cached."""
    flags = [
        "--suite", str(clone.suite), "--why", "--case", case,
        "--store", str(base / "store"), "--reports", str(base / "reports"),
    ]  # fmt: skip
    done = subprocess.run(
        [python, "-m", "ci", "test_lowering", *flags],
        cwd=cwd,
        env={**environment(PYTHONPATH=path), **clone.more},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return reasons(done.stderr)[0]


@pytest.mark.whole
def test_a_rebuilt_backend_beside_a_runner_of_the_users_own_runs_all_again(clone: Clone, base: Path) -> None:
    dist = base / "dist"
    built = find_runner({}).path
    shutil.copytree(built.parent.parent, dist)
    runner = str(dist / "bin" / built.name)

    def ran(name: str = "same") -> Mapping[str, str]:
        done = clone.run(base, "test_emulator", "--case", name, QNN_EXECUTOR_RUNNER=runner)
        assert done.code == 0, done.err
        return reasons(done.err)[1]

    assert ran()["same"].startswith("runner:") and not ran()
    for library in ("libexecutorch_backend_qnn.so", built.name):
        (path,) = dist.rglob(library)
        with path.open("ab") as stream:
            stream.write(b"\0")
        assert library in ran()["same"]
        assert not ran()


@pytest.mark.whole
def test_an_overlay_of_executorch_counts_by_its_files(clone: Clone, base: Path) -> None:
    """As EXECUTORCH_ROOT with build_x86 puts it on PYTHONPATH: links to a tree, and adaptors just built."""
    import executorch

    installed = Path(next(iter(executorch.__path__)))
    overlay = base / "overlay"
    real = ("", "backends", "backends/qualcomm", "backends/qualcomm/python", "backends/qualcomm/utils")
    for folder in real:
        (overlay / "executorch" / folder).mkdir(parents=True)
        for entry in (installed / folder).iterdir():
            name = (Path(folder) / entry.name).as_posix()
            if name not in real and entry.name != "__pycache__":
                (overlay / "executorch" / name).symlink_to(entry)
    (adaptor,) = (overlay / "executorch/backends/qualcomm/python").glob("PyQnnManagerAdaptor*.so")
    utils = overlay / "executorch/backends/qualcomm/utils/utils.py"
    for path in (adaptor, utils):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)

    search = f"{overlay}:{clone.folder / 'src'}:{clone.packages}"
    assert lowered(clone, base, "same", path=search) and not lowered(clone, base, "same", path=search)
    for file in (utils, adaptor):
        with file.open("ab") as stream:
            stream.write(b"\n" if file == utils else b"\0")
        assert file.name in lowered(clone, base, "same", path=search)["same"]
    assert not lowered(clone, base, "same", path=search)


@pytest.mark.whole
def test_our_own_code_that_does_the_work_counts(clone: Clone, base: Path) -> None:
    toolkit = base / "toolkit"
    for name in ("ci", "provisioning", "manifests"):
        source = Path(__file__).parents[2] / name
        shutil.copytree(source, toolkit / name, ignore=shutil.ignore_patterns("__pycache__"))

    path = f"{clone.folder / 'src'}:{clone.packages}"
    # Another checkout of the toolkit is no change.
    assert not lowered(clone, base, "same", cwd=toolkit, path=path)
    with (toolkit / "ci/artifacts/compiler_log.py").open("a") as stream:
        stream.write("# more\n")
    why = lowered(clone, base, "same", cwd=toolkit, path=path)["same"]
    assert "ci/artifacts/compiler_log.py changed" in why


@pytest.mark.whole
def test_an_editable_install_counts_by_its_files(clone: Clone, base: Path) -> None:
    """`pip install -e` in an environment of its own, with the tests' packages behind it."""
    venv, project = base / "venv", base / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    (project / "scales").mkdir(parents=True)
    (project / "scales/__init__.py").write_text("SCALE = 1\n")
    (project / "pyproject.toml").write_text('[project]\nname = "scales"\nversion = "1.0"\n')
    python = str(venv / "bin/python")
    install_it = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install_it, "-e", str(project)], check=True)

    def packaged() -> Mapping[str, str]:
        return lowered(clone, base, "packaged", python=python, path=str(clone.folder / "src"))

    assert packaged() and not packaged()
    (project / "scales/__init__.py").write_text("SCALE = 2\n")
    assert "scales/__init__.py changed" in packaged()["packaged"]
    assert not packaged()
