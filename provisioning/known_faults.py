"""Known faults of what a profile pins: manifests/known_faults.toml, and the page made from it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, field_validator

from provisioning.base.documents import Model, load
from provisioning.base.settings import MANIFESTS

MANIFEST = MANIFESTS / "known_faults.toml"

Product = Literal["qnn", "executorch", "onnxruntime-qnn"]


class Fault(Model):
    id: str
    title: str
    product: Product
    versions: str
    """Of the product: `>=2.48,<2.51`."""
    where: Literal["emulator", "device"]
    """Where it was seen."""
    lane: Literal["executorch", "onnx", "any"]
    effect: str
    show: str
    """The one command that shows it."""
    avoid: str
    source: str
    measured: bool
    """Whether this project saw it itself; else the thread says so."""

    @field_validator("versions")
    @classmethod
    def _can_be_compared(cls, value: str) -> str:
        try:
            SpecifierSet(value)
        except InvalidSpecifier as error:
            raise ValueError(f"versions such as >=2.48,<2.51 ({error})") from None
        return value

    def concerns(self, product: str, version: str) -> bool:
        return product == self.product and SpecifierSet(self.versions).contains(version, prereleases=True)


class Faults(Model):
    schema_: Literal[1] = Field(alias="schema")
    fault: tuple[Fault, ...]

    @field_validator("fault")
    @classmethod
    def _have_ids_of_their_own(cls, value: tuple[Fault, ...]) -> tuple[Fault, ...]:
        ids = [each.id for each in value]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"ids used once (twice: {', '.join(twice)})")
        return value


@cache
def load_faults() -> tuple[Fault, ...]:
    return load(MANIFEST, Faults).fault


def faults_of(product: str, version: str) -> list[Fault]:
    return [each for each in load_faults() if each.concerns(product, version)]


def page() -> str:
    """docs/findings.md."""
    lines = [
        "# What was found",
        "",
        "Faults that a gate on the emulator shows and nothing on the CPU does, and faults of pinned builds",
        "that public threads report: what happens, in which versions, and the one command that shows it.",
        "It is made from [manifests/known_faults.toml](../manifests/known_faults.toml): add yours there,",
        "and run `nox -s generate`. `nox -s validate` names those of the build that it looks at.",
        "",
    ]
    names = {"qnn": "QNN", "executorch": "ExecuTorch", "onnxruntime-qnn": "onnxruntime-qnn"}
    for title, chosen in _groups():
        lines += [f"## {title}", ""]
        for fault in chosen:
            source = fault.source.removeprefix("docs/")
            lines += [
                f"### {fault.title}",
                "",
                f"{names[fault.product]} {fault.versions}, {_where(fault)}. {fault.effect}",
                "",
                "```console",
                f"$ {fault.show}",
                "```",
                "",
                f"**Instead:** {fault.avoid}. ({fault.id}: [{source}]({source}))",
                "",
            ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _groups() -> Iterable[tuple[str, list[Fault]]]:
    measured = [each for each in load_faults() if each.measured]
    reported = [each for each in load_faults() if not each.measured]
    return [(title, group) for title, group in (("Measured here", measured), ("Reported", reported)) if group]


def _where(fault: Fault) -> str:
    lanes = {"executorch": "ExecuTorch's lane", "onnx": "ONNX Runtime's lane", "any": "both lanes"}
    return f"on {'the emulator' if fault.where == 'emulator' else 'devices'}, {lanes[fault.lane]}"
