"""Other executorch versions beside the installed one: wheels of the store, put first on PYTHONPATH."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.builds.table import EXECUTORCH_PACKAGE, Builds, Release
from provisioning.base import progress
from provisioning.base.errors import EnvironmentLacking, UnknownName
from provisioning.manifest import load_profile
from provisioning.store import Store


def versions(table: Builds) -> list[str]:
    """The profile's executorch, then the manifest's others, the newest first."""
    return [own_version(table), *(release.version for release in reversed(table.executorch))]


def own_version(table: Builds) -> str:
    return load_profile(table.profile).packages["executorch"]


def release_named(version: str, table: Builds) -> Release | None:
    """None: the profile's own, which is installed."""
    if version not in versions(table):
        raise UnknownName(
            f"--executorch {version}: manifests/compat.toml has no such version", version, versions(table)
        )
    return next((release for release in table.executorch if release.version == version), None)


def tree_of(release: Release, store: Store) -> Path:
    """The folder that goes on PYTHONPATH."""
    wanted = re.search(r"-cp(\d)(\d+)-", release.filename)
    if wanted and (int(wanted[1]), int(wanted[2])) != sys.version_info[:2]:
        raise EnvironmentLacking(
            f"manifests/compat.toml has executorch {release.version} for Python {wanted[1]}.{wanted[2]},"
            f" and this is {sys.version_info[0]}.{sys.version_info[1]}",
            fix=f"install nox with Python {wanted[1]}.{wanted[2]}",
        )
    shown = progress.for_stream()
    return store.provision(EXECUTORCH_PACKAGE, release.package(), {"x86_64-linux"}, progress=shown).root


def variables_of(release: Release | None, store: Store, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that imports this executorch; None: the installed one."""
    if release is None:
        return dict(environ)
    return first_on_path(tree_of(release, store), "executorch", release.version, environ)


def first_on_path(tree: Path, package: str, version: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process that imports this tree's package; it is tried."""
    known = [str(tree), *filter(None, [environ.get("PYTHONPATH")])]
    variables = {**environ, "PYTHONPATH": os.pathsep.join(known)}
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    if (actual := done.stdout.strip()) != version:
        raise EnvironmentLacking(
            f"expected {package} {version} from {tree}, found {actual or done.stderr}",
            fix=f"remove what puts another {package} before PYTHONPATH",
        )
    return variables
