"""Run context binaries on devices of Qualcomm AI Hub.

`run_contexts` names what leaves the machine and requires the user's agreement, starts the official client in
a child process (`client.py`), and keeps what each job gave: a context that ran before is not submitted
again."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ci.diagnose.logs import nearest
from ci.hub.choice import HubDevice, HubRuntime, Listing, choose_device, choose_runtime
from ci.suite.contexts import ContextJob, ContextOutcome, ContextProfile, ContextRun, RunContexts
from ci.suite.options import DeviceFlags
from ci.suite.stage import Plan
from ci.work import CachedResults, Failure, digest_of, read, to_json
from provisioning.base.commands import session
from provisioning.base.errors import (
    CheckFailed,
    EnvironmentLacking,
    ToolkitError,
    UpstreamError,
    UsageError,
)
from provisioning.base.files import hash_file
from provisioning.base.units import size
from provisioning.python_environments import PythonEnvironments, environments_folder

ENVIRONMENT = "hub"
CLIENT = Path(__file__).with_name("client.py")
WAY = "aihub"
STATE = "hub"
"""The folder in the store with the ids of uploaded models and of submitted jobs."""
ACCOUNT = "https://workbench.aihub.qualcomm.com/account/"
RERUN = "type the same command again: it goes on with the submitted jobs"
QUARTERS = 4
NOT_RUN, FAILED, SHAPE = "not-run", "run", "shape"
"""The ends of the rules of findings."""
FIXES = {
    "token": (NOT_RUN, f"set QAIHUB_API_TOKEN to the token of {ACCOUNT}", EnvironmentLacking.exit_code),
    "terms": (
        NOT_RUN,
        f"accept AI Hub's terms at {ACCOUNT}, or ask for access there",
        EnvironmentLacking.exit_code,
    ),
    "size": (NOT_RUN, "keep fewer samples, or run a smaller program", CheckFailed.exit_code),
    "rate": (NOT_RUN, RERUN, UpstreamError.exit_code),
    "network": (NOT_RUN, RERUN, UpstreamError.exit_code),
    "service": (
        NOT_RUN,
        "choose another --device, or type the same command later",
        UpstreamError.exit_code,
    ),
    "timeout": (NOT_RUN, f"{RERUN}; give it longer with --timeout", UpstreamError.exit_code),
    "failed": (FAILED, "", CheckFailed.exit_code),
    "shape": (
        SHAPE,
        "report what AI Hub gave: docs/devices.md says what is assumed of it",
        CheckFailed.exit_code,
    ),
}
"""Maps the kind of an error of the child to the end of its rule, what to do next, and its exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubOptions:
    store: Path
    uploads_agreed: bool
    """Whether the user agreed to upload programs and samples."""
    seconds: float = 3600.0
    """How long to wait for all jobs."""
    jobs: int = 4
    """At most so many jobs are at the service at the same time."""
    poll_seconds: float = 5.0
    rate_seconds: float = 30.0
    """How long to wait after the service has refused a job because there are too many."""
    python: str = ""
    """The Python of the environment; empty for our own, which is made when first used."""


@dataclass(frozen=True, slots=True)
class _Planned:
    job: ContextJob
    service: str
    """The address of the service."""
    device: HubDevice
    runtime: HubRuntime
    context: str
    """The digest of the context."""
    data: str
    """The digest of the samples."""

    @property
    def key(self) -> dict[str, Any]:
        return {
            "context": self.context,
            "samples": self.data,
            "service": self.service,
            "device": [self.device.name, self.device.os],
            "runtime": self.runtime.full_version or self.runtime.api_version,
            "outputs": [to_json(row) for row in self.job.outputs],
            "profile": self.job.profile,
        }


def run_contexts(options: HubOptions, jobs: Sequence[ContextJob], into: Path) -> Mapping[str, ContextOutcome]:
    """Run contexts on the devices of AI Hub. Raises an error if the service cannot be used at all; what
    concerns one program is its outcome."""
    python = options.python or PythonEnvironments(environments_folder(), _tell).interpreter(ENVIRONMENT)
    listing = _listing(python, into)
    outcomes: dict[str, ContextOutcome] = {}
    planned = []
    for job in jobs:
        try:
            planned.append(_plan(job, listing))
        except UsageError:
            raise
        except ToolkitError as error:
            outcomes[job.program] = Failure(NOT_RUN, error.message, error.fix, exit_code=error.exit_code)
    cached = CachedResults(options.store, "device")
    missing = []
    for row in planned:
        if found := cached.find(row.key):
            assert found.folder is not None
            _tell(f"{row.job.program}: cached, of {row.device.name}")
            outcomes[row.job.program] = _ran(row, found.folder, found.facts["profile"])
        else:
            missing.append(row)
    if missing:
        _require_agreement(missing, options)
        outcomes |= _run(python, missing, options, cached, into)
    cached.close()
    return outcomes


def run_of_plan(plan: Plan, flags: DeviceFlags) -> RunContexts:
    """Return the function that runs the contexts of a suite's programs."""
    agreed = flags.yes or all(program.upload for program in plan.programs)
    return partial(run_contexts, HubOptions(store=plan.selection.store, uploads_agreed=agreed))


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _listing(python: str, into: Path) -> Listing:
    for event in _events(python, {"do": "list"}, into):
        if "listing" in event:
            return read(Listing, event["listing"])
    raise UpstreamError("AI Hub's client ended without an answer", fix=f"read {_log(into)}")


def _plan(job: ContextJob, listing: Listing) -> _Planned:
    device = choose_device(job, listing.devices)
    samples = [",".join(map(hash_file, sample)) for sample in job.samples]
    data = digest_of({"inputs": [to_json(row) for row in job.inputs], "samples": [*samples]})
    return _Planned(
        job=job,
        service=listing.service,
        device=device,
        runtime=choose_runtime(job, listing.runtimes),
        context=hash_file(job.context),
        data=data,
    )


def _require_agreement(missing: Sequence[_Planned], options: HubOptions) -> None:
    lines = []
    for row in missing:
        files = [row.job.context, *(path for sample in row.job.samples for path in sample)]
        total = size(sum(path.stat().st_size for path in files))
        lines.append(f"  {row.job.program}: its context and {len(row.job.samples)} samples, {total}")
    text = "\n".join(["uploaded to Qualcomm AI Hub:", *lines])
    if not options.uploads_agreed:
        raise UsageError(f"this would be {text}", fix="add --yes, which agrees to it")
    _tell(text)


def _run(
    python: str, missing: Sequence[_Planned], options: HubOptions, cached: CachedResults, into: Path
) -> dict[str, ContextOutcome]:
    rows = {row.job.program: row for row in missing}
    folders = {name: cached.scratch() for name in rows}
    order = {
        "do": "run",
        "state": str(options.store / STATE),
        "limit": options.jobs,
        "seconds": options.seconds,
        "poll": options.poll_seconds,
        "rate_pause": options.rate_seconds,
        "jobs": [_order(row, folders[name], into) for name, row in rows.items()],
    }
    outcomes: dict[str, ContextOutcome] = {}
    logs: dict[str, list[str]] = {}
    for event in _events(python, order, into):
        name = event.get("program", "")
        if progress := event.get("progress"):
            _tell(progress)
        elif "logs" in event:
            logs[name] = event["logs"]
        elif event.get("outcome") == "ran":
            kept = cached.keep(name, rows[name].key, {"profile": event["profile"]}, folders[name])
            assert kept.folder is not None
            outcomes[name] = _ran(rows[name], kept.folder, event["profile"])
        elif event.get("outcome") == "error":
            shutil.rmtree(folders[name], ignore_errors=True)
            outcomes[name] = _failure(event["kind"], event["message"], logs.get(name, []))
    for name in rows.keys() - outcomes.keys():
        message = f"AI Hub's client ended without a result of {name}"
        outcomes[name] = Failure(NOT_RUN, message, RERUN, _log(into), exit_code=UpstreamError.exit_code)
    return outcomes


def _order(row: _Planned, folder: Path, into: Path) -> dict[str, Any]:
    job = row.job
    return {
        "program": job.program,
        "context": str(job.context),
        "model_key": f"models/{_known_as(row, row.context)}",
        "data_key": f"data/{_known_as(row, row.data)}",
        "job_key": f"jobs/{digest_of(row.key)}",
        "inputs": [to_json(tensor) for tensor in job.inputs],
        "outputs": [to_json(tensor) for tensor in job.outputs],
        "samples": [list(map(str, sample)) for sample in job.samples],
        "device": row.device.name,
        "os": row.device.os,
        "options": f"--qairt_version {row.runtime.api_version}",
        "profile": job.profile,
        "into": str(folder),
        "logs": str((into / "logs" / job.program).absolute()),
    }


def _known_as(row: _Planned, content: str) -> str:
    """Return the name of an upload in our notes: each service gives ids of its own."""
    return digest_of({"service": row.service, "content": content})


def _ran(row: _Planned, folder: Path, profile: Mapping[str, Any]) -> ContextRun:
    return ContextRun(
        outputs=folder,
        device=row.device.name,
        build_id=row.runtime.full_version or row.runtime.api_version,
        profile=_profile(profile) if profile else None,
    )


def _profile(profile: Mapping[str, Any]) -> ContextProfile:
    summary = profile["execution_summary"]
    times = summary.get("all_inference_times") or [summary["estimated_inference_time"]]
    quartiles = statistics.quantiles(times, n=QUARTERS) if len(times) > 1 else [times[0]] * 3
    peak = summary.get("estimated_inference_peak_memory")
    return ContextProfile(
        latency_us=float(statistics.median(times)),
        spread_us=float(quartiles[-1] - quartiles[0]),
        peak_bytes=int(peak) if peak and peak > 0 else None,
        load_us=float(summary["warm_load_time"]) if (summary.get("warm_load_time") or 0) > 0 else None,
        layers=dict(Counter(row["compute_unit"] for row in profile["execution_detail"])),
    )


def _failure(kind: str, message: str, logs: Sequence[str]) -> Failure:
    rule, fix, code = FIXES[kind]
    log = Path(logs[0]) if logs else None
    for path in map(Path, logs):
        if row := nearest(path.read_text(encoding="utf-8", errors="replace")):
            message, fix = f"{message}; {path.name}: {row.cause}", row.fix
            break
    fix = fix or (session("diagnose", log) if log else "open the job on AI Hub's page")
    return Failure(rule, message, fix, log, exit_code=code)


def _log(into: Path) -> Path:
    return into / "hub.log"


def _events(python: str, order: Mapping[str, Any], into: Path) -> Iterator[dict[str, Any]]:
    """Yield what the child says. Raises an error if the service cannot be used."""
    into.mkdir(parents=True, exist_ok=True)
    with _log(into).open("w", encoding="utf-8") as log, _child(python, log) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(order))
        process.stdin.close()
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            if error := event.get("error"):
                _, fix, code = FIXES[error["kind"]]
                raise ToolkitError(f"AI Hub: {error['message']}", fix=fix, exit_code=code)
            yield event


@contextmanager
def _child(python: str, log: Any) -> Iterator[subprocess.Popen[str]]:
    """Start the child. If we are interrupted, it ends after it has written the ids of what it submitted."""
    command = [python, "-I", str(CLIENT)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        env=dict(os.environ), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            process.terminate()
            raise
