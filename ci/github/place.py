"""Where the store is in a job, and the key of its cache: a hash of all that decides its content."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.github.caches import NotBelieved, Unlisted, may_see_a_strangers, newest
from ci.github.files import export, set_outputs
from provisioning.base.settings import DEFAULT_PROFILE, MANIFESTS, store_path

SCHEMA = 2
"""Raise it when older stores must not be reused."""


@dataclass(frozen=True, slots=True)
class SetupInputs:
    """The inputs of setup-qnn and setup-ndk, from the environment."""

    profile: str
    components: tuple[str, ...]
    targets: tuple[str, ...]
    socs: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SetupInputs:
        def several(name: str) -> tuple[str, ...]:
            return tuple(dict.fromkeys(environ.get(name, "").replace(",", " ").split()))

        return cls(
            environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE,
            several("QNN_CI_COMPONENTS"),
            several("QNN_CI_TARGETS"),
            several("QNN_CI_SOC"),
        )

    def flags(self) -> list[str]:
        """The flags for `provision`, which reads profile, SoCs and licences from the environment itself."""
        flags = [part for name in self.components for part in ("--component", name)]
        return flags + [part for name in self.targets for part in ("--target", name)]


def run(environ: Mapping[str, str]) -> int:
    wanted = SetupInputs.of(environ)
    store = store_of(environ)
    export({"QNN_CI_STORE": str(store)}, environ)
    key = cache_key(wanted)
    # A store of the machine's own needs no cache, and nothing of a cache may come into it.
    cacheable = may_be_cached(wanted) and not (store / "trees").exists() and not _is_hidden(key, environ)
    yes_or_no = {"cacheable": cacheable, "saves": cacheable and saves(environ)}
    # A key is written once. With the run in it, the default branch can save again what it had to repair.
    outputs = {"store": str(store), "key": key, "save": f"{key}-{run_of(environ)}"}
    set_outputs({**outputs, **{name: str(value).lower() for name, value in yes_or_no.items()}}, environ)
    return 0


def _is_hidden(key: str, environ: Mapping[str, str]) -> bool:
    """Whether another ref's cache would be restored in place of the default branch's.

    Where the list cannot be had, a run that sees no pull request's caches restores it: provisioning proves
    trees, and nothing else of it is used."""
    try:
        newest(key, environ)
    except NotBelieved as why:
        if isinstance(why, Unlisted) and not may_see_a_strangers(environ):
            return False
        sys.stdout.write(f"the store is not taken from GitHub's cache: {why}\n")
        return True
    return False


def saves(environ: Mapping[str, str]) -> bool:
    """Whether this job may save caches: on the default branch only, since what ran there is trusted."""
    if environ.get("GITHUB_EVENT_NAME") not in ("push", "schedule", "workflow_dispatch"):
        return False
    event = json.loads(Path(environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    branch = event.get("repository", {}).get("default_branch")
    return environ.get("GITHUB_REF") == f"refs/heads/{branch}"


def run_of(environ: Mapping[str, str]) -> str:
    """Names this try of this run of the workflow."""
    return f"{environ.get('GITHUB_RUN_ID', '0')}-{environ.get('GITHUB_RUN_ATTEMPT', '1')}"


def store_of(environ: Mapping[str, str]) -> Path:
    """QNN_CI_STORE, else a folder of the job; caches need the same path in every job."""
    if not environ.get("QNN_CI_STORE") and (temp := environ.get("RUNNER_TEMP")):
        return Path(temp) / "qnn-ci-store"
    return store_path(None, environ)


def cache_key(wanted: SetupInputs, manifests: Path = MANIFESTS) -> str:
    digest = hashlib.sha256()
    selection = [sorted(names) for names in (wanted.components, wanted.targets, wanted.socs)]
    digest.update(json.dumps(selection).encode())
    for name in (f"profiles/{wanted.profile}.toml", "socs.toml"):
        digest.update(hashlib.sha256((manifests / name).read_bytes()).digest())
    machine = f"{platform.system()}-{platform.machine()}".lower()
    return f"qnn-ci-store-{SCHEMA}-{machine}-{wanted.profile}-{digest.hexdigest()[:32]}"


def may_be_cached(wanted: SetupInputs) -> bool:
    """False if a component has a licence: everybody who can open a pull request can read the cache."""
    from provisioning.manifest import load_profile

    components = load_profile(wanted.profile).components
    return not any(
        component.licence
        for name, component in components.items()
        if not wanted.components or str(name) in wanted.components
    )
