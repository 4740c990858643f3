"""What was built is held against its target by its ELF headers and its bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.builds.built_files import LoadableFile, check
from tests.support.elves import AARCH64, X86_64, Library

LINUX = {"machine": AARCH64, "interpreter": "/lib/ld-linux-aarch64.so.1", "needed": ["libc.so.6"]}
ANDROID = {
    "machine": AARCH64,
    "interpreter": "/system/bin/linker64",
    "needed": ["libc.so", "liblog.so"],
    "alignment": 0x4000,
    "android_api": 30,
}


def rules(folder: Path, target: str, library: Library) -> list[str]:
    built = LoadableFile("runner", library.write(folder / "qnn_executor_runner"), "bin/qnn_executor_runner")
    return [finding.rule for finding in check([built], target, "2.34", [Path("/srv/me/src")])]


@pytest.mark.parametrize(("target", "good"), [("aarch64-linux", LINUX), ("aarch64-android", ANDROID)])
def test_a_good_runner_has_nothing_said_of_it(tmp_path: Path, target: str, good: dict[str, Any]) -> None:
    assert rules(tmp_path, target, Library(**good)) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"machine": X86_64}, "build-machine"),
        ({"interpreter": "/system/bin/linker64"}, "build-loader"),
        ({"needed": ["libmine.so"]}, "build-needed"),
        ({"runpath": "/opt/build/lib"}, "build-search-path"),
        ({"versions": {"libc.so.6": ["GLIBC_2.4", "GLIBC_2.35"]}}, "build-glibc"),
        ({"versions": {"libc.so.6": ["GLIBC_ABI_DT_RELR"]}}, "build-glibc"),
        ({"textrel": True}, "build-relocations"),
        ({"execstack": True}, "build-stack"),
        ({"content": b"/srv/me/src/runner.cpp\0"}, "build-paths"),
    ],
)
def test_each_error_of_a_linux_runner_is_reported_alone(
    tmp_path: Path, change: dict[str, Any], rule: str
) -> None:
    assert rules(tmp_path, "aarch64-linux", Library(**{**LINUX, **change})) == [rule]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"alignment": 0x1000}, "build-page-size"),
        ({"android_api": 31}, "build-android-api"),
        ({"needed": ["libc++_shared.so"]}, "build-needed"),
    ],
)
def test_each_error_of_an_android_runner_is_reported_alone(
    tmp_path: Path, change: dict[str, Any], rule: str
) -> None:
    assert rules(tmp_path, "aarch64-android", Library(**{**ANDROID, **change})) == [rule]


def test_an_older_glibc_and_search_beside_itself_are_good(tmp_path: Path) -> None:
    changes = {"versions": {"libc.so.6": ["GLIBC_2.17", "GLIBC_2.34"]}, "runpath": "$ORIGIN:$ORIGIN/../lib"}
    assert rules(tmp_path, "aarch64-linux", Library(**{**LINUX, **changes})) == []  # type: ignore[arg-type]


def test_what_is_built_with_it_is_there(tmp_path: Path) -> None:
    runner = Library(**{**LINUX, "needed": ["libqnn_executorch_backend.so"], "runpath": "$ORIGIN/../lib"})  # type: ignore[arg-type]
    library = Library(machine=AARCH64, soname="libqnn_executorch_backend.so")
    built = [
        LoadableFile("runner", runner.write(tmp_path / "r"), "bin/r"),
        LoadableFile("library", library.write(tmp_path / "l"), "lib/libqnn_executorch_backend.so"),
    ]
    assert check(built, "aarch64-linux", "2.34", []) == []
    elsewhere = [built[0], replace(built[1], place="python/libqnn_executorch_backend.so")]
    assert [finding.rule for finding in check(elsewhere, "aarch64-linux", "2.34", [])] == ["build-needed"]
