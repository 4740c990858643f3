"""The evaluator against CMake itself: the miniature tree, really configured for each platform."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.parity.check import project
from ci.parity.cmake import evaluator
from ci.parity.compare import reached
from ci.parity.file_api import read_reply
from ci.parity.tree import Tree
from ci.upkeep import miniature_tree
from ci.upkeep.miniature_tree import BACKENDS, QUALCOMM
from provisioning.base.command_line import main
from provisioning.base.findings import Report
from tests.support.parity_cases import mapping
from tests.support.parity_cmake_cases import LIBRARIES, SOURCES

PROCESSORS = {"host": (), "android": ("Linux", "aarch64"), "hexagon": ("Generic", "Hexagon")}
"""CMake's own Android support wants an NDK; the tree asks only for the processor and for ANDROID."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return miniature_tree.write(tmp_path_factory.mktemp("tree"))


def configure(root: Path, build: Path, variant: str) -> Path:
    query = build / ".cmake" / "api" / "v1" / "query"
    query.mkdir(parents=True)
    (query / "codemodel-v2").touch()
    system = PROCESSORS[variant]
    flags = [f"-DCMAKE_SYSTEM_NAME={system[0]}", f"-DCMAKE_SYSTEM_PROCESSOR={system[1]}"] if system else []
    if variant == "hexagon":
        [chosen] = [one for one in mapping().variants if one.name == variant]
        flags += [
            f"-D{name}={chosen.cmake[name]}" for name in chosen.cmake if name.startswith(("DSP", "HEX"))
        ]
    tools = Path(sys.executable).parent
    subprocess.run(
        [
            "cmake",
            "-G",
            "Ninja",
            "-S",
            str(root),
            "-B",
            str(build),
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            *flags,
        ],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"},
    )
    return build


@pytest.mark.parametrize("variant", list(PROCESSORS))
def test_the_evaluator_says_what_cmake_says(root: Path, tmp_path: Path, variant: str) -> None:
    reply = read_reply(configure(root, tmp_path / "build", variant), root)
    [chosen] = [one for one in mapping().variants if one.name == variant]
    side = evaluator.evaluate(Tree(root), project(mapping(), chosen))
    theirs = {
        name: {item.name for item in target.files}
        for name, target in reply.targets.items()
        if target.folder.startswith(QUALCOMM)
    }
    ours = {
        name: {item.name for item in [*library.files, *reached(side, library)] if item.scope != "INTERFACE"}
        | {item.name for item in reached(side, library)}
        for name, library in side.libraries.items()
        if library.kind != "interface"
    }
    assert {name: theirs[name] for name in ours} == ours


def test_cmake_says_of_each_construct_what_the_evaluators_tests_say(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    lines = ["cmake_minimum_required(VERSION 3.28)", "project(constructs LANGUAGES CXX)"]
    for number, text in enumerate(LIBRARIES):
        for name in SOURCES:
            (root / f"c{number}" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / f"c{number}" / name).touch()
        own = re.sub(r"\b([xyz])\b", rf"\g<1>{number}", text)
        (root / f"c{number}" / "CMakeLists.txt").write_text(own + "\n", encoding="utf-8")
        lines.append(f"add_subdirectory(c{number})")
    (root / "CMakeLists.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reply = read_reply(configure(root, tmp_path / "build", "host"), root)
    found = {
        number: {item.name for item in reply.targets[f"x{number}"].files} for number in range(len(LIBRARIES))
    }
    assert found == {number: {f"c{number}/a.cpp", f"c{number}/b.cpp"} for number in found}


def test_a_build_is_the_reference(root: Path, tmp_path: Path) -> None:
    with (root / QUALCOMM / "CMakeLists.txt").open("a", encoding="utf-8") as top:
        top.write("add_custom_target(qnn_codegen SOURCES serialization/qc_compiler_spec.fbs)\n")
    build = configure(root, tmp_path / "build", "host")
    reports = tmp_path / "reports"
    argv = ["buck_parity", "--executorch", str(root), "--reports", str(reports), "--build", f"host={build}"]
    assert main("python -m ci", "", VERBS, argv) == 0

    # The build directory does not know of this change, and its word is the one that counts.
    file = root / BACKENDS / "CMakeLists.txt"
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text(before.replace("/QnnLogger.cpp", "/QnnLogger.h"), encoding="utf-8")
        assert main("python -m ci", "", VERBS, argv) == 1
    finally:
        file.write_text(before, encoding="utf-8")
    report = Report.read(reports / "buck_parity.json")
    disagreeing = [one for one in report.findings if one.rule == "parity-evaluator-disagrees"]
    assert [f"{BACKENDS}/QnnLogger.cpp" in one.message for one in disagreeing] == [True]


def test_a_build_of_another_tree_is_refused(root: Path, tmp_path: Path) -> None:
    other = miniature_tree.write(tmp_path / "other")
    build = configure(other, tmp_path / "build", "host")
    argv = ["buck_parity", "--executorch", str(root), "--reports", str(tmp_path), "--build", f"host={build}"]
    assert main("python -m ci", "", VERBS, argv) == 2
