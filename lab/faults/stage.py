"""Run the script of each known fault, which has no code of this project, with what is pinned."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomlkit

from ci.work import closed_environment
from lab.stage import logged, stage_run
from provisioning.accepted_file import Accepted, Values, accept, load_accepted
from provisioning.base.commands import Fix, capture, join_fixes, session
from provisioning.base.errors import EnvironmentLacking, UnknownName
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Severity
from provisioning.base.settings import ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.build_ids import build_ids, version_in
from provisioning.components import QNN_SDK
from provisioning.environment import resolve
from provisioning.known_faults import FIGURES, MANIFEST, SCRIPTS, Fault
from provisioning.python_environments import PythonEnvironments, environments_folder
from provisioning.stage_variables import HOST_LIBRARIES

WORDS = {"gone": 0, "still": 1, "changed": 2}
"""What a script's last line begins with, and its exit code."""

SAID = re.compile(rf"({'|'.join(WORDS)}) - (.+)")

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class FaultRun:
    """What the script of a fault said."""

    word: str
    """One of WORDS: `changed` too if it said none. Empty if it did not end in time."""
    figure: str
    version: str
    """Of the product that the fault is of; empty if it cannot be told."""


@dataclass(frozen=True, slots=True)
class HowToRun:
    """How the scripts are run."""

    timeout: float
    close: bool = False
    """End the versions of what is gone."""
    accepts: bool = False
    """Put what each script printed into the table of figures."""
    scripts: Path = SCRIPTS
    figures: Path = FIGURES


def check_all(
    selection: Selection,
    choose: Callable[[], Sequence[Fault]],
    how: HowToRun,
    environ: Mapping[str, str],
) -> int:
    """A fault that is gone, or is another one now, is an error until its entry says so."""
    stage = stage_run("faults", selection)
    with stage.reported(selection.reports, "fault-not-measured"):
        folder = Path(selection.reports).absolute() / "faults"
        found = {fault: _run(fault, selection, folder, how, environ) for fault in choose()}
        ended = closing(found) if how.close else {}
        if ended:
            replace_text(MANIFEST, replace_versions(MANIFEST.read_text(encoding="utf-8"), ended))
        if how.accepts:
            figures: dict[str, Values] = {
                fault.id: {"figure": run.figure} for fault, run in found.items() if run.word == "still"
            }
            accept(how.figures, lambda before: before.updated(figures))
        judge(stage, found, ended, load_accepted(how.figures))
        replace_text(folder / "table.md", table(found, ended))
        stage.artifacts.append(Artifact.of("table", folder / "table.md"))
    return stage.close(selection.reports)


def chosen(names: Sequence[str], faults: Sequence[Fault]) -> list[Fault]:
    """Those that have a script."""
    known = {fault.id: fault for fault in faults if fault.script}
    if unknown := [name for name in names if name not in known]:
        raise UnknownName(f"manifests/faults has no {unknown[0]}.py", unknown[0], list(known))
    return [known[name] for name in dict.fromkeys(names or known)]


def _run(
    fault: Fault, selection: Selection, folder: Path, how: HowToRun, environ: Mapping[str, str]
) -> FaultRun:
    lane, log = "onnx" if fault.lane == "onnx" else "executorch", folder / f"{fault.id}.log"
    python = PythonEnvironments(environments_folder(), print).interpreter(lane)
    variables, version = closed_environment(environ), ""
    if lane == "executorch":
        resolved = resolve(selection, environ)
        variables = closed_environment(resolved.merged(environ))
        library = resolved.root(QNN_SDK).path / "lib" / HOST_LIBRARIES / "libQnnHtp.so"
        version = version_in(next(iter(build_ids(library)), ""))
    if fault.product != "qnn":
        version = _version(python, fault.product)
    try:
        code = logged([python, how.scripts / f"{fault.id}.py"], log, variables, fault.id, timeout=how.timeout)
        word, figure = said(log.read_text(encoding="utf-8", errors="replace"), code)
    except EnvironmentLacking as error:
        word, figure = "", str(error)
    run = FaultRun(word, figure, version)
    sys.stdout.write(f"{run.word or 'no word':8} {fault.id}: {run.figure}\n")
    sys.stdout.flush()
    return run


@cache
def _version(python: str, package: str) -> str:
    """Of what an interpreter has; empty if it has none."""
    script = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return capture([python, "-c", script]).stdout.strip()


def said(printed: str, code: int) -> tuple[str, str]:
    """The word and the figure of the last line with one; `changed` if it ended otherwise than it said. A
    library may print something when the process ends."""
    lines = printed.strip().splitlines() or [""]
    match = next(filter(None, map(SAID.fullmatch, reversed(lines))), None)
    if match and WORDS[match[1]] == code:
        return match[1], match[2]
    return "changed", f"it ends with exit code {code}: {lines[-1][:200]}"


def closing(found: Mapping[Fault, FaultRun]) -> dict[str, str]:
    """The versions of faults that are gone, without the one that was tried. One that names this version alone
    is for a person."""
    return {
        fault.id: f"{fault.versions},<{run.version}"
        for fault, run in found.items()
        if run.word == "gone" and run.version and fault.concerns(fault.product, run.version)
        if "==" not in fault.versions
    }


def replace_versions(text: str, versions: Mapping[str, str]) -> str:
    """known_faults.toml with other versions of some faults."""
    document = tomlkit.parse(text)
    for entry in document["fault"]:
        if (new := versions.get(str(entry["id"]))) is not None:
            entry["versions"] = new
    return tomlkit.dumps(document)


def judge(
    stage: StageRun, found: Mapping[Fault, FaultRun], ended: Mapping[str, str], accepted: Accepted
) -> None:
    """What is gone and holds for other versions than the one tried is well recorded."""
    for fault, run in found.items():
        concerned = not run.version or fault.concerns(fault.product, run.version)
        again = session("lab", "faults", fault.id)
        if not run.word:
            stage.add("fault-not-measured", Severity.ERROR, fault.id, run.figure, Fix("--timeout; {}", again))
        elif run.word == "still" and not concerned:
            message = f"{fault.product} {run.version} has it too ({run.figure}), not only {fault.versions}"
            fix = Fix("add it to `versions` of {} in {}; {}", fault.id, MANIFEST.relative_to(ROOT), again)
            stage.add("fault-wider", Severity.ERROR, fault.id, message, fix)
        elif run.word == "still" and not alike(
            run.figure, said_before := accepted.of(fault.id).get("figure")
        ):
            message = f"its script prints {run.figure!r}, and the accepted figure is {said_before!r}"
            fix = session("lab", "faults", "--accept", fault.id)
            stage.add("fault-changed", Severity.ERROR, fault.id, message, fix)
        elif run.word == "changed":
            text = f"correct its `effect` in {MANIFEST.relative_to(ROOT)} and manifests/faults/{fault.id}.py"
            stage.add("fault-changed", Severity.ERROR, fault.id, run.figure, join_fixes([text, again]))
        elif run.word == "gone" and concerned and fault.id not in ended:
            message = f"{fault.product} {run.version} does not have it: {run.figure}".replace("  ", " ")
            fix = session("lab", "faults", "--close", fault.id)
            stage.add("fault-gone", Severity.ERROR, fault.id, message, fix)
    for word in WORDS:
        stage.metrics[word] = sum(run.word == word for run in found.values())


def alike(figure: str, accepted: object) -> bool:
    """Whether two lines have the same words, and figures that differ by as much as two machines may."""
    lines = [NUMBER.split(text) for text in (figure, str(accepted))]
    figures = [[float(number) for number in NUMBER.findall(text)] for text in (figure, str(accepted))]
    return lines[0] == lines[1] and all(
        math.isclose(first, second, rel_tol=0.1, abs_tol=1) for first, second in zip(*figures, strict=True)
    )


def table(found: Mapping[Fault, FaultRun], ended: Mapping[str, str]) -> str:
    """For the pull request: what each script said that its entry does not say."""
    rows = [
        f"| {fault.id} | {run.word} | {run.figure} | {run.version} | {ended.get(fault.id, '')} |"
        for fault, run in found.items()
        if run.word != "still" or (run.version and not fault.concerns(fault.product, run.version))
    ]
    head = ["| fault | now | figure | version | versions in this change |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *rows] if rows else ["Every fault is still there."]) + "\n"
