"""Run one suite on each build, each in a process with that build's packages, and compare the reports."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from ci.pipeline.accuracy import in_words
from ci.pipeline.baseline import COSTS, Tolerances, load_tolerances
from ci.pipeline.costs import cost_rule
from ci.upgrades import releases
from ci.upgrades.builds import builds_named, environment_of, own_build, rows_of
from ci.upgrades.compare.judge import RANK, FigureChange, Row, differences, severity_of, verdict_of
from provisioning import compat
from provisioning.base.commands import logged
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.files import replace_text, with_table
from provisioning.base.findings import Artifact, Finding, Metric, Outcome, Report, Severity
from provisioning.base.settings import ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.compat import Build, Release
from provisioning.store import Store

STAGES: Mapping[str, Sequence[str]] = {
    "onnx": ("test_onnx",),
    "executorch": ("test_lowering", "test_emulator"),
}

PAGE = ROOT / "docs" / "upgrades.md"
TABLES = {
    "onnx": "measured builds",
    "executorch": "measured executorch",
}


@dataclass(frozen=True, slots=True)
class ComparedBuilds:
    lane: str
    builds: tuple[str, ...]
    """QNN versions; the others are compared with the first."""
    executorch: tuple[str, ...]
    suite: Path | None
    flags: tuple[str, ...]
    """Flags for the lane's stages."""
    accept: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """One QNN build, in the ExecuTorch lane with one executorch version."""

    build: Build
    executorch: str = ""
    """Empty: the lane has none, or all stacks use the installed one."""
    release: Release | None = None
    """None: the installed one."""
    several_builds: bool = True

    @property
    def name(self) -> str:
        if not self.executorch:
            return self.build.qnn
        beside = f" with QNN {self.build.qnn}" if self.several_builds else ""
        return f"executorch {self.executorch}{beside}"

    @property
    def age(self) -> tuple[Version, Version]:
        return Version(self.executorch or "0"), Version(self.build.qnn)


def title_of(name: str) -> str:
    return name if name.startswith("executorch ") else f"QNN {name}"


@dataclass(frozen=True, slots=True)
class Measurement:
    stack: Stack
    programs: Mapping[str, Row]


def compare(selection: Selection, choice: ComparedBuilds, environ: Mapping[str, str]) -> int:
    stage = StageRun.as_typed("compare", selection.profile, selection.target)
    with stage.reported(selection.reports, "compare-not-measured"):
        measurements = [measure(stack, selection, choice, environ, stage) for stack in stacks(choice)]
        judge(stage, measurements, choice)
        table = Path(selection.reports).absolute() / "compare" / "table.md"
        replace_text(table, f"`{stage.command}` gives:\n\n{table_of(stage.metrics)}")
        stage.artifacts.append(Artifact.of("table", table))
        if choice.accept:
            page = with_table(PAGE, TABLES[choice.lane], folded(table_of(stage.metrics)))
            replace_text(PAGE, page)
    return stage.close(selection.reports)


def stacks(choice: ComparedBuilds) -> list[Stack]:
    if choice.lane == "onnx":
        if choice.executorch:
            raise UsageError("--executorch chooses for the ExecuTorch lane: add --lane executorch")
        return [Stack(build) for build in chosen(choice.builds)]
    if len(choice.builds) > 1 and not choice.executorch:
        return [Stack(build) for build in chosen(choice.builds)]
    table = compat.load_builds()
    known_names = releases.versions(table)
    names = list(dict.fromkeys(in_range(choice.executorch, known_names, "--executorch"))) or known_names
    builds = chosen(choice.builds, least=1) if choice.builds else [own_build(table)]
    candidates = [
        Stack(build, name, releases.release_named(name, table), len(builds) > 1)
        for name in names
        for build in builds
    ]
    if len(candidates) < 2:
        known = ", ".join(known_names)
        raise UsageError("one stack cannot be compared", fix=f"name a second --executorch of: {known}")
    return candidates


def chosen(names: Sequence[str], least: int = 2) -> list[Build]:
    known = [build.qnn for build in reversed(compat.load_builds().builds)]
    return builds_named(in_range(names, known, "--qnn"), least)


def in_range(names: Sequence[str], known: Sequence[str], flag: str) -> list[str]:
    """The versions; of `2.47..2.51` all that are known from the first 2.47 to the last 2.51."""
    found = list[str]()
    for name in names:
        low, dots, high = name.partition("..")
        if not dots:
            found.append(name)
            continue
        ends = [_release(end, f"{flag} {name}") for end in (low, high)]
        within = [
            version
            for version in known
            if ends[0] <= Version(version).release[: len(ends[0])]
            and Version(version).release[: len(ends[1])] <= ends[1]
        ]
        if not within:
            raise UsageError(f"{flag} {name}: no version is in this range", fix=f"known: {', '.join(known)}")
        found += within
    return found


def _release(text: str, typed: str) -> tuple[int, ...]:
    try:
        return Version(text).release
    except InvalidVersion as error:
        raise UsageError(f"{typed}: {text!r} is no version", fix="--qnn 2.47..2.51") from error


def measure(
    stack: Stack, selection: Selection, choice: ComparedBuilds, environ: Mapping[str, str], stage: StageRun
) -> Measurement:
    sys.stderr.write(f"{title_of(stack.name)}\n")
    variables = variables_for(stack, selection, choice.lane, environ)
    folder = folder_of(selection, stack)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    programs: dict[str, Row] = {}
    for name in STAGES[choice.lane]:
        command = [sys.executable, "-m", "ci", name, "--reports", str(folder)]
        command += ["--store", str(selection.store)]
        command += [flag for soc in selection.named_socs for flag in ("--soc", soc)]
        command += [*(["--suite", str(choice.suite)] if choice.suite else []), *choice.flags]
        report = run_on(stack, stage, name, command, variables, folder)
        for program, row in rows_of(report).items():
            merged = {**programs.get(program, {}), **row}
            if (error := error_of(program, report)) and "error" not in merged:
                merged["error"] = error
            programs[program] = merged
    return Measurement(stack, programs)


def run_on(
    stack: Stack,
    stage: StageRun,
    name: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
) -> Report:
    """The report that a stage writes into this folder, once it is sure that it is about this build."""
    log = folder / f"{name}.log"
    code = logged(command, log, variables, cwd=ROOT)
    report, title = _report(folder / f"{name}.json", log), title_of(stack.name)
    if unmeasured := _of_this_machine(report):
        kind = UsageError if code == UsageError.exit_code else EnvironmentLacking
        raise kind(f"{title}: {unmeasured}", fix=f"read {log}")
    compiled_with = str(report.metrics.get("build_id", "unknown"))
    if compiled_with not in (stack.build.build_id, "unknown"):
        raise EnvironmentLacking(
            f"{title}: expected {stack.build.build_id}, and {name} ran with {compiled_with}",
            fix=f"remove what puts another QNN before PYTHONPATH or LD_LIBRARY_PATH; read {log}",
        )
    return report


def variables_for(
    stack: Stack, selection: Selection, lane: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Of a process that uses only this stack."""
    variables = environment_of(stack.build, selection, lane, environ)
    return releases.variables_of(stack.release, Store(selection.store), variables)


def error_of(program: str, report: Report) -> str:
    """Why the program failed; empty if it did not. Costs are compared as figures, not with a baseline."""
    errors = (
        finding.message.partition("\n")[0]
        for finding in report.findings
        if finding.subject == program
        and finding.severity is Severity.ERROR
        and finding.rule not in map(cost_rule, COSTS)
    )
    return next(errors, "")


def folder_of(selection: Selection, stack: Stack) -> Path:
    return Path(selection.reports).absolute() / "compare" / stack.name.replace(" ", "-")


def judge(stage: StageRun, measurements: Sequence[Measurement], choice: ComparedBuilds) -> None:
    """Compare each stack with the first: what the later of the two does worse is an error."""
    base, *others = measurements
    tolerances = load_tolerances()
    counts = {other.stack.name: {"better": 0, "same": 0, "worse": 0} for other in others}
    programs: dict[str, Any] = {}
    names = dict.fromkeys(name for measurement in measurements for name in measurement.programs)
    if not names:
        raise UsageError("nothing gave a single program", fix="read the logs below reports/compare/")
    for name in names:
        before = base.programs.get(name, {})
        row: dict[str, Any] = {base.stack.name: _shown(before)}
        for other in others:
            after = other.programs.get(name, {})
            changes = differences(before, after, tolerances)
            verdict = verdict_of(changes)
            counts[other.stack.name][verdict] += 1
            row[other.stack.name] = {
                **_shown(after),
                "judgement": verdict,
                "differences": [str(change) for change in changes],
                "worse": [change.figure for change in changes if change.verdict == "worse"],
            }
            earlier, later = sorted((base, other), key=lambda side: side.stack.age)
            stage.findings += _losses(name, earlier, later, tolerances)
            if later is base and verdict == "worse":
                # A worse earlier build is an argument for the upgrade.
                stage.add(
                    "compare-worse",
                    Severity.NOTE,
                    f"{name} on {title_of(other.stack.name)}",
                    _words(changes) + _reason(after),
                    f"{title_of(base.stack.name)} does better",
                )
            if not before.get("figures") and not after.get("figures"):
                stage.add(
                    "compare-refused",
                    Severity.NOTE,
                    f"{name} on {title_of(other.stack.name)}",
                    "neither of the two runs it" + (_reason(after) or ", as the suite expects"),
                    f"read reports/compare/{other.stack.name.replace(' ', '-')}/",
                )
        programs[name] = row
    stage.metrics |= {
        "lane": choice.lane,
        "base": base.stack.name,
        "order": [measurement.stack.name for measurement in measurements],
        "builds": {measurement.stack.name: measurement.stack.build.build_id for measurement in measurements},
        "verdicts": {name: dict(count) for name, count in counts.items()},
        "comparison": programs,
    }
    for other_name, by_verdict in counts.items():
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in by_verdict.items())
        sys.stderr.write(f"{title_of(other_name)} against {title_of(base.stack.name)}: {verdicts}\n")
        for verdict in ("worse", "better"):
            named = [name for name, row in programs.items() if judgement(row, other_name) == verdict]
            sys.stderr.write("".join(f"  {verdict}: {name}\n" for name in named))


def judgement(row: Mapping[str, Any], build: str) -> str:
    """Of a program on one of the other builds; empty for the first."""
    return str(row.get(build, {}).get("judgement", ""))


def _losses(name: str, earlier: Measurement, later: Measurement, tolerances: Tolerances) -> Iterator[Finding]:
    """What the later of two stacks does worse with a program."""
    after = later.programs.get(name, {})
    changes = differences(earlier.programs.get(name, {}), after, tolerances)
    if verdict_of(changes) == "worse":
        yield Finding(
            "compare-worse",
            severity_of(changes, tolerances),
            f"{name} on {title_of(later.stack.name)}",
            f"beside {title_of(earlier.stack.name)}: {_words(changes)}{_reason(after)}",
            f"stay with {title_of(earlier.stack.name)} for it, or measure it on a device: the emulator"
            " does not show everything; reports/compare/ has both reports",
        )


def _reason(row: Row) -> str:
    """Why a program was refused, as the end of a message; empty if it ran."""
    return f": {row['error']}" if "error" in row and not row.get("figures") else ""


def _words(changes: Sequence[FigureChange]) -> str:
    return "; ".join(str(change) for change in changes if change.verdict == "worse")


def _shown(row: Row) -> dict[str, Metric]:
    """A program on one build, as the page and the table show it."""
    parts = {
        name: row[name]
        for name in ("figures", "costs", "cpu_operators", "delegates", "graphs", "error")
        if name in row
    }
    return {**parts, "verdict": row.get("verdict", "absent")}


def _report(file: Path, log: Path) -> Report:
    try:
        return Report.read(file)
    except FileNotFoundError as error:
        last = (log.read_text("utf-8", errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise EnvironmentLacking(f"{file.stem} wrote no report: {last}", fix=f"read {log}") from error


def _of_this_machine(report: Report) -> str:
    """Why a report says nothing about the build; empty if it does."""
    for finding in report.findings:
        if finding.rule.endswith(("-machine", "-timeout")):
            return f"{finding.subject}: {finding.message}"
    if report.outcome is Outcome.ERROR and not rows_of(report):
        return next((finding.message for finding in report.findings), "it measured nothing")
    return ""


def table_of(metrics: Mapping[str, Any]) -> str:
    """One row for each program, the worst first: accuracy on the first build, then how the others differ."""
    base, programs = metrics["base"], metrics["comparison"]
    others = [name for name in metrics["builds"] if name != base]
    lines = [
        f"| program | {base} | " + " | ".join(others) + " |",
        "| --- | --- |" + " --- |" * len(others),
    ]
    for name in sorted(programs, key=lambda name: (_rank(programs[name]), name)):
        row = programs[name]
        figures = row[base].get("figures") or {}
        numbers = {key: value for key, value in figures.items() if isinstance(value, int | float)}
        cells = [in_words(numbers).replace(" SQNR", "") or "refused"]
        for other in others:
            changes = "; ".join(row[other]["differences"])
            cells.append(f"**{judgement(row, other)}**: {changes}" if changes else "same")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def folded(table: str) -> str:
    """A table for a page: programs that are the same on all builds share one line below it."""
    head, line, *rows = table.splitlines()
    cells = [row.strip("| ").split(" | ") for row in rows]
    alike = [f"{name} ({figure})" for name, figure, *others in cells if set(others) == {"same"}]
    differing = [row for row, (_, _, *others) in zip(rows, cells, strict=True) if set(others) != {"same"}]
    shown = [head, line, *differing] if differing else []
    if alike:
        shown += ["", f"The same on all of them: {', '.join(alike)}."]
    return "\n".join(shown).lstrip("\n") + "\n"


def _rank(row: Mapping[str, Any]) -> int:
    judgements = {judgement(row, build) for build in row}
    return min((rank for verdict, rank in RANK.items() if verdict in judgements), default=RANK["same"])
