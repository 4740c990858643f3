"""What the verdict of a test depends on: the suite and all it runs on, as digests."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.engine.installed import host_libraries, runner_digest
from ci.engine.memo import VerdictCache, digest_of_files, key_of
from ci.upstream import shims
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric

PACKAGES = ("executorch", "torch", "torchao", "numpy", "transformers")

RULES = 2
"""How tests are run (seeds, directories, verdicts); a new value runs everything again."""

PATH_VARIABLES = ("QNN_SDK_ROOT", "QNN_EXECUTOR_RUNNER", "QNN_BUILD_FOLDER", "QNN_ARTIFACT_DIR")
"""Where things are; what they are is in the digests."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The installed suite, by content."""

    versions: dict[str, str]
    package: str
    """Digest of executorch's Python files and libraries, without the tests."""
    support: str
    """Digest of the modules around the tests: theirs, models.py, utils.py."""
    absent: tuple[str, ...]
    """The optional modules that shims stand in for."""


@dataclass(frozen=True, slots=True)
class Basis:
    """Everything but the test itself that its verdict depends on."""

    suite: Suite
    sdk: dict[str, str]
    runner: str
    soc: str
    flags: dict[str, str]

    def key(self, test: str, source: str) -> str:
        return key_of(
            {
                "rules": RULES,
                "test": test,
                "source": source,
                "versions": dict(self.suite.versions),
                "package": self.suite.package,
                "support": self.suite.support,
                "absent": list(self.suite.absent),
                "sdk": dict(self.sdk),
                "runner": self.runner,
                "soc": self.soc,
                "flags": dict(self.flags),
            }
        )

    def as_metrics(self) -> dict[str, Metric]:
        return {
            "versions": dict(self.suite.versions),
            "sdk": dict(self.sdk),
            "runner": self.runner,
            "absent": list(self.suite.absent),
        }


def installed_suite() -> Suite:
    """Look at the executorch that this Python would import, without importing it."""
    found = importlib.util.find_spec("executorch")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentLacking(
            "executorch is not installed in this Python, and its suite is what is run",
            remedy="nox -s test_delegate, which installs it",
        )
    root = Path(next(iter(found.submodule_search_locations)))
    tests = root / "backends" / "qualcomm" / "tests"
    if not (tests / "test_qnn_delegate_x86.py").is_file():
        raise EnvironmentLacking(
            f"the installed executorch {_version('executorch')} has no backends/qualcomm/tests/"
            "test_qnn_delegate_x86.py",
            remedy="install the profile's version: nox -s test_delegate",
        )
    files = [path for suffix in ("py", "so", "fbs") for path in root.rglob(f"*.{suffix}")]
    support = [path for path in files if path.is_relative_to(tests)]
    versions = {name: _version(name) for name in PACKAGES}
    return Suite(
        versions={**versions, "python": platform.python_version()},
        package=digest_of_files(root, set(files) - set(support)),
        support=digest_of_files(tests, support),
        absent=tuple(name for name in shims.OPTIONAL if importlib.util.find_spec(name) is None),
    )


def basis_of(suite: Suite, sdk_root: Path, runner: Path, soc: str, environment: Mapping[str, str]) -> Basis:
    return Basis(
        suite=suite,
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


def list_tests(suite: Suite, cache: VerdictCache, ask: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Every test with the digest of its source; asked for when the suite is not known yet."""
    key = key_of(
        {
            "rules": RULES,
            "versions": dict(suite.versions),
            "package": suite.package,
            "support": suite.support,
            "absent": list(suite.absent),
        }
    )

    known = cache.through(key, lambda: dict(ask()))
    return {name: str(digest) for name, digest in known.items()}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
