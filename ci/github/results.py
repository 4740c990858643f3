"""Cached results of programs, by GitHub's cache: each job restores its own, and the default branch saves.

Only what the default branch saved is restored, by GitHub's own list (ci/github/caches.py). A pull request
saves nothing: what its code wrote could make a later commit green.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping

from ci.github import wheels
from ci.github.caches import NotBelieved, newest
from ci.github.files import export, set_outputs
from ci.github.place import run_of, saves, store_of
from provisioning.base.settings import MANIFESTS

SCHEMA = 3
"""Raise it when older results are of no use."""


def run(environ: Mapping[str, str]) -> int:
    """Tell later steps the folder, the key to restore (empty: none) and the key to save under."""
    prefix = prefix_of(environ)
    try:
        restored = newest(prefix, environ)
    except NotBelieved as why:
        sys.stdout.write(f"no result is taken from GitHub's cache: {why}\n")
        restored = ""
    export({"QNN_CI_STORE": str(store_of(environ))}, environ)
    outputs = {
        "results": str(store_of(environ) / "cache" / "memo"),
        "restore": restored,
        # A key is written once.
        "save": prefix + run_of(environ),
        "saves": str(saves(environ)).lower(),
    }
    set_outputs({**outputs, **wheels.place(environ)}, environ)
    return 0


def prefix_of(environ: Mapping[str, str]) -> str:
    """The same for all runs of one job: by its profile, suite, chips and shard, and by QNN and the locked
    packages, as what was compiled by others is of no use."""
    names = ("QNN_CI_PROFILE", "QNN_CI_SUITE", "QNN_CI_SOC", "QNN_CI_ARTIFACT")
    digest = hashlib.sha256(json.dumps([environ.get(name, "") for name in names]).encode())
    for file in sorted([*(MANIFESTS / "profiles").glob("*.toml"), *(MANIFESTS / "locks").glob("*.txt")]):
        digest.update(file.read_bytes())
    return f"qnn-ci-results-{SCHEMA}-{digest.hexdigest()[:24]}-"
