"""The content of an image for its bill of materials: Debian and Python packages, components."""

from __future__ import annotations

import json

from ci.image.engine import ContainerCommand, Engine
from ci.image.image_plan import ImagePlan
from provisioning.base.bill_of_materials import Item, package_url
from provisioning.base.commands import quoted
from provisioning.base.errors import CheckFailed

LIST_PACKAGES = r"dpkg-query --show --showformat '${Package}\t${Version}\n'"
LIST_DISTRIBUTIONS = """
import importlib.metadata as metadata, json
found = {(d.name, d.version, d.metadata["License-Expression"] or "") for d in metadata.distributions()}
print(json.dumps(sorted(found)))
"""
PYTHONS = "/opt/qnn-ci/environments/{environment}/bin/python"


def installed_items(plan: ImagePlan, engine: Engine, image: str) -> list[Item]:
    """The Debian packages and Python distributions that the image itself lists."""
    pythons = [
        quoted(PYTHONS.format(environment=environment), "-c", LIST_DISTRIBUTIONS)
        for environment in plan.environments
    ]
    # One container for all, because starting it takes longest.
    done = engine.run(
        ContainerCommand(image, ["sh", "-ec", " && ".join([*pythons, LIST_PACKAGES])], read_only=True)
    )
    if done.returncode:
        raise CheckFailed(
            f"{image} cannot list its contents: {done.stderr.strip()}", fix="build the image again"
        )
    lines = done.stdout.splitlines()
    debian = [line.split("\t") for line in lines[len(pythons) :]]
    python = [package for line in lines[: len(pythons)] for package in json.loads(line)]
    return [
        *(Item(name, version, purl=package_url("deb", name, version, "debian")) for name, version in debian),
        *(
            Item(name, version, purl=package_url("pypi", name, version), licence=licence)
            for name, version, licence in python
        ),
    ]


def vendor_items(plan: ImagePlan) -> list[Item]:
    """The parts of the profile's components, as the manifest pins them."""
    return [
        Item(
            f"{name}-{part.name}",
            component.version,
            purl=package_url("generic", f"{name}-{part.name}", component.version),
            licence=component.licence.title if component.licence else "",
            sha256=getattr(part.source, "sha256", None) or "",
        )
        for name, component in plan.components.items()
        for part in component.parts
    ]
