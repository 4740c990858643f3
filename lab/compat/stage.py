"""Measure each QNN build: provision it, ask it for a device, lower and run two programs with it."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.version import Version

from ci.diagnose.logs import causes
from ci.work import tail
from lab.builds import provision, releases, variables_for_sdk
from lab.builds.table import QnnBuild, Release, load_builds
from lab.generate.shared_tables import replace_table
from lab.stage import logged, stage_run
from provisioning.accepted_file import SHIPPED, accept, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, ManifestError, UnknownName
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Metric, Outcome, Report, Severity
from provisioning.base.settings import MANIFESTS, ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.components import QNN_SDK
from provisioning.manifest import Component, load_profile, soc_named
from provisioning.store import Store
from provisioning.validation.compiler_probe import Answer, ask

PAGE = ROOT / "docs" / "upgrades.md"

MEASURED = MANIFESTS / "accepted" / "compat.json"

STEPS = ("device", "lower_fp16", "run_fp16", "lower_8a8w", "run_8a8w")
"""The order in which they are tried."""

PASSED = "passed"

SUBJECT = "executorch {executorch}, QNN {qnn} ({build_id}), {soc}"
_SUBJECT = re.compile(r"executorch (?P<executorch>\S+), QNN (?P<qnn>\S+) \((?P<build_id>\S+)\), (?P<soc>\S+)")


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    executorch: str
    qnn: str
    build_id: str
    soc: str
    values: Mapping[str, Metric]
    """Of each step that was reached: PASSED, or the first line of the log that says what went wrong. Also
    `torch` and `torchao`, and the `package` that the libraries came from: `onnxruntime-qnn 2.5.0`."""

    @property
    def subject(self) -> str:
        return SUBJECT.format(**asdict(self))

    @property
    def works(self) -> bool:
        return all(self.values.get(step) == PASSED for step in STEPS)

    @property
    def error(self) -> str:
        """The first error, and the step that reported it; empty for a pair that works."""
        met = ((step, self.values.get(step, PASSED)) for step in STEPS)
        return next((f"{step}: {value}" for step, value in met if value != PASSED), "")


def load_measured(file: Path = MEASURED) -> tuple[MeasuredPair, ...]:
    """In the order of versions; empty if nothing was measured yet."""
    accepted = load_accepted(file, SHIPPED)
    pairs = []
    for subject, values in accepted.subjects.items():
        if (named := _SUBJECT.fullmatch(subject)) is None:
            raise ManifestError(accepted.path, subject, expected=SUBJECT, found="another text", fix=SHIPPED)
        pairs.append(MeasuredPair(**named.groupdict(), values=values))
    return tuple(sorted(pairs, key=lambda row: (Version(row.executorch), Version(row.qnn))))


SUITE = MANIFESTS / "suites" / "compat.toml"
CASE, SCHEMES = "convolution", ("fp16", "8a8w")
"""The programs of the suite."""

LOWER, RUN = "test_lowering", "test_emulator"


@dataclass(frozen=True)
class PairMeasure:
    """What a pair is measured with, and where it is written down."""

    selection: Selection
    flags: Sequence[str]
    """For the stages that lower and run."""
    environ: Mapping[str, str]
    accepted: Path = MEASURED
    page: Path = PAGE

    def installed(self, package: str) -> str:
        return _installed(package)

    def executorch(self, release: Release | None) -> dict[str, str]:
        """The variables of a process that imports this version."""
        return releases.variables_of(release, Store(self.selection.store), self.environ)

    def sdk(self, build: QnnBuild, pinned: Component) -> Path:
        return provision(build, pinned, Store(self.selection.store))

    def device(self, soc: str, variables: Mapping[str, str]) -> Answer:
        return ask(soc, variables)


def measure_all(tools: PairMeasure, only: Sequence[str], executorch: Sequence[str]) -> int:
    """Measure and write. The stage fails if the profile's own build and executorch do not work together."""
    selection = tools.selection
    stage = stage_run("compat", selection)
    with stage.reported(selection.reports, "compat-not-measured"):
        table = load_builds()
        for version in dict.fromkeys(executorch or releases.versions(table)):
            report_builds(stage, tools, only, releases.release_named(version, table))
    return stage.close(selection.reports)


def report_builds(stage: StageRun, tools: PairMeasure, only: Sequence[str], release: Release | None) -> None:
    """Measure the builds, all of them if `only` is empty; `release` is another executorch than the installed
    one."""
    selection, environ = tools.selection, tools.executorch(release)
    table = load_builds()
    profile = load_profile(table.profile)
    versions = [build.qnn for build in table.builds]
    if unknown := sorted(set(only) - {*versions}):
        raise UnknownName(
            f"--build {unknown[0]}: manifests/compat.toml has no such build", unknown[0], versions
        )
    beside = f"executorch {release.version} with " if release else ""
    executorch = release.version if release else tools.installed("executorch")
    others = {name: tools.installed(name) for name in ("torch", "torchao")}
    soc = (*selection.named_socs, table.soc)[0]
    soc_named(soc)
    pinned = profile.components[QNN_SDK]
    for build in table.builds:
        if only and build.qnn not in only:
            continue
        sdk = tools.sdk(build, pinned)
        sys.stderr.write(f"{beside}QNN {build.qnn} ({build.build_id}): ")
        sys.stderr.flush()
        folder = Path(selection.reports).absolute() / "compat"
        folder = folder / f"executorch-{release.version}" / build.qnn if release else folder / build.qnn
        steps = measure(tools, soc, variables_for_sdk(environ, sdk), folder, table.profile)
        values = {**others, "package": f"{build.package} {build.version}", **steps}
        pair = MeasuredPair(executorch, build.qnn, build.build_id, soc, values)
        sys.stderr.write(("works" if pair.works else pair.error) + "\n")
        # Written after each build, so that an interrupted run keeps what it measured.
        _accept_pair(pair, tools.accepted)
        stage.metrics[f"{beside}{build.qnn}"] = "works" if pair.works else "broken"
        if not pair.works:
            log = folder / f"{log_of(steps)}.log"
            error, read = pair.error + causes(tail(log)), f"read {log}"
            own = build.build_id == pinned.build_id and release is None
            stage.add(
                "compat-profile-broken" if own else "compat-broken",
                Severity.ERROR if own else Severity.NOTE,
                f"{beside}QNN {build.qnn}",
                f"the build that profile {profile.name} pins does not work: {error}" if own else error,
                f"pin a build that works in manifests/profiles; {read}" if own else read,
            )
    if lane := profile.onnx.get("onnxruntime-qnn"):
        stage.metrics["onnx lane"] = f"onnxruntime-qnn {lane}, by a pin of its own"
    replace_text(tools.page, page(tools.page, tools.accepted))
    stage.artifacts.append(Artifact.of("compat", tools.accepted))


def _accept_pair(pair: MeasuredPair, file: Path) -> None:
    """In place of its earlier measurement."""
    accept(file, lambda before: before.updated({pair.subject: {**dict.fromkeys(STEPS), **pair.values}}))


def log_of(steps: Mapping[str, str]) -> str:
    """The log of the first step that failed."""
    failed = next(name for name in STEPS if steps.get(name, PASSED) != PASSED)
    return {"device": "device", "lower": LOWER, "run": RUN}[failed.partition("_")[0]]


def measure(
    tools: PairMeasure, soc: str, variables: Mapping[str, str], folder: Path, profile: str
) -> dict[str, str]:
    """Run every step in order; returns PASSED or the error of each that depends on no failed one.

    The device is requested in a process of its own; the ExecuTorch lane lowers and runs the programs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    answer = tools.device(soc, variables)
    (folder / "device.log").write_text(
        "\n".join([f"step: {answer.step}", *answer.detail.split("; "), ""]), encoding="utf-8"
    )
    if answer.step == "soc":
        raise EnvironmentLacking(
            f"nothing can be measured for {soc}: {answer.detail}", fix="choose another --soc"
        )
    if not answer.made_device:
        return {"device": answer.detail.partition("; ")[0] or answer.step}
    steps = {"device": PASSED}
    flags = ["--profile", profile, "--store", str(tools.selection.store), *tools.flags]
    lowered, ran = (run_lane(stage, soc, variables, folder, flags) for stage in (LOWER, RUN))
    for scheme in SCHEMES:
        steps[f"lower_{scheme}"] = step_of(lowered, scheme, soc)
        if steps[f"lower_{scheme}"] == PASSED:
            steps[f"run_{scheme}"] = step_of(ran, scheme, soc)
    return steps


def run_lane(
    stage: str, soc: str, variables: Mapping[str, str], folder: Path, flags: Sequence[str]
) -> Report:
    """The report of one stage of the ExecuTorch lane on the two programs."""
    command = [sys.executable, "-m", "ci", stage, "--suite", str(SUITE), "--soc", soc]
    command += ["--reports", str(folder), *flags]
    logged(command, folder / f"{stage}.log", variables, cwd=ROOT)
    report = Report.read(folder / f"{stage}.json")
    for finding in report.findings:
        # These are about this machine, not about the pair.
        if report.outcome is Outcome.ERROR or finding.rule.endswith(("-machine", "-timeout")):
            raise EnvironmentLacking(
                f"{stage} could not measure: {finding.subject}: {finding.message}", fix=finding.fix
            )
    return report


def step_of(report: Report, scheme: str, soc: str) -> str:
    name = f"{CASE}/{scheme}/{soc}"
    errors = [f for f in report.findings if f.subject == name and f.severity is Severity.ERROR]
    if errors:
        return first_line(errors[0].message)
    programs = report.metrics.get("programs")
    row = programs.get(name) if isinstance(programs, dict) else None
    passed = isinstance(row, dict) and row.get("verdict") == "pass"
    return PASSED if passed else f"{report.stage} has no verdict of {name}"


def first_line(message: str) -> str:
    """The first line of a message, without addresses and folders, which differ from run to run."""
    line = re.sub(r"0x[0-9a-f]{6,}", "0x…", message.strip().partition("\n")[0])
    return re.sub(r"(?<![\w.])/\S+/", "…/", line)[:200]


def page(path: Path = PAGE, accepted: Path = MEASURED) -> str:
    """docs/upgrades.md, with the table of pairs."""
    return replace_table(path, "measured pairs", table_of(load_measured(accepted)))


def table_of(measured: Sequence[MeasuredPair]) -> str:
    """A row for each executorch, a column for each QNN; then the first error of what does not work."""
    pairs = {(pair.executorch, pair.qnn): pair for pair in measured}
    builds = sorted({pair.qnn for pair in measured}, key=Version)
    rows = [f"| executorch | {' | '.join(f'QNN {qnn}' for qnn in builds)} |"]
    rows.append("| --- |" + " --- |" * len(builds))
    for executorch in sorted({pair.executorch for pair in measured}, key=Version):
        cells = [_cell(pairs.get((executorch, qnn))) for qnn in builds]
        rows.append(f"| {executorch} | {' | '.join(cells)} |")
    errors = dict.fromkeys(pair.error for pair in measured if pair.error)
    return "\n".join([*rows, "", *(f"- {error}" for error in errors)]).rstrip("\n") + "\n"


def _cell(pair: MeasuredPair | None) -> str:
    if pair is None:
        return "–"
    return "works" if pair.works else f"**no**: {pair.error.partition(': ')[0]}"


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentLacking(
            f"{package} is not installed in this Python", fix=Fix("{}, which installs it", ("lab", "compat"))
        ) from None
