"""Which of GitHub's caches a job may restore, by GitHub's own list of them.

A job finds caches of its own ref first, then those of a pull request's base, then the default branch's.
Whatever a workflow says, code of a pull request can save a cache under any key for its own ref. No other ref
can write those of the default branch. So only these count, and none at all where a ref that is searched first
has one of this name. That is asked before a cache is restored: GitHub's action unpacks an archive to wherever
its paths lead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENCE = 20.0


class NotBelieved(Exception):
    """Why no cache of this name may be restored."""


class Unlisted(NotBelieved):
    """GitHub's list of caches cannot be had."""


def newest(prefix: str, environ: Mapping[str, str]) -> str:
    """The key of the newest cache with this prefix that the default branch saved; empty if it has none."""
    event = _event(environ)
    default = f"refs/heads/{event.get('repository', {}).get('default_branch', '')}"
    base = event.get("pull_request", {}).get("base", {}).get("ref", "")
    for ref in {environ.get("GITHUB_REF", ""), f"refs/heads/{base}" if base else default} - {default}:
        if keys := _keys(prefix, ref, environ):
            raise NotBelieved(f"{ref} has a cache of this name ({keys[0]}), which hides the default branch's")
    return next(iter(_keys(prefix, default, environ)), "")


def may_see_a_strangers(environ: Mapping[str, str]) -> bool:
    """Whether GitHub looks for caches of a pull request. Runs for a push or a merge group never see those."""
    event, ref = environ.get("GITHUB_EVENT_NAME", ""), environ.get("GITHUB_REF", "")
    return event.startswith("pull_request") or ref.startswith("refs/pull/")


def _event(environ: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        event: Mapping[str, Any] = json.loads(Path(environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError) as error:
        raise Unlisted("there is no event of GitHub") from error
    return event


def _keys(prefix: str, ref: str, environ: Mapping[str, str]) -> list[str]:
    """The keys of a ref's caches, the newest first."""
    import requests

    query = {"key": prefix, "ref": ref, "sort": "created_at", "direction": "desc", "per_page": "100"}
    headers = {"Accept": "application/vnd.github+json"}
    if token := environ.get("GH_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    try:
        url = f"{environ['GITHUB_API_URL']}/repos/{environ['GITHUB_REPOSITORY']}/actions/caches"
        answer = requests.get(url, query, headers=headers, timeout=PATIENCE, allow_redirects=False)
        if answer.status_code != 200:
            hint = "; the job needs `actions: read`" if answer.status_code in (401, 403, 404) else ""
            raise Unlisted(f"GitHub's list of caches answers {answer.status_code}{hint}")
        # Not by GitHub's filters alone: what they mean decides what is believed.
        keys = [str(entry["key"]) for entry in answer.json()["actions_caches"] if entry["ref"] == ref]
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        raise Unlisted(f"GitHub's list of caches cannot be had: {type(error).__name__}") from error
    return [key for key in keys if key.startswith(prefix)]
