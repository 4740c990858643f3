"""The child process that speaks with Qualcomm AI Hub through the service's official client, in the locked
environment `hub`; `service.py` starts it.

It imports nothing of ours. One order comes as JSON on stdin: list the devices, or run programs with their
samples on one of them. Each line of stdout is an event as JSON: progress, what a program gave, or an error.
The token comes by QAIHUB_API_TOKEN or the client's own file, and is in no event.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
from qai_hub import client as hub
from qai_hub.api_utils import get_config_path, load_default_api_config
from qai_hub.public_rest_api import APIException, ClientConfig

TOKEN = "QAIHUB_API_TOKEN"
AUTHENTICATION, TERMS, SIZE, RATE, NETWORK = "token", "terms", "size", "rate", "network"
KINDS = {401: AUTHENTICATION, 403: TERMS, 413: SIZE, 429: RATE}
"""Maps the status of an answer of the service to the kind of error."""
GONE = 404
"""The status of an answer about something that the service no longer has."""
STEP_SECONDS = 0.2
WORDS_SECONDS = 60.0
"""Seconds between two lines that say that jobs are waited for."""

events = sys.stdout
secret = ""
stopped = False


def emit(**event: object) -> None:
    text = json.dumps(event)
    events.write((text.replace(secret, "***") if secret else text) + "\n")
    events.flush()


def stop(*_: object) -> None:
    global stopped
    stopped = True


class HubRefusal(Exception):
    """The service or its result is not as it must be."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def connect() -> tuple[Any, str]:
    """Return the client and the address of its service, which the client's own file may change."""
    global secret
    token = os.environ.get(TOKEN, "")
    if Path(get_config_path()).is_file():
        config = load_default_api_config()
        config = replace(config, api_token=token or config.api_token, verbose=False)
    elif token:
        config = ClientConfig(api_token=token)
    else:
        raise HubRefusal(AUTHENTICATION, "there is no token")
    secret = config.api_token
    return hub.Client(config=config), config.api_url


def status_of(error: BaseException | None) -> int:
    """Return the status of the answer that an error comes from; 0 if it comes from none."""
    while error is not None:
        if isinstance(error, APIException):
            return int(error.status_code or 0)
        error = error.__cause__ or error.__context__
    return 0


def describe_error(error: Exception) -> dict[str, str]:
    """Return the kind of an error, and its words in one line, without the client's boxes."""
    if isinstance(error, HubRefusal):
        return {"kind": error.kind, "message": str(error)}
    kind = KINDS.get(status_of(error), NETWORK if isinstance(error, hub.InternalError) else "service")
    words = " ".join(re.sub(r"[┌─┐└┘|]", " ", str(error)).split())
    return {"kind": kind, "message": words or type(error).__name__}


def listing(client: Any, service: str) -> dict[str, object]:
    devices = [
        {"name": row.name, "os": row.os, "attributes": list(row.attributes)} for row in client.get_devices()
    ]
    versions = [
        {"name": row.name, "api_version": row.api_version, "full_version": row.full_version}
        for row in client.get_frameworks()
    ]
    return {"service": service, "devices": devices, "runtimes": versions}


class Remembered:
    """The ids of what was uploaded and submitted. Each is a file, so that a kill loses none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> str:
        path = self.folder / key
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def keep(self, key: str, value: str) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(value, encoding="utf-8")
        part.replace(path)

    def forget(self, key: str) -> None:
        (self.folder / key).unlink(missing_ok=True)


def existing(find: Any, remembered: Remembered, key: str) -> Any:
    """Return what the service has under the id of an earlier run; None if there is none any more."""
    service_id = remembered.find(key)
    try:
        return find(service_id) if service_id else None
    except hub.Error as error:
        if status_of(error) != GONE:
            raise
        remembered.forget(key)
        return None


def inputs_of(order: dict[str, Any]) -> dict[str, list[Any]]:
    inputs: dict[str, list[Any]] = {}
    for index, tensor in enumerate(order["inputs"]):
        arrays = [numpy.fromfile(paths[index], tensor["dtype"]) for paths in order["samples"]]
        inputs[tensor["name"]] = [array.reshape(tensor["shape"]) for array in arrays]
    return inputs


def submit(client: Any, order: dict[str, Any], remembered: Remembered) -> Any:
    """Return the job, which an earlier run may have submitted."""
    if job := existing(client.get_job, remembered, order["job_key"]):
        emit(progress=f"{order['program']}: goes on with job {job.job_id}")
        return job
    model = existing(client.get_model, remembered, order["model_key"])
    if model is None:
        emit(progress=f"{order['program']}: uploading {Path(order['context']).name}")
        model = client.upload_model(order["context"], name=order["program"])
        remembered.keep(order["model_key"], model.model_id)
    data = existing(client.get_dataset, remembered, order["data_key"])
    if data is None or data.is_expired():
        data = client.upload_dataset(inputs_of(order), name=order["program"])
        remembered.keep(order["data_key"], data.dataset_id)
    job = client.submit_inference_job(
        model,
        device=hub.Device(order["device"], order["os"]),
        name=order["program"],
        inputs=data,
        options=order["options"],
        profile=order["profile"],
        retry=False,
    )
    remembered.keep(order["job_key"], job.job_id)
    emit(progress=f"{order['program']}: job {job.job_id} on {order['device']}")
    return job


def plain_name(name: str) -> str:
    return re.sub(r"\W", "_", name)


def write_outputs(order: dict[str, Any], outputs: dict[str, list[Any]] | None) -> None:
    """Write `Result_N/NAME.raw`. Raises HubRefusal for a result that is not of the context's outputs."""
    expected = order["outputs"]
    found = {plain_name(name): arrays for name, arrays in (outputs or {}).items()}
    if len(expected) == len(found) == 1:
        found = {plain_name(expected[0]["name"]): next(iter(found.values()))}
    for tensor in expected:
        name = plain_name(tensor["name"])
        words = f"output {tensor['name']}: expected {tensor['dtype']}{tensor['shape']}"
        if name not in found:
            raise HubRefusal("shape", f"{words}, found the outputs {', '.join(sorted(found)) or 'none'}")
        arrays = found.pop(name)
        if len(arrays) != len(order["samples"]):
            raise HubRefusal("shape", f"{words} of {len(order['samples'])} samples, found {len(arrays)}")
        for number, array in enumerate(arrays):
            size = int(numpy.prod(tensor["shape"], dtype=int))
            if str(array.dtype) != tensor["dtype"] or array.size != size:
                raise HubRefusal("shape", f"{words}, found {array.dtype}{list(array.shape)}")
            folder = Path(order["into"], f"Result_{number}")
            folder.mkdir(parents=True, exist_ok=True)
            array.tofile(folder / f"{name}.raw")
    if found:
        raise HubRefusal("shape", f"the context has no output {min(found)}, which the service gave")


def finish(order: dict[str, Any], job: Any) -> None:
    """Fetch what a job gave. Raises HubRefusal for a failed one."""
    status = job.get_status()
    if status.failure:
        paths = job.download_job_logs(order["logs"])
        emit(logs=paths, program=order["program"])
        raise HubRefusal("failed", f"job {job.job_id} failed: {status.message or 'no reason given'}")
    write_outputs(order, job.download_output_data())
    profile = job.download_profile() if order["profile"] else {}
    emit(outcome="ran", program=order["program"], job=job.job_id, profile=profile)


class JobQueue:
    """Submits the jobs of an order, at most so many at once, and fetches what they give."""

    def __init__(self, client: Any, order: dict[str, Any]) -> None:
        self.client = client
        self.order = order
        self.remembered = Remembered(Path(order["state"]))
        self.waiting: list[dict[str, Any]] = list(order["jobs"])
        self.running: dict[str, tuple[dict[str, Any], Any]] = {}
        """Maps a program to its part of the order, and to the service's job."""

    @property
    def is_done(self) -> bool:
        return stopped or not (self.waiting or self.running)

    def run(self) -> None:
        """Go on until every job has ended, the time is up, or this process is told to stop."""
        until = time.monotonic() + self.order["seconds"]
        next_words = 0.0
        while not self.is_done:
            pause = self.submit_waiting()
            self.fetch_finished()
            if not self.is_done and time.monotonic() > until:
                self.give_up()
                return
            if self.running and time.monotonic() > next_words:
                jobs = len(self.waiting) + len(self.running)
                emit(progress=f"waiting for {len(self.running)} of {jobs} jobs")
                next_words = time.monotonic() + WORDS_SECONDS
            self.sleep(pause)

    def submit_waiting(self) -> float:
        """Submit as many jobs as the limit allows. Return the seconds to pause before the next look."""
        while self.waiting and len(self.running) < self.order["limit"] and not stopped:
            row = self.waiting.pop(0)
            try:
                self.running[row["program"]] = row, submit(self.client, row, self.remembered)
            except hub.RateLimitedError as error:
                self.waiting.insert(0, row)
                pause = float(self.order["rate_pause"])
                message = describe_error(error)["message"]
                emit(progress=f"{row['program']}: too many jobs, next try in {pause:g} s: {message}")
                return pause
            except Exception as error:
                emit(outcome="error", program=row["program"], **describe_error(error))
        return float(self.order["poll"])

    def fetch_finished(self) -> None:
        for name, (row, job) in list(self.running.items()):
            try:
                if not job.get_status().finished:
                    continue
                finish(row, job)
            except Exception as error:
                if isinstance(error, HubRefusal):
                    # The next run submits it anew.
                    self.remembered.forget(row["job_key"])
                emit(outcome="error", program=name, **describe_error(error))
            del self.running[name]

    def give_up(self) -> None:
        """Report all jobs that are left. The next run goes on with those that were submitted."""
        for row in [*self.waiting, *(row for row, _ in self.running.values())]:
            job_id = self.remembered.find(row["job_key"]) or "none yet"
            message = f"no result after {self.order['seconds']:g} s (job {job_id})"
            emit(outcome="error", program=row["program"], kind="timeout", message=message)

    def sleep(self, pause: float) -> None:
        """Pause, but not longer than until this process is told to stop."""
        end = time.monotonic() + pause
        while not self.is_done and time.monotonic() < end:
            time.sleep(STEP_SECONDS)


def main() -> None:
    # The client prints; stdout is for events alone.
    sys.stdout = sys.stderr
    signal.signal(signal.SIGTERM, stop)
    order = json.load(sys.stdin)
    try:
        client, service = connect()
        if order["do"] == "list":
            emit(listing=listing(client, service))
        else:
            JobQueue(client, order).run()
    except Exception as error:
        emit(error=describe_error(error))


if __name__ == "__main__":
    main()
