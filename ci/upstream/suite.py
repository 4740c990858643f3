"""A suite of tests that comes with the executorch wheel: where it is, and what its verdicts depend on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.engine.installed import host_libraries, runner_digest
from ci.engine.jobs import default_slots
from ci.engine.memo import digest_of_files, key_of
from ci.upstream import shims
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric
from provisioning.environment import Environment

PACKAGES = ("executorch", "torch", "torchao", "numpy", "transformers")

RULES = 3
"""How tests are run (seeds, folders, verdicts); a new value runs everything again."""

PATH_VARIABLES = ("QNN_SDK_ROOT", "QNN_EXECUTOR_RUNNER", "QNN_BUILD_FOLDER", "QNN_ARTIFACT_DIR")
"""Where things are; what they are is in the digests."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests that pytest collects from one file below the executorch package."""

    stage: str
    """The command that runs it, and the name of its report."""
    file: str

    @property
    def module(self) -> str:
        return "executorch." + self.file.removesuffix(".py").replace("/", ".")


DELEGATE = Suite("test_delegate", "backends/qualcomm/tests/test_qnn_delegate_x86.py")


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed suite, by content."""

    file: Path
    versions: Mapping[str, str]
    package: str
    """Digest of executorch's Python files and libraries, tests included."""
    absent: tuple[str, ...]
    """The optional modules that stand-ins replace."""

    def key(self) -> str:
        return key_of(
            {
                "rules": RULES,
                "file": self.file.name,
                "versions": dict(self.versions),
                "package": self.package,
                "absent": list(self.absent),
            }
        )


@dataclass(frozen=True, slots=True)
class Basis:
    """Everything but the test's name that its verdict depends on."""

    installed: Installed
    sdk: Mapping[str, str]
    runner: str
    soc: str
    flags: Mapping[str, str]

    def key(self, test: str) -> str:
        return key_of(
            {
                "installed": self.installed.key(),
                "test": test,
                "sdk": dict(self.sdk),
                "runner": self.runner,
                "soc": self.soc,
                "flags": dict(self.flags),
            }
        )

    def as_metrics(self) -> dict[str, Metric]:
        return {
            "versions": dict(self.installed.versions),
            "sdk": dict(self.sdk),
            "runner": self.runner,
            "absent": list(self.installed.absent),
        }


def installed(suite: Suite) -> Installed:
    """The suite of the executorch that this Python would import, found without importing it."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise EnvironmentLacking(
            "executorch is not installed in this Python, and its tests are what this command runs",
            remedy=f"nox -s {suite.stage}, which installs it",
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    if not (root / suite.file).is_file():
        raise EnvironmentLacking(
            f"the installed executorch {_version('executorch')} has no {suite.file}",
            remedy=f"install the profile's version: nox -s {suite.stage}",
        )
    versions = {name: _version(name) for name in PACKAGES}
    return Installed(
        file=root / suite.file,
        versions={**versions, "python": platform.python_version()},
        package=digest_of_files(
            root, [path for suffix in ("py", "so", "fbs") for path in root.rglob(f"*.{suffix}")]
        ),
        absent=tuple(name for name in shims.OPTIONAL if importlib.util.find_spec(name) is None),
    )


def basis_of(
    suite: Installed, sdk_root: Path, runner: Path, soc: str, environment: Mapping[str, str]
) -> Basis:
    return Basis(
        installed=suite,
        sdk=host_libraries(sdk_root, "holds the HTP emulator"),
        runner=runner_digest(runner),
        soc=soc,
        flags={
            name: value
            for name, value in environment.items()
            if name.startswith(("QNN_", "ET_", "TORCH", "ATEN_", "ADSP_"))
            and not name.startswith("QNN_CI_")
            and name not in PATH_VARIABLES
        },
    )


def worker_environment(
    found: Environment, environ: Mapping[str, str], runner: Path, slots: int
) -> dict[str, str]:
    """The variables that ExecuTorch's QNN tests are run with."""
    return {
        **found.merged(environ),
        "QNN_DELEGATE_TEST": "1",
        "QNN_SOC_MODEL": found.soc,
        "QNN_EXECUTOR_RUNNER": str(runner),
        "QNN_BUILD_FOLDER": str(runner.parent.parent),
        # The workers share the cores.
        "OMP_NUM_THREADS": str(max(1, default_slots() // slots)),
        "PYTHONWARNINGS": "ignore",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
