"""The one comment of a pull request: what it says, where it stands, and what hostile runs can do to it."""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from markdown_it import MarkdownIt

from ci.github import comment
from ci.report.changes import MOST_BYTES, Changes, changes_of
from provisioning.base.errors import CheckFailed, UpstreamError, UsageError
from provisioning.base.findings import Report
from provisioning.base.settings import MANIFESTS, ROOT
from tests.support.pages import read_page, text_of
from tests.support.program_reports import report_of
from tests.support.schemas import validator

SHA, NEWER = "3c4d5e6f" * 5, "deadbeef" * 5
OWNER, NAME = "somebody", "models"
REPOSITORY, FORK = 11, 22
"""Numbers of the repository, and of a fork of it."""
STRANGER: dict[str, Any] = {"head_repository": {"id": FORK, "owner": {"login": "stranger"}}}


class Hub(ThreadingHTTPServer):
    """GitHub's API, with what it has of one repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.pulls: list[dict[str, Any]] = []
        self.artifacts: list[tuple[int, str, bytes]] = []
        """Of which run, its name and its archive."""
        self.comments: list[dict[str, Any]] = []
        self.refuses: int = 0
        """The status of each answer, if any."""

    @property
    def bodies(self) -> list[str]:
        return [row["body"] for row in self.comments]

    def pull(self, number: int, sha: str, repository: int = REPOSITORY, state: str = "open") -> None:
        head = {"sha": sha, "ref": "change", "repo": {"id": repository}}
        self.pulls.append({"number": number, "state": state, "head": head})

    def upload(self, run: int, text: bytes, name: str = comment.ARTIFACT) -> None:
        self.artifacts.append((run, name, archive(comment__json=text)))

    def comment(self, body: str, author: str = comment.AUTHOR) -> None:
        assert 0 < len(body) <= 65_536, "GitHub refuses more"
        self.comments.append({"id": len(self.comments), "body": body, "user": {"login": author}})

    def answer(self, method: str, path: str, body: str, first: int) -> Any:
        match method, path.removeprefix(f"/repos/{OWNER}/{NAME}/").split("/"):
            case "GET", ["pulls"]:
                return self.pulls
            case "GET", ["actions", "runs", run, "artifacts"]:
                names = [
                    (number, name) for number, (of, name, _) in enumerate(self.artifacts) if of == int(run)
                ]
                return {
                    "artifacts": [{"id": number, "name": name} for number, name in names][first : first + 100]
                }
            case "GET", ["actions", "artifacts", number, "zip"]:
                return self.artifacts[int(number)][2]
            case "GET", ["issues", "5" | "6", "comments"]:
                return self.comments[first : first + 100]
            case "POST", ["issues", "5" | "6", "comments"]:
                self.comment(body)
            case "PATCH", ["issues", "comments", number]:
                self.comments[int(number)]["body"] = body
        return None


class Api(BaseHTTPRequestHandler):
    server: Hub

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline()
        if not self.raw_requestline or not self.parse_request():
            return
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b'{"body": ""}')
        first = (int(query.get("page", 1)) - 1) * int(query.get("per_page", 30))
        answer = self.server.answer(self.command, parts.path, body["body"], first)
        self.send_response(self.server.refuses or 200)
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        with suppress(OSError):  # who reads no further ends the connection
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, args=(0.002,), daemon=True).start()
        hub.pull(5, SHA)
        yield hub
        hub.shutdown()


def write(hub: Hub, folder: Path, **of_run: Any) -> int:
    """What the job does after a run of a pull request from this repository."""
    run = {"id": 7, "run_number": 3, "run_attempt": 1, "event": "pull_request", "conclusion": "success"}
    head = {"id": REPOSITORY, "owner": {"login": OWNER}}
    run |= {"head_sha": SHA, "head_branch": "change", "head_repository": head, **of_run}
    (folder / "event.json").write_text(json.dumps({"workflow_run": run}), encoding="utf-8")
    return comment.comment(
        {
            "GITHUB_EVENT_NAME": "workflow_run",
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_API_URL": f"http://127.0.0.1:{hub.server_port}",
            "GITHUB_REPOSITORY": f"{OWNER}/{NAME}",
        }
    )


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for name, text in files.items():
            out.writestr(name.replace("__", "."), text)
    return packed.getvalue()


def change(program: str = "net/8a8w/SM8650", what: str = "ddr_read", **more: Any) -> dict[str, Any]:
    row = {"lane": "executorch", "program": program, "what": what, "before": 2e6, "now": 3e6}
    return {**row, **more}


def content(*rows: Mapping[str, Any], **more: Any) -> bytes:
    counts = {"compared": 7, "not_compared": 0, "worse": len(rows), "left_out": 0}
    return json.dumps({"schema": 1, "changes": list(rows), **counts, **more}).encode()


def row(cpu_operators: float | None = None, **values: float) -> dict[str, Any]:
    costs = {name: value for name, value in values.items() if name.endswith(("_read", "_bytes"))}
    figures = {name: value for name, value in values.items() if name not in costs}
    return {"verdict": "pass", "figures": figures, "costs": costs, "cpu_operators": cpu_operators}


def report(**programs: Any) -> Report:
    return report_of("test_emulator", metrics={"programs": programs})


# What is found


def test_what_became_worse_is_found_and_what_is_within_its_tolerance_is_not() -> None:
    before = row(0, ddr_read=1e6, pte_bytes=1e6, sqnr_db=30.0, agreement=1.0)
    now = {
        "worse": row(1, ddr_read=2e6, pte_bytes=2e6, sqnr_db=28.0, agreement=0.9),
        "near": row(0, ddr_read=1.01e6, pte_bytes=1.01e6, sqnr_db=29.5, agreement=0.995),
        "better": row(0, ddr_read=1e5, pte_bytes=1e5, sqnr_db=60.0, agreement=1.0),
        "new": row(sqnr_db=1.0),
        "\ud800\n::error::x": row(pte_bytes=1e6),
    }
    earlier = {**dict.fromkeys(["worse", "near", "better"], before), "removed": before, "": before}
    found = changes_of([report(**now)], [report(**earlier)])
    assert {entry.program for entry in found.changes} == {"worse"} and found.worse == 1
    assert Changes.model_validate_json(found.as_json()) == found
    expected = ["cpu_operators", "sqnr_db", "agreement", "ddr_read", "pte_bytes"]
    assert [entry.what for entry in found.changes] == expected
    assert (found.changes[3].before, found.changes[3].now) == (1e6, 2e6)
    # What one side alone has is no good news.
    assert (found.compared, found.not_compared) == (3, 4)


def test_the_file_is_never_too_large_for_the_job_that_reads_it() -> None:
    names = [f"{index}{'🦊' * 300}" for index in range(2000)]
    before, now = ([report(**dict.fromkeys(names, row(pte_bytes=size)))] for size in (1e6, 2e6))
    found = changes_of(now, before)
    assert len(found.as_json().encode()) <= MOST_BYTES and found.changes
    assert found.left_out == 2000 - len(found.changes)
    assert Changes.model_validate_json(found.as_json()) == found


def test_the_job_of_the_gate_writes_it_from_the_reports_of_all_jobs(tmp_path: Path) -> None:
    for folder, size in (("before", 1e6), ("reports", 2e6)):
        for job, name in (("reports-a-1", "one"), ("reports-a-2", "two")):
            (tmp_path / folder / job).mkdir(parents=True)
            report(**{name: row(pte_bytes=size)}).write(tmp_path / folder / job)
    folders = {"QNN_CI_REPORTS": str(tmp_path / "reports"), "QNN_CI_BEFORE": str(tmp_path / "before")}
    assert comment.changes(folders) == 0
    written = json.loads((tmp_path / "reports/comment.json").read_text())
    validator(MANIFESTS / "schema/comment.json").validate(written)
    assert [entry["program"] for entry in written["changes"]] == ["one", "two"]
    (tmp_path / "reports/test_onnx.json").write_text("{}")
    with pytest.raises(CheckFailed):
        comment.changes(folders)


# Where it is written


def test_the_page_shows_what_is_written(hub: Hub, tmp_path: Path) -> None:
    net = "net/8a8w/SM8650"
    rows = (
        change(net, "cpu_operators", before=0, now=1),
        change(net, "sqnr_db", lane="onnx", before=35, now=28.1),
        change(net, before=2_400_000, now=2_850_000),
    )
    hub.upload(7, content(*rows, worse=2, not_compared=1))
    write(hub, tmp_path)
    page = (ROOT / "docs/github.md").read_text(encoding="utf-8").replace("OWNER/models", f"{OWNER}/{NAME}")
    shown_there = re.findall(r"^> ?(.*)$", page, re.MULTILINE)
    assert shown_there == hub.bodies[0].strip().splitlines()[1:]


def test_of_several_attempts_the_last_file_counts_and_of_several_calls_of_the_gate_all(
    hub: Hub, tmp_path: Path
) -> None:
    for number in range(150):
        hub.comment(f"{number}", author="somebody")
    hub.comment("<!-- qnn-ci run=999 attempt=9 -->\nforged", author="mallory[bot]")
    hub.upload(7, content(change("earlier")))
    hub.upload(7, content(change("later")))
    hub.upload(7, content(change("two/8a8w"), compared=3), name=f"{comment.ARTIFACT}-wheels-two")
    hub.upload(7, b"no concern of ours", name="reports-wheels-two")
    for _ in range(2):
        assert write(hub, tmp_path) == 0
        (body,) = hub.bodies[151:]
    assert "| slower: DDR read | 2 MB | 3 MB |" in body and "earlier" not in body
    assert "later" in body and "two&#47;8a8w" in body and "2 of 10 programs" in body


LATER: dict[str, Any] = {"run_number": 4, "conclusion": "failure"}
OWN, OTHER = (REPOSITORY, "open"), (FORK, "open")


@pytest.mark.parametrize(
    ("pulls", "runs", "words"),
    [
        ([], [({}, "alpha")], "✅ alpha"),
        ([], [({}, "alpha"), (LATER, "beta")], "❌ beta"),
        ([(5, NEWER, *OWN)], [({}, "alpha"), ({**LATER, "head_sha": NEWER}, "beta")], "❌ beta"),
        ([], [(LATER, "alpha"), ({}, "beta")], "❌ alpha"),
        ([], [({"run_attempt": 2}, "alpha"), ({}, "beta")], "✅ alpha"),
        # No older check mark stays beside a run that says nothing.
        ([], [({}, "alpha"), (LATER, "")], "❌ nothing"),
        ([], [({}, "alpha"), (LATER, "broken")], "❌ nothing"),
        ([], [({}, "")], ""),
        ([], [({}, "broken")], ""),
        # Only the one open pull request of the run's repository and commit has it.
        ([(6, SHA, *OTHER)], [(STRANGER, "alpha")], "✅ alpha"),
        ([(9, SHA, REPOSITORY, "closed")], [({}, "alpha")], "✅ alpha"),
        ([(9, SHA, *OWN)], [({}, "alpha")], ""),
        ([], [(STRANGER, "alpha")], ""),
        ([], [({"head_sha": NEWER}, "alpha")], ""),
        ([], [({"event": "push"}, "alpha")], ""),
        ([], [({"head_repository": None}, "alpha")], ""),
    ],
)
def test_the_comment_is_of_the_newest_run_of_the_one_pull_request(
    hub: Hub,
    tmp_path: Path,
    pulls: list[tuple[int, str, int, str]],
    runs: list[tuple[dict[str, Any], str]],
    words: str,
) -> None:
    for pull in pulls:
        hub.pull(*pull)
    for number, (of_run, program) in enumerate(runs, 7):
        if program:
            hub.upload(number, b"no JSON" if program == "broken" else content(change(program)))
        with pytest.raises(CheckFailed) if program == "broken" else nullcontext():
            assert write(hub, tmp_path, id=number, **of_run) == 0
    shown = [re.findall("✅|❌|alpha|beta|nothing", body) for body in hub.bodies]
    assert [" ".join(found) for found in shown] == [words] * bool(words)


def test_it_runs_on_no_other_event() -> None:
    with pytest.raises(UsageError):
        comment.comment({"GITHUB_EVENT_NAME": "pull_request_target"})


@pytest.mark.parametrize(("status", "fix"), [(302, ""), (403, "pull-requests: write"), (500, "again")])
def test_a_refusal_says_what_to_do_and_nothing_is_sent_elsewhere(
    hub: Hub, tmp_path: Path, status: int, fix: str
) -> None:
    hub.refuses = status
    with pytest.raises(UpstreamError, match=str(status)) as refused:
        write(hub, tmp_path)
    assert fix in refused.value.fix


# What hostile runs upload

NAMES = [
    "`code` **bold** ~~gone~~",
    "a | b | c",
    "@somebody and @somebody/team",
    "[link](https://evil.example) ![image](https://evil.example/x.png)",
    "https://evil.example www.evil.example mail@evil.example",
    "<script>alert(1)</script><img src=x onerror=alert(1)><!-- -->",
    "</code></td></table><h1>verified: all is well</h1>",
    "net\n\n# heading\n::error::red\r\n::stop-commands::x",
    "\x1b]0;title\x07\x1b[31mred \u202eevil\u2066 \u200f \x00 \x85",
    "#123 GH-1 somebody/models#5 " + "deadbeef" * 5,
    "&lt;b&gt; &#64;somebody &commat;somebody",
    "$\\text{math}$ :tada: [^1] - [ ] task",
    "x" * 200,
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_and_is_nothing_else(
    hub: Hub, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.upload(7, content(change(), change(name), change()))
    write(hub, tmp_path)
    (body,) = hub.bodies
    rendered = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(body)
    page = read_page(f"<div>{rendered}</div>")
    counts = Counter(element.tag for element in page.iter())
    assert set(counts) == {"div", "h3", "p", "a", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert (counts["table"], counts["tr"], counts["td"]) == (1, 4, 12), "no row or cell more"
    link = f"https://github.com/{OWNER}/{NAME}/actions/runs/7"
    attributes = [pair for element in page.iter() for pair in element.items()]
    assert {*attributes} == {("href", link), ("style", "text-align:right")}
    # GitHub makes mentions, links of words, of issues and of commits of text alone, after the Markdown.
    code = [element.text for element in page.iter("code")]
    for element in page.iter("code"):
        element.text = ""
    assert not [sign for sign in ("@", "evil", "#", ":tada") if sign in text_of(page)]
    assert code.count("net/8a8w/SM8650") == 2
    # What GitHub's Markdown makes links of, it finds in the text as it is written.
    of_name = body.replace(link, "")
    assert not [
        text for text in ("@", "`", "://", "www.", "<script", "<img", "</code></td") if text in of_name
    ]
    assert all(sign.isprintable() or sign == "\n" for sign in body)
    assert not {"\u202e", "\u2066", "\u200f"} & set(body)
    assert "::" not in capsys.readouterr().out


TEXTS = {
    "no JSON": b"hello",
    "empty": b"",
    "not UTF-8": b'{"schema": 1, "changes": "\xff"}',
    "deep": b'{"schema": 1, "changes": ' + b"[" * 100_000,
    "a list": b"[]",
    "another schema": content(change(), schema=2),
    "one field more": content(change(), pull=6),
    "a field less": content(change()).replace(b'"worse": 1, ', b""),
    "another lane": content(change(lane="@somebody")),
    "a figure that is none": content(change(now="much")),
    "not a number": content(change(now=float("nan"))),
    "a name too long": content(change("x" * 201)),
    "no name": content(change("")),
    "half a sign": content(change("\ud800")),
    "negative": content(change(), compared=-1),
    "300 kB": content(change()) + b" " * 300_000,
}
ARCHIVES = {
    "no archive": b"PK\x03\x04 not really",
    "an empty one": archive(),
    "two files": archive(comment__json=content(), more__json=b"{}"),
    "another name": archive(**{"../comment__json": content()}),
    "a name that is a command": archive(**{"\n::error::x": content()}),
    "a bomb": archive(comment__json=b" " * 2_000_000),
    "too large": bytes(300_000),
    **{f"with {kind}": archive(comment__json=text) for kind, text in TEXTS.items()},
    "damaged": archive(comment__json=content(change()))[:-60] + bytes(60),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_what_is_no_archive_with_the_one_small_file_of_the_schema_is_refused(kind: str) -> None:
    with pytest.raises(CheckFailed) as caught:
        comment.read(ARCHIVES[kind])
    assert caught.value.message.isprintable() and len(caught.value.message) < 400


@pytest.mark.parametrize(("more", "taken"), [(0, True), (1, False)])
def test_a_file_as_large_as_may_be_is_taken_and_one_byte_more_is_not(more: int, taken: bool) -> None:
    text = content(change())
    padded = text + b" " * (MOST_BYTES - len(text) + more)
    with nullcontext() if taken else pytest.raises(CheckFailed):
        comment.read(archive(comment__json=padded))


def test_the_longest_comment_is_one_that_github_takes(hub: Hub, tmp_path: Path) -> None:
    rows = [change(f"{index}" + "|" * 150) for index in range(300)]
    for name in ("one", "two"):
        hub.upload(7, content(*rows, left_out=11), name=f"{comment.ARTIFACT}-{name}")
    assert write(hub, tmp_path) == 0
    (body,) = hub.bodies
    assert "more." in body


def test_no_archive_is_read_without_end_nor_too_many(hub: Hub, tmp_path: Path) -> None:
    hub.artifacts = [(7, comment.ARTIFACT, bytes(20_000_000))]
    with pytest.raises(CheckFailed, match="larger than"):
        write(hub, tmp_path)
    hub.artifacts = []
    for number in range(21):
        hub.upload(7, content(change()), name=f"{comment.ARTIFACT}-{number}")
    with pytest.raises(CheckFailed, match="21"):
        write(hub, tmp_path)
