"""The bill of materials of an image."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ci.image.engine import Done, Engine, Job
from ci.image.plan import plan_of
from ci.image.sbom import Ingredient, document, ingredients_of, vendors_parts
from provisioning.base.errors import CheckFailed
from provisioning.manifest import load_profile


class Saying(Engine):
    """Stands for an engine whose container says this."""

    def __init__(self, stdout: str, code: int = 0) -> None:
        self.done = Done(code, stdout, "no such file")

    def run(self, job: Job) -> Done:
        return self.done


PYTHON = '[["rich", "14.0", "MIT"]]'
SAID = f"{PYTHON}\n{PYTHON}\n[]\ng++\t4:12.2.0-3\n"


def made(ingredients: list[Ingredient]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(document(plan_of("wheels"), ingredients, {"b": "2", "a": "1"}))
    return parsed


def test_names_debian_packages_distributions_and_components() -> None:
    kinds = [one.kind for one in ingredients_of(plan_of("wheels"), Saying(SAID), "image")]
    parts = load_profile("wheels").components["qnn-sdk"].parts
    assert kinds == ["deb", "pypi", "pypi", *["generic"] * len(parts)]


def test_vendors_components_have_the_manifests_hashes() -> None:
    found = ingredients_of(plan_of("wheels"), Saying(SAID), "image")
    parts = load_profile("wheels").components["qnn-sdk"].parts
    assert {one.sha256 for one in found if one.kind == "generic"} == {
        getattr(part.source, "sha256", None) for part in parts
    }


def test_a_component_says_its_licence_and_hash_where_they_are_known() -> None:
    known, unknown = made(
        [Ingredient("generic", "a", "1", "Their licence", "ab"), Ingredient("deb", "b", "1")]
    )["components"][::-1]
    assert known["licenses"] == [{"license": {"name": "Their licence"}}]
    assert known["hashes"] == [{"alg": "SHA-256", "content": "ab"}]
    assert not {"licenses", "hashes"} & set(unknown)


def test_a_vendors_part_comes_under_the_licence_that_was_accepted() -> None:
    sdk = load_profile("qnn-2.37").components["qnn-sdk"]
    assert sdk.licence is not None
    found = {one.name: one.licence for one in vendors_parts(plan_of("qnn-2.37-ndk-r26c"))}
    assert found[f"qnn-sdk-{sdk.parts[0].name}"] == sdk.licence.title
    assert {one.licence for one in vendors_parts(plan_of("wheels"))} == {""}


def test_an_image_that_cannot_say_what_it_holds_is_a_fault() -> None:
    with pytest.raises(CheckFailed, match="no such file"):
        ingredients_of(plan_of("wheels"), Saying("", 1), "image")


def test_versions_are_escaped_in_package_urls() -> None:
    assert Ingredient("deb", "g++", "4:12.2.0-3").purl == "pkg:deb/debian/g%2B%2B@4%3A12.2.0-3"


def test_distributions_have_one_spelling() -> None:
    assert Ingredient("pypi", "Typing_Extensions", "4").purl == "pkg:pypi/typing-extensions@4"


def test_what_two_environments_share_is_named_once() -> None:
    twice = [Ingredient("pypi", "rich", "14.0", "MIT"), Ingredient("pypi", "rich", "14.0")]
    (one,) = made(twice)["components"]
    assert (one["purl"], one["licenses"]) == ("pkg:pypi/rich@14.0", [{"license": {"name": "MIT"}}])


def test_order_of_finding_does_not_show() -> None:
    some = [Ingredient("deb", "git", "1"), Ingredient("deb", "less", "2")]
    assert made(some) == made(some[::-1])


def test_another_content_has_another_serial_number() -> None:
    one = made([Ingredient("deb", "git", "1")])["serialNumber"]
    assert one != made([Ingredient("deb", "git", "2")])["serialNumber"]
