"""Programs (.pte) of each executorch version, run by the runtime of each version that has one for C++."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from ci.artifacts.program import CompiledProgram, TensorInfo, read
from ci.suite.runner import VARIABLE, Runner
from ci.work import trouble_of_ending
from lab.builds import environment_of, own_build, releases, rows_of
from lab.builds.table import Release, load_builds
from lab.compat.stage import SUITE, first_line
from lab.golden.contexts import (
    Golden,
    MakerResult,
    RuntimeResult,
    compared_with_maker,
    keep,
    show,
    sqnr,
    take,
)
from lab.stage import logged
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import hash_file
from provisioning.base.findings import Report, Severity
from provisioning.base.settings import ROOT, Selection, outputs_path
from provisioning.dist import RUNNER
from provisioning.store import Store

PROGRAM, INPUTS, OWN = "model.pte", "inputs", "own"

BACKEND = Path("executorch/lib/libexecutorch_backend_qnn.so")
"""In wheels from 1.5.0 on: the C++ runtime that a runner links."""


@dataclass(frozen=True)
class Toolkit:
    """What compiles and runs programs by each executorch version, and where they go."""

    selection: Selection
    folder: Path
    timeout: float
    """Of a step, in seconds."""
    environ: Mapping[str, str]

    @property
    def store(self) -> Store:
        return Store(self.selection.store)

    def qnn(self) -> dict[str, str]:
        """The variables of a process that uses the profile's QNN."""
        return environment_of(own_build(load_builds()), self.selection, "executorch", self.environ)

    def executorch(self, release: Release | None, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a process that imports this version."""
        return releases.variables_of(release, self.store, variables)

    def runner(self, version: str, release: Release | None) -> Runner | None:
        """The runner that links this version's runtime, built for it; None if its wheel has none."""
        reports = self.folder / version
        reports.mkdir(parents=True)
        build, log = outputs_path() / "build" / "golden" / version, reports / "build_runner.log"
        command = [sys.executable, "-m", "ci", "build_runner", "--reports", str(reports)]
        command += ["--build-dir", str(build / "build"), "--output", str(build / "dist")]
        if release is not None:
            root = releases.tree_of(release, self.store)
            if not (root / BACKEND).is_file():
                return None
            command += ["--executorch", str(root)]
        if logged(command, log, self.environ, cwd=ROOT):
            raise EnvironmentLacking(
                f"the runner of executorch {version} could not be built", fix=f"read {log}"
            )
        linked = str(Report.read(reports / "build_runner.json").metrics.get("executorch"))
        if linked.partition("+")[0] != version:
            raise EnvironmentLacking(
                f"expected a runner of executorch {version}, found one of {linked}",
                fix=Fix(
                    "run it as `{}`, which installs that version", ("lab", "golden", "--lane", "executorch")
                ),
            )
        return Runner(build / "dist" / RUNNER)

    def compile(self, maker: str, programs: Sequence[str], variables: Mapping[str, str]) -> dict[str, Path]:
        """The .pte files that this version makes. They run and are near the float model, else an error."""
        place = self.folder / maker
        for verb in ("test_lowering", "test_emulator"):
            command = [sys.executable, "-m", "ci", verb, "--suite", str(SUITE)]
            command += ["--timeout", f"{self.timeout:g}", "--reports", str(place)]
            command += ["--store", str(self.selection.store)]
            command += [flag for program in programs for flag in ("-k", program)]
            logged(command, place / f"{verb}.log", variables, cwd=ROOT)
            _need(place, verb, programs, maker)
        rows = rows_of(Report.read(place / "test_lowering.json"))
        return {program: Path(str(rows[program]["program"])) for program in programs}


def measure(
    golden: Golden, versions: Sequence[str], tools: Toolkit, kept: Path | None = None
) -> dict[str, dict[str, MakerResult]]:
    """Each version's result with the programs of all. Programs that are in `kept` are not compiled again."""
    table, folder, timeout = load_builds(), tools.folder, tools.timeout
    chosen = list(dict.fromkeys(versions)) or releases.versions(table)
    makers = {name: releases.release_named(name, table) for name in sorted(chosen, key=Version)}
    variables = tools.qnn()
    runners = {name: runner for name, release in makers.items() if (runner := tools.runner(name, release))}
    if not runners:
        raise EnvironmentLacking(
            f"no wheel of executorch {', '.join(chosen)} has a C++ runtime",
            fix=f"add --executorch {releases.own_version(table)}",
        )
    results: dict[str, dict[str, MakerResult]] = {program: {} for program in golden.executorch}
    for maker, release in makers.items():
        # The wheels of earlier versions have no runtime; the oldest one there is stands in.
        own = runners.get(maker) or next(iter(runners.values()))
        places = {program: folder / maker / program for program in golden.executorch}
        stored = {program: kept / "executorch" / maker / program if kept else None for program in places}
        missing = [program for program, place in places.items() if not take(stored[program], place)]
        if missing:
            compiled = tools.compile(
                maker, missing, {**tools.executorch(release, variables), VARIABLE: str(own.path)}
            )
        for program in missing:
            place = places[program]
            place.mkdir(parents=True)
            shutil.copyfile(compiled[program], place / PROGRAM)
            _draw_inputs(place)
            if error := _run(own, variables, place, place / OWN, timeout):
                raise EnvironmentLacking(
                    f"{program}: the runner does not run what executorch {maker} compiled: {error}",
                    fix=f"read {place}",
                )
            keep(stored[program], place, (PROGRAM, INPUTS, OWN))
        for program, place in places.items():
            met = {}
            for name, runner in runners.items():
                outputs = place / f"on-{name}"
                error = _run(runner, variables, place, outputs, timeout)
                met[name] = (
                    RuntimeResult(result="refused", message=error)
                    if error
                    else compared_with_maker(
                        sqnr(_outputs(place, place / OWN), _outputs(place, outputs)), golden
                    )
                )
            show(program, f"executorch {maker}", met)
            results[program][maker] = MakerResult(sha256=hash_file(place / PROGRAM), runtimes=met)
    return results


def _need(place: Path, verb: str, programs: Sequence[str], maker: str) -> None:
    """A failure to compile, or on the maker's own runtime, says nothing about later runtimes."""
    log = place / f"{verb}.log"
    try:
        report = Report.read(place / f"{verb}.json")
    except FileNotFoundError as error:
        raise EnvironmentLacking(
            f"{verb} of executorch {maker} wrote no report", fix=f"read {log}"
        ) from error
    if wrong := next((finding for finding in report.findings if finding.severity is Severity.ERROR), None):
        raise EnvironmentLacking(f"executorch {maker}: {wrong.subject}: {wrong.message}", fix=f"read {log}")
    if absent := [program for program in programs if program not in rows_of(report)]:
        raise EnvironmentLacking(
            f"executorch {maker}: {verb} has no {', '.join(absent)}", fix="correct manifests/golden.toml"
        )


def _draw_inputs(place: Path) -> None:
    """Inputs that are the same for every runtime: from a seed, in the shapes of the program."""
    import numpy as np

    generator, folder = np.random.default_rng(0), place / INPUTS
    folder.mkdir()
    for index, tensor in enumerate(_tensors(place, "inputs")):
        array = generator.standard_normal(tensor.shape).astype(tensor.dtype)
        (folder / f"{index}.raw").write_bytes(array.tobytes())


def _tensors(place: Path, which: str) -> list[TensorInfo]:
    program = read(place / PROGRAM)
    assert isinstance(program, CompiledProgram)
    (method,) = program.methods
    return [tensor for tensor in getattr(method, which) if isinstance(tensor, TensorInfo)]


def _run(runner: Runner, variables: Mapping[str, str], place: Path, outputs: Path, timeout: float) -> str:
    """Write the program's outputs to a folder; returns why it did not run, if so."""
    outputs.mkdir()
    log = Path(f"{outputs}.log")
    inputs = sorted((place / INPUTS).glob("*.raw"), key=lambda path: int(path.stem))
    listed = runner.write_inputs(place / "input_list.txt", [inputs])
    command = runner.command(place / PROGRAM, listed, outputs)
    code = logged(command, log, variables, place, timeout=timeout)
    if not code:
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if trouble := trouble_of_ending("runner", code, "\n".join(lines[-1:]), [outputs]):
        raise EnvironmentLacking(f"{place}: {trouble.message}", fix=trouble.fix)
    errors = [line for line in lines if "error" in line.lower()] or lines or [f"exit code {code}"]
    return first_line(errors[-1])


def _outputs(place: Path, folder: Path) -> dict[str, Any]:
    import numpy as np

    files = {
        folder / f"output_0_{index}.raw": tensor for index, tensor in enumerate(_tensors(place, "outputs"))
    }
    return {path.name: np.fromfile(path, file.dtype) for path, file in files.items() if path.is_file()}
