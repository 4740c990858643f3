"""The one comment of a pull request: what it says, where it stands, and what hostile runs can do to it."""

from __future__ import annotations

import io
import json
import math
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
from ci.report.changes import MOST_BYTES, Changes, What, changes_of, is_worse
from ci.suite.accepted import load_tolerances
from provisioning.base.errors import CheckFailed, UpstreamError, UsageError
from provisioning.base.findings import Report
from provisioning.base.settings import MANIFESTS, ROOT
from tests.support.pages import read_page, text_of
from tests.support.program_reports import report_of
from tests.support.schemas import validator

SHA, NEWER = "3c4d5e6f" * 5, "deadbeef" * 5
OWN, FORK = (
    {"id": number, "owner": {"login": owner}} for number, owner in ((11, "somebody"), (22, "stranger"))
)
"""The repository, and a fork of it."""
BASE = "/repos/somebody/models/"
RUN = {"id": 7, "run_number": 3, "run_attempt": 1, "event": "pull_request", "conclusion": "success"}
RUN |= {"head_sha": SHA, "head_branch": "change", "head_repository": OWN}
FAILED = {"conclusion": "failure"}


class Hub(ThreadingHTTPServer):
    """GitHub's API: what it answers by path, and what was written."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.answers: dict[str, Any] = {
            "pulls": [pull(5)],
            "issues/5/comments": [],
            "issues/6/comments": [],
            "actions/runs/7/artifacts": {"artifacts": []},
        }
        self.written: list[tuple[str, str]] = []
        self.status = 200

    def upload(self, text: bytes, name: str = comment.ARTIFACT) -> None:
        rows = self.answers["actions/runs/7/artifacts"]["artifacts"]
        rows.append({"id": len(rows), "name": name})
        self.answers[f"actions/artifacts/{rows[-1]['id']}/zip"] = archive(comment__json=text)

    def comment(self, body: str, author: str = comment.AUTHOR) -> None:
        rows = self.answers["issues/5/comments"]
        rows.append({"id": len(rows), "body": body, "user": {"login": author}})

    def after(self, folder: Path, occasion: str = "workflow_run", **of_run: Any) -> str:
        """What the job writes after a run of a pull request from this repository."""
        (folder / "event.json").write_text(json.dumps({"workflow_run": {**RUN, **of_run}}), encoding="utf-8")
        environ = {
            "GITHUB_EVENT_NAME": occasion,
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_SERVER_URL": "https://github.com",
            "GITHUB_API_URL": f"http://127.0.0.1:{self.server_port}",
            "GITHUB_REPOSITORY": "somebody/models",
        }
        assert comment.comment(environ) == 0
        return self.written[0][1] if self.written else ""


class Api(BaseHTTPRequestHandler):
    server: Hub

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline()
        if not self.raw_requestline or not self.parse_request():
            return
        parts = urlsplit(self.path)
        path, page = parts.path.removeprefix(BASE), int(parse_qs(parts.query).get("page", ["1"])[0])
        answer: Any = None
        if self.command == "GET":
            answer = self.server.answers[path]
        else:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
            self.server.written.append((f"{self.command} {path}", body))
        if isinstance(answer, list):
            answer = answer[100 * (page - 1) : 100 * page]
        self.send_response(self.server.status)
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
        yield hub
        hub.shutdown()


def pull(
    number: int, sha: str = SHA, repository: Mapping[str, Any] = OWN, state: str = "open"
) -> dict[str, Any]:
    return {"number": number, "state": state, "head": {"sha": sha, "ref": "change", "repo": repository}}


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


def test_what_became_worse_is_found_and_what_became_better_is_not() -> None:
    before = row(0, ddr_read=1e6, pte_bytes=1e6, sqnr_db=30.0, agreement=1.0)
    now = {
        "worse": row(1, ddr_read=2e6, pte_bytes=2e6, sqnr_db=28.0, agreement=0.9),
        "better": row(0, ddr_read=1e5, pte_bytes=1e5, sqnr_db=60.0, agreement=1.0),
        "new": row(sqnr_db=1.0),
        "\ud800\n::error::x": row(pte_bytes=1e6),
    }
    earlier = {**dict.fromkeys(["worse", "better"], before), "removed": before, "": before}
    found = changes_of([report(**now)], [report(**earlier)])
    assert {entry.program for entry in found.changes} == {"worse"} and found.worse == 1
    assert Changes.model_validate_json(found.to_json()) == found
    expected = ["cpu_operators", "sqnr_db", "agreement", "ddr_read", "pte_bytes"]
    assert [entry.what for entry in found.changes] == expected
    assert (found.changes[3].before, found.changes[3].now) == (1e6, 2e6)
    # What one side alone has is no good news.
    assert (found.compared, found.not_compared) == (2, 4)


@pytest.mark.parametrize(
    ("what", "before", "most"),
    [
        ("cpu_operators", 2, 2),
        ("ddr_read", 1e6, 1_024_096),
        ("pte_bytes", 1e6, 1_058_192),
        ("sqnr_db", 30.0, 29.0),
        ("agreement", 0.5, 0.49),
    ],
)
def test_a_figure_at_its_tolerance_is_not_worse_and_the_next_one_is(
    what: What, before: float, most: float
) -> None:
    worse = math.nextafter(most, -math.inf if most < before else math.inf)
    assert [is_worse(what, before, now, load_tolerances()) for now in (most, worse)] == [False, True]


def test_the_file_is_never_too_large_for_the_job_that_reads_it() -> None:
    names = [f"{index}{'🦊' * 300}" for index in range(2000)]
    before, now = ([report(**dict.fromkeys(names, row(pte_bytes=size)))] for size in (1e6, 2e6))
    found = changes_of(now, before)
    assert len(found.to_json().encode()) <= MOST_BYTES and found.changes
    assert found.left_out == 2000 - len(found.changes)
    assert Changes.model_validate_json(found.to_json()) == found


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
    rows = (
        change(what="cpu_operators", before=0, now=1),
        change(what="sqnr_db", lane="onnx", before=35, now=28.1),
        change(before=2_400_000, now=2_850_000),
    )
    hub.upload(content(*rows, worse=2, not_compared=1))
    page = (ROOT / "docs/github.md").read_text(encoding="utf-8")
    assert re.findall(r"^> ?(.*)$", page, re.MULTILINE) == hub.after(tmp_path).strip().splitlines()[1:]


def test_of_several_attempts_the_last_file_counts_and_of_several_calls_of_the_gate_all(
    hub: Hub, tmp_path: Path
) -> None:
    hub.upload(content(change("earlier")))
    hub.upload(content(change("later")))
    hub.upload(content(change("two/8a8w"), compared=3), name=f"{comment.ARTIFACT}-wheels-two")
    hub.upload(b"no concern of ours", name="reports-wheels-two")
    body = hub.after(tmp_path)
    assert "| slower: DDR read | 2 MB | 3 MB |" in body and "earlier" not in body
    assert "later" in body and "two/8a8w" in body and "2 of 10 programs" in body


def test_only_our_own_comment_is_written_anew(hub: Hub, tmp_path: Path) -> None:
    for number in range(150):
        hub.comment(f"{number}", author="somebody")
    hub.comment("<!-- qnn-ci run=999 attempt=9 -->\nforged", author="mallory[bot]")
    hub.upload(content())
    first = hub.after(tmp_path)
    hub.comment(first)
    hub.after(tmp_path, run_number=4)
    assert [what for what, _ in hub.written] == ["POST issues/5/comments", "PATCH issues/comments/151"]


@pytest.mark.parametrize(
    ("earlier", "upload", "of_run", "pulls", "written"),
    [
        (None, "net", {}, [], "POST issues/5/comments ✅ net"),
        ((3, 1), "net", {}, [], "PATCH issues/comments/0 ✅ net"),
        ((2, 9), "net", FAILED, [], "PATCH issues/comments/0 ❌ net"),
        ((2, 9), "net", {"head_sha": NEWER}, [pull(5, NEWER)], "PATCH issues/comments/0 ✅ net"),
        # Of an older run that ends last.
        ((4, 1), "net", {}, [], ""),
        ((3, 2), "net", {}, [], ""),
        # No older check mark stays beside a run that says nothing.
        ((2, 1), "", FAILED, [], "PATCH issues/comments/0 ❌ nothing"),
        ((2, 1), "broken", FAILED, [], "PATCH issues/comments/0 ❌ nothing"),
        (None, "", {}, [], ""),
        (None, "broken", {}, [], ""),
        # Only the one open pull request of the run's repository and commit has it.
        (None, "net", {"head_repository": FORK}, [pull(6, SHA, FORK)], "POST issues/6/comments ✅ net"),
        (None, "net", {}, [pull(9, SHA, OWN, "closed")], "POST issues/5/comments ✅ net"),
        (None, "net", {}, [pull(9)], ""),
        (None, "net", {"head_repository": FORK}, [], ""),
        (None, "net", {"head_sha": NEWER}, [], ""),
        (None, "net", {"event": "push"}, [], ""),
        (None, "net", {"head_repository": None}, [], ""),
    ],
)
def test_the_comment_is_of_the_newest_run_of_the_one_pull_request(
    hub: Hub,
    tmp_path: Path,
    earlier: tuple[int, int] | None,
    upload: str,
    of_run: dict[str, Any],
    pulls: list[dict[str, Any]],
    written: str,
) -> None:
    hub.answers["pulls"] += pulls
    if earlier:
        hub.comment("<!-- qnn-ci run={} attempt={} -->\n✅ old".format(*earlier))
    if upload:
        hub.upload(b"no JSON" if upload == "broken" else content(change(upload)))
    with pytest.raises(CheckFailed) if upload == "broken" else nullcontext():
        hub.after(tmp_path, **of_run)
    found = [" ".join([what, *re.findall("✅|❌|net|nothing", body)]) for what, body in hub.written]
    assert found == ([written] if written else [])


def test_it_runs_on_no_other_event(hub: Hub, tmp_path: Path) -> None:
    hub.upload(content())
    with pytest.raises(UsageError):
        hub.after(tmp_path, "pull_request_target")


@pytest.mark.parametrize(("status", "fix"), [(302, ""), (403, "pull-requests: write"), (500, "again")])
def test_a_refusal_says_what_to_do_and_nothing_is_sent_elsewhere(
    hub: Hub, tmp_path: Path, status: int, fix: str
) -> None:
    hub.status = status
    with pytest.raises(UpstreamError, match=str(status)) as refused:
        hub.after(tmp_path)
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


def test_names_are_shown_and_are_nothing_else(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.upload(content(change(), *map(change, NAMES), change()))
    body = hub.after(tmp_path)
    rendered = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(body)
    page = read_page(f"<div>{rendered}</div>")
    counts = Counter(element.tag for element in page.iter())
    assert set(counts) == {"div", "h3", "p", "a", "code", "table", "thead", "tbody", "tr", "th", "td"}
    rows = len(NAMES) + 2
    assert (counts["table"], counts["tr"], counts["td"]) == (1, rows + 1, 4 * rows), "no row or cell more"
    link = "https://github.com/somebody/models/actions/runs/7"
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
        hub.upload(content(*rows, left_out=11), name=f"{comment.ARTIFACT}-{name}")
    body = hub.after(tmp_path)
    assert "more." in body and len(body) <= 65_536


def test_no_archive_is_read_without_end_nor_too_many(hub: Hub, tmp_path: Path) -> None:
    hub.upload(b"")
    hub.answers["actions/artifacts/0/zip"] = bytes(20_000_000)
    with pytest.raises(CheckFailed, match="larger than"):
        hub.after(tmp_path)
    for number in range(20):
        hub.upload(content(change()), name=f"{comment.ARTIFACT}-{number}")
    with pytest.raises(CheckFailed, match="21"):
        hub.after(tmp_path)
