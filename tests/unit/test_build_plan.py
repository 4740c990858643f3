"""What a build from source is decided by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ci.builds.source_plan import MEMORY_PER_JOB, LocatedSdk
from ci.builds.toolchain import Toolchain, cross
from ci.builds.tree import load_recipe
from ci.builds.verb import X86
from ci.jobs import available_memory
from provisioning.base.errors import UsageError
from tests.support.build_plans import make_plan
from tests.support.typed import run_here


@pytest.mark.parametrize(
    ("limit", "used", "cached", "available"),
    [
        (f"{3 * MEMORY_PER_JOB}", MEMORY_PER_JOB, 0, 2 * MEMORY_PER_JOB),
        (f"{3 * MEMORY_PER_JOB}", 3 * MEMORY_PER_JOB, 2 * MEMORY_PER_JOB, 2 * MEMORY_PER_JOB),
        (f"{MEMORY_PER_JOB}", MEMORY_PER_JOB, 0, 1),
        ("max", 5, 0, 1 << 35),
    ],
)
def test_a_containers_limit_counts(
    tmp_path: Path, limit: str, used: int, cached: int, available: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   33554432 kB\n", encoding="ascii")
    (tmp_path / "memory.max").write_text(f"{limit}\n", encoding="ascii")
    (tmp_path / "memory.current").write_text(f"{used}\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n", encoding="ascii")
    assert available_memory(tmp_path / "meminfo", tmp_path) == available


@pytest.mark.parametrize("definition", ["BUILD_TESTING=ON", "-DBUILD_TESTING:BOOL=ON"])
def test_the_users_definitions_win_and_other_arguments_are_passed_on(tmp_path: Path, definition: str) -> None:
    plan = make_plan(tmp_path, extra=(definition, "--fresh"))
    project = plan.cmake_build().projects[1]
    assert (project.definitions["BUILD_TESTING"], project.arguments) == ("ON", ("--fresh",))


@pytest.mark.parametrize(
    "change",
    [
        {"toolchain": Toolchain("vendor g++ 13.1.0", {})},
        {"python_identity": "cpython-312"},
        {"sdk": LocatedSdk(Path("/sdk"), "v2.48.0.260626000000")},
    ],
)
def test_what_cmake_does_not_notice_starts_anew(tmp_path: Path, change: dict[str, object]) -> None:
    plan = make_plan(tmp_path)
    other = replace(plan, **change)  # type: ignore[arg-type]
    assert other.cmake_build().identity != plan.cmake_build().identity


@pytest.mark.parametrize("place", ["lib/libmine.so", "overlay/notes.txt", "manifest.json"])
def test_an_output_folder_with_the_users_files_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with pytest.raises(UsageError, match=str(tmp_path)):
        run_here(X86, "--dry-run", "--output", tmp_path, "--store", tmp_path / "store")


def test_a_toolchain_file_is_known_by_its_content_and_excludes_the_other_ways(tmp_path: Path) -> None:
    recipe, file = load_recipe("aarch64-linux"), tmp_path / "t.cmake"
    identities = set()
    for text in ("set(A 1)\n", "set(A 2)\n"):
        file.write_text(text, encoding="utf-8")
        identities.add(cross(recipe, {}, None, None, file).identity)
    assert len(identities) == 2
    with pytest.raises(UsageError, match="--toolchain-file"):
        cross(recipe, {}, "arm-", None, file)
