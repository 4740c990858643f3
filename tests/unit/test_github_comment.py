"""The one comment of a pull request: what it says, where it stands, and what hostile runs can do to it."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from ci.github import comment
from ci.report.changes import MOST_BYTES, Changes, changes_of
from provisioning.base.errors import CheckFailed, UpstreamError, UsageError
from provisioning.base.findings import Report
from provisioning.base.settings import ROOT
from tests.support.pages import read_page, text_of
from tests.support.program_reports import report_of

SHA, NEWER = "3c4d5e6f" * 5, "deadbeef" * 5


OWNER, NAME = "somebody", "models"
REPOSITORY, FORK = 11, 22
"""Numbers of the repository, and of a fork of it."""


@dataclass
class GitHub(comment.Api):
    """What GitHub has of one repository, for the job that comments."""

    pulls: dict[int, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[int, tuple[int, str, bytes]] = field(default_factory=dict)
    """By number: of which run, its name and its archive."""
    comments: dict[int, dict[str, Any]] = field(default_factory=dict)

    def pull(self, number: int, sha: str, repository: int = REPOSITORY, branch: str = "change") -> None:
        head = {"sha": sha, "ref": branch, "repo": {"id": repository}}
        self.pulls[number] = {"number": number, "state": "open", "head": head}

    def upload(self, run: int, text: bytes, name: str = comment.ARTIFACT) -> None:
        self.artifacts[len(self.artifacts) + 1] = (run, name, archive(comment__json=text))

    def comment(self, body: str, author: str = comment.AUTHOR) -> None:
        number = len(self.comments) + 1
        self.comments[number] = {"id": number, "body": body, "user": {"login": author}}

    @property
    def bodies(self) -> list[str]:
        return [row["body"] for row in self.comments.values()]

    def download(self, path: str) -> bytes:
        return self.artifacts[int(path.split("/")[2])][2]

    def __call__(
        self, method: str, path: str, body: Mapping[str, str] | None = None, **query: str | int
    ) -> Any:
        kind, last = path.split("/")[0], path.split("/")[-1]
        first = (int(query.get("page", 1)) - 1) * int(query.get("per_page", 30))
        if kind == "actions":
            run = int(path.split("/")[2])
            rows = [{"id": n, "name": name} for n, (of, name, _) in self.artifacts.items() if of == run]
            return {"artifacts": rows[first : first + 100]}
        if kind == "pulls":
            return list(self.pulls.values())
        if method == "GET":
            return list(self.comments.values())[first : first + 100]
        text = (body or {})["body"]
        assert 0 < len(text) <= 65_536, "GitHub refuses more"
        if method == "PATCH":
            self.comments[int(last)]["body"] = text
        else:
            self.comment(text)
        return None


def event(folder: Path, sha: str, **of_run: Any) -> dict[str, str]:
    """The environment of the job after a run of a pull request from this repository."""
    run = {
        "id": 7,
        "run_number": 3,
        "run_attempt": 1,
        "event": "pull_request",
        "conclusion": "success",
        "head_sha": sha,
        "head_branch": "change",
        "head_repository": {"id": REPOSITORY, "owner": {"login": OWNER}},
        **of_run,
    }
    file = folder / "event.json"
    file.write_text(json.dumps({"workflow_run": run}), encoding="utf-8")
    return {
        "GITHUB_EVENT_NAME": "workflow_run",
        "GITHUB_EVENT_PATH": str(file),
        "GITHUB_SERVER_URL": "https://github.com",
        "GITHUB_REPOSITORY": f"{OWNER}/{NAME}",
    }


@pytest.fixture
def hub() -> GitHub:
    state = GitHub()
    state.pull(5, SHA)
    return state


def write(hub: GitHub, folder: Path, sha: str = SHA, **of_run: Any) -> int:
    """What the job does after a run."""
    return comment.comment(event(folder, sha, **of_run), hub)


def archive(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as out:
        for name, text in files.items():
            out.writestr(name.replace("__", "."), text)
    return packed.getvalue()


def change(program: str = "net/8a8w/SM8650", what: str = "ddr_read", **more: Any) -> dict[str, Any]:
    row = {"lane": "executorch", "program": program, "what": what, "before": 2e6, "now": 3e6}
    return {**row, **more}


def document(*rows: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "compared": 7,
        "not_compared": 0,
        "worse": len(rows),
        "changes": list(rows),
        "left_out": 0,
        **more,
    }


def content(*rows: Mapping[str, Any], **more: Any) -> bytes:
    return json.dumps(document(*rows, **more)).encode()


def row(cpu_operators: float | None = None, **values: float) -> dict[str, Any]:
    costs = {name: value for name, value in values.items() if name.endswith(("_read", "_bytes"))}
    figures = {name: value for name, value in values.items() if name not in costs}
    return {"verdict": "pass", "figures": figures, "costs": costs, "cpu_operators": cpu_operators}


def report(stage: str, **programs: Any) -> Report:
    return report_of(stage, metrics={"programs": programs})


# What is found


def test_what_became_worse_is_found_and_what_is_within_its_tolerance_is_not() -> None:
    before = row(0, ddr_read=1e6, pte_bytes=1e6, sqnr_db=30.0, agreement=1.0)
    now = {
        "worse": row(1, ddr_read=2e6, pte_bytes=2e6, sqnr_db=28.0, agreement=0.9),
        "near": row(0, ddr_read=1.01e6, pte_bytes=1.01e6, sqnr_db=29.5, agreement=0.995),
        "better": row(0, ddr_read=1e5, pte_bytes=1e5, sqnr_db=60.0, agreement=1.0),
    }
    found = changes_of(
        [report("test_emulator", **now)], [report("test_emulator", **dict.fromkeys(now, before))]
    )
    assert {entry.program for entry in found.changes} == {"worse"} and found.worse == 1
    assert [entry.what for entry in found.changes] == [
        "cpu_operators", "sqnr_db", "agreement", "ddr_read", "pte_bytes",
    ]  # fmt: skip
    (reads,) = (entry for entry in found.changes if entry.what == "ddr_read")
    assert (reads.before, reads.now) == (1e6, 2e6)
    assert (found.compared, found.not_compared) == (3, 0)


def test_a_program_of_one_side_alone_is_not_compared_and_no_good_news() -> None:
    before = [report("test_emulator", removed=row(sqnr_db=1.0))]
    found = changes_of([report("test_emulator", new=row(sqnr_db=1.0))], before)
    assert (found.compared, found.not_compared, found.worse) == (0, 2, 0)


def test_the_file_is_never_too_large_for_the_job_that_reads_it() -> None:
    names = [f"{index}{'🦊' * 300}" for index in range(2000)]
    before, now = (
        [report("test_emulator", **dict.fromkeys(names, row(pte_bytes=size)))] for size in (1e6, 2e6)
    )
    found = changes_of(now, before)
    assert len(found.as_json().encode()) <= MOST_BYTES and found.changes
    assert found.left_out == 2000 - len(found.changes)
    assert Changes.model_validate_json(found.as_json()) == found


def test_the_job_of_the_gate_writes_it_from_the_reports_of_all_jobs(tmp_path: Path) -> None:
    for folder, size in (("before", 1e6), ("reports", 2e6)):
        for job, name in (("reports-a-1", "one"), ("reports-a-2", "two")):
            (tmp_path / folder / job).mkdir(parents=True)
            report("test_lowering", **{name: row(pte_bytes=size)}).write(tmp_path / folder / job)
    assert changes(tmp_path) == 0
    found = Changes.model_validate_json((tmp_path / "reports/comment.json").read_bytes())
    assert [entry.program for entry in found.changes] == ["one", "two"]


def changes(folder: Path) -> int:
    return comment.changes(
        {"QNN_CI_REPORTS": str(folder / "reports"), "QNN_CI_BEFORE": str(folder / "before")}
    )


@pytest.mark.parametrize("text", ["{}", report("test_onnx", net={"figures": [1]}).as_json()])
def test_a_report_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/test_onnx.json").write_text(text)
    with pytest.raises(CheckFailed):
        changes(tmp_path)


def test_the_page_shows_what_is_written(tmp_path: Path) -> None:
    net = "net/8a8w/SM8650"
    rows = (
        change(net, "cpu_operators", before=0, now=1),
        change(net, "sqnr_db", lane="onnx", before=35, now=28.1),
        change(net, before=2_400_000, now=2_850_000),
    )
    found = Changes.model_validate_json(content(*rows, worse=2, not_compared=1))
    ended = comment.ended_of(event(tmp_path, SHA))
    assert ended
    text = comment.text_of(found, ended, "https://github.com/OWNER/models/actions/runs/7")
    page = (ROOT / "docs/github.md").read_text(encoding="utf-8").splitlines()
    shown_there = [line[1:].strip() for line in page if line.startswith(">")]
    assert shown_there == text.strip().splitlines()[1:]


# Where it is written


def test_a_pull_request_has_one_comment_that_later_runs_write_anew(hub: GitHub, tmp_path: Path) -> None:
    for number in range(150):
        hub.comment(f"{number}", author="somebody")
    hub.comment("<!-- qnn-ci run=999 attempt=9 -->\nforged", author="mallory[bot]")
    hub.upload(7, content(change()))
    assert write(hub, tmp_path) == 0
    (body,) = hub.bodies[151:]
    assert "| slower: DDR read | 2 MB | 3 MB |" in body and "✅" in body
    hub.pull(5, NEWER)
    hub.upload(8, content())
    write(hub, tmp_path, NEWER, id=8, run_number=4, conclusion="failure")
    (body,) = hub.bodies[151:]
    assert "2 MB" not in body and "❌" in body


def test_of_several_attempts_the_last_file_is_taken(hub: GitHub, tmp_path: Path) -> None:
    for name in ("earlier", "later"):
        hub.upload(7, content(change(name)))
    write(hub, tmp_path)
    (body,) = hub.bodies
    assert "later" in body and "earlier" not in body


def test_a_closed_pull_request_gets_no_comment(hub: GitHub, tmp_path: Path) -> None:
    hub.upload(7, content(change()))
    hub.pulls[5]["state"] = "closed"
    assert write(hub, tmp_path) == 0 and hub.comments == {}


@pytest.mark.parametrize("upload", [None, b"no JSON"])
def test_no_older_check_mark_stays_beside_a_run_that_says_nothing(
    hub: GitHub, tmp_path: Path, upload: bytes | None
) -> None:
    hub.upload(7, content(change()))
    write(hub, tmp_path)
    if upload is not None:
        hub.upload(8, upload)
    with pytest.raises(CheckFailed) if upload else nullcontext():
        write(hub, tmp_path, id=8, run_number=4, conclusion="failure")
    (body,) = hub.bodies
    assert "✅" not in body and "❌" in body and "DDR" not in body


STRANGER: dict[str, Any] = {"head_repository": {"id": FORK, "owner": {"login": "stranger"}}}


def test_of_a_fork_the_pull_request_is_found_by_its_repository_and_commit(
    hub: GitHub, tmp_path: Path
) -> None:
    hub.upload(7, content(change()))
    hub.pull(6, SHA, repository=FORK)
    assert write(hub, tmp_path, **STRANGER) == 0 and len(hub.bodies) == 1


@pytest.mark.parametrize("of_run", [{"event": "push"}, {"head_sha": NEWER}, STRANGER])
def test_a_run_of_no_pull_request_writes_nothing(hub: GitHub, tmp_path: Path, of_run: dict[str, Any]) -> None:
    hub.upload(7, content(change()))
    assert write(hub, tmp_path, **of_run) == 0 and hub.comments == {}


def test_a_run_of_two_pull_requests_writes_nothing(hub: GitHub, tmp_path: Path) -> None:
    hub.upload(7, content(change()))
    hub.pull(9, SHA)
    assert write(hub, tmp_path) == 0 and hub.comments == {}


@pytest.mark.parametrize("later", [{"run_number": 4}, {"run_attempt": 2}])
def test_an_older_run_that_ends_last_leaves_the_newer_ones_comment(
    hub: GitHub, tmp_path: Path, later: dict[str, Any]
) -> None:
    hub.upload(7, content(change("older")))
    hub.upload(8, content(change("newer")))
    write(hub, tmp_path, id=8, **later)
    write(hub, tmp_path, id=7)
    (body,) = hub.bodies
    assert "newer" in body and "older" not in body


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
    hub: GitHub, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
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
    "a field less": json.dumps({k: v for k, v in document(change()).items() if k != "worse"}).encode(),
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


def test_the_longest_comment_is_one_that_github_takes(hub: GitHub, tmp_path: Path) -> None:
    rows = [change(f"{index}" + "|" * 150) for index in range(300)]
    for name in ("one", "two"):
        hub.upload(7, content(*rows, left_out=11), name=f"{comment.ARTIFACT}-{name}")
    assert write(hub, tmp_path) == 0
    (body,) = hub.bodies
    assert "more." in body


def test_it_runs_on_no_other_event() -> None:
    with pytest.raises(UsageError):
        comment.comment({"GITHUB_EVENT_NAME": "pull_request_target"})


class Refusing(BaseHTTPRequestHandler):
    """Of the API: it takes no token, sends elsewhere and sends archives without end."""

    def do_GET(self) -> None:
        if self.path.endswith("moved"):
            self.send_response(302)
            self.send_header("Location", "/artifacts")
            self.end_headers()
            return
        self.send_response(200 if "artifacts" in self.path else 403)
        self.end_headers()
        with suppress(OSError):
            for _ in range(200 if "artifacts" in self.path else 0):
                self.wfile.write(bytes(1 << 16))

    def log_message(self, *_: object) -> None:
        pass


def test_a_token_without_rights_is_told_what_to_write_and_no_archive_is_read_without_end() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.002,), daemon=True).start()
        api = comment.Api(
            {"GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "GITHUB_REPOSITORY": "a/b"}
        )
        with pytest.raises(UpstreamError) as refused:
            api("GET", "pulls/5")
        assert "pull-requests: write" in refused.value.fix
        with pytest.raises(UpstreamError, match="302"):
            api("GET", "moved")
        with pytest.raises(CheckFailed):
            api.download("actions/artifacts/1/zip")
        server.shutdown()


def test_names_of_a_report_that_fit_no_schema_do_no_harm() -> None:
    odd = {"\ud800\n::error::x": row(pte_bytes=1e6), "": {"verdict": "odd"}}
    found = changes_of([report("test_emulator", **odd)], [report("test_emulator", **odd)])
    assert found.compared == 2 and Changes.model_validate_json(found.as_json()) == found


def test_calls_of_the_gate_in_one_run_have_one_comment(hub: GitHub, tmp_path: Path) -> None:
    hub.upload(7, content(change("one/8a8w")), name=f"{comment.ARTIFACT}-wheels-one")
    hub.upload(7, content(change("two/8a8w"), compared=3), name=f"{comment.ARTIFACT}-wheels-two")
    hub.upload(7, b"no concern of ours", name="reports-wheels-two")
    write(hub, tmp_path)
    (body,) = hub.bodies
    assert "one&#47;8a8w" in body and "two&#47;8a8w" in body and "2 of 10 programs" in body
