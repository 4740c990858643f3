"""A small runner of GitHub Actions on this machine: enough to run our workflows and actions as another
repository calls them, with GitHub's caches, artifacts and list of caches.

What it cannot show is `NOT_SHOWN`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from lab.adopter.expressions import ExpressionScope, Value

NOT_SHOWN = (
    "what the rights of a token allow: `permissions` are read by nobody",
    "that GitHub gives a job only the caches of its own ref, its base and the default branch",
    "`runs-on`, `timeout-minutes` and `concurrency`: jobs run here, one after the other, without an end",
    "`secrets`: a call has none, as a pull request from a fork",
    "how long GitHub's machines take",
)

Yaml = dict[str, Any]
SHA = "7" * 40


@dataclass(frozen=True, slots=True)
class Event:
    """What started a run."""

    name: str
    ref: str
    commit: str
    """Of the calling repository."""
    payload: Mapping[str, Value] = field(default_factory=dict)


@dataclass(slots=True)
class Hub:
    """What GitHub keeps of a repository: caches, and the artifacts of one run."""

    folder: Path
    caches: list[tuple[str, str, Path]] = field(default_factory=list)
    """Key, ref and archive, the oldest first."""
    artifacts: dict[str, Path] = field(default_factory=dict)

    def find(self, key: str, prefixes: Sequence[str], refs: Sequence[str]) -> tuple[str, Path] | None:
        """As GitHub looks: in each ref in turn the key, then the newest that begins with a prefix."""
        for ref in refs:
            own = [(name, archive) for name, place, archive in reversed(self.caches) if place == ref]
            for wanted in (lambda name: name == key, lambda name: any(map(name.startswith, prefixes))):
                if found := next((row for row in own if wanted(row[0])), None):
                    return found
        return None

    @contextmanager
    def api(self) -> Iterator[str]:
        """The address of its list of caches."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
                rows = [
                    {"key": key, "ref": ref}
                    for key, ref, _ in reversed(hub.caches)
                    if ref == query["ref"] and key.startswith(query["key"])
                ]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"actions_caches": rows}).encode())

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()


@dataclass(slots=True)
class JobResult:
    name: str
    conclusion: str
    outputs: dict[str, str] = field(default_factory=dict)
    annotations: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """Of one job while its steps run."""

    workspace: Path
    env: dict[str, str]
    contexts: dict[str, Value]
    cache_mode: str
    annotations: list[str] = field(default_factory=list)
    path: list[str] = field(default_factory=list)
    failed: bool = False


_ANNOTATION = re.compile(r"^::(error|warning) ?([^:]*(?::(?!:)[^:]*)*)::(.*)$")


@dataclass(slots=True)
class WorkflowRunner:
    caller: Path
    """The calling repository, a clone with its commits."""
    toolkit: Path
    """This one."""
    hub: Hub
    programs: Path | None = None
    """A folder that comes first on PATH."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More for each step."""
    run_id: int = 7
    attempt: int = 1

    def run(self, workflow: Path, event: Event) -> dict[str, JobResult]:
        """The results of the jobs of a workflow of the calling repository, by name."""
        document = _read(workflow)
        self.hub.artifacts.clear()
        results: dict[str, JobResult] = {}
        for name, job in document["jobs"].items():
            call = str(job.get("uses", ""))
            if not call:
                results |= self._jobs({name: job}, document, {}, event, "", True)
                continue
            called = self.toolkit / ".github/workflows" / call.partition("@")[0].rpartition("/")[2]
            inputs = dict(job.get("with", {}))
            results |= self._jobs(_read(called)["jobs"], _read(called), inputs, event, f"{name} / ", False)
        return results

    def _jobs(
        self, jobs: Yaml, document: Yaml, given: Yaml, event: Event, prefix: str, own: bool
    ) -> dict[str, JobResult]:
        call = (document.get("on") or {}).get("workflow_call") or {} if not own else {}
        inputs = {name: row.get("default", "") for name, row in call.get("inputs", {}).items()} | given
        results: dict[str, JobResult] = {}
        needs: dict[str, Value] = {}
        with self.hub.api() as address:
            for name, job in jobs.items():
                contexts = self._contexts(event, inputs, needs, address)
                waits = job.get("needs", [])
                own_needs = {other: needs[other] for other in ([waits] if isinstance(waits, str) else waits)}
                contexts["needs"] = own_needs
                good = all(row["result"] == "success" for row in own_needs.values())  # type: ignore[index]
                status = {"success": good, "failure": not good, "cancelled": False, "always": True}
                if not ExpressionScope(contexts, status).holds(job.get("if", "success()")):
                    needs[name] = {"result": "skipped", "outputs": {}}
                    continue
                rows = _matrix(job, ExpressionScope(contexts))
                done = [self._job(name, job, {**contexts, "matrix": row}, document, prefix) for row in rows]
                worst = "failure" if any(row.conclusion == "failure" for row in done) else "success"
                needs[name] = {"result": worst, "outputs": done[0].outputs if done else {}}
                results |= {row.name: row for row in done}
        return results

    def _contexts(
        self, event: Event, inputs: Yaml, needs: Mapping[str, Value], address: str
    ) -> dict[str, Value]:
        repository = {"default_branch": "main", "name": "models"}
        github = {
            "event_name": event.name,
            "ref": event.ref,
            "sha": event.commit,
            "repository": "somebody/models",
            "workflow": "QNN",
            "run_id": self.run_id,
            "run_attempt": self.attempt,
            "token": "none",
            "api_url": address,
            "event": {"repository": repository, **event.payload},
        }
        job = {"workflow_repository": "somebody/qnn-ci", "workflow_sha": SHA}
        return {
            "github": github,
            "inputs": inputs,
            "needs": dict(needs),
            "job": job,
            "secrets": {},
            "matrix": {},
            "steps": {},
            "env": {},
            "runner": {"os": "Linux"},
        }

    def _job(
        self, name: str, job: Yaml, contexts: dict[str, Value], document: Yaml, prefix: str
    ) -> JobResult:
        jobs = _made(self.hub.folder / "jobs")
        folder = jobs / f"{re.sub(r'[^a-z]+', '-', name)}-{len([*jobs.iterdir()])}"
        workspace, temporary = _made(folder / "workspace"), _made(folder / "temporary")
        github = dict(contexts["github"])  # type: ignore[call-overload]
        github["workspace"] = str(workspace)
        contexts = {**contexts, "github": github, "steps": {}}
        env = {
            "PATH": os.environ["PATH"] if self.programs is None else f"{self.programs}:{os.environ['PATH']}",
            **{key: os.environ[key] for key in ("HOME", "LANG", "TMPDIR") if key in os.environ},
            "GITHUB_ACTIONS": "true",
            "CI": "true",
            "RUNNER_TEMP": str(temporary),
            **{f"GITHUB_{key.upper()}": str(value) for key, value in github.items() if key != "event"},
            **self.variables,
        }
        for table in (document.get("env", {}), job.get("env", {})):
            env |= {
                key: ExpressionScope({**contexts, "env": env}).text(value) for key, value in table.items()
            }
        contexts["env"] = env
        state = _State(workspace, env, contexts, str(job.get("cache-mode", "write")))
        self._steps(job["steps"], state, contexts, folder)
        outputs = {
            key: ExpressionScope(contexts).text(value) for key, value in job.get("outputs", {}).items()
        }
        title = ExpressionScope(contexts).text(job.get("name", name))
        return JobResult(
            f"{prefix}{title}", "failure" if state.failed else "success", outputs, state.annotations
        )

    def _steps(self, steps: Sequence[Yaml], state: _State, contexts: dict[str, Value], folder: Path) -> None:
        known = contexts["steps"] = dict[str, Value]()
        for number, step in enumerate(steps):
            status = {
                "success": not state.failed, "failure": state.failed, "cancelled": False, "always": True,
            }  # fmt: skip
            scope = ExpressionScope({**contexts, "env": state.env}, status)
            outcome, outputs = "skipped", dict[str, str]()
            if scope.holds(step.get("if", "success()")):
                good, outputs = self._step(step, state, scope, _made(folder / f"step {number}"))
                outcome = "success" if good else "failure"
                state.failed |= not good
            if "id" in step:
                known[step["id"]] = {"outcome": outcome, "outputs": outputs}

    def _step(
        self, step: Yaml, state: _State, scope: ExpressionScope, folder: Path
    ) -> tuple[bool, dict[str, str]]:
        env = {key: scope.text(value) for key, value in step.get("env", {}).items()}
        if "run" in step:
            return self._shell(step, {**state.env, **env}, state, scope, folder)
        uses = step["uses"].partition("@")[0]
        given = {key: scope.text(value) for key, value in step.get("with", {}).items()}
        if uses.startswith("$/") or uses.endswith("/qnn-ci"):
            return self._action(
                uses.removeprefix("$/") if uses[0] == "$" else ".", given, env, state, scope, folder
            )
        return ACTIONS[uses](self, given, {**state.env, **env}, state)

    def _shell(
        self, step: Yaml, env: dict[str, str], state: _State, scope: ExpressionScope, folder: Path
    ) -> tuple[bool, dict[str, str]]:
        files = {
            name: folder / name
            for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY")
        }
        for file in files.values():
            file.touch()
        place = state.workspace / scope.text(step.get("working-directory", "."))
        paths = ":".join([*state.path, env["PATH"]])
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", scope.text(step["run"])],
            cwd=place,
            env={**env, "PATH": paths, **{name: str(file) for name, file in files.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        (folder / "log").write_text(done.stdout, encoding="utf-8")
        state.annotations += [line for line in done.stdout.splitlines() if _ANNOTATION.match(line)]
        state.env |= pairs_in(files["GITHUB_ENV"].read_text(encoding="utf-8"))
        state.path[:0] = files["GITHUB_PATH"].read_text(encoding="utf-8").split("\n")[:-1]
        return done.returncode == 0, pairs_in(files["GITHUB_OUTPUT"].read_text(encoding="utf-8"))

    def _action(
        self,
        place: str,
        given: dict[str, str],
        env: dict[str, str],
        state: _State,
        scope: ExpressionScope,
        folder: Path,
    ) -> tuple[bool, dict[str, str]]:
        action = _read(self.toolkit / place / "action.yml")
        if place.endswith("setup-nox"):
            return True, {}  # what runs this runner has nox
        defaults = {
            name: scope.text(row.get("default", "")) for name, row in action.get("inputs", {}).items()
        }
        github = {**scope.contexts["github"], "action_path": str(self.toolkit / place)}  # type: ignore[dict-item]
        contexts: dict[str, Value] = {**scope.contexts, "inputs": {**defaults, **given}, "github": github}
        outer = state.env
        state.env = {**outer, **env, "GITHUB_ACTION_PATH": str(self.toolkit / place)}
        before, state.failed = state.failed, False
        self._steps(action["runs"]["steps"], state, contexts, folder)
        good, state.failed = not state.failed, before
        added = {
            key: value for key, value in state.env.items() if key not in env and key != "GITHUB_ACTION_PATH"
        }
        state.env = {**outer, **added}
        outputs = action.get("outputs", {})
        return good, {name: ExpressionScope(contexts).text(row["value"]) for name, row in outputs.items()}

    def checkout(
        self, given: dict[str, str], env: dict[str, str], state: _State
    ) -> tuple[bool, dict[str, str]]:
        place = state.workspace / given.get("path", ".")
        ours = given.get("repository", "") == "somebody/qnn-ci"
        source = self.toolkit if ours else self.caller
        if place != state.workspace:
            shutil.rmtree(place, ignore_errors=True)
        command = ["git", "clone", "-q", "--shared", "--no-checkout", str(source), str(place)]
        subprocess.run(command, check=True)
        commit = "HEAD" if ours else str(env["GITHUB_SHA"])
        subprocess.run(["git", "-C", str(place), "checkout", "-q", "--detach", commit], check=True)
        if ours and (source / ".nox").exists():
            (place / ".nox").symlink_to((source / ".nox").resolve())
        return True, {}

    def restore(
        self, given: dict[str, str], env: dict[str, str], state: _State
    ) -> tuple[bool, dict[str, str]]:
        """As actions/cache calls tar: with absolute names, and whatever TAR_OPTIONS says."""
        if state.cache_mode in ("none", "write-only"):
            return True, {}
        github = state.contexts["github"]
        assert isinstance(github, dict)
        refs = [str(github["ref"]), "refs/heads/main"]
        found = self.hub.find(given["key"], given.get("restore-keys", "").split(), refs)
        if found is None:
            return True, {"cache-matched-key": ""}
        subprocess.run(["tar", "-xf", str(found[1]), "-P", "-C", str(state.workspace)], env=env, check=False)
        return True, {"cache-matched-key": found[0], "cache-hit": str(found[0] == given["key"]).lower()}

    def save(self, given: dict[str, str], env: dict[str, str], state: _State) -> tuple[bool, dict[str, str]]:
        if state.cache_mode in ("none", "read"):
            return True, {}
        github = state.contexts["github"]
        assert isinstance(github, dict)
        archive = _made(self.hub.folder / "caches") / f"{len(self.hub.caches)}.tar"
        subprocess.run(
            ["tar", "-cf", str(archive), "-P", "-C", str(state.workspace), given["path"]], check=True
        )
        self.hub.caches.append((given["key"], str(github["ref"]), archive))
        return True, {}

    def upload(
        self, given: dict[str, str], env: dict[str, str], state: _State
    ) -> tuple[bool, dict[str, str]]:
        source = state.workspace / given["path"]
        if not source.exists():
            return given.get("if-no-files-found") != "error", {}
        artifacts = _made(self.hub.folder / "artifacts")
        place = artifacts / f"{len([*artifacts.iterdir()])}-{given['name']}"
        if source.is_dir():
            shutil.copytree(source, place)
        else:
            shutil.copy(source, _made(place))
        self.hub.artifacts[given["name"]] = place
        return True, {}

    def download(
        self, given: dict[str, str], env: dict[str, str], state: _State
    ) -> tuple[bool, dict[str, str]]:
        pattern = re.compile(re.escape(given["pattern"]).replace(r"\*", ".*"))
        _made(state.workspace / given["path"])
        for name, place in self.hub.artifacts.items():
            if pattern.fullmatch(name):
                shutil.copytree(place, state.workspace / given["path"] / name)
        return True, {}


ACTIONS = {
    "actions/checkout": WorkflowRunner.checkout,
    "actions/cache/restore": WorkflowRunner.restore,
    "actions/cache/save": WorkflowRunner.save,
    "actions/upload-artifact": WorkflowRunner.upload,
    "actions/download-artifact": WorkflowRunner.download,
}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _read(file: Path) -> Yaml:
    document: dict[Any, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    # YAML 1.1 takes `on` for a boolean.
    return {("on" if key is True else key): value for key, value in document.items()}


def _matrix(job: Yaml, scope: ExpressionScope) -> Sequence[Mapping[str, Value]]:
    include = job.get("strategy", {}).get("matrix", {}).get("include")
    if include is None:
        return [{}]
    rows = scope.filled(include) if isinstance(include, str) else include
    assert isinstance(rows, list)
    return rows


def pairs_in(text: str) -> dict[str, str]:
    """Of lines NAME=value, or NAME<<DELIMITER and lines up to the delimiter."""
    values: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in filter(None, lines):
        name, separator, value = re.fullmatch(r"(.+?)(=|<<)(.*)", line).groups()  # type: ignore[union-attr]
        if separator == "<<":
            end, rows = value, []
            for row in lines:
                if row == end:
                    break
                rows.append(row)
            value = "\n".join(rows)
        values[name] = value
    return values
