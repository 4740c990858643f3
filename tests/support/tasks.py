"""What tasks of the tests do, each a function that ci/work/schedule.py calls in a child process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

imported_in = os.getpid()


def prepare() -> None:
    import numpy  # noqa: F401


def fail_to_prepare() -> None:
    raise ImportError("there is no such library")


def prepare_for_ever(into: str) -> None:
    Path(into).write_text(str(os.getpid()))
    time.sleep(60)


def echo(request: dict[str, Any]) -> dict[str, Any]:
    print("a line of the log")
    return {**request, "process": os.getpid(), "imported_in": imported_in}


def surroundings(request: dict[str, Any]) -> dict[str, Any]:
    """What the user's code finds."""
    import numpy

    return {
        "stdin": sys.stdin.read(),
        "arguments": sys.argv[1:],
        "variables": dict(os.environ),
        "temporary": tempfile.gettempdir(),
        "drawn": [numpy.random.random(), random.random()],
        "cores": sorted(os.sched_getaffinity(0)),
    }


def change(request: dict[str, Any]) -> dict[str, Any]:
    """Whether another task's change is seen here."""
    seen = sys.modules[__name__].__dict__.get("changed", False)
    sys.modules[__name__].__dict__["changed"] = True
    return {"seen": seen}


def end(request: dict[str, Any]) -> dict[str, Any]:
    print("my last words", flush=True)
    if request["how"] == "exit":
        os._exit(3)
    if request["how"] == "raise":
        raise ValueError("no model")
    if request["how"] == "disk":
        raise OSError(28, "No space left on device")
    os.kill(os.getpid(), getattr(signal, request["how"]))
    time.sleep(60)
    return {}


def hang(request: dict[str, Any]) -> dict[str, Any]:
    """With a grandchild in a session of its own, whose number is written down; busy for a while if asked."""
    grandchild = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    Path(request["file"]).write_text(f"{grandchild.pid} {os.getpid()}")
    while request.get("busy") and time.process_time() < 0.3:
        pass
    if request.get("ends"):
        return {"grandchild": grandchild.pid}
    time.sleep(600)
    return {}


def sleep(request: dict[str, Any]) -> dict[str, Any]:
    with Path(request["file"]).open("a") as stream:
        stream.write(f"{request['name']}\n")
    time.sleep(0.1)
    return {}


def export(request: dict[str, Any]) -> dict[str, Any]:
    """Stays, with a value that the tasks that need it find."""
    sys.modules[__name__].__dict__["exported"] = request["value"]
    with Path(request["file"]).open("a") as stream:
        stream.write(f"{request['value']} {os.getpid()}\n")
    if request["value"] == "bad":
        os._exit(3)
    return {"value": request["value"]}


def compile_exported(request: dict[str, Any]) -> dict[str, Any]:
    """What it found, and what another one left in the export's process."""
    module = sys.modules[__name__].__dict__
    before, module["compiled"] = module.get("compiled", 0), 1
    if request.get("ends"):
        os._exit(4)
    return {"value": module["exported"], "before": before, "parent": os.getpid()}


def compile_for_chips(request: dict[str, Any]) -> dict[str, Any]:
    """Begins the work of several tasks, which go on from the middle of it."""
    from ci.work.child import Meter
    from ci.work.template import hold

    meter = Meter()
    with Path(request["file"]).open("a") as stream:
        stream.write(f"begun {os.getpid()}\n")
    if request.get("dies"):
        os._exit(3)
    while time.process_time() < 0.2:
        pass
    own = hold({})
    print(f"goes on for {own['name']}", flush=True)
    if own.get("fails_here"):
        os._exit(4)
    costs = meter.read()
    return {"name": own["name"], "parent": os.getppid(), "cpu": costs.cpu_seconds, "seconds": costs.seconds}


def compile_alone(request: dict[str, Any]) -> dict[str, Any]:
    return {"name": request["name"], "alone": True}


def part(request: dict[str, Any]) -> dict[str, Any]:
    sys.modules[__name__].__dict__["part_was_here"] = True
    return echo(request) if request["how"] == "echo" else end(request)


def in_parts(request: dict[str, Any]) -> dict[str, Any]:
    """The outcomes of parts in forks, and whether they left anything here."""
    from ci.work.template import run_in_fork

    replies = [run_in_fork(part, {"how": how}) for how in request["parts"]]
    return {"outcomes": replies, "left": sys.modules[__name__].__dict__.get("part_was_here", False)}


def run_hanging(file: str) -> None:
    """A command with a task that hangs: for a test that kills it."""
    from ci.work.jobs import Line
    from ci.work.processes import ChildTask
    from ci.work.schedule import run_tasks
    from tests.unit.test_work import home_in

    folder = Path(file).parent
    run_tasks(
        [ChildTask("one", "tests.support.tasks:hang", {"file": file}, 600, folder / "log")],
        home_in(folder),
        "toys",
        lambda *_: Line(""),
    )


if __name__ == "__main__":
    run_hanging(sys.argv[1])
