"""Bills of materials are what CycloneDX's own schema calls one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ci.builds import sbom
from ci.builds.tree import Submodule
from ci.image.plan import load_images, plan_of
from ci.image.sbom import Ingredient, vendors_parts
from ci.image.sbom import document as image_document
from ci.image.verb import labels
from tests.support.bills import faults


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


@pytest.mark.parametrize("name", load_images().images)
def test_an_images_bill_is_valid(name: str) -> None:
    plan = plan_of(name)
    found = [
        Ingredient("deb", "g++", "4:12.2.0-3+b1"),
        Ingredient("pypi", "typing_extensions", "4.12.0", "Apache-2.0 OR (MIT AND BSD-3-Clause)"),
        Ingredient("pypi", "torch", "2.13.0+cpu"),
        *vendors_parts(plan),
    ]
    text = image_document(plan, found, labels(plan, "debian@sha256:ab", "sha256:ab"))
    assert len(json.loads(text)["components"]) == len(found)
    assert faults(text) == ""


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
