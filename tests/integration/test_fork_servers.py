"""Workers that a fork server forks are as those that a stage starts itself, and nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ci.engine.closed import closed
from ci.engine.workers import parent
from ci.engine.workers.child import MEMORY, THREADS
from ci.engine.workers.fork_server import FORK_SERVERS
from ci.engine.workers.forked import shared_fork_servers
from ci.engine.workers.parent import Worker, WorkerDied, WorkerSpec
from provisioning.base.settings import ROOT
from tests.support.builds import gone

PROGRAM = """
import locale, os, random, re, resource, signal, sys, time
from pathlib import Path
from ci.engine.workers import fork_server
from ci.engine.workers.child import serve

FOLDER = Path({folder!r})
fork_server.YOUNG_SECONDS, fork_server.IDLE_SECONDS, fork_server.LOOK_SECONDS = {young}, {idle}, 0.1

def state():
    own = Path("/proc/self")
    # Those of the report itself and the number of the replies differ.
    targets = [re.sub("[0-9]+|worker-.*", "", os.readlink(own / "fd" / each))
               for each in sorted(os.listdir(own / "fd"), key=int) if (own / "fd" / each).is_symlink()]
    # SigQ counts signals of all processes of this user.
    status = [line for line in (own / "status").read_text().splitlines()
              if line.startswith(("Umask", "SigP", "SigB", "SigI", "SigC", "Shd", "Cap", "Cpus", "Groups",
                                  "Threads"))]
    return {{
        "environment": (own / "environ").read_text(),
        "environ": {{name: value for name, value in os.environ.items() if "/qnn-ci-" not in value}},
        "cwd": os.getcwd(),
        "command": (own / "cmdline").read_text().split("\\0")[:-2], "argv": sys.argv[:-1], "path": sys.path,
        "modules": sorted(sys.modules), "descriptors": targets, "status": status,
        "handlers": [str(signal.getsignal(each)) for each in signal.valid_signals()],
        "limits": (own / "limits").read_text(), "locale": locale.setlocale(locale.LC_ALL),
        "session": os.getsid(0) == os.getpgid(0) == os.getppid(), "stdin": sys.stdin.read(),
        "streams": [(each.line_buffering, each.encoding) for each in (sys.stdout, sys.stderr)],
        "flags": [os.get_inheritable(each) for each in range(6) if (own / "fd" / str(each)).exists()],
    }}

def start():
    with (FOLDER / "imports").open("a") as stream:
        stream.write("once\\n")
    sys.path.insert(0, {folder!r})
    import colorsys, heavy
    # It takes longer to import than all of ours.
    numpy = __import__("numpy") if {numpy} else None

    def answer(order):
        print("working on", order["do"])
        if order["do"] == "sleep":
            (FOLDER / "sleeps").touch()
            time.sleep(600)
        if order["do"] == "crash":
            os.kill(os.getppid(), signal.SIGSEGV)
            time.sleep(600)
        server = Path(f"/proc/{{os.getppid()}}/stat").read_text().rpartition(")")[2].split()[1]
        return {{
            "value": heavy.VALUE, "worker": os.getppid(), "server": int(server),
            "limit": resource.getrlimit(resource.RLIMIT_DATA)[0], "state": state(),
            "drawn": [random.random(), numpy.random.random() if numpy else 0],
            "module": colorsys.__file__,
        }}
    return answer

serve(int(sys.argv[1]), start, forks=True)
"""

COMMAND = """
import json, sys
from pathlib import Path
from tests.integration.test_fork_servers import spec_of
from ci.engine.workers.parent import Worker

workers = [Worker(spec_of(Path(sys.argv[1]))) for _ in range(2)]
replies = [worker.ask({"do": "report"}) for worker in workers]
print(json.dumps([reply[name] for reply in replies for name in ("worker", "server")]), flush=True)
if sys.argv[2] == "sleep":
    workers[0].ask({"do": "sleep"})
for worker in workers:
    worker.end()
"""


def spec_of(
    folder: Path,
    variables: Mapping[str, str] | None = None,
    *,
    young: float = 0.0,
    idle: float = 60.0,
    numpy: bool = False,
) -> WorkerSpec:
    program = PROGRAM.format(folder=str(folder), young=young, idle=idle, numpy=numpy)
    environment = {name: value for name, value in closed(os.environ).items() if name != "PYTHONPATH"}
    environment |= {THREADS: "1", **(variables or {})}
    return WorkerSpec(("-c", program), environment, folder / "logs", 30, "the tests", "", forks=True)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "heavy.py").write_text("VALUE = 1\n")
    pause()
    return tmp_path


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(FORK_SERVERS, "")
    with shared_fork_servers(os.environ):
        yield Path(os.environ[FORK_SERVERS])


@pytest.fixture
def workers(shared: Path) -> Iterator[Callable[[WorkerSpec], Worker]]:
    started: list[Worker] = []

    def start(setup: WorkerSpec) -> Worker:
        started.append(Worker(setup))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


Start = Callable[[WorkerSpec], Worker]


def pause() -> None:
    """Processes that begin after it began after the last change of a file."""
    time.sleep(0.05)


def imports(place: Path) -> int:
    return len((place / "imports").read_text().splitlines())


def report(worker: Worker) -> dict[str, Any]:
    return worker.ask({"do": "report", "log": str(worker.setup.logs / "report.log")})


class TestSharing:
    def test_workers_that_begin_at_the_same_moment_import_once(self, place: Path, workers: Start) -> None:
        with ThreadPoolExecutor(4) as threads:
            started = list(threads.map(lambda _: workers(spec_of(place)), range(4)))
        replies = [report(worker) for worker in started]
        assert imports(place) == 1
        assert len({reply["worker"] for reply in replies}) == 4
        assert {reply["value"] for reply in replies} == {1}
        assert (place / "logs" / "report.log").read_text() == "working on report\n"

    @pytest.mark.parametrize("name", ["HOME", THREADS, "HF_HUB_OFFLINE"])
    def test_another_variable_is_another_server(self, place: Path, workers: Start, name: str) -> None:
        found = {report(workers(spec_of(place, more)))["server"] for more in ({}, {name: "2"})}
        assert len(found) == imports(place) == 2

    def test_the_memory_limit_is_each_workers_own(self, place: Path, workers: Start) -> None:
        limits = [
            report(workers(spec_of(place, {MEMORY: str(limit)})))["limit"] for limit in (5 << 30, 6 << 30)
        ]
        assert limits == [5 << 30, 6 << 30] and imports(place) == 1

    def test_each_worker_draws_other_random_numbers(self, place: Path, workers: Start) -> None:
        drawn = [report(workers(spec_of(place, numpy=True)))["drawn"] for _ in range(2)]
        assert not set(drawn[0]) & set(drawn[1]) and imports(place) == 1

    def test_a_worker_is_as_one_that_was_started_alone(
        self, place: Path, workers: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Another worker's descriptors must not be found in it.
        workers(spec_of(place, numpy=True))
        shared = workers(spec_of(place, numpy=True))
        touched, state = dict(shared.touched), report(shared)["state"]
        monkeypatch.setattr(parent, "forked", lambda *_: None)
        alone = workers(spec_of(place, numpy=True))
        assert imports(place) == 2
        assert state == report(alone)["state"]
        assert touched == dict(alone.touched)


class TestStaleness:
    def test_a_changed_file_starts_another_server(self, place: Path, workers: Start) -> None:
        first = workers(spec_of(place))
        info = (place / "heavy.py").stat()
        (place / "heavy.py").write_text("VALUE = 2\n")
        os.utime(place / "heavy.py", ns=(info.st_atime_ns, info.st_mtime_ns))
        pause()
        assert [report(worker)["value"] for worker in (first, workers(spec_of(place)))] == [1, 2]
        assert imports(place) == 2

    def test_a_file_that_is_linked_into_another_environment_starts_none(
        self, place: Path, workers: Start
    ) -> None:
        (cached := place / "cached.py").hardlink_to(place / "heavy.py")
        pause()
        first = report(workers(spec_of(place)))["server"]
        (place / "linked.py").hardlink_to(cached)
        (place / "linked.py").unlink()
        assert report(workers(spec_of(place)))["server"] == first and imports(place) == 1

    def test_a_file_of_several_names_that_is_written_starts_another_server(
        self, place: Path, workers: Start
    ) -> None:
        (place / "cached.py").hardlink_to(place / "heavy.py")
        pause()
        workers(spec_of(place))
        (place / "cached.py").write_text("VALUE = 2\n")
        pause()
        assert report(workers(spec_of(place)))["value"] == 2 and imports(place) == 2

    def test_a_module_that_comes_before_one_starts_another_server(self, place: Path, workers: Start) -> None:
        workers(spec_of(place))
        (place / "colorsys.py").touch()
        pause()
        assert report(workers(spec_of(place)))["module"] == str(place / "colorsys.py")

    def test_a_library_that_is_new_on_the_search_path_starts_another_server(
        self, place: Path, workers: Start
    ) -> None:
        (place / "lib").mkdir()
        for _ in range(2):
            workers(spec_of(place, {"LD_LIBRARY_PATH": str(place / "lib")}))
        (place / "lib" / "libnew.so").touch()
        workers(spec_of(place, {"LD_LIBRARY_PATH": str(place / "lib")}))
        assert imports(place) == 2

    def test_what_has_just_changed_is_not_shared(self, place: Path, workers: Start) -> None:
        assert (
            len({report(workers(spec_of(place, young=60)))["server"] for _ in range(2)} - {os.getpid()}) == 0
        )


class TestEnds:
    def test_a_command_alone_starts_its_workers_itself_and_leaves_nothing(self, place: Path) -> None:
        done = subprocess.run(command(place, "end"), **options(place), check=True)
        first, parent, second, same = json.loads(done.stdout)
        assert parent == same and imports(place) == 2
        assert all(gone(process) for process in (first, second, parent))
        assert not list((place / "tmp").iterdir())

    def test_a_command_whose_server_stays_for_others_does_not_speak_of_it(
        self, place: Path, shared: Path
    ) -> None:
        words, how = command(place, "end"), options(place)
        how["env"][FORK_SERVERS] = str(shared)
        done = subprocess.run(
            [words[0], "-W", "always::ResourceWarning", *words[1:]], **how, stderr=subprocess.PIPE, check=True
        )
        assert done.stderr == "" and not gone_now(json.loads(done.stdout)[1])

    def test_a_command_that_is_killed_leaves_nothing(self, place: Path) -> None:
        with subprocess.Popen(command(place, "sleep"), **options(place)) as process:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            while not (place / "sleeps").exists():
                time.sleep(0.01)
            process.kill()
        assert all(map(gone, found))
        assert not [path for path in (place / "tmp").iterdir() if path.name.startswith("qnn-ci-workers-")]

    def test_a_worker_whose_server_is_killed_ends_too_and_the_next_has_another(
        self, place: Path, workers: Start
    ) -> None:
        worker = workers(spec_of(place))
        found = report(worker)
        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(worker.ask, {"do": "sleep"})
            while not (place / "sleeps").exists():
                time.sleep(0.01)
            os.kill(found["server"], signal.SIGKILL)
            with pytest.raises(WorkerDied, match="SIGKILL"):
                asking.result()
        assert gone(found["worker"])
        assert report(workers(spec_of(place)))["value"] == 1

    def test_a_crash_is_said_and_the_others_go_on(self, place: Path, workers: Start) -> None:
        other, worker = (workers(spec_of(place)) for _ in range(2))
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            worker.ask({"do": "crash"})
        assert report(other)["value"] == 1

    def test_an_idle_server_ends_and_the_next_worker_has_another(self, place: Path, workers: Start) -> None:
        found = []
        for _ in range(2):
            worker = workers(spec_of(place, idle=0.3))
            time.sleep(0.6)
            found.append(report(worker)["server"])
            worker.end()
            assert gone(found[-1])
        assert imports(place) == 2 and os.getpid() not in found

    def test_the_servers_end_with_what_they_are_shared_in(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(FORK_SERVERS, "")
        with shared_fork_servers(os.environ):
            folder, worker = Path(os.environ[FORK_SERVERS]), Worker(spec_of(place))
            server = report(worker)["server"]
            worker.end()
            assert not gone_now(server)
        assert gone(server) and not folder.exists() and not os.environ.get(FORK_SERVERS)


class TestTrouble:
    @pytest.mark.parametrize("folder", ["absent", "open to all", "owner gone", "no owner", "no folder"])
    def test_a_folder_that_cannot_be_used_is_not(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, folder: str
    ) -> None:
        (made := place / "servers").mkdir(mode=0o755 if folder == "open to all" else 0o700)
        ended = subprocess.Popen([sys.executable, "-c", ""])
        ended.wait()
        owner = f"{ended.pid} 1" if folder == "owner gone" else f"{os.getpid()} 1"
        if folder != "no owner":
            (made / "owner").write_text(owner)
        names = {"absent": place / "absent", "no folder": place / "heavy.py"}
        monkeypatch.setenv(FORK_SERVERS, str(names.get(folder, made)))
        before = sorted(made.iterdir())
        worker = Worker(spec_of(place))
        try:
            assert report(worker)["value"] == 1 and sorted(made.iterdir()) == before
        finally:
            worker.end()

    def test_a_long_path_of_the_folder_is_no_trouble(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (long := place / ("long" * 40)).mkdir()
        monkeypatch.setenv(FORK_SERVERS, "")
        monkeypatch.setattr("tempfile.tempdir", str(long))
        with shared_fork_servers(os.environ):
            started = [Worker(spec_of(place)) for _ in range(2)]
            for worker in started:
                worker.end()
        assert imports(place) == 1 and not list(long.iterdir())

    def test_a_socket_without_a_server_is_replaced(self, place: Path, shared: Path, workers: Start) -> None:
        server = report(workers(spec_of(place)))["server"]
        os.kill(server, signal.SIGKILL)
        assert gone(server)
        assert report(workers(spec_of(place)))["server"] not in (server, os.getpid())

    def test_a_client_that_says_nothing_does_not_hold_others_up(
        self, place: Path, shared: Path, workers: Start
    ) -> None:
        import socket

        workers(spec_of(place))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            [path] = [path for path in shared.iterdir() if path.is_socket()]
            silent.connect(str(path))
            assert report(workers(spec_of(place)))["value"] == 1
        assert imports(place) == 1


def command(place: Path, what: str) -> list[str]:
    return [sys.executable, "-c", COMMAND, str(place), what]


def options(place: Path) -> dict[str, Any]:
    (place / "tmp").mkdir()
    environment = {**os.environ, FORK_SERVERS: "", "TMPDIR": str(place / "tmp")}
    return {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE, "text": True}


def gone_now(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()
