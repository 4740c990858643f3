"""Named work in child processes; its results are cached under the digest of their inputs.

This is the package's public module: it has what `__all__` of the others names. Other packages import from it
alone (tests/unit/test_floors.py).

A lane describes a piece of work as a `Step`: a name, a request for each program, and the function of a worker
that answers it. `run_step` looks each program's result up, and runs what is not cached in forks of a process
that has made the imports. The worker uses `reporting`, `doing` and `quiet`, and answers with a record, which
`to_json` writes and `read` reads.

| module | what it has | | --- | --- | | `jobs` | work with its expected length and memory, and the lines of
its progress | | `request` | what a piece of work is asked: values, files and folders, from which its key is
made | | `cached_steps` | the steps of a lane: looked up, run, kept | | `schedule`, `processes`, `template`,
`child` | which task runs when; the processes that do work: begun, forked, and seen from inside | | `outcome`,
`trouble`, `reasons`, `logs` | how work ended, and whether the machine is to blame | | `plain` | records as
JSON | | `digests`, `results`, `results_archive` | content as digests; the cache; the cache for another
machine |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci.work.cached_steps import *
    from ci.work.child import *
    from ci.work.digests import *
    from ci.work.jobs import *
    from ci.work.logs import *
    from ci.work.outcome import *
    from ci.work.plain import *
    from ci.work.processes import *
    from ci.work.reasons import *
    from ci.work.request import *
    from ci.work.results import *
    from ci.work.results_archive import *
    from ci.work.schedule import *
    from ci.work.template import *
    from ci.work.trouble import *

MODULES = (
    "jobs",
    "plain",
    "request",
    "trouble",
    "reasons",
    "logs",
    "outcome",
    "digests",
    "child",
    "template",
    "processes",
    "schedule",
    "results",
    "results_archive",
    "cached_steps",
)
"""Each comes after those that it imports. Most commands need the first few alone."""


def __getattr__(name: str) -> object:
    """Find a public name. Modules are imported in turn until one has it: the last take long to import."""
    if name not in MODULES:
        for module in MODULES:
            home = import_module(f".{module}", __name__)
            if name in home.__all__:
                return getattr(home, name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
