"""The options of the provider, the session and the run, checked against manifests/onnx_options.toml.

The QNN provider ignores names that it does not know, and warns of most bad values only in its log. So options
are checked here, before a session is created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

Scope = Literal["provider", "session", "run", "dynamic"]
SCOPES: tuple[Scope, ...] = ("provider", "session", "run", "dynamic")
"""For all sessions with the provider, for one session, for one run, and for an existing session."""
Value = bool | int | str


class Option(Model):
    name: str
    scope: Scope
    kind: Literal["flag", "enum", "integer", "text", "file", "lora"]
    """`lora` is a file of lines `GRAPH;FILE`."""
    summary: str
    values: tuple[str, ...] = ()
    least: int | None = None
    pattern: str = ""
    default: str = ""
    needs: tuple[str, ...] = ()
    """Without these it has no effect."""
    conflicts: tuple[str, ...] = ()
    not_embedded: bool = False
    """Inference fails with it if the context is embedded."""
    soc_at_least: int = 0
    """The lowest chip number that the provider accepts it for."""
    set_by: str = ""
    no_context: bool = False
    """The provider then writes something else in place of a compiled context, and `compile` fails."""
    platform: str = ""

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
    """The user's options beside chip and precision, by scope: checked, and in the provider's format."""

    provider: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, dict[str, str]]:
        return {scope: dict(getattr(self, scope)) for scope in SCOPES}


NO_SETTINGS = Settings()


@cache
def options() -> dict[str, Option]:
    return {option.name: option for option in load(MANIFEST, OptionTable).option}


def settings_of(chosen: Mapping[str, Value], *, soc: Soc, embed: bool, where: str = "--option") -> Settings:
    """Raises UsageError for an option without effect; the error names the nearest valid name or value."""
    known = options()
    texts: dict[str, str] = {}
    for name, value in chosen.items():
        if name not in known:
            raise UnknownName(f"{where}: there is no option {name!r}", name, known)
        texts[name] = _text(known[name], value, where)
    for name, text in texts.items():
        _fits(known[name], text, texts, soc, embed, where)
    by_scope: dict[str, dict[str, str]] = {scope: {} for scope in SCOPES}
    for name, text in texts.items():
        by_scope[known[name].scope][name] = text
    return Settings(**by_scope)


def files_of(chosen: Mapping[str, object]) -> list[Path]:
    """The files that checked options name, and the files that LoRA configurations name."""
    files: list[Path] = []
    for name, value in chosen.items():
        if (kind := options()[name].kind) in ("file", "lora"):
            files.append(Path(str(value)))
        if kind == "lora":
            files += (Path(line.partition(";")[2].strip()) for line in _adapters(files[-1]))
    return files


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


def _text(option: Option, value: Value, where: str) -> str:
    text = str(int(value)) if isinstance(value, bool | int) else value
    if option.set_by:
        message = f"{where}: {option.name} is set by {option.set_by}"
        raise UsageError(message, fix=f"leave {option.name} out of {where}")
    if option.no_context:
        message = f"{where}: {option.name} makes the provider write no compiled context"
        raise UsageError(message, fix=f"leave {option.name} out of {where}")
    if option.kind == "flag" and text not in ("0", "1"):
        raise UsageError(f"{where}: {option.name}: expected 0 or 1, found {text!r}", fix=f"{option.name}=1")
    if option.kind == "enum" and text not in option.values:
        raise UnknownName(f"{where}: there is no value of {option.name} {text!r}", text, option.values)
    if option.kind == "integer" and (not re.fullmatch(r"\d+", text) or int(text) < (option.least or 0)):
        raise UsageError(
            f"{where}: {option.name}: expected a whole number from {option.least or 0} on, found {text!r}",
            fix=f"{option.name}={max(1, option.least or 0)}",
        )
    if option.kind in ("file", "lora"):
        _require_file(option, Path(text), where)
    if option.pattern and not re.fullmatch(option.pattern, text):
        raise UsageError(f"{where}: {option.name}: {text!r} is not of the form {option.summary}")
    return text


def _require_file(option: Option, path: Path, where: str) -> None:
    """The provider ignores a missing file, or ends the process."""
    if not path.is_file():
        raise UsageError(f"{where}: {option.name}: there is no file {path}", fix="name a file that is there")
    if option.kind != "lora":
        return
    for number, line in enumerate(_adapters(path) or [""], 1):
        graph, _, adapter = line.partition(";")
        if not graph.strip() or not Path(adapter.strip()).is_file():
            raise UsageError(
                f"{where}: {option.name}: {path}, line {number}: expected GRAPH;FILE with a file that is"
                f" there, found {line!r}",
                fix="one line for each graph: its name in the context, and the adapter's binary",
            )


def _adapters(path: Path) -> list[str]:
    """The lines of a LoRA configuration, GRAPH;FILE."""
    return [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


def _fits(option: Option, text: str, others: Mapping[str, str], soc: Soc, embed: bool, where: str) -> None:
    if option.platform:
        message = f"{where}: {option.name} works only on {option.platform}, and this compiles on x86-64 Linux"
        raise UsageError(message, fix=f"leave {option.name} out")
    if option.kind == "flag" and text == "0":
        return
    for other in option.needs:
        if others.get(other, "0") == "0":
            raise UsageError(f"{where}: {option.name} has no effect without {other}", fix=f"add {other}=1")
    for other in option.conflicts:
        if others.get(other, "0") != "0":
            message = f"{where}: {option.name} contradicts {other}"
            raise UsageError(message, fix=f"leave {option.name} or {other} out")
    if option.not_embedded and embed:
        message = f"{where}: {option.name} does not work with an embedded context"
        raise UsageError(message, fix=leave_out("--embed"))
    if soc.id < option.soc_at_least:
        raise UsageError(
            f"{where}: {option.name} needs a chip of number {option.soc_at_least} or more, this is {soc.id}",
            fix=f"leave {option.name} out, or choose another chip with --soc",
        )
    if option.name == "vtcm_mb" and int(text) > soc.vtcm_mb:
        message = f"{where}: vtcm_mb={text}, and this chip has {soc.vtcm_mb} MB"
        raise UsageError(message, fix=f"vtcm_mb={soc.vtcm_mb}")
