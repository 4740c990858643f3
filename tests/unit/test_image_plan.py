"""What an image is, by the manifests."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ci.image import plan as plans
from ci.image.plan import DOCKER, Package, load_images, load_packages, plan_of, render_packages
from ci.image.verb import configure, labels
from provisioning.base.errors import ManifestError, UsageError
from provisioning.lock_files import lock_path
from provisioning.manifest import load_environments, load_profile

IMAGES = list(load_images().images)
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
BASE = "sha256:" + "1" * 64


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("base", "base"),
        ("wheels", "qnn-sdk"),
        ("qnn-2.37-ndk-r26c", "android-ndk"),
        ("qnn-2.48-ndk-r26c-hexagon", "hexagon-sdk"),
    ],
)
def test_an_image_is_the_stage_with_its_components(name: str, stage: str) -> None:
    assert plan_of(name).stage == stage


@pytest.mark.parametrize("name", IMAGES)
def test_the_dockerfile_has_the_stage(name: str) -> None:
    assert re.search(rf"^FROM \S+ AS {plan_of(name).stage}$", DOCKERFILE, re.M)


@pytest.mark.parametrize("stage", plans.STAGES)
def test_a_components_stage_copies_it_and_names_it(stage: str) -> None:
    text = DOCKERFILE.partition(f" AS {stage}\n")[2].partition("\nFROM")[0]
    assert f"source=components/{stage},target=/mnt/{stage}" in text
    assert f"make-layer install-component {stage}\n" in text
    assert f"_ROOT=/opt/qnn-ci/{stage}" in text


@pytest.mark.parametrize("name", IMAGES)
def test_the_environments_of_an_image_are_locked_ones(name: str) -> None:
    environments = load_environments()
    assert all(not environments[one].abstract for one in plan_of(name).environments)


@pytest.mark.parametrize("path", sorted(DOCKER.iterdir()), ids=lambda path: path.name)
def test_nothing_is_pinned_or_fetched_in_docker(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|sha256:|\b[0-9a-f]{40,}\b|==\s*\d", text)


@pytest.mark.parametrize("step", re.findall(r"^RUN ((?:.*\\\n)*.*)$", DOCKERFILE, re.M))
def test_every_layer_is_made_so_that_it_can_be_made_again(step: str) -> None:
    mounts, _, command = step.rpartition("\\\n")
    assert command.strip().startswith("sh /mnt/docker/make-layer ")
    assert mounts.startswith("--mount=type=tmpfs,target=/mnt ")


def test_no_layer_is_made_otherwise() -> None:
    assert not re.search(r"^(COPY|ADD) ", DOCKERFILE, re.M)


def test_every_stage_knows_the_time_of_its_files() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    assert all("\nARG SOURCE_DATE_EPOCH\n" in stage for stage in stages)


def test_every_stage_ends_as_a_user_who_is_not_root() -> None:
    stages = DOCKERFILE.split("\nFROM ")[1:]
    assert [re.findall(r"^USER (\w+)$", stage, re.M)[-1] for stage in stages] == ["dev"] * len(stages)


def test_every_wanted_package_is_pinned() -> None:
    names = {package.name for package in load_packages()}
    assert set(load_images().system.packages) <= names


def test_the_system_is_taken_by_its_digest_alone() -> None:
    assert re.fullmatch(r"debian@sha256:[0-9a-f]{64}", load_images().system.reference)


def test_every_file_has_the_day_that_the_systems_name_says() -> None:
    import datetime as dt

    system = load_images().system
    day = dt.datetime.fromtimestamp(system.epoch, dt.timezone.utc)
    assert day.strftime("-%Y%m%d-") in system.image


def test_an_unknown_image_names_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        plan_of("ubuntu")
    assert "wheels" in caught.value.remedy


def test_a_profile_without_the_earlier_components_cannot_be_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "STAGES", ("hexagon-sdk", "qnn-sdk", "android-ndk"))
    with pytest.raises(ManifestError) as caught:
        plan_of("qnn-2.37-ndk-r26c")
    assert caught.value.key == "images.qnn-2.37-ndk-r26c.profile"


def test_an_environment_of_which_nothing_is_said_to_be_compiled_is_a_fault_of_the_manifest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "load_images", lambda: load_images().model_copy(update={"imports": {}}))
    with pytest.raises(ManifestError) as caught:
        plan_of("base")
    assert caught.value.key == "imports"


class TestManifestHash:
    def test_is_the_same_twice(self) -> None:
        assert plan_of("wheels").manifest_hash(BASE) == plan_of("wheels").manifest_hash(BASE)

    def test_changes_with_the_base(self) -> None:
        plan = plan_of("wheels")
        assert plan.manifest_hash(BASE) != plan.manifest_hash("sha256:" + "2" * 64)

    def test_changes_with_a_components_pin(self) -> None:
        plan = plan_of("wheels")
        assert plan.profile is not None
        sdk = plan.profile.components["qnn-sdk"].model_copy(update={"version": "9"})
        other = plan.profile.model_copy(update={"components": {**plan.profile.components, "qnn-sdk": sdk}})
        assert replace(plan, profile=other).manifest_hash(BASE) != plan.manifest_hash(BASE)

    def test_changes_with_what_is_compiled(self) -> None:
        plan = plan_of("base")
        other = replace(plan, imports={**plan.imports, "tools": ("rich",)})
        assert other.manifest_hash(BASE) != plan.manifest_hash(BASE)

    def test_changes_with_the_system_under_it(self) -> None:
        plan = plan_of("base")
        other = replace(plan, system=plan.system.model_copy(update={"epoch": plan.system.epoch + 1}))
        assert other.manifest_hash(BASE) != plan.manifest_hash(BASE)

    def test_changes_with_a_lock_of_its_environments_and_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plans_of_both = [plan_of("base"), plan_of("wheels")]
        before = [plan.manifest_hash(BASE) for plan in plans_of_both]
        changed = tmp_path / "executorch.txt"
        changed.write_text("other==1\n")
        monkeypatch.setattr(
            plans, "lock_path", lambda name: changed if name == "executorch" else lock_path(name)
        )
        after = [plan.manifest_hash(BASE) for plan in plans_of_both]
        assert after[0] == before[0] and after[1] != before[1]

    @pytest.mark.parametrize("name", ["PACKAGES", "DOCKER"])
    def test_changes_with_the_packages_and_the_recipe(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = plan_of("base")
        before = plan.manifest_hash(BASE)
        path: Path = getattr(plans, name)
        if path.is_dir():
            changed = tmp_path
            for file in path.iterdir():
                (tmp_path / file.name).write_bytes(file.read_bytes() + b"# more\n")
        else:
            changed = tmp_path / path.name
            changed.write_bytes(path.read_bytes() + b"# more\n")
        monkeypatch.setattr(plans, name, changed)
        assert plan.manifest_hash(BASE) != before


class TestPackages:
    def test_come_back_as_they_were_written(self, tmp_path: Path) -> None:
        packages = (Package("g++", "4:12.2.0-3", "a" * 64), Package("git", "1:2.39", "b" * 64))
        path = tmp_path / "packages.txt"
        path.write_text(render_packages(reversed(packages)), encoding="utf-8")
        assert load_packages(path) == packages

    @pytest.mark.parametrize("line", ["git 1:2.39", "git 1:2.39 abc", f"git 1:2.39 {'a' * 64} more"])
    def test_a_line_that_is_none_is_named(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "packages.txt"
        path.write_text(f"# head\n{line}\n", encoding="utf-8")
        with pytest.raises(ManifestError) as caught:
            load_packages(path)
        assert caught.value.key == "line 2"


class TestBase:
    @pytest.mark.parametrize(
        ("variable", "flags", "base"),
        [
            ("", [], None),
            ("mirror/debian:12", [], "mirror/debian:12"),
            ("mirror/debian:12", ["--base", "a:1"], "a:1"),
        ],
    )
    def test_a_flag_comes_before_a_variable_and_that_before_the_manifest(
        self, variable: str, flags: list[str], base: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("QNN_CI_BASE_IMAGE", variable)
        parser = argparse.ArgumentParser()
        configure(parser)
        assert (parser.parse_args(["wheels", *flags]).base or None) == base


class TestLabels:
    def test_say_profile_manifest_and_build_ids(self) -> None:
        plan = plan_of("wheels")
        said = labels(plan, plan.system.reference, BASE)
        build_id = load_profile("wheels").components["qnn-sdk"].build_id
        assert said["qnn-ci.profile"] == "wheels"
        assert said["qnn-ci.manifest"] == plan.manifest_hash(BASE)
        assert said["qnn-ci.build-ids"] == f"qnn-sdk={build_id}"

    def test_name_the_pinned_digest_of_the_pinned_base(self) -> None:
        plan = plan_of("base")
        said = labels(plan, plan.system.reference, BASE)
        assert said["org.opencontainers.image.base.digest"] == plan.system.digest

    def test_name_the_id_of_any_other_base(self) -> None:
        assert labels(plan_of("base"), "mine:1", BASE)["org.opencontainers.image.base.digest"] == BASE

    def test_a_vendors_licence_says_that_the_image_is_not_to_be_published(self) -> None:
        said = labels(plan_of("qnn-2.37-ndk-r26c"), "mine:1", BASE)["qnn-ci.not-to-be-published"]
        assert "Qualcomm AI Stack License" in said and "Android Software Development Kit" in said

    def test_without_a_vendors_licence_nothing_is_said_of_it(self) -> None:
        assert "qnn-ci.not-to-be-published" not in labels(plan_of("wheels"), "mine:1", BASE)

    def test_hold_no_time_but_the_manifests(self) -> None:
        created = labels(plan_of("base"), "mine:1", BASE)["org.opencontainers.image.created"]
        assert created == "2025-05-20T00:00:00Z"
