"""Another machine's runner under qemu: it must give what this machine's runner gives."""

from __future__ import annotations

import array
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ci.builds.cmake import Program
from ci.builds.probe import INPUTS, PROGRAM, list_inputs
from ci.builds.staged import RUNNER
from provisioning.base.diagnosis import causes
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import ROOT

TOLERANCE = 1e-5
SECONDS = 600.0
"""For a probe that takes a second, and some under qemu."""


@dataclass(frozen=True, slots=True)
class Compared:
    findings: tuple[Finding, ...]
    values: int
    largest_difference: float


def compare(dist: Path, here: Path, probe: Path, qemu: Program, sysroot: Path) -> Compared:
    """Run the probe with the runner staged in `dist`, under qemu, and with the one in `here`."""
    with tempfile.TemporaryDirectory() as scratch:
        ours = outputs([str(here / RUNNER)], probe, Path(scratch) / "here")
        emulated = [str(qemu.path), "-L", str(sysroot), str(dist / RUNNER)]
        theirs = outputs(emulated, probe, Path(scratch) / "there")
    return judge(ours, theirs, dist / RUNNER)


def judge(ours: list[float], theirs: list[float], subject: Path) -> Compared:
    largest = max((abs(one - other) for one, other in zip(ours, theirs, strict=False)), default=0.0)
    findings: tuple[Finding, ...] = ()
    # Written so that a NaN on either side fails.
    if (
        not ours
        or len(ours) != len(theirs)
        or not all(abs(one - other) <= TOLERANCE for one, other in zip(ours, theirs, strict=True))
    ):
        message = (
            f"expected {len(ours)} values within {TOLERANCE} of this machine's, "
            f"found {len(theirs)}, up to {largest:.3g} away"
        )
        remedy = "compare the two runners on your own program, and report it with both outputs"
        findings = (Finding("runner-outputs", Severity.ERROR, str(subject), message, remedy),)
    return Compared(findings, len(theirs), largest)


def sysroot_of(compiler: Program) -> Path:
    """The folder whose lib/ holds the target's loader and C library."""
    name = "libc.so.6"
    result = subprocess.run(
        [str(compiler.path), f"-print-file-name={name}"], capture_output=True, text=True, check=False
    )
    library = Path(result.stdout.strip() or name)
    if library.is_absolute() and library.is_file():
        return library.resolve().parent.parent
    raise EnvironmentLacking(
        f"{compiler.path} has no {name}", remedy="apt-get install libc6-dev-arm64-cross g++-aarch64-linux-gnu"
    )


def probe_in(folder: Path) -> Path:
    """Export the probe there unless it is there already."""
    if not (folder / PROGRAM).is_file():
        result = subprocess.run(
            [sys.executable, "-m", "ci.builds.probe", str(folder)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if result.returncode != 0:
            raise EnvironmentLacking(
                f"{sys.executable} cannot export the probe:\n  {result.stderr.strip()[-400:]}"
                f"{causes(result.stderr)}",
                remedy="nox -s build_runner uses an environment with torch and executorch",
            )
    list_inputs(folder)
    return folder


def outputs(command: list[str], probe: Path, into: Path) -> list[float]:
    remedy = "run that command by hand; a runner that was moved or changed is built anew with --clean"
    try:
        result = subprocess.run(
            [
                *command,
                *("--model_path", str(probe / PROGRAM), "--input_list_path", str(probe / INPUTS)),
                *("--output_folder_path", str(into), "--etdump_path=", "--performance_output_path="),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(
            f"{' '.join(command)} did not end within {SECONDS:g} s on the probe", remedy=remedy
        ) from error
    if result.returncode != 0:
        raise CheckFailed(
            f"{' '.join(command)} failed on the probe with exit code {result.returncode}:\n"
            f"  {result.stderr.strip()[-400:]}{causes(result.stderr)}",
            remedy=remedy,
        )
    values = array.array("f")
    for path in sorted(into.glob("*")):
        values.frombytes(path.read_bytes())
    return values.tolist()
