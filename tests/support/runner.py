"""The runner and programs for it, built once for all tests that import these fixtures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from ci.lanes.executorch.steps import home_of
from ci.suite.runner import DIST
from ci.work.child import closed_environment
from ci.work.processes import asking
from provisioning.base.settings import ROOT
from provisioning.dist import OURS
from tests.support import templates
from tests.support.sdk import qnn_environment, sdk_root


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Home:
    """A folder with every program in it and the runner to run them, as a user would type it there."""

    runner: Path
    folder: Path

    def run(
        self, *flags: str | Path, environ: Mapping[str, str] | None = None, limit: int | None = None
    ) -> Ran:
        """`limit`: the longest file, in bytes, that the runner may write."""
        command = [str(self.runner), *map(str, flags)]
        if limit is not None:
            command = ["prlimit", f"--fsize={limit}", *command]
        result = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Ran(result.returncode, result.stdout, result.stderr)

    def program(self, name: str, *flags: str | Path, **more: object) -> Ran:
        """Run NAME.pte on its own inputs into out/."""
        named = (
            "--model_path",
            f"{name}.pte",
            "--input_list_path",
            f"{name}.txt",
            "--output_folder_path",
            "out",
        )
        return self.run(*named, *flags, **more)  # type: ignore[arg-type]

    def peak_rss_kb(self, *flags: str | Path, environ: Mapping[str, str] | None = None) -> int:
        """The highest resident memory of a run that must succeed."""
        ran = self.run(*flags, "--metrics_path", "memory.json", environ=environ)
        assert ran.code == 0, ran.err
        return int(json.loads(self.read("memory.json"))["peak_rss_kb"])

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir()}


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def build(
    into: Path, *flags: str | Path, cwd: Path = ROOT, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`build_runner` as it is typed, with everything it writes below `into`."""
    outputs = ("-o", str(into / "dist"), "--build-dir", str(into / "tree"), "--store", str(into / "store"))
    return _build_runner(into / "reports", *outputs, *map(str, flags), cwd=cwd, environ=environ)


def build_in_place(reports: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`build_runner` as it is typed, where stages look for the runner, with the user's own store."""
    with FileLock(f"{reports}.lock"):
        return _build_runner(reports, *flags, cwd=ROOT)


def _build_runner(
    reports: Path, *flags: str, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(sys.executable, "-m", "ci", "build_runner", "--jobs", "2", "--reports", str(reports)), *flags],
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="session")
def runner_reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the build in place, which all tests share: a clone that has it already does not build it again."""
    reports = shared_folder(tmp_path_factory) / "runner"
    result = build_in_place(reports)
    assert result.returncode == 0, result.stdout + result.stderr
    return reports


@pytest.fixture(scope="session")
def dist(runner_reports: Path) -> Path:
    return DIST / OURS


@pytest.fixture(scope="module")
def file_store(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One store for all tests of a file: it remembers which tests a suite of ExecuTorch has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNN_SDK_ROOT", str(sdk_root()))  # from the user's own
        patch.setenv("QNN_CI_STORE", str(tmp_path_factory.mktemp("store")))
        yield


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = shared_folder(tmp_path_factory) / "programs"
    with FileLock(f"{into}.lock"):
        if not (into / "types.txt").is_file():
            home = home_of(closed_environment(qnn_environment()), into.parent)
            log = into.with_suffix(".log")
            with templates.shared(), asking(home, "tests.support.runner_programs:make", log, 600) as ask:
                ask(into=str(into))
    return into


@pytest.fixture
def home(dist: Path, programs: Path, tmp_path: Path) -> Home:
    folder = tmp_path / "work"
    shutil.copytree(programs, folder)
    return Home(dist / "bin" / "qnn_executor_runner", folder)
