"""Pairs of executorch and QNN: which builds are to be measured (manifests/compat.toml), and what was found
(manifests/compat.json, written by `nox -s compat`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from packaging.version import Version as Ordered
from pydantic import Field, ValidationError

from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
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
        part, own = next((each for each in wheels if each[1].filename.endswith("x86_64.whl")), (None, None))
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
        pinned = load_profile(self.profile).components[QNN_SDK]
        return [build.component(pinned) for build in self.builds]


def load_builds() -> Builds:
    return load(MANIFEST, Builds)


Result = Literal["passed", "failed", "not_reached"]


class Step(Model):
    result: Result
    error: str = ""
    """The first line of the log that says what went wrong."""


class Pair(Model):
    executorch: str
    torch: str
    torchao: str
    qnn: str
    build_id: str
    package: str
    """Where these libraries came from: `onnxruntime-qnn 2.5.0`."""
    soc: str
    works: bool
    steps: dict[str, Step]

    @property
    def error(self) -> str:
        """The first error, and the step that reported it; empty for a pair that works."""
        failed = ((name, self.steps[name]) for name in STEPS if name in self.steps)
        return next((f"{name}: {step.error}" for name, step in failed if step.result == "failed"), "")


class Measured(Model):
    schema_: Literal[1] = Field(default=1, alias="schema")
    pairs: tuple[Pair, ...] = ()

    def of(self, executorch: str, build_id: str) -> tuple[Pair, ...]:
        """Every measurement of this pair, on any chip."""
        return tuple(p for p in self.pairs if (p.executorch, p.build_id) == (executorch, build_id))

    def working(self, executorch: str) -> tuple[Pair, ...]:
        return tuple(p for p in self.pairs if p.executorch == executorch and p.works)

    def with_pair(self, pair: Pair) -> Measured:
        """In the order of versions, with this pair's earlier measurement replaced."""

        def identity(each: Pair) -> tuple[str, str, str]:
            return each.executorch, each.build_id, each.soc

        pairs = [each for each in self.pairs if identity(each) != identity(pair)] + [pair]
        pairs.sort(key=lambda each: (Ordered(each.executorch), Ordered(each.qnn), identity(each)))
        return Measured(schema=1, pairs=tuple(pairs))

    def as_json(self) -> str:
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=2, sort_keys=True) + "\n"


def path() -> Path:
    return MANIFESTS / "compat.json"


def load_measured(file: Path | None = None) -> Measured:
    """Empty if nothing was measured yet."""
    file = file or path()
    if not file.is_file():
        return Measured(schema=1)
    try:
        return Measured.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"]) or "(top)"
        raise ManifestError(
            file,
            key,
            expected=first["msg"],
            found=repr(first["input"])[:200],
            fix="nox -s compat measures it anew",
        ) from error
