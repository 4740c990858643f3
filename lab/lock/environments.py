"""manifests/environments.toml: the Python environments that sessions install, before they are locked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel, StringConstraints, field_validator

from provisioning.base.documents import Model, Name, load
from provisioning.base.settings import MANIFESTS


class LockedEnvironment(Model):
    """The packages of one virtual environment, before it is locked."""

    include: tuple[Name, ...] = ()
    """Other environments whose requirements are taken too."""
    profile: Name | None = None
    """The profile whose [packages] are pinned exactly."""
    lane: Literal["packages", "onnx"] = "packages"
    """Which of the profile's tables that is."""
    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")] | None = None
    """The oldest Python that these packages are made for, where that is not the project's own."""
    requires: tuple[str, ...] = ()
    megabytes: Annotated[int, Field(gt=0)] | None = None
    """What it takes on disk, rounded up: so much must be free before it is made."""
    abstract: bool = False
    """Whether others only include it: never installed alone, so not locked."""

    @field_validator("requires")
    @classmethod
    def _are_requirements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        from packaging.requirements import InvalidRequirement, Requirement

        for text in value:
            try:
                Requirement(text)
            except InvalidRequirement as error:
                raise ValueError(f"a Python requirement ({text!r}: {error})") from None
        return value


class Environments(RootModel[dict[Name, LockedEnvironment]]):
    """manifests/environments.toml."""


def load_environments() -> dict[str, LockedEnvironment]:
    return load(MANIFESTS / "environments.toml", Environments).root
