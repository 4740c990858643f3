"""The files under .github/ as YAML has them, and the files that their steps write outputs to."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from provisioning.base.settings import ROOT

GITHUB = ROOT / ".github"
Yaml = dict[str, Any]


def _read(path: Path) -> Yaml:
    # In C, as PyYAML's own takes a third of a second for ours in each worker of the tests.
    data: dict[Any, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    # YAML 1.1 takes `on` for a boolean.
    return {("on" if key is True else key): value for key, value in data.items()}


WORKFLOWS = {path.name: _read(path) for path in sorted(GITHUB.glob("workflows/*.yml"))}
ACTIONS = {path.parent.name: _read(path) for path in sorted(GITHUB.glob("actions/*/action.yml"))}
ACTIONS["."] = _read(ROOT / "action.yml")
JOBS: dict[str, Yaml] = {
    f"{name}: {job}": content
    for name, workflow in WORKFLOWS.items()
    for job, content in workflow["jobs"].items()
}
STEPS: dict[str, list[Yaml]] = {
    **{name: job.get("steps", []) for name, job in JOBS.items()},
    **{name: action["runs"]["steps"] for name, action in ACTIONS.items()},
}
"""Of each job, and of each action."""


OUTPUTS_OF_PARTS = {
    "plan": {"jobs", "artifacts", "planned"},
    "find_results": {"results"},
    "collect_results": {"key"},
    "setup": {"sdk-root", "ndk-root", "version"},
    "stage": {"outcome", "report", "artifact"},
}
"""Of `github -- PART`: tests/unit/test_github.py runs each and sees that it sets these."""


def flattening(folder: str) -> str:
    """The options by which GNU tar puts each member into this folder, whatever its name and its link say."""
    return f"--transform=s,^.*/,,;s,^,{folder}/,"


def call_of(workflow: str) -> Yaml:
    """What `workflow_call` says."""
    call = WORKFLOWS[workflow]["on"].get("workflow_call") or {}
    return {"inputs": {}, "secrets": {}, "outputs": {}, **call}


def called(uses: str) -> Yaml | None:
    """Our own action, or what our own workflow says of its calls; None for somebody else's."""
    if not uses.startswith("$/"):
        return None
    name = uses.rpartition("/")[2]
    return call_of(name) if name.endswith(".yml") else ACTIONS[name]


def strings(node: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a part of a file, with the key that it is below."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from strings(value, str(name))
    elif isinstance(node, list):
        for value in node:
            yield from strings(value, key)
    elif isinstance(node, str):
        yield key, node


def pairs(path: Path) -> dict[str, str]:
    """The names and values of a GITHUB_ENV or GITHUB_OUTPUT file."""
    return pairs_in(path.read_text(encoding="utf-8"))


def pairs_in(text: str) -> dict[str, str]:
    """Of lines NAME=value, or NAME<<DELIMITER and lines up to one that is only the delimiter."""
    values: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in filter(None, lines):
        match = re.fullmatch(r"(.+?)(=|<<)(.*)", line)
        assert match is not None, f"expected NAME=value or NAME<<DELIMITER, found {line!r}"
        name, separator, value = match.groups()
        if separator == "<<":
            value = "\n".join(itertools.takewhile(lambda inner, end=value: inner != end, lines))  # type: ignore[misc]
        values[name] = value
    return values


def filled_in(value: object, **contexts: Mapping[str, object]) -> str:
    """A value of a step with each plain name of these contexts in it; any other expression is empty here."""

    def known(match: re.Match[str]) -> str:
        context, _, name = match[1].partition(".")
        member = contexts.get(context, {}).get(name, "")
        return str(member).lower() if isinstance(member, bool) else str(member)

    return re.sub(r"\$\{\{ (.*?) \}\}", known, str(value))
