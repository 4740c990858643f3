"""Generator expressions, as far as lists of sources and libraries use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

VARIABLES = {
    "PLATFORM_ID": "CMAKE_SYSTEM_NAME",
    "CONFIG": "CMAKE_BUILD_TYPE",
    "CXX_COMPILER_ID": "CMAKE_CXX_COMPILER_ID",
    "C_COMPILER_ID": "CMAKE_C_COMPILER_ID",
}
"""Expressions that ask for a variable."""

FALSE = frozenset({"", "0", "FALSE", "OFF", "N", "NO", "IGNORE", "NOTFOUND"})


class Unevaluable(Exception):
    """`what` cannot be known here."""


def truth(text: str) -> str:
    return "0" if text.upper() in FALSE or text.upper().endswith("-NOTFOUND") else "1"


def evaluate(text: str, variables: Mapping[str, str], is_target: Callable[[str], bool]) -> str:
    """`text` with every `$<…>` replaced. Raises Unevaluable."""
    result, position = _text(text, 0, variables, is_target, ends="")
    return result if position == len(text) else result + text[position:]


def _text(
    text: str, position: int, variables: Mapping[str, str], is_target: Callable[[str], bool], *, ends: str
) -> tuple[str, int]:
    result = ""
    while position < len(text):
        if text.startswith("$<", position):
            piece, position = _expression(text, position + 2, variables, is_target)
            result += piece
        elif text[position] in ends:
            break
        else:
            result += text[position]
            position += 1
    return result, position


def _expression(
    text: str, position: int, variables: Mapping[str, str], is_target: Callable[[str], bool]
) -> tuple[str, int]:
    name, position = _text(text, position, variables, is_target, ends=":>")
    parameters: list[str] = []
    if text[position : position + 1] == ":":
        # In `$<condition:…>` commas are part of the text.
        stop = ">" if name in ("0", "1", "BUILD_INTERFACE", "INSTALL_INTERFACE", "LINK_ONLY") else ",>"
        while text[position : position + 1] in (":", ","):
            parameter, position = _text(text, position + 1, variables, is_target, ends=stop)
            parameters.append(parameter)
    if text[position : position + 1] != ">":
        raise Unevaluable(f"$<{name} is not closed")
    return _value(name, parameters, variables, is_target), position + 1


def _value(
    name: str, given: list[str], variables: Mapping[str, str], is_target: Callable[[str], bool]
) -> str:
    joined = ",".join(given)
    if name in ("0", "INSTALL_INTERFACE"):
        return ""
    if name in ("1", "BUILD_INTERFACE", "LINK_ONLY", "BUILD_LOCAL_INTERFACE"):
        return joined
    known: dict[str, Callable[[], bool]] = {
        "BOOL": lambda: truth(joined) == "1",
        "NOT": lambda: joined == "0",
        "AND": lambda: all(one == "1" for one in given),
        "OR": lambda: any(one == "1" for one in given),
        "STREQUAL": lambda: given[0] == given[1],
        "EQUAL": lambda: int(given[0]) == int(given[1]),
        "IN_LIST": lambda: given[0] in ",".join(given[1:]).split(";"),
        "TARGET_EXISTS": lambda: is_target(joined),
    }
    try:
        if name == "IF":
            return given[1] if given[0] == "1" else ",".join(given[2:])
        if name in known:
            return "1" if known[name]() else "0"
    except (IndexError, ValueError) as error:
        raise Unevaluable(f"$<{name}:{joined}> ({error})") from error
    if name in VARIABLES:
        value = variables.get(VARIABLES[name])
        if value is None:
            raise Unevaluable(f"$<{name}>, for {VARIABLES[name]} is not set")
        if not given:
            return value
        return "1" if value.upper() in (one.upper() for one in given) else "0"
    constants = {
        "SEMICOLON": ";",
        "COMMA": ",",
        "ANGLE-R": ">",
        "LOWER_CASE": joined.lower(),
        "UPPER_CASE": joined.upper(),
    }
    if name in constants:
        return constants[name]
    if name == "TARGET_NAME_IF_EXISTS":
        return joined if is_target(joined) else ""
    raise Unevaluable(f"$<{name}{':' + joined if given else ''}>")
