"""The figures of earlier runs, by commit. The store keeps them; each row of a report has its program's."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ci.engine.repository import repository_of
from provisioning.base.commands import captured
from provisioning.base.errors import ToolkitError
from provisioning.base.files import replace_text
from provisioning.base.findings import Metric
from provisioning.base.mutex import mutex

SCHEMA = 1
MOST = 30
"""Commits remembered of a program."""
FIGURES = ("sqnr_db", "reference_sqnr_db", "top1")
COSTS = ("ddr_read", "ddr_written", "pte_bytes", "context_bytes")
"""What repeats exactly, or nearly. Seconds depend on the machine."""


def add_history(metrics: Mapping[str, Metric], stage: str, store: Path, folder: Path) -> None:
    """Remember the figures of every program in the report, and give each row those of earlier commits.

    A history that cannot be read or written is no reason for a stage to fail."""
    rows = metrics.get("programs")
    if not isinstance(rows, dict):
        return
    now = {name: values for name, row in rows.items() if isinstance(row, dict) and (values := _values(row))}
    if not now:
        return
    repository = repository_of(folder / "any")
    name = hashlib.sha256(f"{repository}\0{stage}".encode()).hexdigest()[:32]
    path = store / "cache" / "figures" / f"{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with mutex(path.with_suffix(".lock")):
            known = _read(path)
            commit, when = _commit(repository), dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
            for program, values in now.items():
                entries = [each for each in known.get(program, []) if each["commit"] != commit]
                known[program] = [*entries, {"commit": commit, "when": when, **values}][-MOST:]
                row = rows[program]
                assert isinstance(row, dict)
                row["history"] = list(known[program])
            replace_text(path, json.dumps({"schema": SCHEMA, "programs": known}) + "\n")
    except (OSError, ToolkitError) as error:
        sys.stderr.write(f"warning: the figures of earlier runs: {error}\n")


def _values(row: Mapping[str, Metric]) -> dict[str, float]:
    found = {}
    for group, names in (("figures", FIGURES), ("costs", COSTS)):
        values = row.get(group)
        for name in names:
            value = values.get(name) if isinstance(values, dict) else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = value
    return found


def _read(path: Path) -> dict[str, list[Any]]:
    """Empty if there is no history, or none that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        programs = document["programs"] if document["schema"] == SCHEMA else {}
        return {
            str(name): [dict(each) for each in entries if isinstance(each["commit"], str)]
            for name, entries in programs.items()
        }
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _commit(repository: Path) -> str:
    """The commit's short name, with `-dirty` if files differ from it; without git the day."""
    try:
        done = captured(["git", "-C", repository, "describe", "--always", "--dirty", "--exclude", "*"])
    except (OSError, ToolkitError):
        return dt.date.today().isoformat()
    return done.stdout.strip() if done.returncode == 0 else dt.date.today().isoformat()
