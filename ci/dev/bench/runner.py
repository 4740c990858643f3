"""From start to first output: our runner against a bare Module-based program, on one small XNNPACK program.

A start takes milliseconds, so each contender starts many times a round. Our runner then also writes a profile
and a mean time, which the bare program does not: shown beside it, without an aim.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.builds.cmake import Build, ConfiguredProject
from ci.builds.emulator_runner import CONFIG, find_executorch
from ci.builds.programs import find_cmake, find_compiler, find_ninja
from ci.builds.qemu_check import INPUTS, PROGRAM, SHAPE, probe_in
from ci.dev.bench.frame import Aim, Benchmark, Contender, default_selection
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_TARGET, ROOT
from provisioning.dist import OURS as WHEEL
from provisioning.dist import RUNNER
from provisioning.manifest import load_profile

OURS, BARE, CUSTOMARY = "runner", "bare module", "runner, with the customary files"
AIMS = (Aim(OURS, BARE, 1 / 1.3),)
STARTS, QUICK_STARTS = 100, 5
QUIET = ("--etdump_path=", "--performance_output_path=")


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    """The staged runner, and a bare program built against the same executorch."""
    runner = ROOT / "dist" / DEFAULT_TARGET / WHEEL / RUNNER
    if not runner.is_file():
        raise EnvironmentLacking(f"{runner}: expected the runner, found none", fix="nox -s build_runner")
    executorch = find_executorch(None, default_selection(work))
    bare = _bare_module(executorch.root, work / "bare")
    probe = probe_in(work / "probe")
    starts = QUICK_STARTS if quick else STARTS
    model = str(probe / PROGRAM)
    ours = [str(runner), "--model_path", model, "--input_list_path", str(probe / INPUTS)]
    ours += ["--output_folder_path", "."]
    theirs = [str(bare), model, str(probe / "probe.raw"), "output_0_0.raw", *map(str, SHAPE)]
    yield Benchmark(
        contenders=(
            Contender(OURS, lambda into: _start([*ours, *QUIET], starts, into), _check),
            Contender(CUSTOMARY, lambda into: _start(ours, starts, into), _check),
            Contender(BARE, lambda into: _start(theirs, starts, into), _check),
        ),
        aims=AIMS,
        facts={
            "starts": starts,
            "model_bytes": (probe / PROGRAM).stat().st_size,
            "executorch": executorch.version,
        },
    )


def _bare_module(package: Path, tree: Path) -> Path:
    floor = load_profile(DEFAULT_PROFILE).host["cmake"].floor
    source = Path(__file__).parent / "bare_module"
    definitions = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_COMPILER": str(find_compiler().path),
        "executorch_DIR": str(package / CONFIG.parent),
    }
    project = ConfiguredProject("bare_module", source, tree / "build", definitions)
    Build(tree, find_cmake(floor), find_ninja(), (project,), os.cpu_count() or 1, definitions).run()
    return tree / "build" / "bare_module"


def _start(command: list[str], times: int, into: Path) -> None:
    for _ in range(times):
        subprocess.run(command, cwd=into, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def _check(into: Path) -> None:
    size = (into / "output_0_0.raw").stat().st_size
    if size != 40:
        raise CheckFailed(f"{into / 'output_0_0.raw'}: expected 10 floats, found {size} bytes")
