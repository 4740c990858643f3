"""Bills of materials are what CycloneDX's own schema calls one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from ci.build import sbom
from ci.build.tree import Submodule
from ci.image.plan import plan_of
from ci.image.sbom import Ingredient
from ci.image.sbom import document as image_document


def faults(text: str) -> str:
    """What the schema of the version that a bill names says of it; empty for a valid one."""
    version = SchemaVersion.from_version(json.loads(text)["specVersion"])
    found = JsonStrictValidator(version).validate_str(text)
    return str(found) if found else ""


@pytest.fixture(scope="module")
def bill() -> str:
    """Of a build, with every kind of thing that is in one."""
    modules = [
        Submodule("third-party/flatcc", "https://github.com/dvidelabs/flatcc.git", "ab" * 20),
        Submodule("third-party/own", "ssh://git.example.invalid/own", ""),
    ]
    ingredients = [
        sbom.Ingredient("qnn-sdk", "v2.37.0.250724175447_124859", licence="Qualcomm AI Stack License"),
        sbom.Ingredient("android-ndk", "26.2.11394342", kind="framework"),
        sbom.Ingredient("compiler", "g++ (Debian 12.2.0-14) 12.2.0", kind="application"),
        *map(sbom.ingredient_of, modules),
    ]
    subject = sbom.Ingredient("executorch", "1.5.1", kind="application", purl="pkg:github/pytorch/executorch")
    files = [sbom.File("bin/qnn_executor_runner", "ab" * 32), sbom.File("lib/a b.so", "cd" * 32)]
    return sbom.document(subject, ingredients, files, "aarch64-android")


def test_a_builds_bill_is_valid(bill: str) -> None:
    assert faults(bill) == ""


def test_an_images_bill_is_valid() -> None:
    found = [Ingredient("deb", "g++", "4:12.2.0-3"), Ingredient("pypi", "rich", "14.0", "MIT")]
    assert faults(image_document(plan_of("wheels"), found, {"b": "2"})) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"serialNumber": "urn:uuid:none"},
        {"components": [{"type": "runner", "name": "a"}]},
        {"components": [{"type": "file"}]},
        {"components": [{"type": "file", "name": "a", "hashes": [{"alg": "SHA-256", "content": "zz"}]}]},
        {"made_by": "us"},
    ],
)
def test_a_bill_that_is_not_valid_is_found(bill: str, change: dict[str, Any]) -> None:
    assert faults(json.dumps({**json.loads(bill), **change}))
