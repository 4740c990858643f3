"""A suite of tests in the executorch wheel, and what it runs on."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.jobs import default_slots
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, UsageError

if TYPE_CHECKING:
    from ci.results import CachedResults
    from ci.suite.runner import Runner
    from provisioning.base.findings import Metric
    from provisioning.environment import Environment

ADAPTERS = "ci.lanes.upstream.adapters"

PACKAGES = ("executorch", "torch", "torchao", "numpy", "transformers")


@dataclass(frozen=True, slots=True)
class UpstreamSuite:
    """Tests of the executorch package that pytest collects."""

    name: str
    path: str
    """The file or folder, below the package; or in full."""
    holds: str
    """What is tested, for the list of suites."""
    command: tuple[str, ...] = ("test_upstream",)
    """What runs it; the last word is the name of its report."""
    classes: tuple[str, ...] = ()
    """Only the tests of these, or functions; of all if empty."""
    adapter: str = f"{ADAPTERS}:DefaultAdapter"
    """What sets its tests up, MODULE:CLASS."""
    socs: tuple[str, ...] = ()
    """The chips that its tests know; any if empty."""
    models: bool = False
    """Whether they have models, for which it is searched what the compiler crashes on."""
    warm_up: str = ""
    """A quick test that each worker runs before it starts to fork."""
    worker: str = "ci.lanes.upstream.worker"
    """The module of the process that runs its tests."""

    @property
    def stage(self) -> str:
        return self.command[-1]

    @property
    def folder(self) -> str:
        """Of its logs, below the reports."""
        kind = self.stage.removeprefix("test_")
        return kind if kind == self.name else f"{kind}/{self.name}"

    def check(self, soc: str) -> None:
        """Raise an error if this Python does not have it, or if it knows no such chip; imports nothing."""
        if self.socs and soc not in self.socs:
            raise UsageError(
                f"--soc {soc}: the tests of {self.name} know one chip of each architecture",
                fix=f"--soc with one of {', '.join(self.socs)}",
            )
        self.place()

    def place(self) -> Path:
        if Path(self.path).is_absolute():
            return Path(self.path)
        spec = importlib.util.find_spec("executorch")
        if spec is None or not spec.submodule_search_locations:
            raise EnvironmentLacking(
                "executorch is not installed in this Python, and its tests are what this command runs",
                fix=Fix("{}, which installs it", self.command),
            )
        # Behind an overlay lies the wheel's package: its tests are not for the tree's code.
        path = Path(next(iter(spec.submodule_search_locations)), self.path)
        if path.exists():
            return path
        raise EnvironmentLacking(
            f"the installed executorch {_version('executorch')} has no {self.path}",
            fix=Fix(
                "name other suites than {}, or run it without EXECUTORCH_ROOT: {}", self.name, self.command
            ),
        )


_QUALCOMM = "backends/qualcomm"
_REWORK = f"{_QUALCOMM}/tests/rework"
_REWORK_SOCS = ("SM8350", "SM8450", "SM8550", "SM8650", "SM8750", "SM8850")
_DELEGATE = f"{_QUALCOMM}/tests/test_qnn_delegate.py"

SUITES = {
    suite.name: suite
    for suite in (
        UpstreamSuite(
            "delegate",
            f"{_QUALCOMM}/tests/test_qnn_delegate_x86.py",
            "operators, lowered and run",
            adapter=f"{ADAPTERS}:ComparingAdapter",
            warm_up="TestQNNFloatingPointOperator.test_qnn_backend_relu",
        ),
        UpstreamSuite(
            "models",
            _DELEGATE,
            "models in float and quantized",
            classes=("TestQNNFloatingPointModel", "TestQNNQuantizedModel"),
            adapter=f"{ADAPTERS}:DelegateAdapter",
            models=True,
            warm_up="TestQNNFloatingPointModel.test_qnn_backend_simple_model",
        ),
        UpstreamSuite(
            "utils",
            _DELEGATE,
            "multi-graph contexts, dumps, profiles, skipped nodes and the like",
            classes=("TestQNNFloatingPointUtils", "TestQNNQuantizedUtils"),
            adapter=f"{ADAPTERS}:DelegateAdapter",
        ),
        UpstreamSuite(
            "rework-op",
            f"{_REWORK}/htp/op/v68/test.py",
            "operators, on the chip's architecture",
            adapter=f"{ADAPTERS}:Rework",
            socs=_REWORK_SOCS,
            warm_up="test_relu[8a]",
        ),
        UpstreamSuite(
            "rework-feature",
            f"{_REWORK}/htp/feature/v68/test.py",
            "options",
            adapter=f"{ADAPTERS}:Feature",
            socs=_REWORK_SOCS,
        ),
        UpstreamSuite(
            "rework-utils",
            f"{_REWORK}/utils/test.py",
            "utilities",
            adapter=f"{ADAPTERS}:Rework",
            socs=_REWORK_SOCS,
        ),
        UpstreamSuite(
            "rework-passes",
            f"{_REWORK}/passes/test.py",
            "graph passes, one by one",
            adapter=f"{ADAPTERS}:Rework",
            socs=_REWORK_SOCS,
        ),
        UpstreamSuite("passes", f"{_QUALCOMM}/tests/test_passes.py", "graph passes"),
        UpstreamSuite(
            "qat", f"{_QUALCOMM}/tests/test_conv_bn_qat.py", "training with quantized convolutions"
        ),
        UpstreamSuite("imports", f"{_QUALCOMM}/tests/test_import_side_effects.py", "side effects of imports"),
        UpstreamSuite("genai", f"{_QUALCOMM}/genai_pipeline/tests", "the pipeline for language models"),
    )
}


@dataclass(frozen=True, slots=True)
class SuiteKeyContext:
    """What tests run on."""

    sdk: Path
    runner: Runner
    soc: str
    environment: Mapping[str, str]
    versions: Mapping[str, str]
    absent: tuple[str, ...]
    """The optional modules that stand-ins replace."""
    qnn: Mapping[str, str]
    """The build's id, and the digest of its libraries for this machine."""
    tests: Path
    """A file or a folder."""

    @property
    def build_id(self) -> str:
        return self.qnn["build_id"]

    def key(self, results: CachedResults) -> dict[str, Metric]:
        """What every verdict of a suite depends on, beside what its processes have."""
        from ci.closed import table
        from ci.results import folder_digest

        named = {name: self.environment[name] for name in table().upstream if name in self.environment}
        is_folder = self.tests.is_dir()
        return {
            "soc": self.soc,
            "QNN": dict(self.qnn),
            "runner": results.digest(self.runner.path),
            "threads": self.environment["OMP_NUM_THREADS"],
            "settings": dict(named),
            "absent": list(self.absent),
            "tests": folder_digest(self.tests) if is_folder else results.digest(self.tests),
        }

    def measured_with(self) -> str:
        return f"executorch {self.versions['executorch']}, QNN {self.build_id}"

    def is_of_another_release(self, measured: str) -> bool:
        """Whether this is a user's own tree, and not of the release that a record was measured with."""
        release, _, commit = self.versions["executorch"].partition("+")
        same = (f"executorch {release},", f"executorch {release}+")
        return bool(commit and measured) and not measured.startswith(same)

    def as_metrics(self) -> dict[str, Metric]:
        return {
            "versions": dict(self.versions),
            "sdk": {"build_id": self.build_id},
            "runner": self.runner.described,
            "absent": list(self.absent),
        }


def machinery(
    suite: UpstreamSuite,
    qnn_environment: Environment,
    environment: Mapping[str, str],
    runner: Runner,
    store: Path,
) -> SuiteKeyContext:
    from ci.lanes.upstream.shims import OPTIONAL
    from ci.suite.installed import host_libraries
    from provisioning.components import QNN_SDK

    sdk = qnn_environment.root(QNN_SDK).path
    return SuiteKeyContext(
        sdk=sdk,
        runner=runner,
        soc=qnn_environment.soc,
        environment=environment,
        versions={name: _version(name) for name in PACKAGES} | {"python": sys.version.split()[0]},
        absent=tuple(name for name in OPTIONAL if importlib.util.find_spec(name) is None),
        qnn=host_libraries(sdk, store),
        tests=suite.place(),
    )


def worker_environment(
    qnn_environment: Environment, environ: Mapping[str, str], runner: Path, slots: int
) -> dict[str, str]:
    """The variables that ExecuTorch's QNN tests are run with."""
    from ci.closed import closed, declared, table

    return {
        **closed(qnn_environment.merged(environ)),
        **declared(table().upstream, environ),
        "QNN_DELEGATE_TEST": "1",
        "QNN_SOC_MODEL": qnn_environment.soc,
        "QNN_EXECUTOR_RUNNER": str(runner),
        "QNN_BUILD_FOLDER": str(runner.parent.parent),
        # The workers share the cores.
        "OMP_NUM_THREADS": str(max(1, default_slots() // slots)),
    }


def _version(package: str) -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
