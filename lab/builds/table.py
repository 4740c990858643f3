"""The builds that are to be measured: manifests/compat.toml."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioning.base.documents import Model, load
from provisioning.base.errors import ManifestError
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Component, Part, Placement
from provisioning.sources import Sha256, Version, Wheel

MANIFEST = MANIFESTS / "compat.toml"

ONNX_PACKAGES = "onnx-packages"
"""The component of a build's Python packages as they are, to be put on PYTHONPATH."""


EXECUTORCH_PACKAGE = "executorch-package"
"""The component of another executorch version as it is, to be put on PYTHONPATH."""


class MeasuredWheel(Model):
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


class Release(MeasuredWheel):
    """An executorch version to be measured beside the profile's."""

    def package(self) -> Component:
        return Component(version=self.version, parts=(self.part("executorch"),))


class QnnBuild(MeasuredWheel):
    """A QNN build to be measured, and the x86-64 wheel that it comes in."""

    qnn: Version
    build_id: str
    package: str
    onnxruntime: MeasuredWheel | None = None
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
    builds: tuple[QnnBuild, ...]
    executorch: tuple[Release, ...] = ()


def load_builds() -> Builds:
    return load(MANIFEST, Builds)
