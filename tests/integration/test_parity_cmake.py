"""CMake's side: what CMake says of each construct arrives as files, links and flags with their lines.
What only a real configure step could know is reported. The tree and the machine stay as they are."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ci.parity.cmake_targets import evaluate
from ci.parity.cmake_texts import list_elements
from ci.parity.cmake_trace import UNKNOWN, ConfigureInput
from ci.parity.pairs import reached_files
from ci.parity.tree import NamedItem, Side, Target, Tree
from provisioning.base.errors import EnvironmentLacking
from tests.support.http_server import FileServer
from tests.support.parity_cases import TreeOfTexts

SOURCES = ("a.cpp", "b.cpp", "c.c", "c.cpp", "sub/d.cpp", "sub/e.h")
VARIABLES = {
    "CMAKE_SYSTEM_NAME": "Linux",
    "CMAKE_BUILD_TYPE": "RelWithDebInfo",
    "CMAKE_C_COMPILER_ID": "Clang",
    "GIVEN": "1",
}

LIBRARIES = (
    "add_library(x a.cpp b.cpp)",
    "ADD_LIBRARY(x)\nTARGET_SOURCES(x PUBLIC a.cpp PRIVATE b.cpp)",
    'add_library(x "a.cpp;b.cpp")',
    "set(dir ${CMAKE_CURRENT_SOURCE_DIR}/sub/..)\nadd_library(x ${dir}/a.cpp ./b.cpp)",
    "add_library(x a.cpp)\nset_property(TARGET x APPEND PROPERTY SOURCES b.cpp)",
    "pybind11_add_module(x MODULE a.cpp b.cpp)",
    "add_library(x a.cpp $<$<PLATFORM_ID:Linux>:b.cpp> $<$<PLATFORM_ID:Android>:c.cpp>)",
    "add_library(x a.cpp $<IF:$<BOOL:${NOTHING}>,c.cpp,b.cpp>)\nset(NOTHING)",
    "add_library(x a.cpp $<$<CONFIG:Debug>:c.cpp> $<$<NOT:$<CONFIG:Debug>>:b.cpp>)",
    "add_custom_command(OUTPUT made.cpp COMMAND touch made.cpp)\n"
    "add_library(x a.cpp b.cpp made.cpp ${CMAKE_CURRENT_BINARY_DIR}/made.cpp)",
    "configure_file(a.cpp gen.cpp COPYONLY)\nadd_library(x a.cpp b.cpp ${CMAKE_CURRENT_BINARY_DIR}/gen.cpp)",
    "add_library(x)\ntarget_sources(x PUBLIC FILE_SET HEADERS BASE_DIRS . FILES a.cpp PRIVATE b.cpp)",
    "add_library(x OBJECT a.cpp)\nadd_library(xx STATIC $<TARGET_OBJECTS:x> c.cpp)\n"
    "target_sources(x PRIVATE b.cpp)",
    "add_library(y INTERFACE)\ntarget_sources(y INTERFACE b.cpp)\nadd_library(n::y ALIAS y)\n"
    "add_library(x a.cpp)\ntarget_link_libraries(x PRIVATE $<BUILD_INTERFACE:n::y>)",
    "add_library(y STATIC c.cpp)\ntarget_sources(y PUBLIC b.cpp)\nadd_library(z STATIC c.cpp)\n"
    "target_link_libraries(z PUBLIC y)\nadd_library(x a.cpp)\ntarget_link_libraries(x z)",
    "add_library(y STATIC c.cpp)\ntarget_sources(y PUBLIC c.cpp)\nadd_library(z STATIC c.cpp)\n"
    "target_link_libraries(z PRIVATE y)\nadd_library(x a.cpp b.cpp)\ntarget_link_libraries(x z)",
    "set(s a.cpp)\nmacro(inner f)\n add_library(x ${f} ${s})\nendmacro()\n"
    "macro(outer s)\n inner(${s})\nendmacro()\nouter(b.cpp)",
    "file(GLOB s ${CMAKE_CURRENT_SOURCE_DIR}/[ab].cpp)\nadd_library(x ${s})",
    "file(STRINGS names.txt s)\nadd_library(x ${s})",
    "if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/../elsewhere/mark)\n add_library(x a.cpp b.cpp)\nendif()",
    "include(FetchContent)\nFetchContent_Declare(z URL file:///z)\nFetchContent_MakeAvailable(z)\n"
    "find_package(Z REQUIRED)\nadd_library(x a.cpp b.cpp)",
    "execute_process(COMMAND false RESULT_VARIABLE failed OUTPUT_VARIABLE out)\nmessage(STATUS ${out})\n"
    "if(NOT failed EQUAL 0)\n message(FATAL_ERROR no)\nendif()\nadd_library(x a.cpp b.cpp)",
    "add_library(x a.cpp b.cpp)\nif(NOT DEFINED GIVEN AND DEFINED ENV{G})\n add_library(y c.cpp)\nendif()",
    "if(NOT TARGET x)\n add_library(x a.cpp b.cpp)\nendif()",
    "if(TARGET outer::one)\n add_library(x a.cpp b.cpp)\nendif()",
)
"""Each gives a library `x` of a.cpp and b.cpp."""

TROUBLES = (
    ("frobnicate(x)", "frobnicate()"),
    ("add_library(x ${FROM_ELSEWHERE})", "${FROM_ELSEWHERE}"),
    ("if(FROM_ELSEWHERE)\n add_library(x a.cpp)\nendif()", "if(FROM_ELSEWHERE)"),
    ("if(GIVEN)\nelseif(FOO)\n add_library(x a.cpp)\nendif()\nif(FOO)\nelse()\n set(s)\nendif()", "if(FOO)"),
    ("if(TARGET elsewhere)\n add_library(x a.cpp)\nendif()", "if(TARGET elsewhere)"),
    ("if(EXISTS /usr/include)\n add_library(x a.cpp)\nendif()", "if(EXISTS /usr/include)"),
    ("if(DEFINED ENV{HEXAGON})\n add_subdirectory(sub)\nendif()", "if(DEFINED ENV{HEXAGON})"),
    ("set(s $ENV{FILES})\nif(s)\n add_library(x a.cpp)\nendif()", "if(s)"),
    ("find_program(P ls)\nif(P)\n set(s a)\nendif()", "if(P)"),
    ("find_path(P z.h)\nset(q ${P})\nlist(FILTER q INCLUDE REGEX a)", "list(FILTER q INCLUDE REGEX a)"),
    ("execute_process(COMMAND id OUTPUT_VARIABLE v)\nstring(LENGTH ${v} n)", "string(LENGTH ${v} n)"),
    ("include(CheckSymbolExists)\ncheck_symbol_exists(a b.h V)\nif(V)\n set(s a)\nendif()", "if(V)"),
    ("file(READ nowhere.txt s)", "file()"),
    ("file(GLOB s /usr/include/*.h)", "/usr/include/*.h"),
    ("add_library(x $<TARGET_FILE:outer::one>)", "$<TARGET_FILE:outer::one>"),
    (
        "add_library(x a.cpp)\ntarget_compile_options(x PRIVATE $<$<CXX_COMPILER_VERSION:9>:-fno-rtti>)",
        "$<$<CXX_COMPILER_VERSION:9>:-fno-rtti>",
    ),
    (
        "add_compile_definitions($<TARGET_PROPERTY:outer::one,NAME>)\nadd_library(x a.cpp)",
        "$<TARGET_PROPERTY:outer::one,NAME>",
    ),
    ("include(nowhere)", "include()"),
    ("target_sources(elsewhere PRIVATE a.cpp)", "target_sources()"),
    ("message(FATAL_ERROR stop)", "message(FATAL_ERROR)"),
    ("macro(m)\n m()\nendmacro()\nm()", "m()"),
    ("if(TRUE)\n", "if()"),
    ("add_library(x a.cpp\n", "p/CMakeLists.txt"),
)
"""Texts that cannot be evaluated, and how the report names the reason."""


def sides(*texts: str) -> list[Side]:
    """Each text as the file of a project of its own, all configured at once."""
    files = {"elsewhere/mark": ""}
    for number, text in enumerate(texts):
        files |= {f"{number}/p/{name}": "" for name in SOURCES}
        files |= {f"{number}/p/names.txt": "a.cpp\nb.cpp\n", f"{number}/elsewhere/mark": ""}
        files[f"{number}/p/CMakeLists.txt"] = text
    targets = frozenset({"outer::one", "x"})
    return evaluate(
        TreeOfTexts(files),
        [
            ConfigureInput((f"{number}/p/CMakeLists.txt",), VARIABLES, targets=targets)
            for number in range(len(texts))
        ],
    )


@cache
def every_library() -> list[Side]:
    return sides(*LIBRARIES)


@cache
def every_trouble() -> list[Side]:
    return sides(*(text for text, _ in TROUBLES))


@cache
def flags() -> Side:
    [side] = sides(FLAGS)
    return side


@pytest.mark.parametrize("number", range(len(LIBRARIES)))
def test_a_library_of_two_files(number: int) -> None:
    side = every_library()[number]
    assert side.troubles == []
    library = side.libraries["x"]
    names = {item.name for item in [*library.files, *reached_files(side, library)]}
    assert names == {f"{number}/p/a.cpp", f"{number}/p/b.cpp"}
    assert side.missing_files == []


@pytest.mark.parametrize("number", range(len(TROUBLES)))
def test_what_cannot_be_evaluated_is_reported(number: int) -> None:
    what = TROUBLES[number][1].replace("p/CMakeLists.txt", f"{number}/p/CMakeLists.txt")
    troubles = every_trouble()[number].troubles
    assert what in [trouble.construct for trouble in troubles]
    assert {trouble.place.file for trouble in troubles} == {f"{number}/p/CMakeLists.txt"}


FLAGS = """\
set(CMAKE_CXX_STANDARD 17)
add_compile_options(-Wall)
add_library(x a.cpp)
add_compile_definitions(EVERY)
target_compile_definitions(x PRIVATE ONE
  PUBLIC -DTWO=2)
target_compile_options(x PRIVATE -fno-rtti $<$<CONFIG:Debug>:-g>)
target_include_directories(x PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/sub /usr/include)
target_link_libraries(x PUBLIC -s one
  PRIVATE $<$<BOOL:1>:two> /lib/three.so)
function(executorch_target_link_options_shared_lib name)
endfunction()
executorch_target_link_options_shared_lib(x)
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/made.h
  COMMAND $<TARGET_FILE:flatc> --cpp p/names.txt
  DEPENDS flatc
  WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/..
)
set(names
  a.cpp
  b.cpp
)
set(stems
  c)
list(TRANSFORM stems APPEND .cpp)
add_library(y ${names} ${stems}
  nowhere.cpp)
target_compile_features(y PUBLIC cxx_std_20)
file(GLOB none ${CMAKE_CURRENT_SOURCE_DIR}/none/*.cpp)
"""


def _items(items: list[NamedItem]) -> list[tuple[str, int, str]]:
    return [(item.name, item.place.line, item.scope) for item in items]


def _library(name: str) -> Target:
    assert flags().troubles == []
    return flags().libraries[name]


def test_what_a_library_is_built_with_has_its_line_and_scope() -> None:
    x = _library("x")
    assert _items(x.definitions) == [
        ("ONE", 5, "PRIVATE"),
        ("TWO=2", 6, "PUBLIC"),
        ("EVERY", 4, "PRIVATE"),
    ]
    assert _items(x.options) == [("-Wall", 2, "PRIVATE"), ("-fno-rtti", 7, "PRIVATE")]
    assert _items(x.includes) == [("0/p/sub", 8, "PUBLIC")]
    # Links without their flags.
    assert _items(x.dependencies) == [("one", 9, "PUBLIC"), ("two", 10, "PRIVATE")]
    assert x.archive and x.archive.line == 13
    assert x.standard and (x.standard.name, x.standard.place.line) == ("17", 1)


STANDARDS = {
    # What is said of the target, the standard, and what is not evaluated of it.
    "set_target_properties(x PROPERTIES CXX_STANDARD 20)": ("20", 0),
    "set_target_properties(x PROPERTIES CXX_STANDARD $<IF:$<BOOL:ON>,20,17>)": ("20", 0),
    "set_target_properties(x PROPERTIES CXX_STANDARD 2x)": (None, 1),
    "set_target_properties(x PROPERTIES CXX_STANDARD $<IF:$<CXX_COMPILER_VERSION:1>,20,17>)": (None, 1),
    "target_compile_features(x PRIVATE $<$<COMPILE_LANGUAGE:CXX>:cxx_std_20> cxx_std_17)": ("20", 0),
    "target_compile_features(x PRIVATE $<$<COMPILE_LANGUAGE:C>:cxx_std_20>)": (None, 0),
    "target_compile_features(x PRIVATE $<$<BOOL:OFF>:cxx_std_20> cxx_std_17)": ("17", 0),
    "target_compile_features(x PRIVATE $<$<CXX_COMPILER_VERSION:1>:cxx_std_20> cxx_std_17)": ("17", 1),
    "target_compile_features(x PRIVATE cxx_constexpr)": (None, 0),
}


@cache
def every_standard() -> list[Side]:
    return sides(*(f"add_library(x a.cpp)\n{text}\n" for text in STANDARDS))


@pytest.mark.parametrize("text", STANDARDS)
def test_a_standard_is_what_its_expressions_give(text: str) -> None:
    side = every_standard()[[*STANDARDS].index(text)]
    standard, troubles = STANDARDS[text]
    found = side.libraries["x"].standard
    assert (found and (found.name, found.place.line), len(side.troubles)) == (
        standard and (standard, 2),
        troubles,
    )


def test_another_standard_generated_files_and_where_a_file_was_written() -> None:
    y = _library("y")
    # CMake takes the newer of the two.
    assert y.standard and (y.standard.name, y.standard.place.line) == ("20", 29)
    assert _items(y.files) == [
        ("0/p/a.cpp", 21, "PRIVATE"),
        ("0/p/b.cpp", 22, "PRIVATE"),
        ("0/p/c.cpp", 25, "PRIVATE"),
    ]
    [rule] = flags().rules
    assert rule.command == ("flatc", "--cpp", "p/names.txt")
    assert _items(rule.files) == [("0/p/names.txt", 16, "PRIVATE")]


UNKNOWNS = """\
find_path(where z.h)
file(GLOB found ${where}/*.cpp)
add_library(x a.cpp ${found})
add_custom_command(OUTPUT z.h COMMAND ${where}/tool ${where}/z.fbs)
set(CMAKE_CXX_FLAGS "-DWHERE=${where} -march=${where}")
message(FATAL_ERROR "${where} is wrong")
"""


def test_what_is_unknown_names_no_file_no_flag_and_is_not_shown() -> None:
    [side] = sides(UNKNOWNS)
    assert side.troubles
    assert (side.missing_files, side.globs) == ([], [])
    assert UNKNOWN not in repr(side)


def test_without_a_cmake_the_environment_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacking):
        sides("# no CMake has run this text yet\n")


def configured(root: Path, text: str, **limits: Any) -> Side:
    (root / "p").mkdir(parents=True, exist_ok=True)
    (root / "p" / "CMakeLists.txt").write_text(text, encoding="utf-8")
    (root / "p" / "a.cpp").touch()
    project = ConfigureInput(("p/CMakeLists.txt",), {"CMAKE_SYSTEM_NAME": "Linux"}, **limits)
    [evaluated] = evaluate(Tree(root), [project])
    return evaluated


def test_a_tree_is_never_written_and_nothing_is_run(tmp_path: Path) -> None:
    root = tmp_path / "a tree"
    mark = tmp_path / "mark"
    parsed = configured(
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
        parsed = configured(tmp_path, f"file(DOWNLOAD {server.url()} x.zip)\nadd_library(x a.cpp)\n")
    assert (server.requests, parsed.troubles, [*parsed.libraries]) == ([], [], ["x"])


@pytest.mark.parametrize(
    # The one takes long for each line of its trace, the other writes many.
    ("seconds", "size", "length"),
    [(1.0, 1 << 30, 10_000_000), (600.0, 1 << 20, 1)],
)
def test_a_loop_without_end_is_stopped(tmp_path: Path, seconds: float, size: int, length: int) -> None:
    """By us when its time is over; by the system, also without us, when it has written too much."""
    endless = f"while(TRUE)\n  string(REPEAT abcdefghijklmnopqrstuvwxyz {length} filler)\nendwhile()\n"
    parsed = configured(tmp_path, endless, seconds=seconds, size=size)
    assert [trouble.place.file for trouble in parsed.troubles] == ["p/CMakeLists.txt"]
    assert parsed.stopped


def test_a_file_of_the_tree_outside_the_folder_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tools" / "deep").mkdir(parents=True)
    (tmp_path / "tools" / "all.cmake").write_text("include(${CMAKE_CURRENT_LIST_DIR}/deep/more.cmake)\n")
    (tmp_path / "tools" / "deep" / "more.cmake").write_text("file(STRINGS ${CMAKE_SOURCE_DIR}/names names)\n")
    (tmp_path / "names").write_text("a.cpp\n")
    parsed = configured(tmp_path, "include(${CMAKE_SOURCE_DIR}/tools/all.cmake)\nadd_library(x ${names})\n")
    assert parsed.troubles == []
    assert [(item.name, str(item.place)) for item in parsed.libraries["x"].files] == [
        ("p/a.cpp", "p/CMakeLists.txt:2")
    ]


@pytest.mark.parametrize(
    ("value", "elements"),
    [("a;;b", ["a", "", "b"]), ("", []), ("a\\;b;c", ["a;b", "c"]), ("[a;b];c", ["[a;b]", "c"])],
)
def test_a_list_is_parted_where_cmake_parts_it(value: str, elements: list[str]) -> None:
    """Not at a semicolon behind a backslash or in square brackets."""
    assert list_elements(value) == elements
