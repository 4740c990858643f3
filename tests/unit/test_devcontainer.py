"""An editor's container is the image that `nox -s image` builds, and serves on any machine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ci.image.plan import DOCKER, plan_of
from ci.image.verb import CACHE
from provisioning.base.settings import ROOT

TEXT = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
SAID: dict[str, Any] = json.loads(TEXT)
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")

OF_IMAGES = {"image", "workspaceFolder", "workspaceMount"}
OF_ALL = {
    *("name", "features", "overrideFeatureInstallOrder", "forwardPorts", "portsAttributes"),
    *("otherPortsAttributes", "containerEnv", "remoteEnv", "containerUser", "remoteUser"),
    *("updateRemoteUserUID", "userEnvProbe", "overrideCommand", "shutdownAction", "init", "privileged"),
    *("capAdd", "securityOpt", "mounts", "customizations", "hostRequirements", "runArgs", "appPort"),
    *("initializeCommand", "onCreateCommand", "updateContentCommand", "postCreateCommand"),
    *("postStartCommand", "postAttachCommand", "waitFor"),
}
"""What the specification knows at the top of a file that names an image."""


def words(mount: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in mount.split(","))


def test_it_says_only_what_the_specification_knows() -> None:
    assert set(SAID) <= OF_IMAGES | OF_ALL


def test_the_image_is_the_one_that_sessions_build() -> None:
    assert SAID["image"] == plan_of("wheels").tag


def test_the_user_is_the_images() -> None:
    assert SAID["remoteUser"] == re.findall(r"^USER (\w+)$", DOCKERFILE, re.M)[-1]


def test_files_written_inside_belong_to_the_caller() -> None:
    assert SAID["updateRemoteUserUID"] is True


def test_an_image_that_is_not_there_is_provisioned_and_built_first() -> None:
    command = SAID["initializeCommand"]
    assert command.startswith(f"docker image inspect {SAID['image']} ")
    assert command.endswith("|| (nox -s provision && nox -s image -- wheels)")


def test_the_checkout_keeps_its_path() -> None:
    mount = words(SAID["workspaceMount"])
    assert mount == {"type": "bind", "source": SAID["workspaceFolder"], "target": SAID["workspaceFolder"]}


def test_what_must_be_writable_is_a_volume() -> None:
    assert [words(mount)["target"] for mount in SAID["mounts"]] == [CACHE]


@pytest.mark.parametrize("path", re.findall(r"(?<=[\"=])/[\w./-]+", TEXT))
def test_no_path_is_of_anyones_machine(path: str) -> None:
    assert path.startswith(("/opt/qnn-ci/", "/var/cache/qnn-ci"))
