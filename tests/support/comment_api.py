"""GitHub's API as the job that comments on a pull request uses it. It refuses what GitHub refuses."""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

OWNER, NAME = "somebody", "models"
REPOSITORY, FORK = 11, 22
"""Numbers of the repository, and of a fork of it."""
TOKEN = "t0ken"
BOT = "github-actions[bot]"
MOST_CHARACTERS = 65_536


@dataclass
class GitHub:
    """One repository."""

    base: str = ""
    storage: str = ""
    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[int, tuple[int, str, bytes]] = field(default_factory=dict)
    """By number: of which run, its name and its archive."""
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)
    may_write: bool = True
    before: Callable[[str, str], None] = lambda method, path: None
    """Called before each request is answered: what others do meanwhile."""
    requests: list[str] = field(default_factory=list)
    _number: int = 100

    def pull(self, number: int, sha: str, *, repository: int = REPOSITORY, branch: str = "change") -> None:
        owner = OWNER if repository == REPOSITORY else "stranger"
        head = {"sha": sha, "ref": branch, "label": f"{owner}:{branch}", "repo": {"id": repository}}
        base = {"ref": "main", "repo": {"id": REPOSITORY}}
        self.pulls[number] = {"number": number, "state": "open", "head": head, "base": base}

    def upload(
        self, run: int, content: bytes, *, name: str = "qnn-ci-comment", file: str = "comment.json"
    ) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(file, content)
        self.upload_archive(run, packed.getvalue(), name=name)

    def upload_archive(self, run: int, archive: bytes, *, name: str = "qnn-ci-comment") -> None:
        self.artifacts[self.next()] = (run, name, archive)

    def comment(self, pull: int, body: str, author: str = BOT) -> int:
        number = self.next()
        user = {"login": author, "type": "Bot" if author.endswith("[bot]") else "User"}
        self.comments[number] = {"id": number, "pull": pull, "body": body, "user": user}
        return number

    def next(self) -> int:
        self._number += 1
        return self._number

    def bodies(self, pull: int) -> list[str]:
        return [comment["body"] for comment in self.comments.values() if comment["pull"] == pull]

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        top = f"/repos/{OWNER}/{NAME}/"
        if not path.startswith(top):
            return 404, {"message": "Not Found"}
        place = path.removeprefix(top)
        if found := re.fullmatch(r"pulls/(\d+)", place):
            named = self.pulls.get(int(found[1]))
            return (200, named) if method == "GET" and named else (404, {"message": "Not Found"})
        if place == "pulls" and method == "GET":
            state, head = query.get("state", "open"), query.get("head", "")
            return 200, [
                pull
                for pull in self.pulls.values()
                if state in ("all", pull["state"]) and (":" not in head or pull["head"]["label"] == head)
            ]
        if found := re.fullmatch(r"actions/runs/(\d+)/artifacts", place):
            rows = [
                {"id": number, "name": name, "size_in_bytes": len(archive), "expired": False}
                for number, (run, name, archive) in self.artifacts.items()
                if run == int(found[1]) and query.get("name", name) == name
            ]
            return 200, {"total_count": len(rows), "artifacts": rows}
        if found := re.fullmatch(r"issues/(\d+)/comments", place):
            if int(found[1]) not in self.pulls:
                return 404, {"message": "Not Found"}
            if method == "GET":
                size, page = min(100, int(query.get("per_page", 30))), int(query.get("page", 1))
                mine = [comment for comment in self.comments.values() if comment["pull"] == int(found[1])]
                return 200, mine[(page - 1) * size : page * size]
            pull = int(found[1])
            return self._written(body, lambda text: self.comment(pull, text), 201)
        if found := re.fullmatch(r"issues/comments/(\d+)", place):
            number = int(found[1])
            if number not in self.comments:
                return 404, {"message": "Not Found"}
            if method == "DELETE":
                return (204, self.comments.pop(number) and None) if self.may_write else (403, {})
            return self._written(body, lambda text: self._edit(number, text), 200)
        return 404, {"message": "Not Found"}

    def _edit(self, number: int, text: str) -> int:
        self.comments[number]["body"] = text
        return number

    def _written(self, body: Any, write: Callable[[str], int], status: int) -> tuple[int, Any]:
        if not self.may_write:
            return 403, {"message": "Resource not accessible by integration"}
        text = body.get("body") if isinstance(body, dict) else None
        if not isinstance(text, str) or not text.strip() or len(text) > MOST_CHARACTERS:
            return 422, {"message": "Validation Failed"}
        return status, self.comments[write(text)]


@contextmanager
def github() -> Iterator[GitHub]:
    """The API, and beside it the storage of artifacts, which takes no token of another service."""
    state = GitHub()

    class Api(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            url = urlsplit(self.path)
            state.requests.append(f"{self.command} {url.path}")
            state.before(self.command, url.path)
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            archive = re.fullmatch(rf"/repos/{OWNER}/{NAME}/actions/artifacts/(\d+)/zip", url.path)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self._send(401, {"message": "Bad credentials"})
            elif archive:
                self.send_response(302 if int(archive[1]) in state.artifacts else 404)
                self.send_header("Location", f"{state.storage}/{archive[1]}")
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self._send(*state.answer(self.command, url.path, query, body))

        do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

        def _send(self, status: int, answer: Any) -> None:
            content = b"" if status == 204 else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    class Storage(Api):
        def do_GET(self) -> None:
            content = state.artifacts[int(self.path[1:])][2]
            self.send_response(400 if "Authorization" in self.headers else 200)
            self.end_headers()
            self.wfile.write(content)

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Api, Storage)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
    state.base, state.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield state
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def event(file: Path, sha: str, **of_run: Any) -> Path:
    """What GitHub sends when a run of a pull request from this repository has ended."""
    run = {
        "id": 7,
        "run_number": 3,
        "run_attempt": 1,
        "event": "pull_request",
        "conclusion": "success",
        "head_sha": sha,
        "head_branch": "change",
        "head_repository": {"id": REPOSITORY, "owner": {"login": OWNER}},
        "pull_requests": [{"number": 5, "head": {"sha": sha}, "base": {"repo": {"id": REPOSITORY}}}],
        **of_run,
    }
    file.write_text(json.dumps({"workflow_run": run, "repository": {"id": REPOSITORY}}), encoding="utf-8")
    return file
