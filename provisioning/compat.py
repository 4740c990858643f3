"""Pairs of executorch and QNN: which builds are to be measured (manifests/compat.toml), and what was found
(manifests/accepted/compat.json, written by `nox -s lab -- compat`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from packaging.version import Version as Ordered
from pydantic import Field

from provisioning.accepted_file import SHIPPED, accept, load_accepted
from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
from provisioning.base.findings import Metric
from provisioning.base.settings import MANIFESTS
from provisioning.components import QNN_SDK
from provisioning.manifest import Component, Part, Placement, load_profile
from provisioning.sources import Sha256, Version
from provisioning.sources.wheel import Wheel

MANIFEST = MANIFESTS / "compat.toml"

STEPS = ("device", "lower_fp16", "run_fp16", "lower_8a8w", "run_8a8w")
"""The order in which they are tried."""


ONNX_PACKAGES = "onnx-packages"
"""The component of a build's Python packages as they are, to be put on PYTHONPATH."""


EXECUTORCH_PACKAGE = "executorch-package"
"""The component of another executorch version as it is, to be put on PYTHONPATH."""


class PinnedWheel(Model):
    """An x86-64 wheel that replaces the installed one of its package."""

    version: Version
    filename: str
    sha256: Sha256
    size: int

    def part(self, package: str, name: str = "", place: tuple[Placement, ...] = ()) -> Part:
        source = Wheel(
            type="wheel",
            package=package,
            version=self.version,
            filename=self.filename,
            sha256=self.sha256,
            size=self.size,
        )
        return Part(name=name or package, source=source, place=place)


class Release(PinnedWheel):
    """An executorch version to be measured beside the profile's."""

    def package(self) -> Component:
        return Component(version=self.version, parts=(self.part("executorch"),))


class Build(PinnedWheel):
    """A QNN build to be measured, and the x86-64 wheel that it comes in."""

    qnn: Version
    build_id: str
    package: str
    onnxruntime: PinnedWheel | None = None
    """One for a build that today's onnxruntime refuses; None: the ONNX lane's own."""

    def packages(self) -> Component:
        """This build's packages for Python, whole."""
        parts = [self.part(self.package)]
        if self.onnxruntime is not None:
            parts.append(self.onnxruntime.part("onnxruntime"))
        return Component(version=self.qnn, parts=tuple(parts))

    def component(self, pinned: Component) -> Component:
        """`pinned`, a profile's qnn-sdk, with this build's wheel in it; itself where it is this build."""
        wheels = [(part, part.source) for part in pinned.parts if isinstance(part.source, Wheel)]
        part, own = next(
            (wheel for wheel in wheels if wheel[1].filename.endswith("x86_64.whl")), (None, None)
        )
        if part is None or own is None:
            raise ManifestError(
                MANIFEST, "profile", expected="a profile whose qnn-sdk is an x86-64 wheel", found="another"
            )
        if own.sha256 == self.sha256:
            return pinned
        date = self.build_id.rpartition(".")[2][:6]
        return Component(
            version=f"{self.qnn}.{date}",
            build_id=self.build_id,
            licence=pinned.licence,
            parts=(self.part(self.package, part.name, part.place),),
        )


class Builds(Model):
    schema_: Literal[1] = Field(alias="schema")
    profile: str
    soc: str
    builds: tuple[Build, ...]
    executorch: tuple[Release, ...] = ()

    def components(self) -> list[Component]:
        """The components that measuring provisions."""
        return [build.component(load_profile(self.profile).components[QNN_SDK]) for build in self.builds]


def load_builds() -> Builds:
    return load(MANIFEST, Builds)


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


def path() -> Path:
    return MANIFESTS / "accepted" / "compat.json"


def load_measured(file: Path | None = None) -> tuple[Pair, ...]:
    """In the order of versions; empty if nothing was measured yet."""
    accepted = load_accepted(file or path(), SHIPPED)
    pairs = []
    for subject, values in accepted.subjects.items():
        if (named := _SUBJECT.fullmatch(subject)) is None:
            raise ManifestError(accepted.path, subject, expected=SUBJECT, found="another text", fix=SHIPPED)
        pairs.append(Pair(**named.groupdict(), values=values))
    return tuple(sorted(pairs, key=lambda row: (Ordered(row.executorch), Ordered(row.qnn))))


def accept_pair(pair: Pair, file: Path) -> None:
    """In place of its earlier measurement."""
    accept(file, lambda before: before.updated({pair.subject: {**dict.fromkeys(STEPS), **pair.values}}))
