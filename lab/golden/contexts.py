"""Compile each golden program with each build, run it with every build, and compare with the accepted
results.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version
from pydantic import Field

from ci.artifacts.compiled_onnx import read_model
from ci.diagnose.logs import nearest
from ci.one_model.output import outputs_in
from ci.suite.accuracy import Pair, Unusable, compare
from lab.builds import builds_named, environment_of
from lab.generate.shared_tables import replace_table
from lab.stage import logged
from provisioning.accepted_file import Accepted, Values, accept
from provisioning.base.commands import Fix, session
from provisioning.base.documents import Model
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Finding, Metric, Severity
from provisioning.base.settings import MANIFESTS, ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.base.units import EXACT_DB, format_decibels

MANIFEST, MEASURED = MANIFESTS / "golden.toml", MANIFESTS / "accepted" / "golden.json"
PAGE = ROOT / "docs" / "upgrades.md"
TABLES: Mapping[Lane, str] = {
    "onnx": "measured contexts",
    "executorch": "measured programs",
}

MODEL, INPUTS, OWN = "model_ctx.onnx", "inputs.npz", "own"
SUMS = "SHA256SUMS"

AGE = ("context-binary-newer", "context-binary-refused")
"""What `diagnose` says of the one refusal that is no fault: the runtime is older than the program. The stage
knows both builds; the log need not name them."""

Result = Literal["same", "differs", "refused"]
Lane = Literal["onnx", "executorch"]


class Golden(Model):
    schema_: Literal[1] = Field(alias="schema")
    programs: tuple[str, ...] = Field(min_length=1)
    executorch: tuple[str, ...] = Field(min_length=1)
    """Programs of manifests/suites/compat.toml."""
    least_sqnr_db: float = Field(gt=0)


@dataclass(frozen=True, slots=True)
class RuntimeResult:
    """One program of one maker on one runtime."""

    result: Result
    message: str = ""
    """The runtime's message, if it refused the program."""


@dataclass(frozen=True, slots=True)
class MakerResult:
    sha256: str
    """The digest of the context or the .pte."""
    runtimes: Mapping[str, RuntimeResult]


Results = Mapping[str, Mapping[str, MakerResult]]
"""By program, and by the version that made it; each result is by the version whose runtime ran it."""

_SUBJECT = re.compile(r"(?P<lane>\S+) (?P<program>\S+) made by (?P<maker>\S+) on (?P<runtime>\S+)")


@dataclass(frozen=True, slots=True)
class Runtime:
    qnn: str
    variables: Mapping[str, str]


def rows_of(lane: Lane, results: Results) -> dict[str, Values]:
    rows: dict[str, Values] = {}
    for program, makers in results.items():
        for maker, maker_result in makers.items():
            title = f"{lane} {program} made by {maker}"
            rows[title] = {"sha256": maker_result.sha256}
            for runtime, met in maker_result.runtimes.items():
                rows[f"{title} on {runtime}"] = {"result": met.result, "message": met.message or None}
    return rows


def measure_all(
    golden: Golden,
    versions: Sequence[str],
    selection: Selection,
    folder: Path,
    timeout: float,
    environ: Mapping[str, str],
    kept: Path | None = None,
) -> dict[str, dict[str, MakerResult]]:
    runtimes = [
        Runtime(build.qnn, environment_of(build, selection, "onnx", environ))
        for build in reversed(builds_named(versions))
    ]
    return {program: measure(program, runtimes, folder, golden, timeout, kept) for program in golden.programs}


def measure(
    program: str,
    runtimes: Sequence[Runtime],
    folder: Path,
    golden: Golden,
    timeout: float,
    kept: Path | None = None,
) -> dict[str, MakerResult]:
    """Each build's result with the contexts of all. Contexts that are in `kept` are not compiled again."""
    results: dict[str, MakerResult] = {}
    for maker in runtimes:
        place = folder / maker.qnn / program
        context = place / "context" / MODEL
        stored = kept / "onnx" / maker.qnn / program if kept else None
        if not take(stored, place):
            place.mkdir(parents=True)
            _compile(program, maker, place, timeout)
            _inputs(context, place)
            own = _run(context, place / OWN, maker, place, timeout)
            if own.result != "same":
                raise EnvironmentLacking(
                    f"{program}: QNN {maker.qnn} does not run what it compiled: {own.message}",
                    fix=f"read {place}",
                )
            keep(stored, place, ("context", INPUTS, OWN))
        met: dict[str, RuntimeResult] = {}
        for runtime in runtimes:
            output = place / f"on-{runtime.qnn}"
            result = _run(context, output, runtime, place, timeout)
            if result.result == "same":
                result = compared_with_maker(_sqnr(place / OWN, output), golden)
            met[runtime.qnn] = result
        show(program, f"QNN {maker.qnn}", {qnn: result for qnn, result in met.items() if qnn != maker.qnn})
        binary = next(iter(context.parent.glob("*.bin")), context)
        results[maker.qnn] = MakerResult(sha256=hash_file(binary), runtimes=met)
    return results


def take(stored: Path | None, place: Path) -> bool:
    """Copy what was kept of a program to `place`; False if nothing was."""
    if stored is None or not stored.is_dir():
        return False
    try:
        listed = (stored / SUMS).read_text(encoding="utf-8")
    except FileNotFoundError:
        listed = ""
    if listed != (sums := _sums(stored)):
        changed = {line.partition("  ")[2] for line in {*listed.splitlines()} ^ {*sums.splitlines()}}
        raise CheckFailed(
            f"{stored}: not what {SUMS} lists: {', '.join(sorted(changed))}",
            fix="take the files of the release again, or remove the folder to compile them again",
        )
    shutil.copytree(stored, place)
    return True


def keep(stored: Path | None, place: Path, names: Sequence[str]) -> None:
    """Put these files and folders of `place` where the next run takes them from, all of them or none."""
    if stored is None:
        return
    partial = stored.with_name(f"{stored.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in names:
        copy = shutil.copytree if (place / name).is_dir() else shutil.copyfile
        copy(place / name, partial / name)
    replace_text(partial / SUMS, _sums(partial))
    partial.rename(stored)


def _sums(folder: Path) -> str:
    """As sha256sum prints them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / SUMS)
    return "".join(f"{hash_file(path)}  {path.relative_to(folder)}\n" for path in files)


def compared_with_maker(sqnr: float, golden: Golden) -> RuntimeResult:
    if sqnr >= golden.least_sqnr_db:
        return RuntimeResult(result="same")
    return RuntimeResult(result="differs", message=f"{format_decibels(sqnr)} from the maker's own outputs")


def show(program: str, maker: str, met: Mapping[str, RuntimeResult]) -> None:
    words = ", ".join(f"{runtime} {result.result}" for runtime, result in met.items())
    sys.stderr.write(f"{program} of {maker}: {words}\n")


def judge(stage: StageRun, lane: Lane, results: Results, agreed: Mapping[str, Values]) -> None:
    """An error for a program that ran before and does not any more, that a runtime no older than itself does
    not run, or that a runtime refuses for another reason than its own age."""
    counts = dict.fromkeys(("same", "differs", "refused"), 0)
    for program, makers in results.items():
        for maker, maker_result in makers.items():
            for runtime, met in maker_result.runtimes.items():
                counts[met.result] += 1
                before = agreed.get(f"{lane} {program} made by {maker} on {runtime}")
                if finding := _judged(f"{program} of {maker} on {runtime}", maker, runtime, before, met):
                    stage.findings.append(finding)
    stage.metrics |= {**counts, "makers": {n: [*makers] for n, makers in results.items()}}


def _judged(
    subject: str, maker: str, runtime: str, before: Values | None, met: RuntimeResult
) -> Finding | None:
    if met.result == "same":
        if before is None or before.get("result") == "same":
            return None
        message = f"it runs now, and before it {_words(before.get('result'), before.get('message', ''))}"
        return Finding("golden-gained", Severity.NOTE, subject, message, session("lab", "golden", "--accept"))
    if before is not None and before.get("result") == "same":
        message = f"it ran before, and now it {_words(met.result, met.message)}"
        fix = "compile the program again with the new build, or stay with the old runtime"
        return Finding("golden-lost", Severity.ERROR, subject, message, fix)
    if met.result == "differs":
        fix = "compile the program again with the build that runs it"
        return Finding("golden-differs", Severity.ERROR, subject, met.message, fix)
    if before is None and Version(runtime) >= Version(maker):
        message = f"a runtime that is no older than the program does not run it: {met.message}"
        fix = Fix("stay with the older runtime, or agree to it: {}", ("lab", "golden", "--accept"))
        return Finding("golden-lost", Severity.ERROR, subject, message, fix)
    known = nearest(met.message)
    if known is None or known.id not in AGE:
        message = f"refused, and not for the age of the runtime: {met.message}"
        fix = "read its log below reports/golden/; if the message is new, add it to manifests/diagnose/"
        return Finding("golden-unexplained", Severity.ERROR, subject, message, fix)
    return None


def _words(result: Metric, message: Metric) -> str:
    return f"is refused: {message}" if result == "refused" else f"differs: {message}"


def _compile(program: str, maker: Runtime, place: Path, timeout: float) -> None:
    """Write the context that this build compiles from the suite's program to context/."""
    _, _, soc = program.rpartition("/")
    flags = ["-k", program, "--soc", soc, "--keep", "--reports", str(place / "compile")]
    code = _process(["test_onnx", *flags], maker, place / "compile.log", timeout)
    compiled = place / "compile" / "onnx" / program / "beside"
    if not (compiled / MODEL).is_file():
        raise EnvironmentLacking(
            f"{program}: QNN {maker.qnn} compiled nothing ({code})", fix=f"read {place / 'compile.log'}"
        )
    shutil.copytree(compiled, place / "context")


def _inputs(context: Path, place: Path) -> None:
    """Inputs that are the same for every build: from a seed, in the shapes of the context."""
    import numpy as np

    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, tensor in read_model(context).inputs:
        drawn = generator.standard_normal(tensor.shape)
        arrays[name] = drawn.astype(tensor.dtype)
    np.savez(place / INPUTS, **arrays)


def _run(context: Path, output: Path, runtime: Runtime, place: Path, timeout: float) -> RuntimeResult:
    flags = ["--input", str(place / INPUTS), "-o", str(output), "--as-it-is"]
    flags += ["--timeout", f"{timeout:g}", "--reports", str(place / "reports")]
    log = place / f"on-{runtime.qnn}.log"
    code = _process(["run", str(context), *flags], runtime, log, 2 * timeout)
    if code == 0 and output.is_dir():
        return RuntimeResult(result="same")
    text = log.read_text(encoding="utf-8", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("error: ")), f"exit code {code}")
    if code != CheckFailed.exit_code:
        raise EnvironmentLacking(f"{context}: QNN {runtime.qnn}: {line}", fix=f"read {log}")
    return RuntimeResult(
        result="refused", message=line.rpartition("cannot be loaded: ")[2].removeprefix("error: ")[:200]
    )


def _process(arguments: Sequence[str], runtime: Runtime, log: Path, timeout: float) -> int:
    command = [sys.executable, "-m", "ci", *arguments]
    return logged(command, log, runtime.variables, f"QNN {runtime.qnn}", timeout=timeout, cwd=ROOT)


def _sqnr(reference: Path, other: Path) -> float:
    return sqnr(outputs_in(reference), outputs_in(other))


def sqnr(wanted: Mapping[str, Any], actual: Mapping[str, Any]) -> float:
    """In dB, the worst of all outputs; -infinite where one is absent, not finite, or has other integers."""
    if wanted.keys() != actual.keys():
        return -math.inf
    try:
        figures = compare([Pair(name, array, actual[name]) for name, array in wanted.items()])
    except Unusable:
        return -math.inf
    return figures.get("sqnr_db", EXACT_DB) if figures.get("agreement", 1) == 1 else -math.inf


def write(lane: Lane, results: Results) -> None:
    """Programs that are measured no more are dropped."""

    def change(before: Accepted) -> Accepted:
        own, measured = f"{lane} ", tuple(f"{lane} {program} " for program in results)
        kept = before.only(lambda subject: not subject.startswith(own) or subject.startswith(measured))
        return kept.updated(rows_of(lane, results))

    replace_text(PAGE, replace_table(PAGE, TABLES[lane], table_of(lane, accept(MEASURED, change).subjects)))


def table_of(lane: Lane, subjects: Mapping[str, Values]) -> str:
    """One row a maker, one column a runtime: the worst of all programs."""
    met: dict[tuple[str, str], set[Metric]] = {}
    for subject, values in subjects.items():
        if (named := _SUBJECT.fullmatch(subject)) and named["lane"] == lane:
            met.setdefault((named["maker"], named["runtime"]), set()).add(values.get("result"))
    runtimes = sorted({runtime for _, runtime in met}, key=Version)
    lines = ["| made by | " + " | ".join(f"on {name}" for name in runtimes) + " |"]
    lines.append("| --- |" + " --- |" * len(runtimes))
    marks = {"refused": "refused", "differs": "**differs**", "same": "runs"}
    for maker in sorted({maker for maker, _ in met}, key=Version):
        of_maker = [met.get((maker, runtime), set()) for runtime in runtimes]
        cells = [next((marks[mark] for mark in marks if mark in mine), "not measured") for mine in of_maker]
        lines.append(f"| {maker} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
