"""What a build is decided by, its commands, and what its directory remembers."""

from __future__ import annotations

import argparse
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from ci.builds import configure, x86
from ci.builds.plan import MEMORY_PER_JOB, Plan, available_memory, default_jobs
from ci.builds.recipes import load_recipe
from ci.builds.request import plan_of
from ci.builds.source import script
from ci.builds.toolchain import Toolchain, c_compiler_of, cross, ndk
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import selection_of
from tests.support.build_plans import make_plan
from tests.support.miniature_executorch import make_tree


def test_jobs_are_bounded_by_memory() -> None:
    assert [default_jobs(8, gigabytes << 30) for gigabytes in (1, 4, 64)] == [1, 2, 8]


def test_without_a_word_on_memory_all_processors_are_used() -> None:
    assert default_jobs(8, 0) == 8


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   33554432 kB\n", encoding="ascii")
    (tmp_path / "memory.max").write_text(f"{3 * MEMORY_PER_JOB}\n", encoding="ascii")
    (tmp_path / "memory.current").write_text(f"{MEMORY_PER_JOB}\n", encoding="ascii")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 2 * MEMORY_PER_JOB


def test_of_a_full_container_what_only_caches_files_is_free(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{3 * MEMORY_PER_JOB}\n", encoding="ascii")
    (tmp_path / "memory.current").write_text(f"{3 * MEMORY_PER_JOB}\n", encoding="ascii")
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {2 * MEMORY_PER_JOB}\n", encoding="ascii")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 2 * MEMORY_PER_JOB


def test_in_a_full_container_one_file_is_compiled_at_a_time(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.current"):
        (tmp_path / name).write_text(f"{MEMORY_PER_JOB}\n", encoding="ascii")
    assert default_jobs(8, available_memory(tmp_path / "meminfo", tmp_path)) == 1


def test_a_container_without_a_limit_does_not(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 1024 kB\n", encoding="ascii")
    (tmp_path / "memory.max").write_text("max\n", encoding="ascii")
    (tmp_path / "memory.current").write_text("5\n", encoding="ascii")
    assert available_memory(tmp_path / "meminfo", tmp_path) == 1 << 20


def test_the_runners_project_finds_the_first_ones_package(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    build = tmp_path / "work" / "build"
    assert (
        plan.definitions(plan.recipe.projects[1])["CMAKE_PREFIX_PATH"]
        == f"{build};{build}/third-party/gflags"
    )


@pytest.mark.parametrize("given", ["BUILD_TESTING=ON", "-DBUILD_TESTING=ON", "-DBUILD_TESTING:BOOL=ON"])
def test_the_users_definitions_win(tmp_path: Path, given: str) -> None:
    plan = make_plan(tmp_path, extra=(given,))
    assert plan.definitions(plan.recipe.projects[1])["BUILD_TESTING"] == "ON"


def test_other_arguments_are_passed_on(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, extra=("--fresh",))
    assert plan.configure(plan.recipe.projects[0]).argv[-1] == "--fresh"


def test_an_option_that_is_no_longer_given_is_unset(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    argv = plan.configure(plan.recipe.projects[0], ["OLD_OPTION", "EXECUTORCH_BUILD_QNN"]).argv
    assert [word for word in argv if word.startswith("-U")] == ["-UOLD_OPTION"]


def test_variables_that_steer_compilers_are_dropped(tmp_path: Path) -> None:
    environ = make_plan(tmp_path).environ({"CFLAGS": "-O0", "CXX": "tcc", "PATH": "/bin"})
    assert ("CFLAGS" in environ, "CXX" in environ, environ["PATH"]) == (False, False, "/bin")


def test_what_is_built_is_dated_by_the_commit(tmp_path: Path) -> None:
    assert make_plan(tmp_path).variables()["SOURCE_DATE_EPOCH"] == "1767323045"


def test_the_build_directory_inside_the_tree_is_mapped_after_it(tmp_path: Path) -> None:
    """Of two that fit, compilers take the later."""
    plan = make_plan(tmp_path)
    plan = replace(plan, root=plan.tree.root / "build-arm64")
    folders = list(plan.private())
    assert folders.index(plan.tree.root) < folders.index(plan.build)


def test_a_tree_right_below_the_root_is_mapped(tmp_path: Path) -> None:
    """As in containers."""
    plan = make_plan(tmp_path)
    plan = replace(plan, tree=replace(plan.tree, root=Path("/executorch")))
    assert plan.private()[Path("/executorch")] == "executorch"


def test_the_systems_own_python_is_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/usr/include/python3.11")
    assert Path("/usr") not in make_plan(tmp_path).private()


def test_cmake_sees_a_tree_that_it_writes_into_through_a_shadow(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    assert plan.source == plan.tree.root
    make_tree(tmp_path / "src", commit=False)
    assert plan.source == tmp_path / "work" / "tree" / "executorch"
    assert plan.configure(plan.recipe.projects[1]).argv[1:3] == ("-S", f"{plan.source}/examples/qualcomm")


def test_a_shadow_is_said_by_no_binary(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", commit=False)
    plan = make_plan(tmp_path)
    assert plan.private()[plan.source] == plan.private()[plan.tree.root] == "executorch"


def test_emptying_takes_the_shadow_too(tmp_path: Path) -> None:
    make_tree(tmp_path / "src", commit=False)
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    assert (plan.source / "third-party" / "flatcc" / "CMakeLists.txt").is_file()
    configure.empty(plan.root)
    assert [path.name for path in plan.root.iterdir()] == ["flags.cmake"]


def test_flags_keep_a_path_with_spaces_whole(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "a folder")
    assert f"[=[-ffile-prefix-map={tmp_path}/a folder/work/build=build]=]" in plan.flags()


def test_a_directory_goes_on_with_what_made_it(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    assert configure.readiness(plan).reasons == ()


def test_a_directory_whose_making_was_cut_short_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tree(tmp_path / "src", commit=False)
    plan = make_plan(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(configure, "link_with_copies", killed)
        with pytest.raises(KeyboardInterrupt):
            configure.prepare(plan)
    assert configure.readiness(plan).reasons == ("what made it is not known",)


def test_an_option_is_remembered_until_every_project_was_configured_without_it(tmp_path: Path) -> None:
    first, second = make_plan(tmp_path, extra=("A=B",)), make_plan(tmp_path)
    configure.prepare(first)
    configure.remember(first)

    def remembered() -> set[str]:
        memory = configure.readiness(second).memory
        assert memory is not None
        return {name for name in ("A",) if name in memory.options["examples"]}

    configure.prepare(second, configure.readiness(second).memory)
    half_way = remembered()
    configure.remember(second)
    assert (half_way, remembered()) == ({"A"}, set())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"toolchain": Toolchain("vendor g++ 13.1.0", {})},
            "toolchain was vendor g++ 12.2.0, is vendor g++ 13.1.0",
        ),
        ({"python_identity": "cpython-312"}, "python was cpython-311"),
    ],
)
def test_what_cmake_survives_badly_starts_anew(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    assert configure.readiness(replace(plan, **change)).reasons[0].startswith(reason)  # type: ignore[arg-type]


def test_another_sdk_starts_anew(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    other = replace(plan, sdk=replace(plan.sdk, build_id="v2.48.0.260626000000"))
    assert "v2.48.0.260626000000" in configure.readiness(other).reasons[0]


@pytest.mark.parametrize(
    "change", [{"build_type": "Debug"}, {"extra": ("A=B",)}, {"launcher": Path("/bin/ccache")}]
)
def test_what_cmake_copes_with_is_incremental(tmp_path: Path, change: dict[str, object]) -> None:
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    ready = configure.readiness(replace(plan, **change))  # type: ignore[arg-type]
    assert (ready.reasons, len(ready.changes)) == ((), 1)


def test_a_directory_of_unknown_making_starts_anew(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    (plan.root / configure.MEMORY).write_text("{", encoding="utf-8")
    assert configure.readiness(plan).reasons == ("what made it is not known",)


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    plan.root.mkdir()
    (plan.root / "thesis.txt").touch()
    with pytest.raises(UsageError, match="not a build directory"):
        configure.readiness(plan)


@pytest.mark.parametrize("place", ["lib/libmine.so", "overlay/notes.txt", "manifest.json"])
def test_an_output_folder_with_the_users_files_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with pytest.raises(UsageError, match="of something else"):
        asked_for(tmp_path)


def test_an_earlier_builds_output_is_taken_and_what_is_beside_it_is_left(tmp_path: Path) -> None:
    for place in ("bin/qnn_executor_runner", "lib/libx.so", "overlay/overlay.json", "notes/mine.txt"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).touch()
    with pytest.raises(EnvironmentLacking, match="without the headers"):
        asked_for(tmp_path)


def asked_for(output: Path) -> Plan:
    parser = argparse.ArgumentParser()
    x86.configure(parser)
    args = parser.parse_args(["--output", str(output), "--store", str(output / "store")])
    return plan_of(args, selection_of(args, {}), {})


def test_emptying_leaves_what_is_not_ours(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    configure.prepare(plan)
    (plan.root / "notes.txt").touch()
    configure.empty(plan.root)
    assert [path.name for path in plan.root.iterdir() if path.name != "flags.cmake"] == ["notes.txt"]


@pytest.mark.parametrize(
    ("cxx", "cc"),
    [
        ("g++", "gcc"),
        ("aarch64-linux-gnu-g++", "aarch64-linux-gnu-gcc"),
        ("clang++-17", "clang-17"),
        ("c++", "cc"),
    ],
)
def test_the_c_compiler_belongs_to_the_other(cxx: str, cc: str) -> None:
    assert c_compiler_of(Path("/opt/bin") / cxx) == Path("/opt/bin") / cc


def test_a_compiler_of_unknown_name_needs_cc() -> None:
    with pytest.raises(EnvironmentLacking, match="no C compiler"):
        c_compiler_of(Path("/opt/bin/icpx"))


def test_an_ndk_is_known_by_its_files(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacking, match=r"android\.toolchain\.cmake"):
        ndk(tmp_path)


def test_a_toolchain_file_excludes_the_other_ways(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give one or the other"):
        cross(load_recipe("aarch64-linux"), {}, "arm-", None, tmp_path / "t.cmake")


def test_a_toolchain_file_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "t.cmake"
    identities = []
    for text in ("set(A 1)\n", "set(A 2)\n"):
        file.write_text(text, encoding="utf-8")
        identities.append(cross(load_recipe("aarch64-linux"), {}, None, None, file).identity)
    assert identities[0] != identities[1]


def test_the_script_for_the_target_alone_has_no_adaptors(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "x86_64-linux")
    make_tree(tmp_path / "src", commit=False)
    assert "Adaptor" not in script(plan, target_only=True)


def test_where_torchs_headers_are_is_said_by_no_binary(tmp_path: Path) -> None:
    """An adaptor includes pybind11 from the environment that builds it."""
    plan = make_plan(tmp_path)
    assert plan.private()[Path(sysconfig.get_path("purelib"))] == "site-packages"
