"""What configuring a tree does to it and to the machine: nothing, and not for long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.parity.cmake_targets import evaluate
from ci.parity.cmake_trace import ConfigureInput
from ci.parity.tree import Side, Tree
from tests.support.http_server import FileServer


def side(root: Path, text: str, **limits: Any) -> Side:
    (root / "p").mkdir(parents=True, exist_ok=True)
    (root / "p" / "CMakeLists.txt").write_text(text, encoding="utf-8")
    (root / "p" / "a.cpp").touch()
    project = ConfigureInput(("p/CMakeLists.txt",), {"CMAKE_SYSTEM_NAME": "Linux"}, **limits)
    [evaluated] = evaluate(Tree(root), [project])
    return evaluated


def test_a_tree_is_never_written_and_nothing_is_run(tmp_path: Path) -> None:
    root = tmp_path / "a tree"
    mark = tmp_path / "mark"
    parsed = side(
        root,
        "file(WRITE ${CMAKE_CURRENT_SOURCE_DIR}/made.txt x)\n"
        "file(REMOVE ${CMAKE_CURRENT_SOURCE_DIR}/a.cpp)\n"
        "configure_file(a.cpp ${CMAKE_SOURCE_DIR}/copied.cpp)\n"
        f'execute_process(COMMAND touch "{mark}")\n'
        f'cmake_language(CALL _execute_process COMMAND touch "{mark}")\n'
        f'try_run(a b SOURCES "{root}/p/a.cpp")\n'
        "add_library(x a.cpp)\n",
    )
    assert [item.name for item in parsed.libraries["x"].files] == ["p/a.cpp"]
    left = sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))
    assert left == ["p", "p/CMakeLists.txt", "p/a.cpp"]
    assert not mark.exists()


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    with FileServer(b"an archive") as server:
        parsed = side(tmp_path, f"file(DOWNLOAD {server.url()} x.zip)\nadd_library(x a.cpp)\n")
    assert (server.requests, parsed.troubles, [*parsed.libraries]) == ([], [], ["x"])


@pytest.mark.parametrize(("seconds", "size"), [(1.0, 1 << 30), (600.0, 1 << 20)])
def test_a_loop_without_end_is_stopped(tmp_path: Path, seconds: float, size: int) -> None:
    """By us when its time is over; by the system, also without us, when it has written too much."""
    endless = "while(TRUE)\n  set(filler abcdefghijklmnopqrstuvwxyz)\nendwhile()\n"
    parsed = side(tmp_path, endless, seconds=seconds, size=size)
    assert [trouble.place.file for trouble in parsed.troubles] == ["p/CMakeLists.txt"]
    assert parsed.stopped


def test_a_file_of_the_tree_outside_the_folder_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tools" / "deep").mkdir(parents=True)
    (tmp_path / "tools" / "all.cmake").write_text("include(${CMAKE_CURRENT_LIST_DIR}/deep/more.cmake)\n")
    (tmp_path / "tools" / "deep" / "more.cmake").write_text("file(STRINGS ${CMAKE_SOURCE_DIR}/names names)\n")
    (tmp_path / "names").write_text("a.cpp\n")
    parsed = side(tmp_path, "include(${CMAKE_SOURCE_DIR}/tools/all.cmake)\nadd_library(x ${names})\n")
    assert parsed.troubles == []
    assert [(item.name, str(item.place)) for item in parsed.libraries["x"].files] == [
        ("p/a.cpp", "p/CMakeLists.txt:2")
    ]
