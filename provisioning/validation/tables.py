"""The manifests of rules: their texts (checks.toml), and what they compare with, measured pairs of executorch
and QNN too (manifests/accepted/compat.json, written by `nox -s lab -- compat`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import Version as Ordered
from pydantic import Field, StringConstraints

from provisioning.accepted_file import SHIPPED, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, Regex, load, read
from provisioning.base.errors import ManifestError
from provisioning.base.findings import Metric
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Target
from provisioning.sources import Version

System = Literal["host", "aarch64-android", "aarch64-linux", "aarch64-windows", "hexagon"]
LibraryName = Annotated[str, StringConstraints(pattern=r"^[\w.+{}/-]+$")]


class TargetLibraries(Model):
    directories: Annotated[tuple[str, ...], Field(min_length=1)]
    """Under lib/; where there are several, any one serves."""
    libraries: tuple[Annotated[tuple[LibraryName, ...], Field(min_length=1)], ...]
    """One name of each group must be in the directory."""
    soc_libraries: tuple[LibraryName, ...] = ()
    """Must be in the directory, with {arch} of the chip."""
    skels: tuple[LibraryName, ...] = ()
    """Must be under lib/, with {arch} of the chip."""
    catalogues: tuple[LibraryName, ...] = ()
    """Beside the skels, with {arch}; they sign them. Some builds have none."""


class LpaiLibraries(Model):
    since: Version
    libraries: tuple[LibraryName, ...]
    skels: tuple[LibraryName, ...]


class Directory(Model):
    match: Regex
    """Fits a directory under lib/. A group named `arch` is the Hexagon arch of the files in it."""
    bits: Literal[32, 64]
    machine: str
    system: System


class LibraryTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    own: Regex
    """Fits the names of QNN's own libraries."""
    own_names: dict[LibraryName, LibraryName]
    """What QNN's libraries call themselves, where that is not the file's name."""
    targets: dict[Target, TargetLibraries]
    lpai: dict[str, LpaiLibraries]
    directories: tuple[Directory, ...]

    def target(self, name: str) -> TargetLibraries:
        return next(table for target, table in self.targets.items() if target == name)

    def requires(self, name: str) -> bool:
        """Whether any target, or LPAI, needs a library of this name, for any arch."""
        return self._required.fullmatch(name) is not None

    def other_name(self, name: str, own_name: str, *, of_qnn: bool) -> str:
        """What a library of QNN calls itself instead of its file's name; empty if that is as it should be.

        `of_qnn`: it holds a build id of QNN, whatever its name."""
        if not own_name or not (of_qnn or re.fullmatch(self.own, name)):
            return ""
        expected = self.own_names.get(name, name)
        return own_name if own_name.lower() != expected.lower() else ""

    def names_build(self, name: str) -> bool:
        """Whether libraries of this name say of which build they are, in every SDK that was seen."""
        return self._needed_by_targets.fullmatch(name) is not None

    @cached_property
    def _required(self) -> re.Pattern[str]:
        lpai = [name for table in self.lpai.values() for name in (*table.libraries, *table.skels)]
        return re.compile("|".join([self._needed_by_targets.pattern, *_of_any_arch(lpai)]))

    @cached_property
    def _needed_by_targets(self) -> re.Pattern[str]:
        names: list[str] = []
        for target in self.targets.values():
            names += [name for group in target.libraries for name in group]
            names += [*target.soc_libraries, *target.skels]
        return re.compile("|".join(_of_any_arch(names)))

    def directory(self, name: str) -> tuple[Directory, int | None] | None:
        """The row of a directory under lib/, and its Hexagon arch; None if no row fits."""
        for directory in self.directories:
            if fitting := re.fullmatch(directory.match, name):
                arch = fitting.groupdict().get("arch")
                return directory, int(arch) if arch else None
        return None


def _of_any_arch(names: Iterable[str]) -> list[str]:
    """Patterns of these file names, whatever their folder and arch."""
    return sorted({re.escape(name.rpartition("/")[2]).replace(r"\{arch\}", r"\d+") for name in names})


class DeviceSystem(Model):
    provides: tuple[LibraryName, ...]


class DeviceLibraries(Model):
    schema_: Literal[1] = Field(alias="schema")
    systems: dict[System, DeviceSystem]

    def provides(self, name: str) -> tuple[LibraryName, ...]:
        return next(table.provides for system, table in self.systems.items() if system == name)


class HostTable(Model):
    systems: tuple[str, ...]
    machines: tuple[str, ...]
    tested: tuple[str, ...]


class AndroidTable(Model):
    page_size: Annotated[int, Field(gt=0)]
    page_size_severity: Literal["error", "warning", "note"]

    @cached_property
    def api(self) -> int:
        """The level that our builds are for."""
        options = read(MANIFESTS / "recipes" / "aarch64-android.toml")["options"]
        return int(options["ANDROID_PLATFORM"].removeprefix("android-"))


class RuleText(Model):
    severity: Literal["error", "warning", "note"]
    told_by: tuple[str, ...] = ()
    """Rules whose error about a file tells why this one fires there too: it is left out then."""
    summary: str
    why: str
    example: str
    """A finding as a user meets it."""
    fix: str
    """What a finding without a fix of its own shows."""
    commands: tuple[tuple[str, ...], ...] = ()
    """What `{}` of it stands for."""

    @property
    def whole_fix(self) -> Fix:
        return Fix(self.fix, *self.commands)


class RuleTexts(Model):
    schema_: Literal[1] = Field(alias="schema")
    rule: dict[str, RuleText]


class ValidationTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    host: HostTable
    android: AndroidTable


@cache
def libraries() -> LibraryTable:
    return load(MANIFESTS / "libraries.toml", LibraryTable)


@cache
def device_libraries() -> DeviceLibraries:
    return load(MANIFESTS / "device_libraries.toml", DeviceLibraries)


@cache
def validation() -> ValidationTable:
    return load(MANIFESTS / "validation.toml", ValidationTable)


@cache
def rule_texts() -> dict[str, RuleText]:
    return load(MANIFESTS / "checks.toml", RuleTexts).rule


MEASURED = MANIFESTS / "accepted" / "compat.json"

STEPS = ("device", "lower_fp16", "run_fp16", "lower_8a8w", "run_8a8w")
"""The order in which they are tried."""

PASSED = "passed"

SUBJECT = "executorch {executorch}, QNN {qnn} ({build_id}), {soc}"
_SUBJECT = re.compile(r"executorch (?P<executorch>\S+), QNN (?P<qnn>\S+) \((?P<build_id>\S+)\), (?P<soc>\S+)")


@dataclass(frozen=True, slots=True)
class Pair:
    executorch: str
    qnn: str
    build_id: str
    soc: str
    values: Mapping[str, Metric]
    """Of each step that was reached: PASSED, or the first line of the log that says what went wrong. Also
    `torch` and `torchao`, and the `package` that the libraries came from: `onnxruntime-qnn 2.5.0`."""

    @property
    def subject(self) -> str:
        return SUBJECT.format(**asdict(self))

    @property
    def works(self) -> bool:
        return all(self.values.get(step) == PASSED for step in STEPS)

    @property
    def error(self) -> str:
        """The first error, and the step that reported it; empty for a pair that works."""
        met = ((step, self.values.get(step, PASSED)) for step in STEPS)
        return next((f"{step}: {value}" for step, value in met if value != PASSED), "")


def load_measured(file: Path = MEASURED) -> tuple[Pair, ...]:
    """In the order of versions; empty if nothing was measured yet."""
    accepted = load_accepted(file, SHIPPED)
    pairs = []
    for subject, values in accepted.subjects.items():
        if (named := _SUBJECT.fullmatch(subject)) is None:
            raise ManifestError(accepted.path, subject, expected=SUBJECT, found="another text", fix=SHIPPED)
        pairs.append(Pair(**named.groupdict(), values=values))
    return tuple(sorted(pairs, key=lambda row: (Ordered(row.executorch), Ordered(row.qnn))))
