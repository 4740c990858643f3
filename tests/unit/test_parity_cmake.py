"""The CMake evaluator: each construct gives the files and links that CMake gives, and what it cannot know it
says."""

from __future__ import annotations

import pytest

from ci.parity.cmake import genex
from ci.parity.cmake.evaluator import Project, evaluate, split
from ci.parity.cmake.parser import SyntaxFault, parse
from ci.parity.compare import reached
from ci.parity.model import Side
from tests.support.parity_cases import tree_of
from tests.support.parity_cmake_cases import LIBRARIES, SOURCES


def run(text: str, *, others: dict[str, str] | None = None, **variables: str) -> Side:
    files = {**{f"p/{name}": "" for name in SOURCES}, **(others or {}), "p/CMakeLists.txt": text}
    values = {"CMAKE_SYSTEM_NAME": "Linux", **variables}
    return evaluate(
        tree_of(files), Project("p/CMakeLists.txt", values, frozenset(), frozenset(), frozenset({"outer"}))
    )


def files_of(side: Side, name: str = "x") -> set[str]:
    assert side.troubles == []
    library = side.libraries[name]
    return {item.name.removeprefix("p/") for item in [*library.files, *reached(side, library)]}


@pytest.mark.parametrize("text", LIBRARIES)
def test_a_library_of_two_files(text: str) -> None:
    """That CMake says so too is in tests/integration/test_parity_file_api.py."""
    assert files_of(run(text, CMAKE_BUILD_TYPE="RelWithDebInfo")) == {"a.cpp", "b.cpp"}


def test_subdirectories_have_their_own_scope_and_directory() -> None:
    sub = "set(here a)\ntarget_sources(x PRIVATE d.cpp ${CMAKE_CURRENT_LIST_DIR}/e.h)\n"
    side = run(
        "set(here b)\nadd_library(x)\nadd_subdirectory(sub)\ntarget_sources(x PRIVATE ${here}.cpp)",
        others={"p/sub/CMakeLists.txt": sub},
    )
    assert files_of(side) == {"sub/d.cpp", "sub/e.h", "b.cpp"}


def test_included_files_share_the_scope() -> None:
    side = run("include(lists.cmake)\nadd_library(x ${s})", others={"p/lists.cmake": "set(s a.cpp)\n"})
    assert files_of(side) == {"a.cpp"}


def test_a_guarded_file_runs_once() -> None:
    guarded = "include_guard()\nadd_library(x a.cpp)\n"
    side = run("include(one.cmake)\ninclude(one.cmake)\n", others={"p/one.cmake": guarded})
    assert files_of(side) == {"a.cpp"}


def test_what_a_macro_names_is_where_the_macro_is() -> None:
    side = run(
        "include(m.cmake)\n\n\nadd()",
        others={"p/m.cmake": "macro(add)\n  add_library(x a.cpp)\nendmacro()\n"},
    )
    assert [str(item.place) for item in side.libraries["x"].files] == ["p/m.cmake:2"]


def test_links_have_their_scope_and_no_flags() -> None:
    side = run(
        "add_library(x)\ntarget_link_libraries(x -s PUBLIC one PRIVATE $<$<BOOL:1>:two> /lib/three.so)"
    )
    assert [(item.name, item.scope) for item in side.libraries["x"].dependencies] == [
        ("one", "PUBLIC"),
        ("two", "PRIVATE"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("add_library(x\n  a.cpp\n  b.cpp\n)", 3),
        ("set(s\n  b.cpp\n)\nadd_library(x ${s})", 2),
        ("set(s\n  a\n  b\n)\nlist(TRANSFORM s APPEND .cpp)\nadd_library(x ${s})", 3),
        ("set(d ${CMAKE_CURRENT_LIST_DIR})\nadd_library(x\n ${d}/b.cpp)", 3),
    ],
)
def test_a_file_is_where_it_was_written(text: str, line: int) -> None:
    side = run(text)
    places = {item.name: item.place for item in side.libraries["x"].files}
    assert str(places["p/b.cpp"]) == f"p/CMakeLists.txt:{line}"


CHOICE = "add_library(x a.cpp)\nelse()\n add_library(x b.cpp)\nendif()"


@pytest.mark.parametrize(
    "text",
    [
        f'string(REGEX MATCH "[0-9]+" m "${{v}}")\nif(m EQUAL 3)\n {CHOICE}',
        f'string(REGEX MATCH "v([0-9]+)" m "${{v}}")\nif(CMAKE_MATCH_1 EQUAL 3)\n {CHOICE}',
        f'if(v MATCHES "([0-9]+)")\nendif()\nif(CMAKE_MATCH_1 EQUAL 3)\n {CHOICE}',
        f'string(LENGTH "${{v}}" n)\nif(n GREATER 1)\n {CHOICE}',
        'string(SUBSTRING "${v}" 0 1 n)\nadd_library(x ${n})',
        'string(REPLACE "0" "1" n "${v}")\nadd_library(x ${n})',
        f"list(LENGTH v n)\nif(n GREATER 1)\n {CHOICE}",
        f"list(FIND v q n)\nif(n EQUAL -1)\n {CHOICE}",
        "list(PREPEND v a.cpp)\nlist(GET v 0 n)\nadd_library(x ${n})\nlist(GET v 1 n)\nadd_library(y ${n})",
        'list(FILTER v INCLUDE REGEX "[.]cpp$")\nadd_library(x a.cpp ${v})',
        'list(TRANSFORM v REPLACE ".+" "a.cpp")\nadd_library(x b.cpp ${v})',
        "list(SUBLIST v 1 -1 n)\nadd_library(x a.cpp ${n})",
        "list(POP_FRONT v n)\nadd_library(x a.cpp ${v})",
        "list(REMOVE_AT v 0)\nadd_library(x a.cpp ${v})",
        "set(l a.cpp b.cpp)\nlist(REMOVE_ITEM l ${v})\nadd_library(x ${l})",
        'get_filename_component(d "${v}" DIRECTORY)\nadd_library(x a.cpp ${d}/b.cpp)',
        'file(RELATIVE_PATH d "${CMAKE_CURRENT_SOURCE_DIR}/sub" "${v}")\nadd_library(x ${d}/b.cpp)',
        "file(GLOB l ${v}/*.cpp)\nadd_library(x a.cpp ${l})",
        "include(${v}/more.cmake OPTIONAL)\nadd_library(x a.cpp)",
    ],
)
def test_what_is_made_of_something_unknown_is_not_known_either(text: str) -> None:
    troubles = run(f"file(READ there.txt v)\n{text}").troubles
    assert any("file(READ) is not evaluated" in trouble.why for trouble in troubles), troubles


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("frobnicate(x)", "frobnicate()"),
        ("add_library(x ${FROM_ELSEWHERE})", "${FROM_ELSEWHERE}"),
        ("if(FROM_ELSEWHERE)\n add_library(x a.cpp)\nendif()", "if(FROM_ELSEWHERE)"),
        ("if(NOT DEFINED FROM_ELSEWHERE)\n add_library(x a.cpp)\nendif()", "if(NOT DEFINED FROM_ELSEWHERE)"),
        ("if(TARGET elsewhere)\n add_library(x a.cpp)\nendif()", "if(TARGET elsewhere)"),
        ("find_program(P ls)\nadd_library(x ${P})", "add_library(x ${P})"),
        ("file(READ list.txt s)\nadd_library(x ${s})", "add_library(x ${s})"),
        ("add_library(x $<TARGET_FILE:outer>)", "$<TARGET_FILE:outer>"),
        ("add_subdirectory(nowhere)", "add_subdirectory(nowhere)"),
        ("include(nowhere)", "include(nowhere)"),
        ("target_sources(elsewhere PRIVATE a.cpp)", "target_sources(elsewhere)"),
        ("message(FATAL_ERROR stop)", "message(FATAL_ERROR)"),
        ("set_property(TARGET x APPEND PROPERTY SOURCES a.cpp)", "set_property(SOURCES)"),
        ("while(TRUE)\n set(a b)\nendwhile()", "p/CMakeLists.txt"),
        ("macro(m)\n m()\nendmacro()\nm()", "p/CMakeLists.txt"),
        ("while(TRUE)\nendwhile()", "p/CMakeLists.txt"),
        ("foreach(i RANGE 1000000000000)\nendforeach()", "foreach(i RANGE 1000000000000)"),
        ("cmake_parse_arguments(PARSE_ARGV x)", "cmake_parse_arguments(PARSE_ARGV x)"),
        ("string(REGEX MATCH)", "string(REGEX MATCH)"),
        ("list(REMOVE_AT s 0)", "list(REMOVE_AT s 0)"),
        ("set(s a b)\nlist(TRANSFORM s TOUPPER AT 1)", "list(TRANSFORM)"),
        ("set(s a b)\nlist(TRANSFORM s TOUPPER FOR 0 1)", "list(TRANSFORM)"),
        ("foreach(i RANGE 5 1 2)\nendforeach()", "foreach(i RANGE 5 1 2)"),
        ("add_library(x a.cpp\n", "p/CMakeLists.txt"),
    ],
)
def test_what_cannot_be_evaluated_is_said(text: str, what: str) -> None:
    assert what in [trouble.what for trouble in run(text).troubles]


@pytest.mark.parametrize(
    "condition", ["FALSE AND F", "F AND FALSE", "NOT (TRUE OR F)", "NOT DEFINED A AND F", "(F OR F) AND 0"]
)
def test_a_part_that_is_not_known_does_no_harm_where_another_decides(condition: str) -> None:
    side = run(f"add_library(x a.cpp)\nif({condition})\n target_sources(x PRIVATE b.cpp)\nendif()", A="1")
    assert files_of(side) == {"a.cpp"}


@pytest.mark.parametrize("condition", ["TRUE AND F", "F OR FALSE", "NOT F", "F STREQUAL 3", "F MATCHES a"])
def test_a_part_that_is_not_known_is_said_where_it_decides(condition: str) -> None:
    side = run(f"add_library(x a.cpp)\nif({condition})\n target_sources(x PRIVATE b.cpp)\nendif()")
    assert "it reads F" in side.troubles[0].why


def test_a_branch_that_stops_everything_is_not_taken_on_a_guess() -> None:
    text = "if(F STREQUAL 3)\n add_library(x a.cpp)\nelse()\n message(FATAL_ERROR no)\nendif()\n"
    side = run(f"{text}add_library(y b.cpp)")
    assert (side.stopped, sorted(side.libraries)) == (False, ["x", "y"])
    assert [trouble.what for trouble in side.troubles] == ["if(F STREQUAL 3)"]


def test_a_check_of_what_only_a_configure_step_knows_is_passed() -> None:
    side = run("if(NOT DEFINED F)\n message(FATAL_ERROR no)\nendif()\nadd_library(x a.cpp)")
    assert files_of(side) == {"a.cpp"}


def test_a_condition_around_nothing_that_matters_needs_no_answer() -> None:
    assert run("if(FROM_ELSEWHERE)\n message(STATUS hello)\nendif()").troubles == []


def test_a_named_file_that_is_not_there_is_missing() -> None:
    assert [item.name for item in run("add_library(x a.cpp nowhere.cpp)").missing] == ["p/nowhere.cpp"]


def test_a_generated_file_is_not_missing() -> None:
    side = run("add_custom_command(OUTPUT made.cpp COMMAND touch)\nadd_library(x a.cpp made.cpp)")
    assert side.missing == []


@pytest.mark.parametrize("text", ["if(A)\nelse()\n", "endif()", "set(a", "set a)", ")", 'set(a "b)'])
def test_a_syntax_fault_has_its_line(text: str) -> None:
    with pytest.raises(SyntaxFault) as raised:
        parse(f"\n{text}")
    assert raised.value.line >= 2


def test_lists_are_split_outside_of_brackets() -> None:
    assert split("a;[b;c];d\\;e") == ["a", "[b;c]", "d;e"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$<AND:1,$<NOT:0>>", "1"),
        ("$<OR:0,0>", "0"),
        ("$<IN_LIST:b,a;b>", "1"),
        ("a$<1:b,c>d", "ab,cd"),
        ("$<TARGET_EXISTS:t>", "1"),
        ("$<CONFIG:Debug,Release>", "1"),
    ],
)
def test_generator_expressions(text: str, value: str) -> None:
    assert genex.evaluate(text, {"CMAKE_BUILD_TYPE": "Release"}, lambda name: name == "t") == value
