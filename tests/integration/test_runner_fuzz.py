"""The runner's parsers meet many thousand mutated inputs under sanitizers, for a bounded time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ci.builds.cmake import Build, ConfiguredProject
from ci.builds.toolchain import find_cmake, find_compiler, find_ninja, find_program
from provisioning.base.settings import ROOT
from tests.support.runner import shared_folder

SOURCE = ROOT / "ci" / "builds" / "runner"
SEEDS = SOURCE / "fuzz" / "seeds"
TARGETS = ("flags", "input_list")
# libFuzzer is Clang's own. Where there is no Clang, seeded mutations drive the same harnesses.
LIBFUZZER = pytest.param("libfuzzer", marks=pytest.mark.whole)
ENGINES = ("replay", LIBFUZZER) if shutil.which("clang++") else ("replay",)
ROUNDS = 10_000
SECONDS = 10
# A sanitizer's finding ends the process by a code of its own.
STRICT = {"ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=99", "UBSAN_OPTIONS": "exitcode=99"}


def built(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Path:
    libfuzzer = engine == "libfuzzer"
    tree = shared_folder(tmp_path_factory) / engine
    compiler = find_program("clang++") if libfuzzer else find_compiler({**os.environ, "CXX": ""})
    definitions = {
        "RUNNER_FUZZ": "ON",
        "RUNNER_LIBFUZZER": "ON" if libfuzzer else "OFF",
        "CMAKE_CXX_COMPILER": str(compiler.path),
    }
    project = ConfiguredProject("fuzz", SOURCE, tree / "build", definitions)
    Build(tree, find_cmake("3.28"), find_ninja(), (project,), 2, definitions).run()
    return tree / "build" / "fuzz"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **STRICT},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
        check=False,
    )


@pytest.mark.whole
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_mutated_input_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, engine: str, target: str
) -> None:
    program = built(tmp_path_factory, engine) / f"fuzz_{target}"
    seeds = sorted((SEEDS / target).iterdir())
    assert seeds

    if engine == "replay":
        result = run(program, "1", str(ROUNDS), *seeds)
    else:
        limits = (f"-max_total_time={SECONDS}", "-print_final_stats=1", f"-artifact_prefix={tmp_path}/")
        result = run(program, *limits, tmp_path, SEEDS / target)

    assert result.returncode == 0, result.stderr[-4000:]
    assert re.search(rf"^{ROUNDS} rounds$|number_of_executed_units: [1-9]", result.stdout + result.stderr)
