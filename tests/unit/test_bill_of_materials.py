"""Bills of materials: what CycloneDX's own schema calls one, with the same bytes for the same content."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from ci.builds.source import bill_item, document, package_url, submodule_item
from ci.builds.tree import Submodule
from ci.image.contents import plan_of
from ci.image.engine import Engine
from ci.image.verb import labels
from lab.release import files as release
from provisioning.base.settings import MANIFESTS
from tests.support.bills import faults

BUILD = bill_item(
    "executorch", "1.5.1", kind="application", purl=package_url("github", "executorch", "", "pytorch")
)


class ContainerThatPrints(Engine):
    def __init__(self, stdout: str, labels: Mapping[str, str]) -> None:
        self.done = CompletedProcess([], 0, stdout, "")
        self.labels = labels

    def attributes(self, reference: str) -> dict[str, Any]:
        return {"Config": {"Labels": self.labels}}

    def run(self, *_: object, **options: object) -> CompletedProcess[str]:
        return self.done


def test_other_content_has_another_number_whatever_its_texts_say() -> None:
    number = json.loads(document(BUILD, []))["serialNumber"]
    item = bill_item("own", description=f'"serialNumber": "urn:uuid:{uuid.UUID(int=0)}"')
    other = json.loads(document(BUILD, [item]))
    assert other["serialNumber"] not in (number, uuid.UUID(int=0).urn)
    assert other["components"][0]["description"] == item.description


DISTRIBUTIONS = '[["rich", "14.0", "MIT"]]\n'


def build_bill() -> str:
    items = [
        bill_item("qnn-sdk", "v2.37.0.250724175447_124859", licence="Qualcomm AI Stack License"),
        bill_item("android-ndk", "26.2.11394342", kind="framework"),
        submodule_item(Submodule("third-party/flatcc", "https://github.com/dvidelabs/flatcc.git", "ab" * 20)),
        submodule_item(Submodule("third-party/own", "ssh://git.example.invalid/own", "")),
        bill_item("lib/a b.so", kind="file", sha256="cd" * 32),
    ]
    return document(BUILD, items, {"qnn-ci:target": "aarch64-android"})


def test_a_submodule_of_github_has_its_address() -> None:
    addresses = {row["name"]: row.get("purl") for row in json.loads(build_bill())["components"]}
    assert (addresses["flatcc"], addresses["own"]) == (f"pkg:github/dvidelabs/flatcc@{'ab' * 20}", None)


def image_bill(name: str) -> str:
    plan = plan_of(name)
    printed = f"{DISTRIBUTIONS * len(plan.environments)}g++\t4:12.2.0-3\n"
    return release.bill_of_image(
        plan, ContainerThatPrints(printed, labels(plan, "debian@sha256:ab", "sha256:ab"))
    )


def release_bill(archive: Path) -> str:
    archive.write_bytes(b"x")
    return release.bill_of_materials(
        "1.0", archive, dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc), MANIFESTS
    )


@pytest.mark.parametrize("kind", ["build", "release", *release.IMAGES])
def test_every_bill_is_valid_and_the_same_again(tmp_path: Path, kind: str) -> None:
    def bill() -> str:
        if kind == "build":
            return build_bill()
        return release_bill(tmp_path / "a.tar.gz") if kind == "release" else image_bill(kind)

    assert faults(bill()) == ""
    assert bill() == bill()
