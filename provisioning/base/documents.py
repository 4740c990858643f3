"""Strict loading of TOML documents: parse once into a typed, frozen object, then trust it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from provisioning.base import toml
from provisioning.base.errors import ManifestError
from provisioning.base.toml_lines import Place, line_of, line_of_error

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


class Model(BaseModel):
    """What checks a model is built when it is first used: a command uses few of them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)


M = TypeVar("M", bound=BaseModel)
Document = dict[str, Any]
"""A table of TOML, not checked yet."""
DEEPEST_TABLE = 6
PATTERN, KEY = "string_pattern_mismatch", "[key]"
"""pydantic's names of a text without the form that it must have, and of a key in a place."""
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9.-]*$")]


def load(path: Path, model: type[M]) -> M:
    """Read one TOML file. Any error names file, key, what was expected and what was found."""
    return parse(read(path), model, path)


def read(path: Path) -> Document:
    """The document, not checked yet."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        document: Document = toml.loads(text)
    except toml.TOMLDecodeError as error:
        line = line_of_error(error, text)
        raise ManifestError(path, "(syntax)", expected="TOML", found=str(error), line=line) from error
    except UnicodeDecodeError as error:
        raise ManifestError(path, "(encoding)", expected="UTF-8", found=str(error)) from error
    except OSError as error:
        raise ManifestError(path, "(file)", expected="a readable file", found=str(error)) from error
    return document


def parse(
    data: Document, model: type[M], path: Path, place: Callable[[Place], Place] = lambda place: place
) -> M:
    """The document as `model`. All errors are listed at once; `path` only names the file. `place` says where
    in the file a part of the data is, if it is not where the data have it."""
    import json

    try:
        # By way of JSON: TOML has no tuples, and strict mode accepts a list as a tuple only in JSON.
        return model.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        raise _manifest_error(error.errors(include_url=False), model, path, place) from error


def _manifest_error(
    errors: list[ErrorDetails], model: type[BaseModel], path: Path, place: Callable[[Place], Place]
) -> ManifestError:
    """Make one error of all that pydantic found: it lists them, and has a fix if there is only one."""
    # A list whose items are all wrong is also "too short", which adds nothing.
    errors = [
        error
        for error in errors
        if error["type"] != "too_short" or not _has_wrong_items(error["loc"], errors)
    ]
    corrections = _corrections(errors, model)
    # What a misspelt key lacks is not said again.
    meant = corrections.values()
    errors = [error for error in errors if error["type"] != "missing" or error["loc"] not in meant]
    # Misspelt keys come first.
    errors.sort(key=lambda error: error["loc"] not in corrections)
    (key, expected, found), *others = [_parts_of({**error, "loc": place(error["loc"])}) for error in errors]
    for other_key, other_expected, other_found in others:
        found += f"\n  {path}: {other_key}: expected {other_expected}, found {other_found}"
    first = errors[0]
    line = line_of(place(first["loc"]), path)
    fix = f"correct {path}" if others else ""
    if form := _form_of(first) or _example_form(first, model):
        fix = f"write {form} in {path}:{line}" if line else f"write {form} in {path}"
        fix += "; correct the others, too" if others else ""
    if correction := corrections.get(first["loc"]):
        fix = f"did you mean {correction[-1]}? Correct {path}:{line}"
        table = _table_of(str(correction[-1]), model.model_json_schema())
        if table and correction == first["loc"]:
            fix = f"it belongs into the table {table}: move it from {path}:{line}"
    return ManifestError(path, key, expected=expected, found=found, fix=fix, line=line)


def _corrections(errors: list[ErrorDetails], model: type[BaseModel]) -> dict[Place, Place]:
    """Map the place of each unknown key to the place of the key that was probably meant."""
    from difflib import get_close_matches

    schema = model.model_json_schema()
    forms = [schema, *schema.get("$defs", {}).values()]
    names = {name for form in forms for name in form.get("properties", {})}
    corrections: dict[Place, Place] = {}
    for error in errors:
        loc = error["loc"]
        if error["type"] == "extra_forbidden" and (near := get_close_matches(str(loc[-1]), names, n=1)):
            corrections[loc] = (*loc[:-1], near[0])
    return corrections


def _table_of(key: str, schema: Mapping[str, Any]) -> str:
    """Return a table that has the key, such as `case.NAME.run`; empty if none has it."""

    def tables(form: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        form = schema["$defs"][form["$ref"].rpartition("/")[2]] if "$ref" in form else form
        if len(path) > DEEPEST_TABLE:
            return
        if key in form.get("properties", {}):
            yield path
        for name, part in form.get("properties", {}).items():
            yield from tables(part, (*path, name))
        for part in (form.get("additionalProperties"), *form.get("patternProperties", {}).values()):
            if isinstance(part, dict):
                yield from tables(part, (*path, "NAME"))
        for part in (form.get("items"), *form.get("anyOf", ()), *form.get("oneOf", ())):
            if part:
                yield from tables(part, path)

    return ".".join(next(filter(None, tables(schema, ())), ()))


def _form_of(error: ErrorDetails) -> str:
    """The key with its value in the form that it must have; empty where that is not known."""
    import json

    key, value = error["loc"][-1:], error["input"]
    if error["type"] == "tuple_type" and isinstance(value, dict):
        table = ".".join(str(part) for part in error["loc"])
        return f"[[{table}]] in place of [{table}]"
    if not key or not isinstance(key[0], str) or not isinstance(value, (str, int, float)):
        return ""
    if error["type"] == "literal_error" and "," not in (one := error["ctx"]["expected"]):
        return f"{key[0]} = {one}"
    if error["type"] == "tuple_type":
        return f"{key[0]} = [{json.dumps(value)}]"
    if error["type"] == "string_type":
        return f'{key[0]} = "{value}"'
    return ""


def _example_form(error: ErrorDetails, model: type[BaseModel]) -> str:
    """What to write for a key that is missing or has no possible text; empty where that is not known."""
    from difflib import get_close_matches

    if error["type"] not in ("missing", PATTERN):
        return ""
    key = str(error["loc"][-1])
    if error["type"] == PATTERN and key == KEY:
        return re.sub(r"[^\w.-]+", "-", error["input"])
    if error["type"] == PATTERN:
        with_colon = re.sub(r"\.(\w+)$", r":\1", error["input"])
        if re.search(error["ctx"]["pattern"], with_colon):
            return f'{key} = "{with_colon}"'
    near = get_close_matches(key, map(str, error["input"]), n=1) if error["type"] == "missing" else []
    if near:
        return f"{key} in place of {near[0]}"
    schema = model.model_json_schema()
    constant = schema["properties"].get(key, {}).get("const", "")
    if constant and len(error["loc"]) == 1:
        return f"{key} = {constant}, as the first line,"
    forms = [schema, *schema.get("$defs", {}).values()]
    fields = [form["properties"][key] for form in forms if key in form.get("properties", {})]
    examples = [field["examples"][0] for field in fields if field.get("examples")]
    return _format_toml(key, examples[0]) if examples else ""


def _format_toml(key: str, value: object) -> str:
    """Return a key with its value; a table stands in the list that it is an item of."""
    import json

    if not isinstance(value, dict):
        return f"{key} = {json.dumps(value)}"
    return f"{key} = [{{ {', '.join(_format_toml(name, value[name]) for name in value)} }}]"


def _has_wrong_items(place: Place, errors: list[ErrorDetails]) -> bool:
    return any(len(error["loc"]) > len(place) and error["loc"][: len(place)] == place for error in errors)


def _parts_of(error: ErrorDetails) -> tuple[str, str, str]:
    """Return (key, expected, found) of one of pydantic's errors."""
    key = ".".join(str(part) for part in error["loc"]) or "(top)"
    if error["type"] == "missing":
        return key, "a value", "nothing"
    expected = "no such key" if error["type"] == "extra_forbidden" else _lowercase(error["msg"])
    if error["type"] == PATTERN:
        expected = f"a text that {error['ctx']['pattern']} matches"
    value = repr(error["input"])
    return key, expected, value if len(value) <= 120 else f"{value[:120]}…"


def _lowercase(message: str) -> str:
    """Turn a message of pydantic into a part of a sentence; patterns and names in it keep their case."""
    text = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return text if text[:1] == "`" else text[:1].lower() + text[1:]
