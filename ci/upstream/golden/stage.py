"""Compile each golden program with each build, run it with every build, and compare with the accepted
results.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ci.suites.programs.compiled_onnx import read_model
from ci.upstream.compare.stage import chosen, environment_of
from provisioning.base.diagnosis import nearest
from provisioning.base.documents import Model, load
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ManifestError
from provisioning.base.files import hash_file, replace_text
from provisioning.base.findings import Artifact, Severity, StageRun
from provisioning.base.settings import MANIFESTS, ROOT, Selection

MANIFEST, MEASURED = MANIFESTS / "golden.toml", MANIFESTS / "golden.json"
PAGE = ROOT / "docs" / "golden.md"
TABLES: Mapping[Lane, tuple[str, str]] = {
    "onnx": ("<!-- measured contexts -->\n", "<!-- end of measured contexts -->\n"),
    "executorch": ("<!-- measured programs -->\n", "<!-- end of measured programs -->\n"),
}

MODEL, INPUTS, OWN = "model_ctx.onnx", "inputs.npz", "own.npz"

Result = Literal["same", "differs", "refused"]
Lane = Literal["onnx", "executorch"]


class Golden(Model):
    schema_: Literal[1] = Field(alias="schema")
    programs: tuple[str, ...] = Field(min_length=1)
    executorch: tuple[str, ...] = Field(min_length=1)
    """Programs of manifests/suites/compat.toml."""
    least_sqnr_db: float = Field(gt=0)


class RuntimeResult(Model):
    """One program of one maker on one runtime."""

    result: Result
    message: str = ""
    """The runtime's message, if it refused the program."""


class MakerResult(Model):
    sha256: str
    """The digest of the context."""
    runtimes: dict[str, RuntimeResult]


class Measured(Model):
    schema_: Literal[1] = Field(default=1, alias="schema")
    programs: dict[str, dict[str, MakerResult]] = Field(default_factory=dict)
    """Program → the build that made it → each runtime's result."""
    executorch: dict[str, dict[str, MakerResult]] = Field(default_factory=dict)
    """The same for .pte files: the executorch version that made it → the version whose runtime ran it."""

    def lane(self, name: Lane) -> dict[str, dict[str, MakerResult]]:
        return self.programs if name == "onnx" else self.executorch


@dataclass(frozen=True, slots=True)
class Runtime:
    qnn: str
    variables: Mapping[str, str]


def load_measured() -> Measured:
    try:
        return Measured.model_validate_json(MEASURED.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Measured(schema=1)
    except ValidationError as error:
        raise ManifestError(
            MEASURED,
            "(content)",
            expected="what this command wrote",
            found=f"{error.error_count()} differences",
            remedy="nox -s test_golden -- --update",
        ) from error


def test_golden(
    selection: Selection,
    lane: Lane,
    versions: Sequence[str],
    update: bool,
    timeout: float,
    command: str,
    environ: Mapping[str, str],
    kept: Path | None = None,
) -> int:
    """`versions`: the QNN builds, in the ExecuTorch lane the executorch versions; empty: all."""
    stage = StageRun("test_golden", selection.profile, selection.target, command)
    with stage.reported(selection.reports, "golden-not-measured"):
        golden, agreed = load(MANIFEST, Golden), load_measured()
        folder = Path(selection.reports).absolute() / "golden"
        shutil.rmtree(folder, ignore_errors=True)
        if lane == "onnx":
            runtimes = [
                Runtime(build.qnn, environment_of(build, selection, "onnx", environ))
                for build in reversed(chosen(versions))
            ]
            found = {
                program: measure(
                    *(program, runtimes, folder, golden, timeout),
                    kept=kept,
                    agreed={} if update else agreed.programs.get(program),
                )
                for program in golden.programs
            }
        else:
            from ci.upstream.golden.executorch import measure_all

            found = measure_all(golden.executorch, versions, selection, folder, timeout, environ)
        judge(stage, found, Measured(schema=1).lane(lane) if update else agreed.lane(lane))
        stage.artifacts += [Artifact.of("step-log", log) for log in sorted(folder.rglob("*.log"))]
        if update:
            write(agreed, found, lane)
    return stage.close(selection.reports)


def measure(
    program: str,
    runtimes: Sequence[Runtime],
    folder: Path,
    golden: Golden,
    timeout: float,
    kept: Path | None = None,
    agreed: Mapping[str, MakerResult] | None = None,
) -> dict[str, MakerResult]:
    """Each build's result with the contexts of all. Contexts that are in `kept` are not compiled again."""
    made: dict[str, MakerResult] = {}
    for maker in runtimes:
        place = folder / maker.qnn / program
        place.mkdir(parents=True)
        stored = kept / maker.qnn / program if kept else None
        context = place / "context" / MODEL
        is_kept = stored is not None and stored.is_dir()
        if stored and is_kept:
            shutil.copytree(stored, place, dirs_exist_ok=True)
        else:
            _compile(program, maker, place, timeout)
            _inputs(context, place)
            own = _run(context, place / OWN, maker, place, timeout)
            if own.result != "same":
                raise EnvironmentLacking(
                    f"{program}: QNN {maker.qnn} does not run what it compiled: {own.message}",
                    remedy=f"read {place}",
                )
            if stored:
                for name in ("context", INPUTS, OWN):
                    copy = shutil.copytree if (place / name).is_dir() else shutil.copyfile
                    stored.mkdir(parents=True, exist_ok=True)
                    copy(place / name, stored / name)
        binary = next(iter(context.parent.glob("*.bin")), context)
        digest = hash_file(binary)
        if is_kept and agreed and maker.qnn in agreed and agreed[maker.qnn].sha256 != digest:
            raise CheckFailed(
                f"{stored}: expected {agreed[maker.qnn].sha256} (manifests/golden.json), found {digest}",
                remedy="take the files of the release that recorded it, or record these: --update",
            )
        met: dict[str, RuntimeResult] = {}
        for runtime in runtimes:
            output = place / f"on-{runtime.qnn}.npz"
            result = _run(context, output, runtime, place, timeout)
            if result.result == "same" and (sqnr := _sqnr(place / OWN, output)) < golden.least_sqnr_db:
                result = RuntimeResult(
                    result="differs", message=f"{sqnr:.1f} dB from the maker's own outputs"
                )
            met[runtime.qnn] = result
        words = ", ".join(f"{qnn} {each.result}" for qnn, each in met.items() if qnn != maker.qnn)
        sys.stderr.write(f"{program} of QNN {maker.qnn}: {words}\n")
        made[maker.qnn] = MakerResult(sha256=digest, runtimes=met)
    return made


def judge(
    stage: StageRun,
    found: Mapping[str, Mapping[str, MakerResult]],
    agreed: Mapping[str, Mapping[str, MakerResult]],
) -> None:
    """An error for a program that ran before and does not any more, and for a refusal that is not
    explained."""
    counts = dict.fromkeys(("same", "differs", "refused"), 0)
    for program, makers in found.items():
        for maker, made in makers.items():
            known = agreed.get(program, {}).get(maker)
            for runtime, met in made.runtimes.items():
                counts[met.result] += 1
                before = known.runtimes.get(runtime) if known else None
                subject = f"{program} of {maker} on {runtime}"
                if met.result != "same" and before is not None and before.result == "same":
                    stage.add(
                        "golden-lost",
                        Severity.ERROR,
                        subject,
                        f"it ran before, and now it {_words(met)}",
                        "compile the program again with the new build, or stay with the old runtime",
                    )
                elif met.result == "differs":
                    stage.add(
                        "golden-differs",
                        Severity.ERROR,
                        subject,
                        met.message,
                        "compile the program again with the build that runs it",
                    )
                elif met.result == "refused" and nearest(met.message) is None:
                    stage.add(
                        "golden-unexplained",
                        Severity.ERROR,
                        subject,
                        f"refused in words that diagnose does not know: {met.message}",
                        "add an entry to manifests/diagnose.toml",
                    )
    stage.metrics |= {**counts, "programs": {n: [*makers] for n, makers in found.items()}}


def _words(met: RuntimeResult) -> str:
    return f"is refused: {met.message}" if met.result == "refused" else f"differs: {met.message}"


def _compile(program: str, maker: Runtime, place: Path, timeout: float) -> None:
    """Write the context that this build compiles from the suite's program to context/."""
    _, _, soc = program.rpartition("/")
    flags = ["-k", program, "--soc", soc, "--keep", "--reports", str(place / "compile")]
    code = _process(["test_onnx", *flags], maker, place / "compile.log", timeout)
    compiled = place / "compile" / "onnx" / program / "beside"
    if not (compiled / MODEL).is_file():
        raise EnvironmentLacking(
            f"{program}: QNN {maker.qnn} compiled nothing ({code})", remedy=f"read {place / 'compile.log'}"
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
    flags = ["--input", str(place / INPUTS), "--output", str(output), "--as-it-is"]
    flags += ["--timeout", f"{timeout:g}"]
    log = place / f"on-{runtime.qnn}.log"
    code = _process(["onnx", "run", str(context), *flags], runtime, log, 2 * timeout)
    if code == 0 and output.is_file():
        return RuntimeResult(result="same")
    text = log.read_text(encoding="utf-8", errors="replace")
    line = next((line for line in text.splitlines() if line.startswith("error: ")), f"exit code {code}")
    return RuntimeResult(
        result="refused", message=line.rpartition("cannot be loaded: ")[2].removeprefix("error: ")[:200]
    )


def _process(arguments: Sequence[str], runtime: Runtime, log: Path, timeout: float) -> int:
    with log.open("wb") as output:
        try:
            return subprocess.run(
                [sys.executable, "-m", "ci", *arguments],
                cwd=ROOT,
                env=dict(runtime.variables),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=timeout,
            ).returncode
        except subprocess.TimeoutExpired as error:
            raise EnvironmentLacking(
                f"QNN {runtime.qnn}: no answer after {timeout:g} s",
                remedy=f"read {log}; --timeout gives more",
            ) from error


def _sqnr(reference: Path, other: Path) -> float:
    """The worst SQNR of all outputs in dB; infinite if they are equal, -infinite if one is not finite."""
    import numpy as np

    worst = math.inf
    with np.load(reference) as wanted, np.load(other) as given:
        if sorted(wanted.files) != sorted(given.files):
            return -math.inf
        for name in wanted.files:
            signal, noise = wanted[name].astype("f8"), wanted[name].astype("f8") - given[name].astype("f8")
            if not np.isfinite(noise).all():
                return -math.inf
            power = float((noise**2).sum())
            if power:
                worst = min(worst, 10 * math.log10(max(float((signal**2).sum()), 1e-30) / power))
    return worst


def write(agreed: Measured, found: Mapping[str, Mapping[str, MakerResult]], lane: Lane) -> None:
    programs = {name: dict(makers) for name, makers in agreed.lane(lane).items() if name in found}
    for name, makers in found.items():
        for maker, made in makers.items():
            before = programs.setdefault(name, {}).get(maker)
            runtimes = {**(before.runtimes if before else {}), **made.runtimes}
            programs[name][maker] = MakerResult(sha256=made.sha256, runtimes=runtimes)
    measured = agreed.model_copy(update={"programs" if lane == "onnx" else "executorch": programs})
    text = json.dumps(measured.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"
    replace_text(MEASURED, text)
    first, last = TABLES[lane]
    before_table, begin, rest = PAGE.read_text(encoding="utf-8").partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ManifestError(
            PAGE, "table", expected=f"the lines {first.strip()} and {last.strip()}", found="none"
        )
    replace_text(PAGE, before_table + begin + "\n" + table_of(programs) + "\n" + end + after)


def table_of(programs: Mapping[str, Mapping[str, MakerResult]]) -> str:
    """One row for each maker, one column for each runtime: the worst of all programs."""
    from packaging.version import Version

    makers = sorted({maker for each in programs.values() for maker in each}, key=Version)
    measured = [(maker, made) for each in programs.values() for maker, made in each.items()]
    runtimes = sorted({name for _, made in measured for name in made.runtimes}, key=Version)
    lines = ["| made by | " + " | ".join(f"on {name}" for name in runtimes) + " |"]
    lines.append("| --- |" + " --- |" * len(runtimes))
    order: Sequence[Result] = ("refused", "differs", "same")
    marks = {"same": "runs", "differs": "**differs**", "refused": "refused"}
    for maker in makers:
        cells = []
        for runtime in runtimes:
            met = [
                made.runtimes[runtime].result
                for name, made in measured
                if name == maker and runtime in made.runtimes
            ]
            worst = next((result for result in order if result in met), None)
            cells.append(marks[worst] if worst else "not measured")
        lines.append(f"| {maker} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
