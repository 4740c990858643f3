"""The bill of materials of an image, as CycloneDX: Debian packages, Python's, and vendors' components."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ci.image.engine import Engine, Job
from ci.image.plan import Plan
from provisioning.base.errors import CheckFailed

SPECIFICATION = "1.6"

LIST_PACKAGES = r"dpkg-query --show --showformat '${Package}\t${Version}\n'"
LIST_DISTRIBUTIONS = """
import importlib.metadata as metadata, json
found = {(d.name, d.version, d.metadata["License-Expression"] or "") for d in metadata.distributions()}
print(json.dumps(sorted(found)))
"""
PYTHONS = "/opt/qnn-ci/environments/{environment}/bin/python"


@dataclass(frozen=True, slots=True)
class Ingredient:
    kind: str
    """`deb`, `pypi` or `generic`, as in package URLs."""
    name: str
    version: str
    licence: str = ""
    sha256: str = ""

    @property
    def purl(self) -> str:
        space = "debian/" if self.kind == "deb" else ""
        name = self.name.lower().replace("_", "-") if self.kind == "pypi" else self.name
        return f"pkg:{self.kind}/{space}{quote(name, safe='')}@{quote(self.version, safe='')}"

    def component(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "type": "library",
            "bom-ref": self.purl,
            "name": self.name,
            "version": self.version,
            "purl": self.purl,
        }
        if self.licence:
            made["licenses"] = [{"license": {"name": self.licence}}]
        if self.sha256:
            made["hashes"] = [{"alg": "SHA-256", "content": self.sha256}]
        return made


def ingredients_of(plan: Plan, engine: Engine, image: str) -> list[Ingredient]:
    """What the image itself says it holds, and what the manifest says of the vendors' parts."""
    asked = [shlex.join([PYTHONS.format(environment=e), "-c", LIST_DISTRIBUTIONS]) for e in plan.environments]
    # One container for all: starting it is most of the work.
    done = engine.run(Job(image, ["sh", "-ec", " && ".join([*asked, LIST_PACKAGES])], read_only=True))
    if done.code:
        raise CheckFailed(
            f"{image} cannot say what it holds: {done.stderr.strip()}", remedy="build the image again"
        )
    lines = done.stdout.splitlines()
    found = [Ingredient("deb", *line.split("\t")) for line in lines[len(asked) :]]
    for line in lines[: len(asked)]:
        found += [Ingredient("pypi", name, version, licence) for name, version, licence in json.loads(line)]
    return found + vendors_parts(plan)


def vendors_parts(plan: Plan) -> list[Ingredient]:
    found = []
    for name in plan.components:
        assert plan.profile is not None
        component = plan.profile.components[name]  # type: ignore[index]
        licence = component.licence.title if component.licence else ""
        for part in component.parts:
            sha256 = getattr(part.source, "sha256", None) or ""
            found.append(Ingredient("generic", f"{name}-{part.name}", component.version, licence, sha256))
    return found


def document(plan: Plan, ingredients: Iterable[Ingredient], properties: Mapping[str, str]) -> str:
    """The same for the same image: no time, and a serial number made of the content."""
    components = [
        one.component() for one in sorted(set(ingredients), key=lambda one: (one.purl, one.licence))
    ]
    components = list({one["bom-ref"]: one for one in components}.values())
    body: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": plan.tag, "name": plan.tag},
            "properties": [{"name": name, "value": value} for name, value in sorted(properties.items())],
        },
        "components": components,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(body, sort_keys=True))
    return json.dumps({**body, "serialNumber": f"urn:uuid:{serial}"}, indent=2, sort_keys=True) + "\n"
