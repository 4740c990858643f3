"""Manifests of a test's own, read by the commands as the shipped ones are.

No flag and no variable moves manifests/, since pins belong to what is installed. So who reads from there is
named here, and in no test.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import tomlkit

from ci.diagnose import rules
from lab.lock import files, hashes, verb
from provisioning import lock_files, manifest
from provisioning.base import settings
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Component
from provisioning.store import inventory


@contextmanager
def own_manifests(folder: Path) -> Iterator[Path]:
    """A folder with the chips, and no profile, environment or lock file yet."""
    (folder / "profiles").mkdir(parents=True)
    shutil.copy(MANIFESTS / "socs.toml", folder)
    (folder / "environments.toml").touch()
    with manifests_read_from(folder):
        yield folder


@contextmanager
def manifests_read_from(folder: Path) -> Iterator[None]:
    """Commands of this process read the manifests of this folder."""
    caches = manifest.load_profile, inventory.load_lists, inventory.load_official

    def profiles() -> list[str]:
        return sorted(path.stem for path in (folder / "profiles").glob("*.toml"))

    with pytest.MonkeyPatch.context() as patch:
        for module in (manifest, files, hashes):
            patch.setattr(module, "MANIFESTS", folder)
        for module in (manifest, settings, verb):
            patch.setattr(module, "profile_names", profiles)
        patch.setattr(lock_files, "LOCKS", folder / "locks")
        patch.setattr(inventory, "LISTS", folder / "wheels.json")
        patch.setattr(inventory, "OFFICIAL", folder / "trees")
        for cache in caches:
            cache.cache_clear()
        try:
            yield
        finally:
            for cache in caches:
                cache.cache_clear()


def own_accepted_tests(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """What is expected of ExecuTorch's tests, and the table that is made of it: none yet."""
    from ci.lanes.upstream import accepted
    from ci.operators.table import OperatorTable
    from lab.operators import pages, table_judge

    patch.setattr(accepted, "DIRECTORY", folder)
    patch.setattr(pages, "FOLDER", folder / "rework-op")
    patch.setattr(pages, "TABLE", folder / "operators.json")
    patch.setattr(table_judge, "shipped_table", OperatorTable)
    patch.setattr(pages, "PAGE", folder / "operators.md")


def write_profile(folder: Path, components: Mapping[str, Component], name: str = "wheels") -> None:
    """A profile of these components alone, in place of what was there."""
    top = {"schema": 1, "name": name, "summary": "Small.", "packages": {}, "host": {}}
    rows = {
        key: component.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        for key, component in components.items()
    }
    (folder / "profiles" / f"{name}.toml").write_text(tomlkit.dumps({**top, "components": rows}))
    manifest.load_profile.cache_clear()


def own_failure_rules(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """`diagnose` reads its rules from this folder."""
    rules.failure_rules.cache_clear()
    patch.setattr(rules, "RULES", folder)
