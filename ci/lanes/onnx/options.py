"""Checks the options of the provider and the session against manifests/onnx_options.toml. The QNN provider
ignores names that it does not know, and warns of most bad values only in its log. So options are checked
here, before a session is created."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from provisioning.base.commands import leave_out
from provisioning.base.documents import Model, load
from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Soc

MANIFEST = MANIFESTS / "onnx_options.toml"

Scope = Literal["provider", "session"]
SCOPES: tuple[Scope, ...] = ("provider", "session")
"""An option belongs to all sessions with the provider, or to one session."""
Value = bool | int | str


class Option(Model):
    name: str
    scope: Scope
    kind: Literal["flag", "enum", "integer", "text", "file"]
    summary: str
    values: tuple[str, ...] = ()
    least: int | None = None
    pattern: str = ""
    paths: str = ""
    """This pattern finds the paths of files in a text."""
    default: str = ""
    needs: tuple[str, ...] = ()
    """The option has no effect without these."""
    conflicts: tuple[str, ...] = ()
    not_embedded: bool = False
    """Whether inference fails with the option if the context is embedded."""
    soc_at_least: int = 0
    """The provider accepts the option from this chip number on."""
    refused: str = ""
    """Says why the option cannot be set here; empty if it can."""

    @model_validator(mode="after")
    def _enums_have_values(self) -> Option:
        if (self.kind == "enum") != bool(self.values):
            raise ValueError("values with kind enum, and only with it")
        return self


class OptionTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    option: Annotated[tuple[Option, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Settings:
    """Holds the user's options beside chip and precision, by scope: checked, and in the provider's format."""

    provider: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)


NO_SETTINGS = Settings()


@cache
def options() -> dict[str, Option]:
    return {option.name: option for option in load(MANIFEST, OptionTable).option}


def settings_of(choice: Mapping[str, Value], *, soc: Soc, embed: bool, where: str = "--option") -> Settings:
    """Check the options and sort them by scope. Raises UsageError for one without effect; the error names the
    nearest valid name or value."""
    table = options()
    texts = texts_of(choice)
    for name, text in texts.items():
        if name not in table:
            raise UnknownName(f"{where}: there is no option {name!r}", name, table)
        if (values := table[name].values) and text not in values:
            raise UnknownName(f"{where}: there is no value of {name} {text!r}", text, values)
        for message, fix in _problems(table[name], text, texts, soc, embed=embed):
            raise UsageError(f"{where}: {message}", fix=fix)
    by_scope: dict[str, dict[str, str]] = {scope: {} for scope in SCOPES}
    for name, text in texts.items():
        by_scope[table[name].scope][name] = text
    return Settings(**by_scope)


def texts_of(choice: Mapping[str, object]) -> dict[str, str]:
    """Return the values as the provider and a command line take them."""
    return {
        name: str(int(value)) if isinstance(value, bool | int) else str(value)
        for name, value in choice.items()
    }


def files_of(choice: Mapping[str, object]) -> list[Path]:
    """Return the files that checked options name."""
    return [
        Path(path) for name, text in texts_of(choice).items() for path in _paths_in(options()[name], text)
    ]


def _paths_in(option: Option, text: str) -> list[str]:
    if option.kind == "file":
        return [text]
    return re.findall(option.paths, text) if option.paths else []


def parse_assignments(assignments: Sequence[str]) -> dict[str, Value]:
    """Parse `NAME=VALUE` of the command line. A name that occurs twice is an error."""
    values: dict[str, Value] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name or not value:
            message = f"--option {assignment}: expected NAME=VALUE"
            raise UsageError(message, fix="--option htp_performance_mode=burst")
        if name in values:
            raise UsageError(f"--option {name} is given twice", fix=f"give {name} once")
        values[name] = value
    return values


def _problems(
    option: Option, text: str, values: Mapping[str, str], soc: Soc, *, embed: bool
) -> Iterator[tuple[str, str]]:
    """Say what is wrong with a value, each time with what to write instead."""
    name, least, left_out = option.name, option.least or 0, f"leave {option.name} out"
    if option.refused:
        yield f"{name}: {option.refused}", left_out
    if option.kind == "flag" and text not in ("0", "1"):
        yield f"{name}: expected 0 or 1, found {text!r}", f"{name}=1"
    if option.kind == "integer" and (not re.fullmatch(r"\d+", text) or int(text) < least):
        message = f"expected a whole number from {least} on, found {text!r}"
        yield f"{name}: {message}", f"{name}={max(1, least)}"
    for path in _paths_in(option, text):
        # The provider ignores a missing file, or ends the process.
        if not Path(path).is_file():
            yield f"{name}: there is no file {path}", "name a file that is there"
    if option.pattern and not re.fullmatch(option.pattern, text):
        yield f"{name}: {text!r} is not of the form {option.summary}", ""
    if option.kind == "flag" and text == "0":
        return
    for partner in option.needs:
        if values.get(partner, "0") == "0":
            yield f"{name} has no effect without {partner}", f"add {partner}=1"
    for partner in option.conflicts:
        if values.get(partner, "0") != "0":
            yield f"{name} contradicts {partner}", f"leave {name} or {partner} out"
    if option.not_embedded and embed:
        yield f"{name} does not work with an embedded context", leave_out("--embed")
    if soc.id < option.soc_at_least:
        needs = f"needs a chip of number {option.soc_at_least} or more, this is {soc.id}"
        yield f"{name} {needs}", f"{left_out}, or choose another chip with --soc"
    if name == "vtcm_mb" and int(text) > soc.vtcm_mb:
        yield f"vtcm_mb={text}, and this chip has {soc.vtcm_mb} MB", f"vtcm_mb={soc.vtcm_mb}"
