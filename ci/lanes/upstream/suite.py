"""Describe ExecuTorch's own suites of tests, which its wheel or tree has: what they run on, and the verdict
on a test.

manifests/upstream/ lists the suites. A `SuiteRequest` is what a test's result depends on."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ci.artifacts.compiler_log import CRASHES
from ci.lanes.upstream import SUITES
from ci.work import File, Folder, default_slots, first_line
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load
from provisioning.base.errors import EnvironmentLacking, UsageError

if TYPE_CHECKING:
    from ci.suite.runner import Runner, RunnerOrder
    from provisioning.base.findings import Metric
    from provisioning.environment import Environment


PACKAGES = ("executorch", "torch", "torchao", "numpy", "transformers")


class UpstreamSuite(Model):
    """Tests of the executorch package that pytest collects."""

    name: str
    path: str
    """Names the file or folder, below the package or in full."""
    summary: str
    """Says what is tested, for the list of suites."""
    command: tuple[str, ...] = ("test_upstream",)
    """Runs the suite; the last word is the name of its report."""
    classes: tuple[str, ...] = ()
    """Only the tests of these, or functions; of all if empty."""
    adapter: str = "ci.lanes.upstream.adapters:DefaultAdapter"
    """Names what sets its tests up, as MODULE:CLASS."""
    socs: tuple[str, ...] = ()
    """Names the chips that its tests know; empty if they know any."""
    models: bool = False
    """Whether they have models, for which it is searched what the compiler crashes on."""
    warm_up: str = ""
    """Names a quick test that each worker runs before it starts to fork."""
    worker: str = "ci.lanes.upstream.worker"
    """Names the module of the process that runs its tests."""

    @property
    def stage(self) -> str:
        return self.command[-1]

    @property
    def folder(self) -> str:
        """Name the folder of the suite's logs, below the reports."""
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


class SuiteTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    suite: tuple[UpstreamSuite, ...]


@cache
def upstream_suites() -> Mapping[str, UpstreamSuite]:
    table = load(SUITES, SuiteTable)
    return {suite.name: suite for suite in table.suite}


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRequest:
    """Names a test of a suite, or all, and what they run on."""

    test: str
    """Names the test; empty stands for all."""
    row: Mapping[str, Metric]
    """The suite has this row in the table of suites."""
    soc: str
    qnn: Mapping[str, str]
    runner: RunnerOrder
    threads: str
    settings: Mapping[str, str]
    absent: tuple[str, ...]
    tests: File | Folder


@dataclass(frozen=True, slots=True)
class SuiteKeyContext:
    """Says what tests run on."""

    runner: Runner
    soc: str
    environment: Mapping[str, str]
    versions: Mapping[str, str]
    absent: tuple[str, ...]
    """Names the optional modules that stand-ins replace."""
    qnn: Mapping[str, str]
    """Has the build's id, and the digest of its libraries for this machine."""
    tests: Path
    """Names a file or a folder."""

    @property
    def build_id(self) -> str:
        return self.qnn["build_id"]

    def request(self, suite: UpstreamSuite, test: str) -> SuiteRequest:
        """Return the request to run a test, or to list all tests of a suite."""
        from ci.work import declared_variables, variables_table

        tests = str(self.tests)
        return SuiteRequest(
            test=test,
            # The row of its suite says how a test is set up, and is in no module.
            row=suite.model_dump(mode="json", exclude={"command"}),
            soc=self.soc,
            qnn=self.qnn,
            runner=self.runner.order,
            threads=self.environment["OMP_NUM_THREADS"],
            settings=declared_variables(variables_table().upstream, self.environment),
            absent=self.absent,
            tests=Folder(tests, (".py",)) if self.tests.is_dir() else File(tests),
        )

    def measured_with(self) -> str:
        return f"executorch {self.versions['executorch']}, QNN {self.build_id}"

    def is_of_another_release(self, origin: str) -> bool:
        """Whether this is a user's own tree of another release than the measured one."""
        release, _, commit = self.versions["executorch"].partition("+")
        same = (f"executorch {release},", f"executorch {release}+")
        return bool(commit and origin) and not origin.startswith(same)

    def metric_values(self) -> dict[str, Metric]:
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
    from ci.suite.ready_environment import host_libraries
    from provisioning.components import QNN_SDK

    return SuiteKeyContext(
        runner=runner,
        soc=qnn_environment.soc,
        environment=environment,
        versions={name: _version(name) for name in PACKAGES} | {"python": sys.version.split()[0]},
        absent=tuple(name for name in OPTIONAL if importlib.util.find_spec(name) is None),
        qnn=host_libraries(qnn_environment.root(QNN_SDK).path, store),
        tests=suite.place(),
    )


def worker_environment(
    qnn_environment: Environment, environ: Mapping[str, str], runner: Path, slots: int
) -> dict[str, str]:
    """Return the variables that ExecuTorch's QNN tests are run with."""
    from ci.work import closed_environment, declared_variables, variables_table

    return {
        **closed_environment(qnn_environment.merged(environ)),
        **declared_variables(variables_table().upstream, environ),
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


BY_CHANCE = ("memory", "timeout")
"""A process reports something else each time if it ends with one of these outcomes."""

OF_WHOLE_TEST = ("absent", "not_run", "expected_failure")
"""Only a whole test has these outcomes, never a part of it."""

GUILTY = re.compile(rf"(?:{CRASHES}|; and of )(\S+) \(")


@dataclass(frozen=True, slots=True)
class TestNames:
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TestOrder:
    """Says what a process does to run a test."""

    test: str
    into: Path


@dataclass(frozen=True, slots=True)
class Part:
    """Holds the result and the least SQNR in dB of one model or subtest of a test."""

    result: str
    sqnr_db: float | None = None
    cpu: tuple[str, ...] = ()
    """Names the operators that stayed on the CPU."""
    name: str = field(default="", compare=False)
    error: str = field(default="", compare=False)
    measured: Mapping[str, object] = field(default_factory=dict, compare=False)
    """Has what the adapter of the suite measured beside these, as JSON."""


@dataclass(frozen=True, slots=True)
class UpstreamVerdict:
    """Holds a test's outcome, as `Outcome` names it."""

    test: str
    outcome: str
    reason: str = ""
    problems: tuple[tuple[str, str], ...] = ()
    """Has the failed subtests, or the whole test under an empty name, each with its error."""
    parts: tuple[Part, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """CPU time of the worker and its children: other work on the machine does not affect it."""
    peak: int = 0
    cached: bool = False
    fix: str = ""
    """Says what to do if the machine is to blame, and the result says nothing about the test; otherwise
    empty."""


def reasons_of(verdict: UpstreamVerdict) -> tuple[str, ...]:
    """Return why a test fails, as it is accepted and compared: the operators that crash the compiler, a
    missing module, a signal, the first line of an error. Each part of a test may have its own reason. Wrong
    outputs have figures instead."""
    if verdict.outcome in BY_CHANCE:
        return ()
    errors = [part.error for part in verdict.parts if part.error and part.result != "wrong"]
    if verdict.outcome in OF_WHOLE_TEST or not (errors or verdict.outcome == "wrong"):
        errors = [verdict.reason]
    return tuple(dict.fromkeys(stable for error in errors for stable in _stable(error)))


def _stable(error: str) -> list[str]:
    if operators := GUILTY.findall(error):
        return [f"{CRASHES}{operator}" for operator in operators]
    return [first_line(error)] if error.strip() else []
