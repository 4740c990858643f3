"""The things that all jobs of one rehearsal share: the event, the machine, the environment, cancellation."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ci.github.rehearse import commands
from ci.github.rehearse.equivalents import Machine
from ci.github.rehearse.expression import Known, Value
from ci.github.rehearse.model import Workflow
from provisioning.base.errors import UsageError

Result: TypeAlias = Literal["success", "failure", "cancelled", "skipped", "left out"]


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    ref: str
    payload: Mapping[str, Value]
    base_ref: str = ""
    head_ref: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The part of a workflow to run. Patterns are like those of file names."""

    only: tuple[str, ...] = ()
    """Ids of jobs. The jobs that they need run too."""
    rows: tuple[str, ...] = ()
    """Names of matrix jobs; other rows are left out."""


@dataclass(slots=True)
class StepResult:
    title: str
    outcome: Result
    conclusion: Result
    seconds: float
    outputs: Mapping[str, Value]


@dataclass(slots=True)
class JobResult:
    """One job, or one row of its matrix."""

    name: str
    result: Result
    seconds: float = 0.0
    steps: list[StepResult] = field(default_factory=list)
    annotations: list[commands.Annotation] = field(default_factory=list)
    summary: str = ""
    log: Path | None = None
    failure: str = ""
    """The step that failed, and its error."""
    outputs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rehearsal:
    scratch: Path
    machine: Machine
    event: Event
    env: Mapping[str, str]
    """The environment of a fresh runner."""
    slots: threading.Semaphore
    print: Callable[[str], None]
    logs: Path
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Running steps are ended. After that, only steps and jobs with `always()` or `cancelled()` begin."""
    aborted: threading.Event = field(default_factory=threading.Event)
    """Those are ended too: after a second interruption, or after an error in the workflow."""
    default_branch: str = "main"
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables of the repository, `vars` in a workflow."""

    def abort(self) -> None:
        self.aborted.set()
        self.cancelled.set()


def github_context(rehearsal: Rehearsal, workflow: Workflow, job: str) -> Known:
    event, repository = rehearsal.event, rehearsal.machine.repository
    return Known(
        "github",
        {
            "action": "",
            "actor": "rehearsal",
            "api_url": "https://api.github.com",
            "base_ref": event.base_ref,
            "event": event.payload,
            "event_name": event.name,
            "head_ref": event.head_ref,
            "job": job,
            "ref": event.ref,
            "ref_name": re.sub("^refs/(?:heads|tags|pull)/", "", event.ref),
            "ref_protected": event.ref == f"refs/heads/{rehearsal.default_branch}",
            "ref_type": "tag" if event.ref.startswith("refs/tags/") else "branch",
            "repository": repository.name,
            "repository_owner": repository.name.split("/")[0],
            "run_attempt": "1",
            "run_id": "1",
            "run_number": "1",
            "server_url": "https://github.com",
            "sha": repository.sha,
            "token": "",
            "triggering_actor": "rehearsal",
            "workflow": workflow.name,
            "workflow_ref": f"{repository.name}/{workflow.path}@{event.ref}",
            "workflow_sha": repository.sha,
        },
    )


def fresh_environment(environ: Mapping[str, str], settings: Sequence[str], hidden: Path) -> dict[str, str]:
    """The environment of a hosted runner.

    Of the user's variables only those for indexes, proxies, container engines and their caches are kept.
    Programs under `hidden` are not on PATH. `settings` are NAME=VALUE.
    """
    kept = ("PIP_", "UV_", "SSL_", "LC_", "REQUESTS_", "DOCKER_")
    named = ("HOME", "LANG", "USER", "TZ", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "QNN_CI_MIRROR")
    env = {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(kept) or name.upper() in named
    }
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache")
    env.setdefault("PIP_CACHE_DIR", str(home / "pip"))
    env.setdefault("UV_CACHE_DIR", str(home / "uv"))
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    env["PATH"] = os.pathsep.join(entry for entry in path if not entry.startswith(str(hidden)))
    return env | pairs("--env", settings)


def pairs(flag: str, settings: Sequence[str]) -> dict[str, str]:
    values = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(
                f"{flag} {shlex.quote(setting)}: expected NAME=VALUE", remedy=f"{flag} QNN_CI_SOC=SM8750"
            )
        values[name] = value
    return values
