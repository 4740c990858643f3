"""An editor's container is the image that `nox -s image` builds, and serves on any machine."""

from __future__ import annotations

import json
import re
from typing import Any

from ci.image.image_plan import DOCKER, plan_of
from ci.image.shell import CACHE
from provisioning.base.settings import ROOT

TEXT = (ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
SETTINGS: dict[str, Any] = json.loads(TEXT)
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def words(mount: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in mount.split(","))


def test_the_image_its_user_and_its_volume_are_those_that_sessions_build_and_use() -> None:
    assert SETTINGS["image"] == plan_of("wheels").tag
    assert SETTINGS["remoteUser"] == re.findall(r"^USER (\w+)$", DOCKERFILE, re.M)[-1]
    assert SETTINGS["updateRemoteUserUID"] is True
    assert [words(mount)["target"] for mount in SETTINGS["mounts"]] == [CACHE]
    command = SETTINGS["initializeCommand"]
    assert command.startswith(f"docker image inspect {SETTINGS['image']} ")
    assert command.endswith("|| (nox -s provision && nox -s image -- wheels)")
