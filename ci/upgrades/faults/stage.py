"""Run the script of each known fault, which has no code of this project, with what is pinned."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomlkit

from ci.engine.closed import closed
from provisioning.base.commands import captured, logged, session
from provisioning.base.errors import CheckFailed, UnknownName
from provisioning.base.files import replace_text
from provisioning.base.findings import Artifact, Severity
from provisioning.base.settings import ROOT, Selection
from provisioning.base.stage_run import StageRun
from provisioning.build_id import build_ids, version_in
from provisioning.components import QNN_SDK
from provisioning.environment import HOST_LIBRARIES, resolve
from provisioning.known_faults import MANIFEST, SCRIPTS, Fault, load_faults
from provisioning.python_environments import PythonEnvironments, environments_folder

WORDS = {"gone": 0, "still": 1, "changed": 2}
"""What a script's last line begins with, and its exit code."""

SAID = re.compile(rf"({'|'.join(WORDS)}) - (.+)")

RULES = {"gone": "fault-gone", "changed": "fault-changed"}


@dataclass(frozen=True, slots=True)
class FaultRun:
    """What the script of a fault said."""

    word: str
    """One of WORDS; `changed` too if it said none."""
    figure: str
    version: str
    """Of the product that the fault is of; empty if it cannot be told."""


def check_all(
    selection: Selection, names: Sequence[str], timeout: float, *, close: bool, environ: Mapping[str, str]
) -> int:
    """A fault that is gone, or is another one now, is an error until its entry says so."""
    stage = StageRun.as_typed("faults", selection.profile, selection.target)
    with stage.reported(selection.reports, "fault-not-measured"):
        folder = Path(selection.reports).absolute() / "faults"
        found = {
            fault: _run(fault, selection, folder, timeout, environ) for fault in chosen(names, load_faults())
        }
        ended = closing(found) if close else {}
        if ended:
            replace_text(MANIFEST, with_versions(MANIFEST.read_text(encoding="utf-8"), ended))
        judge(stage, found, ended)
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
    fault: Fault, selection: Selection, folder: Path, timeout: float, environ: Mapping[str, str]
) -> FaultRun:
    lane = "onnx" if fault.lane == "onnx" else "executorch"
    python = PythonEnvironments(environments_folder(), print).interpreter(lane)
    log = folder / f"{fault.id}.log"
    variables = closed(environ)
    if lane == "executorch":
        resolved = resolve(selection, environ)
        variables = closed(resolved.merged(environ))
    code = logged([python, SCRIPTS / f"{fault.id}.py"], log, variables, fault.id, timeout=timeout)
    word, figure = said(log.read_text(encoding="utf-8", errors="replace"), code)
    sys.stdout.write(f"{word:8} {fault.id}: {figure}\n")
    sys.stdout.flush()
    package = fault.product if fault.product != "qnn" else ""
    if package:
        call = f"from importlib.metadata import version; print(version({package!r}))"
        return FaultRun(word, figure, captured([python, "-c", call]).stdout.strip())
    if lane == "onnx":
        return FaultRun(word, figure, "")
    library = resolved.root(QNN_SDK).path / "lib" / HOST_LIBRARIES / "libQnnHtp.so"
    return FaultRun(word, figure, version_in(next(iter(build_ids(library)), "")))


def said(printed: str, code: int) -> tuple[str, str]:
    """The word and the figure of a script's last line; `changed` if it ended otherwise than it said."""
    lines = printed.strip().splitlines() or [""]
    match = SAID.fullmatch(lines[-1])
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


def with_versions(text: str, versions: Mapping[str, str]) -> str:
    """known_faults.toml with other versions of some faults."""
    document = tomlkit.parse(text)
    for entry in document["fault"]:
        if (new := versions.get(str(entry["id"]))) is not None:
            entry["versions"] = new
    return tomlkit.dumps(document)


def judge(stage: StageRun, found: Mapping[Fault, FaultRun], ended: Mapping[str, str]) -> None:
    """What is gone and holds for other versions than the one tried is well recorded."""
    for fault, run in found.items():
        concerned = not run.version or fault.concerns(fault.product, run.version)
        again = session("faults", fault.id)
        if run.word == "still" and not concerned:
            message = f"{fault.product} {run.version} has it too ({run.figure}), beside {fault.versions}"
            fix = f"add it to `versions` of {fault.id} in {MANIFEST.relative_to(ROOT)}; {again}"
            stage.add("fault-wider", Severity.ERROR, fault.id, message, fix)
        elif run.word == "changed":
            fix = f"correct its `effect` in {MANIFEST.relative_to(ROOT)} and manifests/faults/{fault.id}.py"
            stage.add("fault-changed", Severity.ERROR, fault.id, run.figure, f"{fix}; {again}")
        elif run.word == "gone" and concerned and fault.id not in ended:
            message = f"{fault.product} {run.version} does not have it: {run.figure}".replace("  ", " ")
            fix = session("faults", "--close", fault.id)
            stage.add("fault-gone", Severity.ERROR, fault.id, message, fix)
    for word in WORDS:
        stage.metrics[word] = sum(run.word == word for run in found.values())


def table(found: Mapping[Fault, FaultRun], ended: Mapping[str, str]) -> str:
    """For the pull request: what each script said, and where what it needed is still written."""
    rows = [
        f"| {fault.id} | {run.word} | {run.figure} | {run.version} | {ended.get(fault.id, '')} |"
        for fault, run in found.items()
        if run.word != "still"
    ]
    head = ["| fault | now | figure | version | versions in this change |", "| --- | --- | --- | --- | --- |"]
    places = [f"- {fault_id}: {', '.join(names)}" for fault_id in ended if (names := named_in(fault_id))]
    remaining = ["", "Also named here, where what it needed can go:", "", *places] if places else []
    text = [*head, *rows, *remaining] if rows else ["Every fault is still there."]
    return "\n".join(text) + "\n"


def named_in(fault_id: str) -> list[str]:
    """The files of the clone that name a fault, but for its own."""
    command = ["git", "grep", "-l", "-F", fault_id, "--", ".", ":!manifests", ":!docs/findings.md"]
    done = captured(command, cwd=ROOT)
    if done.returncode not in (0, 1):
        raise CheckFailed(f"git grep: {done.stderr.strip()}", fix="run it in a clone")
    return done.stdout.split()
