"""Find where this copy of the toolkit came from: the address and the commit that a workflow names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from provisioning.base.commands import capture
from provisioning.base.settings import ROOT, Project, project

ON_GITHUB = re.compile(
    r"(?:git\+)?(?:https://|ssh://git@|git@)(?:[^@/]*@)?github\.com[:/]([\w-]+/[\w.-]+?)(?:\.git)?/?"
)


def this_copy(root: Path = ROOT) -> Project:
    """Return the address and the commit of this copy. An installed copy knows both from its installer, a
    clone from git; what neither says is empty."""
    ours = project(root)
    if not (root / ".git").exists():
        return ours
    commit = _git(root, "rev-parse", "HEAD")
    match = ON_GITHUB.fullmatch(_git(root, "config", "--get", "remote.origin.url"))
    repository = f"https://github.com/{match[1]}" if match else ours.repository
    return replace(ours, repository=repository, commit=commit)


def _git(folder: Path, *arguments: str) -> str:
    done = capture(["git", *arguments], cwd=folder)
    return "" if done.returncode else done.stdout.strip()
