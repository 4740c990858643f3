"""The measurement: provision each build beside the others, and try each step in a process of its own."""

from __future__ import annotations

import array
import importlib.metadata
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.engine.installed import ready_runner
from ci.engine.workers.parent import tail
from provisioning import compat
from provisioning.base import progress
from provisioning.base.diagnosis import causes
from provisioning.base.errors import EnvironmentLacking, IntegrityError, ManifestError, UsageError
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Outcome, Severity, StageRun
from provisioning.base.settings import ROOT, Selection
from provisioning.build_id import build_ids
from provisioning.compat import STEPS, Build, Measured, Pair, Result, Step
from provisioning.environment import HOST_LIBRARIES
from provisioning.manifest import Component, load_profile, soc_named
from provisioning.store import Store, Want
from provisioning.validation import probe

PAGE = ROOT / "docs" / "compat.md"
BEGIN, END = "<!-- measured pairs -->\n", "<!-- end of measured pairs -->\n"

LEAST_COSINE = 0.99

FAULT = re.compile(r"<E>|\[ERROR\]|^\w[\w.]*(?:Error|Exception)\b|error:|^expected .* found")
PREFIX = re.compile(r"^(?:\[Qnn ExecuTorch\]:|\[[A-Z]+[^\]]*\]|\s|<E>|[EFIWD] [\d:.]+ executorch:\S+\])+")


def measure_all(
    selection: Selection, only: Sequence[str], timeout: float, command: str, environ: Mapping[str, str]
) -> int:
    """Measure and write; the stage fails when the build of the profile itself does not work."""
    stage = StageRun("compat", selection.profile, selection.target, command)
    with stage.reported(selection.reports, "compat-not-measured"):
        report_builds(stage, selection, only, timeout, environ)
    report = stage.finish()
    report.write(selection.reports)
    from provisioning.base.rendering import show

    show(report)
    return 0 if report.outcome is Outcome.PASS else 1


def report_builds(
    stage: StageRun, selection: Selection, only: Sequence[str], timeout: float, environ: Mapping[str, str]
) -> None:
    table = compat.load_builds()
    profile = load_profile(table.profile)
    chosen = [build for build in table.builds if not only or build.qnn in only]
    if unknown := set(only) - {build.qnn for build in table.builds}:
        raise UsageError(
            f"--build {sorted(unknown)[0]}: manifests/compat.toml has no such build",
            remedy=f"use one of: {', '.join(build.qnn for build in table.builds)}",
        )
    installed = {name: _installed(name) for name in ("executorch", "torch", "torchao")}
    runner = ready_runner(environ, selection.reports)
    soc = (*selection.named_socs, table.soc)[0]
    soc_named(soc)
    pinned = profile.components["qnn-sdk"]
    measured = compat.load_measured()
    for build in chosen:
        sdk = provision(build, pinned, Store(selection.store))
        variables = {
            **environ,
            "QNN_SDK_ROOT": str(sdk),
            "LD_LIBRARY_PATH": str(sdk / "lib" / HOST_LIBRARIES),
        }
        sys.stderr.write(f"QNN {build.qnn} ({build.build_id}): ")
        logs = Path(selection.reports).absolute() / "compat" / build.qnn
        steps = measure(soc, variables, runner, timeout, logs)
        pair = Pair(
            **installed,
            qnn=build.qnn,
            build_id=build.build_id,
            package=f"{build.package} {build.version}",
            soc=soc,
            works=all(step.result == "passed" for step in steps.values()),
            steps=steps,
        )
        sys.stderr.write(("works" if pair.works else pair.error) + "\n")
        # Written after each, so that an interrupted run has not measured for nothing.
        measured = measured.with_pair(pair)
        replace_text(compat.path(), measured.as_json())
        stage.artifacts += [Artifact.of("step-log", log) for log in sorted(logs.glob("*.log"))]
        failed = next((logs / f"{name}.log" for name in STEPS if steps[name].result == "failed"), None)
        error = pair.error + (causes(tail(failed)) if failed else "")
        read = f"read {failed}" if failed else ""
        if build.build_id == pinned.build_id and not pair.works:
            stage.add(
                "compat-profile-broken",
                Severity.ERROR,
                f"QNN {build.qnn}",
                f"the build that profile {profile.name} pins does not work: {error}",
                f"pin a build that works in manifests/profiles: docs/compat.md lists them; {read}",
            )
        elif not pair.works:
            stage.add("compat-broken", Severity.NOTE, f"QNN {build.qnn}", error, read)
        stage.metrics[build.qnn] = "works" if pair.works else "broken"
    if lane := profile.onnx.get("onnxruntime-qnn"):
        stage.metrics["onnx lane"] = f"onnxruntime-qnn {lane}, by a pin of its own"
    write_docs(measured)
    stage.artifacts += [Artifact.of("compat", compat.path())]


def provision(build: Build, pinned: Component, store: Store) -> Path:
    """The root of this build's tree. The profile's own build is the tree that everything else uses too."""
    component = build.component(pinned)
    tree = store.provision(
        "qnn-sdk",
        component,
        Want(targets=frozenset({"x86_64-linux"})),
        locked=True,
        progress=progress.for_stream(),
    )
    library = tree.root / "lib" / HOST_LIBRARIES / "libQnnHtp.so"
    found = build_ids(library)
    if found != (build.build_id,):
        raise IntegrityError(
            f"{build.package} {build.version}: expected build id {build.build_id}, found {', '.join(found)}",
            remedy="correct build_id in manifests/compat.toml",
        )
    return tree.root


def measure(
    soc: str, variables: Mapping[str, str], runner: Path, timeout: float, logs: Path
) -> dict[str, Step]:
    """Every step in order, each with its log. What a step needs of one that failed was not reached."""
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    steps = dict.fromkeys(STEPS, Step(result="not_reached"))
    answer = probe.ask(soc, variables)
    (logs / "device.log").write_text(
        "\n".join([f"step: {answer.step}", *answer.detail.split("; "), ""]), encoding="utf-8"
    )
    if answer.step == "soc":
        raise EnvironmentLacking(
            f"nothing can be measured for {soc}: {answer.detail}", remedy="choose another --soc"
        )
    steps["device"] = _step(answer.made_device, answer.detail.partition("; ")[0] or answer.step)
    if not answer.made_device:
        return steps
    for quantization in ("fp16", "8a8w"):
        with tempfile.TemporaryDirectory(prefix="qnn-ci-compat-") as name:
            directory = Path(name)
            lowered = run_step(
                [sys.executable, "-m", "ci.upstream.compat.probe", quantization, soc, str(directory)],
                variables,
                timeout,
                logs / f"lower_{quantization}.log",
            )
            if lowered.result == "passed" and not (directory / "model.pte").is_file():
                lowered = _step(False, "no program was written")
            if re.match(r"(?:ModuleNotFound|Import)Error", lowered.error):
                # Says something of this Python, and nothing of the pair.
                raise EnvironmentLacking(
                    f"the model cannot be lowered here: {lowered.error}",
                    remedy="nox -s compat, which installs what is needed",
                )
            steps[f"lower_{quantization}"] = lowered
            if lowered.result == "passed":
                log = logs / f"run_{quantization}.log"
                steps[f"run_{quantization}"] = emulate(directory, variables, runner, timeout, log)
    return steps


def emulate(directory: Path, variables: Mapping[str, str], runner: Path, timeout: float, log: Path) -> Step:
    (directory / "list.txt").write_text(f"{directory / 'input.raw'}\n", encoding="utf-8")
    outputs = directory / "outputs"
    outputs.mkdir()
    command = [str(runner), "--model_path", str(directory / "model.pte")]
    command += ["--input_list_path", str(directory / "list.txt"), "--output_folder_path", str(outputs)]
    # By custom it would write both where the stage runs.
    command += ["--etdump_path=", "--performance_output_path="]
    ran = run_step(command, variables, timeout, log)
    if ran.result != "passed":
        return ran
    cosine = cosine_of(outputs / "output_0_0.raw", directory / "reference.raw")
    return _step(cosine >= LEAST_COSINE, f"cosine {cosine:.4f} is below {LEAST_COSINE}")


def run_step(command: Sequence[str], variables: Mapping[str, str], timeout: float, log: Path) -> Step:
    try:
        with log.open("wb") as printed:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=dict(variables),
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return _step(False, f"no end after {timeout:g} s")
    ending = f"ended by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return _step(
        done.returncode == 0, first_error(log.read_text(encoding="utf-8", errors="replace")) or ending
    )


def first_error(log: str) -> str:
    """The first line that says what went wrong, without what differs from run to run."""
    for line in log.splitlines():
        if FAULT.search(line):
            plain = re.sub(r"0x[0-9a-f]{6,}", "0x…", PREFIX.sub("", line)).strip()
            plain = re.sub(r"(?<![\w.])/\S+/", "…/", plain)
            if plain:
                return plain[:200]
    return ""


def cosine_of(one: Path, other: Path) -> float:
    """Of two files of float32; 0 when they differ in length, are empty or hold what is no number."""
    if not one.is_file() or one.stat().st_size != other.stat().st_size or not one.stat().st_size:
        return 0.0
    left, right = array.array("f", one.read_bytes()), array.array("f", other.read_bytes())
    lengths = math.hypot(*left) * math.hypot(*right)
    cosine = sum(a * b for a, b in zip(left, right, strict=True)) / lengths if lengths else 0.0
    return cosine if math.isfinite(cosine) else 0.0


def write_docs(measured: Measured | None = None) -> None:
    text = PAGE.read_text(encoding="utf-8")
    replace_text(PAGE, with_table(text, measured or compat.load_measured()))


def with_table(text: str, measured: Measured) -> str:
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ManifestError(
            PAGE, "table", expected=f"the lines {BEGIN.strip()} and {END.strip()}", found="none"
        )
    return before + BEGIN + "\n" + table_of(measured) + "\n" + END + after


def table_of(measured: Measured) -> str:
    rows = [
        "| executorch | QNN | build id | from | chip | " + " | ".join(STEPS) + " | first error |",
        "| --- | --- | --- | --- | --- | " + "--- | " * len(STEPS) + "--- |",
    ]
    marks = {"passed": "yes", "failed": "**no**", "not_reached": "–"}
    for pair in measured.pairs:
        results = [marks[pair.steps[name].result if name in pair.steps else "not_reached"] for name in STEPS]
        error = pair.error.partition(": ")[2].replace("|", "\\|")
        cells = [pair.executorch, pair.qnn, f"`{pair.build_id}`", pair.package, pair.soc, *results]
        rows.append("| " + " | ".join(cells) + f" | {error} |")
    return "\n".join(rows) + "\n"


def _step(good: bool, error: str) -> Step:
    result: Result = "passed" if good else "failed"
    return Step(result=result, error="" if good else error)


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentLacking(
            f"{package} is not installed in this Python", remedy="nox -s compat, which installs it"
        ) from None
