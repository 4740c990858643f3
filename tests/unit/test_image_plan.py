"""What is in an image, from the manifests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.image import contents as plans
from ci.image.contents import ImagePlan, plan_of
from ci.image.verb import labels
from lab.image_pins import newest_base, pin_base
from provisioning.base.errors import UpstreamError
from provisioning.python_environments import CPU, TORCH

BASE = "sha256:" + "1" * 64


CHANGED = "sha256:" + "2" * 64


def other_pin(plan: ImagePlan) -> ImagePlan:
    assert plan.profile is not None
    sdk = plan.profile.components["qnn-sdk"].model_copy(update={"version": "9"})
    components = {**plan.profile.components, "qnn-sdk": sdk}
    return replace(plan, profile=plan.profile.model_copy(update={"components": components}))


@pytest.mark.parametrize(
    "change",
    [
        other_pin,
        lambda plan: replace(plan, imports={**plan.imports, "tools": ("rich",)}),
        lambda plan: replace(plan, locks={**plan.locks, "executorch": "# more"}),
        lambda plan: replace(plan, debian=""),
        lambda plan: replace(plan, scripts="# more"),
        lambda plan: replace(plan, system=plan.system.model_copy(update={"epoch": plan.system.epoch + 1})),
    ],
)
def test_an_image_is_known_by_all_that_decides_its_bytes(change: Callable[[ImagePlan], ImagePlan]) -> None:
    plan = plan_of("wheels")
    assert plan.key(BASE) == plan_of("wheels").key(BASE)
    assert len({plan.key(BASE), plan.key(CHANGED), change(plan).key(BASE)}) == 3


def test_an_environment_with_torch_is_known_by_the_builds_on_record_too() -> None:
    recorded = (TORCH / CPU).read_text(encoding="utf-8")
    assert recorded in plan_of("wheels").locks["executorch"]
    assert recorded not in plan_of("wheels").locks["tools"]


def test_an_image_with_a_vendors_licence_says_that_it_is_not_to_be_published() -> None:
    text = labels(plan_of("qnn-2.37-ndk-r26c"), "mine:1", BASE)["qnn-ci.not-to-be-published"]
    assert "Qualcomm AI Stack License" in text and "Android Software Development Kit" in text
    assert "qnn-ci.not-to-be-published" not in labels(plan_of("wheels"), "mine:1", BASE)


class Registry:
    """An engine whose registry has a newer base, and one of that day with this digest."""

    def __init__(self, digest: str) -> None:
        newest = {"Created": "2026-01-05T00:00:00Z", "RepoDigests": [f"debian@sha256:{'1' * 64}"]}
        dated = {**newest, "RepoDigests": [f"debian@sha256:{digest}"]}
        self.images = {"debian:bookworm-slim": newest, "debian:bookworm-20260105-slim": dated}

    def pull(self, reference: str) -> str:
        return reference

    def attributes(self, reference: str) -> Mapping[str, object]:
        return self.images[reference]


def test_the_base_is_renewed_by_the_digest_of_its_day(tmp_path: Path) -> None:
    text = plans.MANIFEST.read_text(encoding="utf-8")
    manifest = tmp_path / "images.toml"
    manifest.write_text(text, encoding="utf-8")
    engine: Any = Registry("1" * 64)
    other: Any = Registry("2" * 64)
    before = plans.load_images(manifest).system
    pin_base(newest_base(before, engine), manifest)
    after = plans.load_images(manifest).system
    assert (after.image, after.digest) == ("debian:bookworm-20260105-slim", f"sha256:{'1' * 64}")
    assert after.epoch == 1767571200 and after.packages == before.packages
    assert manifest.read_text().count("#") == text.count("#")
    with pytest.raises(UpstreamError, match="debian:bookworm-20260105-slim"):
        newest_base(before, other)
