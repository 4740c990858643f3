"""Cached results of our store in GitHub's cache, so that a job of gate.yml does not repeat work of an earlier
run.

In the order of a workflow: `find_results` names the cache that the default branch saved last; `take_results`
puts what was restored into the job's store; `give_results` writes what the job used; `collect_results` makes
one archive of what all jobs used, which the workflow saves.

A restored cache has the name that GitHub lists for the default branch, and that name contains the digest of
its content. A cache of another scope, such as one that an earlier commit of a pull request saved, has either
another name or other bytes."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ci.github.comment import Api
from ci.github.setup import store_of
from ci.github.step_files import set_outputs
from ci.report.summary import command
from ci.work import Unpacked, pack_results, unpack_results
from provisioning.base.errors import UpstreamError
from provisioning.base.files import hash_file
from provisioning.base.foreign import escape_line
from provisioning.base.rendering import plural
from provisioning.store.results import results_folder

PREFIX = "qnn-ci-results-5-"
"""The names of the caches begin with this. Raise the number when older results must not be reused."""
KEY = re.compile(f"{PREFIX}([0-9a-f]{{64}})")
FILE = "results.tar"
RESTORED, USED_BY_JOB, USED_BY_JOBS = "results-cache", "results-of-job", "results-of-jobs"
"""Folders of the workspace: what the cache has and then what is saved to it, what this job used, and what all
jobs used."""
STARTED = "job-started"
"""A file of the store: this job used no result that is older."""


def find_results(environ: Mapping[str, str]) -> int:
    """Put out the name of the cache that the default branch, QNN_CI_DEFAULT_BRANCH, saved last; empty if
    there is none. Read GH_TOKEN, which may list caches."""
    branch, key = environ.get("QNN_CI_DEFAULT_BRANCH", ""), ""
    try:
        answer = Api(environ)(
            "GET",
            "actions/caches",
            ref=f"refs/heads/{branch}",
            key=PREFIX,  # whatever begins so
            sort="created_at",
            direction="desc",
            per_page=1,
        )
        key = next((str(row["key"]) for row in answer["actions_caches"]), "")
    except (UpstreamError, KeyError, TypeError) as error:
        message = (
            error.message if isinstance(error, UpstreamError) else f"an answer of another form: {error!r}"
        )
        _warn(f"no cached result is used: {message}; give the call of gate.yml the right `actions: read`")
    set_outputs({"results": key if KEY.fullmatch(key) else ""}, environ)
    return 0


def take_results(environ: Mapping[str, str]) -> int:
    """Put the restored results into the store, if their digest is in QNN_CI_RESULTS."""
    workspace, top = Path(environ.get("GITHUB_WORKSPACE", "")), results_folder(store_of(environ))
    unpacked = unpack_if_named(workspace / RESTORED / FILE, environ.get("QNN_CI_RESULTS", ""), top)
    sys.stdout.write(f"{plural(unpacked.results, 'cached result')} of the default branch\n")
    store_of(environ).mkdir(parents=True, exist_ok=True)
    (store_of(environ) / STARTED).touch()
    return 0


def unpack_if_named(archive: Path, key: str, top: Path) -> Unpacked:
    """Take the results of the archive, but only if it is the one of this name; otherwise work is done
    again."""
    name = KEY.fullmatch(key)
    if name is None or not archive.exists():
        return Unpacked()
    if archive.is_symlink() or not archive.is_file() or hash_file(archive) != name[1]:
        _warn("the restored results are not those that the default branch saved: none is used")
        return Unpacked()
    unpacked = unpack_results(archive, top)
    if unpacked.problem or unpacked.refused:
        problem = unpacked.problem or "the others are used"
        _warn(f"of the restored results {unpacked.refused} are damaged, {problem}")
    return unpacked


def give_results(environ: Mapping[str, str]) -> int:
    """Write the results that this job used or made, for the job that saves them."""
    store, folder = store_of(environ), Path(environ.get("GITHUB_WORKSPACE", ""), USED_BY_JOB)
    count = pack_results(results_folder(store), folder / FILE, since=(store / STARTED).stat().st_mtime)
    sys.stdout.write(f"{plural(count, 'cached result')} to be saved\n")
    return 0


def collect_results(environ: Mapping[str, str]) -> int:
    """Write one archive of what all jobs used and of what was restored, and put out the name of its cache."""
    workspace = Path(environ.get("GITHUB_WORKSPACE", ""))
    with tempfile.TemporaryDirectory(dir=workspace) as folder:
        top = Path(folder)
        unpack_if_named(workspace / RESTORED / FILE, environ.get("QNN_CI_RESULTS", ""), top)
        for archive in sorted((workspace / USED_BY_JOBS).glob(f"*/{FILE}")):
            unpacked = unpack_results(archive, top)
            if unpacked.problem or unpacked.refused:
                name, problem = escape_line(archive.parent.name), unpacked.problem or "the others are saved"
                _warn(f"{name}: {unpacked.refused} damaged results, {problem}")
        # actions/cache saves the path that it restored, and no other.
        shutil.rmtree(workspace / RESTORED, ignore_errors=True)
        archive = workspace / RESTORED / FILE
        count = pack_results(top, archive)
    sys.stdout.write(f"{plural(count, 'cached result')} to be saved\n")
    set_outputs({"key": f"{PREFIX}{hash_file(archive)}" if count else ""}, environ)
    return 0


def _warn(message: str) -> None:
    sys.stdout.write(command("warning", escape_line(message), title="cached results") + "\n")
