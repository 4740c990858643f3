"""Compare another machine's runner under qemu with this machine's: a small program must give the same
outputs.

`python -m ci.builds.qemu_check DIR` exports that program, in a process of its own because it imports torch.
"""

from __future__ import annotations

import array
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.builds.programs import BuildTool
from ci.diagnose.explain import causes
from ci.pipeline.runner import Runner
from provisioning.base.commands import captured, quoted
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import replace_bytes
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import ROOT
from provisioning.dist import RUNNER

PROGRAM = "probe.pte"
DATA = "probe.raw"
INPUTS = "probe.txt"
SHAPE = (1, 3, 8, 8)
TOLERANCE = 1e-5
SECONDS = 600.0
"""The probe takes a second, and a few seconds under qemu."""


@dataclass(frozen=True, slots=True)
class ProbeComparison:
    findings: tuple[Finding, ...]
    values: int
    largest_difference: float


def compare(dist: Path, here: Path, probe: Path, qemu: BuildTool, sysroot: Path) -> ProbeComparison:
    """Run the probe with the runner in `dist`, under qemu, and with the one in `here`."""
    with tempfile.TemporaryDirectory() as scratch:
        ours = outputs(here / RUNNER, probe, Path(scratch) / "here")
        emulator = [str(qemu.path), "-L", str(sysroot)]
        theirs = outputs(dist / RUNNER, probe, Path(scratch) / "there", emulator)
    return judge(ours, theirs, dist / RUNNER)


def judge(ours: list[float], theirs: list[float], subject: Path) -> ProbeComparison:
    largest = max((abs(value - other) for value, other in zip(ours, theirs, strict=False)), default=0.0)
    findings: tuple[Finding, ...] = ()
    # Written so that a NaN on either side fails.
    if (
        not ours
        or len(ours) != len(theirs)
        or not all(abs(value - other) <= TOLERANCE for value, other in zip(ours, theirs, strict=True))
    ):
        message = (
            f"expected {len(ours)} values within {TOLERANCE} of this machine's runner, "
            f"found {len(theirs)}, up to {largest:.3g} away"
        )
        fix = "compare the two runners on your own program, and report it with both outputs"
        findings = (Finding("runner-outputs", Severity.ERROR, str(subject), message, fix),)
    return ProbeComparison(findings, len(theirs), largest)


def sysroot_of(compiler: BuildTool) -> Path:
    """The folder whose lib/ holds the target's loader and C library."""
    name = "libc.so.6"
    result = captured([str(compiler.path), f"-print-file-name={name}"])
    library = Path(result.stdout.strip() or name)
    if library.is_absolute() and library.is_file():
        return library.resolve().parent.parent
    raise EnvironmentLacking(
        f"{compiler.path} has no {name}", fix="apt-get install libc6-dev-arm64-cross g++-aarch64-linux-gnu"
    )


def probe_in(folder: Path) -> Path:
    """Export the probe program there unless it is there already."""
    if not (folder / PROGRAM).is_file():
        result = captured([sys.executable, "-m", "ci.builds.qemu_check", str(folder)], cwd=ROOT)
        if result.returncode != 0:
            raise EnvironmentLacking(
                f"{sys.executable} cannot export the probe:\n  {result.stderr.strip()[-400:]}"
                f"{causes(result.stderr)}",
                fix="nox -s build_runner uses an environment with torch and executorch",
            )
    # Written each time, because it contains the folder's path, which may have changed.
    Runner(folder).write_inputs(folder / INPUTS, [[folder / DATA]])
    return folder


def export(into: Path) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 10)
    ).eval()
    example = (torch.randn(SHAPE),)
    lowered = to_edge_transform_and_lower(
        torch.export.export(model, example, strict=True), partitioner=[XnnpackPartitioner()]
    ).to_executorch()
    into.mkdir(parents=True, exist_ok=True)
    example[0].numpy().tofile(into / DATA)
    # Written last and atomically: if it exists, the other files do too.
    replace_bytes(into / PROGRAM, lowered.buffer)


def outputs(
    runner: Path, probe: Path, into: Path, emulator: Sequence[str] = (), seconds: float = SECONDS
) -> list[float]:
    fix = "run that command by hand; a runner that was moved or changed is built anew with --clean"
    command = [*emulator, *Runner(runner).command(probe / PROGRAM, probe / INPUTS, into)]
    try:
        result = captured(command, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(f"{runner} did not end within {seconds:g} s on the probe", fix=fix) from error
    if result.returncode != 0:
        raise CheckFailed(
            f"{quoted(*command)} failed on the probe with exit code {result.returncode}:\n"
            f"  {result.stderr.strip()[-400:]}{causes(result.stderr)}",
            fix=fix,
        )
    values = array.array("f")
    for path in sorted(into.glob("*")):
        values.frombytes(path.read_bytes())
    return values.tolist()


if __name__ == "__main__":
    export(Path(sys.argv[1]))
