"""The figures of earlier runs, by commit. The store keeps them; each row of a report has its program's."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from provisioning.base.commands import captured
from provisioning.base.errors import ToolkitError
from provisioning.base.files import replace_text, repository_of
from provisioning.base.findings import Metric

SCHEMA = 1
MOST = 30
"""Commits remembered of a suite."""
FIGURES = ("sqnr_db", "reference_sqnr_db", "agreement", "top1")
COSTS = ("ddr_read", "ddr_written", "pte_bytes", "context_bytes")
"""What repeats exactly, or nearly. Seconds depend on the machine."""
PLACES = ("cpu_operators",)


def add_history(metrics: Mapping[str, Metric], stage: str, profile: str, store: Path) -> None:
    """Remember the figures of every program in the report, and give each row those of earlier commits.

    They lie in the memory that jobs on GitHub share, in files that are never changed: a file holds what one
    run of a suite measured. A history that cannot be read or written is no reason for a stage to fail."""
    rows = metrics.get("programs")
    suites: dict[Path, dict[str, dict[str, Metric]]] = {}
    for name, row in rows.items() if isinstance(rows, dict) else ():
        if isinstance(row, dict) and figures_of(row):
            suites.setdefault(Path(str(row["suite"])), {})[name] = row
    for suite, programs in suites.items():
        repository = repository_of(suite)
        parts = [_name_of(repository), os.path.relpath(suite, repository), stage, profile]
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        folder = store / "cache" / "memo" / "figures" / digest[:32]
        try:
            _write(folder, _commit(repository), {name: figures_of(row) for name, row in programs.items()})
            known = _read(folder)
        except OSError as error:
            sys.stderr.write(f"warning: the figures of earlier runs: {error}\n")
            continue
        for program, row in programs.items():
            row["history"] = list(known.get(program, {}).values())


def _name_of(repository: Path) -> str:
    """The same for all clones: where the repository was cloned from, or else its folder."""
    origin = _git(repository, "config", "--get", "remote.origin.url") or str(repository)
    scheme = re.match(r"(?:\w+://)?(?:[^@/]*@)?", origin)
    return origin[scheme.end() if scheme else 0 :].replace(":", "/").removesuffix(".git")


def _write(folder: Path, commit: str, programs: Mapping[str, Mapping[str, float]]) -> None:
    digest = hashlib.sha256("\0".join(sorted(programs)).encode()).hexdigest()[:8]
    when = dt.datetime.now(dt.timezone.utc).isoformat()
    document = {"schema": SCHEMA, "commit": commit, "when": when, "programs": programs}
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / f"{commit}-{digest}.json", json.dumps(document) + "\n")


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """By program and commit, in order of time. Files of older commits are removed."""
    runs = []
    for file in folder.glob("*.json"):
        # A file that another run removed, or that is damaged, says nothing.
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            document = json.loads(file.read_text(encoding="utf-8"))
            if document["schema"] == SCHEMA:
                runs.append(
                    (str(document["when"]), str(document["commit"]), file, dict(document["programs"]))
                )
    runs.sort(key=lambda run: run[:3])
    kept = set(list(dict.fromkeys(commit for _, commit, *_ in reversed(runs)))[:MOST])
    by_program: dict[str, dict[str, Any]] = {}
    for when, commit, file, programs in runs:
        if commit not in kept:
            file.unlink(missing_ok=True)
            continue
        for name, values in programs.items():
            entries = by_program.setdefault(name, {})
            entries.pop(commit, None)
            entries[commit] = {"commit": commit, "when": when, **values}
    return by_program


def figures_of(row: Mapping[str, Metric]) -> dict[str, float]:
    """Of a program's row: what is compared with another run's."""
    numbers = {}
    for values, names in ((row.get("figures"), FIGURES), (row.get("costs"), COSTS), (row, PLACES)):
        for name in names:
            value = values.get(name) if isinstance(values, Mapping) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[name] = value
    return numbers


def _commit(repository: Path) -> str:
    """The commit's short name, with `-dirty` if files differ from it; without git the day."""
    return (
        _git(repository, "describe", "--always", "--dirty", "--exclude", "*") or dt.date.today().isoformat()
    )


def _git(repository: Path, *arguments: str) -> str:
    """Empty without git, or where git fails."""
    try:
        done = captured(["git", "-C", repository, *arguments])
    except (OSError, ToolkitError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
