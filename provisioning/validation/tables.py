"""The manifests of rules: their texts (checks.toml), and what they compare with, measured pairs of executorch
and QNN too (manifests/accepted/compat.json, written by `nox -s lab -- compat`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import Version as Ordered
from pydantic import Field

from provisioning.accepted_file import SHIPPED, load_accepted
from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load, read
from provisioning.base.errors import ManifestError
from provisioning.base.findings import Metric
from provisioning.base.settings import MANIFESTS


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
