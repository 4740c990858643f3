"""Programs (.pte) of each executorch version, run by the runtime of each version that has one for C++."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ci.engine.installed import ready_runner
from ci.upstream import releases
from ci.upstream.compare.stage import environment_of, own_build
from ci.upstream.compat.stage import SUITE
from ci.upstream.golden.stage import MakerResult, RuntimeResult
from provisioning import compat
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import hash_file
from provisioning.base.findings import Outcome, Report, Severity
from provisioning.base.settings import ROOT, Selection, outputs_path
from provisioning.store import Store

BACKEND = Path("executorch/lib/libexecutorch_backend_qnn.so")
"""In wheels from 1.5.0 on: the C++ runtime that a runner links."""


def measure_all(
    programs: Sequence[str],
    versions: Sequence[str],
    selection: Selection,
    folder: Path,
    timeout: float,
    environ: Mapping[str, str],
) -> dict[str, dict[str, MakerResult]]:
    table, store = compat.load_builds(), Store(selection.store)
    chosen = list(dict.fromkeys(versions)) or releases.versions(table)
    makers = {name: releases.release_named(name, table) for name in reversed(chosen)}
    variables = environment_of(own_build(table), selection, "executorch", environ)
    runners = {
        name: runner
        for name, release in makers.items()
        if (runner := _runner(release, store, environ, folder / name))
    }
    if not runners:
        raise EnvironmentLacking(
            f"no wheel of executorch {', '.join(chosen)} has a C++ runtime",
            remedy=f"add --executorch {releases.own_version(table)}",
        )
    found: dict[str, dict[str, MakerResult]] = {program: {} for program in programs}
    for maker, release in makers.items():
        own = releases.variables_of(release, store, variables)
        rows = {
            runtime: _run(
                maker, programs, {**own, "QNN_EXECUTOR_RUNNER": str(runner)}, selection, place, timeout
            )
            for runtime, runner in runners.items()
            for place in [folder / maker / f"on-{runtime}"]
        }
        for program in programs:
            met = {runtime: results[program] for runtime, results in rows.items()}
            digest = _digest(program, folder / maker / f"on-{next(iter(runners))}")
            found[program][maker] = MakerResult(sha256=digest, runtimes=met)
            words = ", ".join(f"{runtime} {each.result}" for runtime, each in met.items())
            sys.stderr.write(f"{program} of executorch {maker}: {words}\n")
    return found


def _runner(
    release: compat.Release | None, store: Store, environ: Mapping[str, str], reports: Path
) -> Path | None:
    """The runner of this version; None if its wheel has nothing to link."""
    reports.mkdir(parents=True)
    if release is None:
        return ready_runner(environ, reports)
    root = releases.tree_of(release, store)
    if not (root / BACKEND).is_file():
        return None
    build = outputs_path() / "build" / "golden" / release.version
    command = [
        sys.executable,
        "-m",
        "ci",
        "build_runner",
        "--executorch",
        str(root),
        "--reports",
        str(reports),
    ]
    command += ["--build-dir", str(build / "build"), "--output", str(build / "dist")]
    log = reports / "build_runner.log"
    with log.open("wb") as output:
        code = subprocess.run(
            command, cwd=ROOT, env=dict(environ), stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code:
        raise EnvironmentLacking(
            f"the runner of executorch {release.version} could not be built", remedy=f"read {log}"
        )
    return build / "dist" / "bin" / "qnn_executor_runner"


def _run(
    maker: str,
    programs: Sequence[str],
    variables: Mapping[str, str],
    selection: Selection,
    place: Path,
    timeout: float,
) -> dict[str, RuntimeResult]:
    """Run this maker's programs on one runtime."""
    place.mkdir(parents=True)
    for verb in ("test_lowering", "test_emulator"):
        command = [sys.executable, "-m", "ci", verb, "--suite", str(SUITE), "--timeout", f"{timeout:g}"]
        command += ["--reports", str(place), "--store", str(selection.store)]
        command += [flag for program in programs for flag in ("-k", program)]
        with (place / f"{verb}.log").open("wb") as output:
            subprocess.run(
                command, cwd=ROOT, env=dict(variables), stdout=output, stderr=subprocess.STDOUT, check=False
            )
        _need(place, verb, programs, maker)
    report = Report.read(place / "test_emulator.json")
    return {program: outcome(report, program) for program in programs}


def _need(place: Path, verb: str, programs: Sequence[str], maker: str) -> None:
    """A failure to compile, or to try on this machine, says nothing about a runtime."""
    log = place / f"{verb}.log"
    try:
        report = Report.read(place / f"{verb}.json")
    except FileNotFoundError as error:
        raise EnvironmentLacking(
            f"{verb} of executorch {maker} wrote no report", remedy=f"read {log}"
        ) from error
    for finding in report.findings:
        lost = verb == "test_lowering" and finding.severity is Severity.ERROR
        if report.outcome is Outcome.ERROR or lost or finding.rule.endswith(("-memory", "-timeout")):
            raise EnvironmentLacking(
                f"executorch {maker}: {finding.subject}: {finding.message}", remedy=f"read {log}"
            )
    if absent := [program for program in programs if program not in _rows(report)]:
        raise EnvironmentLacking(
            f"executorch {maker}: {verb} has no {', '.join(absent)}", remedy="correct manifests/golden.toml"
        )


def outcome(report: Report, program: str) -> RuntimeResult:
    errors = [each for each in report.findings if each.subject == program and each.severity is Severity.ERROR]
    if not errors:
        return RuntimeResult(result="same")
    ran = errors[0].rule == "emulator-accuracy"
    return RuntimeResult(
        result="differs" if ran else "refused", message=errors[0].message.partition("\n")[0][:200]
    )


def _digest(program: str, place: Path) -> str:
    return hash_file(Path(str(_rows(Report.read(place / "test_lowering.json"))[program]["program"])))


def _rows(report: Report) -> dict[str, dict[str, Any]]:
    rows = report.metrics.get("programs")
    return (
        {name: row for name, row in rows.items() if isinstance(row, dict)} if isinstance(rows, dict) else {}
    )
