"""`compile --suite`: add a model to a new or an existing suite, as its author would."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from ci.suites.imports import module_file
from ci.suites.user_model import UserModel
from provisioning.base import toml
from provisioning.base.errors import ManifestError, UsageError

WORKFLOW = """\
name: QNN
on: {{pull_request: {{}}, merge_group: {{}}, push: {{branches: [main]}}}}
permissions: {{}}
jobs:
  qnn:
    permissions: {{contents: read}}
    uses: OWNER/qnn-ci/.github/workflows/gate.yml@COMMIT # VERSION
    with:
      suite: {suite}
"""


OURS = ("socs", "tags", "thresholds", "cpu_nodes", "delegates", "cpu_budget")
"""Keys of a run that we write or keep. A run with other keys was written by its author and is another run."""


def require_place(suite: Path) -> None:
    if suite.suffix != ".toml" or suite.is_dir():
        raise UsageError(f"--suite {suite}: expected a .toml file", remedy="--suite models.toml")
    if not suite.parent.is_dir() or not os.access(suite.parent, os.W_OK):
        raise UsageError(f"--suite {suite}: its folder cannot be written", remedy="name another file")


def factory_in(named: UserModel, suite: Path) -> str:
    """The model's name in this suite: a file relative to the suite, or a module as it is imported there."""
    if named.factory.endswith(".pt2"):
        return os.path.relpath(named.search_path / named.factory, suite.parent)
    module, _, function = named.factory.partition(":")
    if suite.parent == named.search_path:
        return named.factory
    file = module_file(module, [named.search_path])
    if file is None:
        # An installed package.
        return named.factory
    if module_file(module, [suite.parent]) == file:
        return named.factory
    below = named.file is not None and file.is_relative_to(suite.parent)
    words = file.relative_to(suite.parent).with_suffix("").parts if below else ()
    if words and all(word.isidentifier() for word in words):
        return f"{'.'.join(words)}:{function}"
    raise UsageError(
        f"{suite}: a suite's modules are looked for in its folder, and {module} is in {named.search_path}",
        remedy=f"--suite {named.search_path / suite.name}",
    )


def suite_with(
    suite: Path,
    name: str,
    case: Mapping[str, Any],
    kind: str,
    same: Callable[[str], str],
    run: Mapping[str, Any],
    socs: Sequence[str],
) -> tuple[str, int]:
    """The suite's text with this run of this case, and the run's number in the case.

    An existing run with the same precision (`kind` is its key, and `same` normalizes its name) is updated,
    and keeps its chips and tags. Comments and everything else stay."""
    text = _text(suite)
    document: Any = tomlkit.parse(text or "schema = 1\n")
    cases = document.setdefault("case", tomlkit.table(is_super_table=True))
    if name not in cases:
        cases[name] = tomlkit.table()
        cases[name].update(case)
    for key, value in case.items():
        if cases[name].get(key) != value:
            raise UsageError(
                f"{suite}: case.{name} is there with {key} = {cases[name].get(key)!r}, not {value!r}",
                remedy="rename that case, or name another suite",
            )
    runs = cases[name].setdefault("run", tomlkit.aot())
    number = next(
        (
            index
            for index, each in enumerate(runs)
            if kind in each and same(each[kind]) == run[kind] and set(each) <= {kind, *OURS, *run}
        ),
        len(runs),
    )
    if number == len(runs):
        runs.append(tomlkit.table())
    mine = runs[number]
    chips = tuple(dict.fromkeys([*mine.get("socs", ()), *socs]))
    for key, value in {**run, "socs": list(chips)}.items():
        if value in (None, [], ()):
            mine.pop(key, None)
        else:
            mine[key] = value
    return tomlkit.dumps(document), number


def _text(suite: Path) -> str:
    if not suite.exists():
        return ""
    try:
        text = suite.read_text(encoding="utf-8")
        toml.loads(text)
        return text
    except (toml.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ManifestError(suite, "(syntax)", expected="TOML", found=str(error)) from error


def workflow_for(suite: Path, repository: Path) -> str:
    inside = suite.is_relative_to(repository)
    return WORKFLOW.format(suite=suite.relative_to(repository) if inside else suite.name)
