"""The real QNN SDK of the wheels profile, for tests marked heavy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VARIABLE = "QNN_CI_TEST_SDK"
TARGETS = ("x86_64-linux", "aarch64-linux")


@cache
def sdk_root() -> Path:
    """The one that QNN_CI_TEST_SDK names, else the store's, provisioned first if need be."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    command = [sys.executable, "-m", "provisioning"]
    targets = [word for target in TARGETS for word in ("--target", target)]
    socs = ["--soc", ",".join(_one_soc_an_arch())]
    subprocess.run([*command, "provision", *targets, *socs], cwd=REPOSITORY, check=True, timeout=1800)
    done = subprocess.run(
        [*command, "env", "QNN_SDK_ROOT", "--target", TARGETS[-1], *socs],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Path(done.stdout.strip())


@cache
def provisioned_sdk(*flags: str) -> Path:
    """The one of these flags; without any, the one for all targets.

    Of the trees in the store, an environment takes the narrowest that does."""
    command = [sys.executable, "-m", "provisioning", "provision", "--json", *flags]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, timeout=1800, capture_output=True, text=True)
    return Path(json.loads(done.stdout)["components"][0]["where"])


def qnn_environment() -> dict[str, str]:
    """This process's variables, and those of a session with the SDK."""
    from provisioning.base.settings import DEFAULT_SOC, Selection, store_path
    from provisioning.environment import resolve

    selection = Selection("wheels", TARGETS[0], DEFAULT_SOC, store_path(), Path("reports"))
    return resolve(selection, {**os.environ, "QNN_SDK_ROOT": str(sdk_root())}).merged(os.environ)


def skels() -> list[Path]:
    """Every Hexagon skel of the SDK, by arch."""
    paths = sdk_root().glob("lib/hexagon-v*/unsigned/libQnnHtpV*Skel.so")
    return sorted(paths, key=lambda path: int(re.sub(r"\D", "", path.name)))


def _one_soc_an_arch() -> list[str]:
    from provisioning.manifest import load_socs

    return list({soc.arch: name for name, soc in load_socs().items()}.values())


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
