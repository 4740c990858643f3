"""A CycloneDX bill of materials for what was built. The same build gives the same bytes."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ci.builds.tree import Submodule

NAME = "sbom.cdx.json"
SPEC = "1.6"
_GITHUB = re.compile(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?")


@dataclass(frozen=True, slots=True)
class Ingredient:
    """Something that the build was made from. `kind` is a CycloneDX component type."""

    name: str
    version: str
    kind: str = "library"
    purl: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class File:
    place: str
    sha256: str


def ingredient_of(submodule: Submodule) -> Ingredient:
    purl = ""
    if found := _GITHUB.fullmatch(submodule.url):
        version = f"@{submodule.commit}" if submodule.commit else ""
        purl = f"pkg:github/{found[1].lower()}/{found[2].lower()}{version}"
    return Ingredient(submodule.path.rpartition("/")[2], submodule.commit, purl=purl)


def document(
    subject: Ingredient, ingredients: Sequence[Ingredient], files: Iterable[File], target: str
) -> str:
    made_of = [_component(each, f"{each.name}@{each.version}") for each in ingredients]
    shipped = [
        {
            "type": "file",
            "bom-ref": f"file:{file.place}",
            "name": file.place,
            "hashes": [{"alg": "SHA-256", "content": file.sha256}],
        }
        for file in files
    ]
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {
            "component": _component(subject, "subject"),
            "properties": [{"name": "qnn-ci:target", "value": target}],
        },
        "components": [*made_of, *shipped],
        "dependencies": [
            {"ref": "subject", "dependsOn": sorted({str(each["bom-ref"]) for each in made_of})},
        ],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    return json.dumps({"serialNumber": f"urn:uuid:{number}", **body}, indent=2) + "\n"


def _component(each: Ingredient, reference: str) -> dict[str, object]:
    described: dict[str, object] = {"type": each.kind, "bom-ref": reference, "name": each.name}
    if each.version:
        described["version"] = each.version
    if each.purl:
        described["purl"] = each.purl
    if each.licence:
        described["licenses"] = [{"license": {"name": each.licence}}]
    return described
