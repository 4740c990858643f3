"""Run a small program with another machine's runner under qemu: its outputs must be PyTorch's.

`python -m ci.builds.qemu_check DIR KERNELS` exports it, in a process of its own because that imports torch.
"""

from __future__ import annotations

import array
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ci.builds.toolchain import BuildTool
from ci.diagnose.explain import causes
from ci.runner import Runner
from provisioning.base.commands import captured, quoted
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.files import replace_bytes
from provisioning.base.findings import Severity
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun

PROGRAM = "probe.pte"
DATA = "probe.raw"
EXPECTED = "expected.raw"
SHAPE = (1, 3, 8, 8)
TOLERANCE = 1e-5
SECONDS = 600.0
"""The probe takes a second, and a few seconds under qemu."""

Kernels = Literal["portable", "xnnpack"]
"""What computes the probe: kernels that every build has, or a delegate that only the wheel's has."""


def try_runner(runner: Runner, probe: Path, qemu: BuildTool, sysroot: Path, stage: StageRun) -> None:
    expected = _floats(probe / EXPECTED)
    found = outputs(runner, probe, [str(qemu.path), "-L", str(sysroot)])
    away = difference(expected, found)
    stage.metrics |= {"qemu": qemu.version, "compared_values": len(found)}
    if away <= TOLERANCE:
        stage.metrics["largest_difference"] = away
        return
    stage.add(
        "runner-outputs",
        Severity.ERROR,
        str(runner.path),
        f"expected {len(expected)} values within {TOLERANCE} of PyTorch's, found {len(found)} {away:.2g} off",
        "run your own program with the runner and with PyTorch, and report it with both outputs",
    )


def difference(expected: Sequence[float], found: Sequence[float]) -> float:
    """The largest one; infinite where values lack or are none."""
    if not expected or len(expected) != len(found) or any(map(math.isnan, (*expected, *found))):
        return math.inf
    return max(abs(value - other) for value, other in zip(expected, found, strict=True))


def sysroot_of(compiler: Path) -> Path:
    """The folder whose lib/ holds the target's loader and C library."""
    name = "libc.so.6"
    result = captured([str(compiler), f"-print-file-name={name}"])
    library = Path(result.stdout.strip() or name)
    if library.is_absolute() and library.is_file():
        return library.resolve().parent.parent
    raise EnvironmentLacking(
        f"{compiler} has no {name}", fix="apt-get install libc6-dev-arm64-cross g++-aarch64-linux-gnu"
    )


def probe_in(folder: Path, kernels: Kernels) -> Path:
    """Export the probe program there unless it is there already."""
    if not (folder / PROGRAM).is_file():
        command = [sys.executable, "-m", "ci.builds.qemu_check", str(folder), kernels]
        result = captured(command, cwd=ROOT)
        if result.returncode != 0:
            raise EnvironmentLacking(
                f"{sys.executable} cannot export the probe:\n  {result.stderr.strip()[-400:]}"
                f"{causes(result.stderr)}",
                fix="nox runs builds in an environment with torch and executorch",
            )
    return folder


def export(into: Path, kernels: str) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 10)
    ).eval()
    example = (torch.randn(SHAPE),)
    lowered = to_edge_transform_and_lower(
        torch.export.export(model, example, strict=True),
        partitioner=[XnnpackPartitioner()] if kernels == "xnnpack" else [],
    ).to_executorch()
    into.mkdir(parents=True, exist_ok=True)
    example[0].numpy().tofile(into / DATA)
    model(*example).detach().numpy().tofile(into / EXPECTED)
    # Written last and atomically: if it exists, the other files do too.
    replace_bytes(into / PROGRAM, lowered.buffer)


def outputs(
    runner: Runner, probe: Path, emulator: Sequence[str], seconds: float = SECONDS
) -> Sequence[float]:
    fix = "run that command by hand; a runner that was moved or changed is built again with --clean"
    with tempfile.TemporaryDirectory() as scratch:
        into = Path(scratch, "outputs")
        into.mkdir()
        # Named without its folder: ExecuTorch's runner cannot read names with spaces.
        shutil.copy(probe / DATA, scratch)
        inputs = runner.write_inputs(Path(scratch, "inputs.txt"), [[Path(DATA)]])
        command = [*emulator, *runner.command(probe / PROGRAM, inputs, into)]
        try:
            result = captured(command, cwd=Path(scratch), timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(
                f"{runner.path} did not end within {seconds:g} s on the probe", fix=fix
            ) from error
        if result.returncode != 0:
            raise CheckFailed(
                f"{quoted(*command)} failed on the probe with exit code {result.returncode}:\n"
                f"  {result.stderr.strip()[-400:]}{causes(result.stderr)}",
                fix=fix,
            )
        return [value for path in sorted(into.glob("*")) for value in _floats(path)]


def _floats(path: Path) -> Sequence[float]:
    return array.array("f", path.read_bytes())


if __name__ == "__main__":
    export(Path(sys.argv[1]), sys.argv[2])
