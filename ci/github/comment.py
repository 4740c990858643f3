"""Comment on what became worse: the gate's last job finds it, and another workflow writes it into the pull
request's one comment.

The comment is written by a job that may write and runs nothing of the pull request. Anyone who opens a
pull request decides what its jobs upload. Therefore the job takes only one small file from each call of
the gate, which must match its schema. The pull request, the commit and how the run ended come from
GitHub's own event."""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ci.report.changes import (
    MOST_BYTES,
    MOST_CHANGES,
    MOST_PROGRAMS,
    WORSE,
    ChangedFigure,
    Changes,
    changes_of,
    rank,
    reports_in,
)
from ci.report.collect import show_figure
from ci.report.page import cell, code
from ci.report.summary import command
from provisioning.base.errors import CheckFailed, ToolkitError, UpstreamError, UsageError
from provisioning.base.files import write_named
from provisioning.base.foreign import escape_line
from provisioning.base.rendering import plural

FILE = "comment.json"
ARTIFACT = "qnn-ci-comment"
"""The name of each call's artifact begins with this."""

MOST_CALLS = 20
"""One run may have at most this many calls of the gate."""

AUTHOR = "github-actions[bot]"
"""A workflow's token writes comments as this user. Comments of others may begin like ours."""

MARK = re.compile(r"<!-- qnn-ci run=(\d{1,18}) attempt=(\d{1,9}) -->")
LONGEST = 60_000
"""A comment has at most this many characters; GitHub takes 65,536."""

MOST_PAGES = 30
ANSWER_SECONDS = 20.0
PERMISSIONS = "give the job `actions: read` and `pull-requests: write`, and gate.yml `comment: true`"


@dataclass(frozen=True, slots=True)
class GateRun:
    """The run that has ended, as GitHub's event describes it."""

    id: int
    number: int
    """The number of the run among those of its workflow."""
    attempt: int
    conclusion: str
    commit: str
    head: int
    """The id of the repository that the commit is in, which may be a fork."""
    owner: str
    branch: str

    @property
    def age(self) -> tuple[int, int]:
        return self.number, self.attempt


class Api:
    """Calls GitHub's API for one repository."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        import requests

        self._session = requests.Session()
        self._session.headers["Accept"] = "application/vnd.github+json"
        if token := environ.get("GH_TOKEN"):
            self._session.headers["Authorization"] = f"Bearer {token}"
        try:
            self._base = f"{environ['GITHUB_API_URL']}/repos/{environ['GITHUB_REPOSITORY']}"
        except KeyError as error:
            raise UsageError(f"{error} is not set: this is a part of a workflow on GitHub") from error

    def __call__(
        self, method: str, path: str, body: Mapping[str, str] | None = None, **query: str | int
    ) -> Any:
        import requests

        try:
            answer = self._session.request(
                method,
                f"{self._base}/{path}",
                query,
                json=body,
                timeout=ANSWER_SECONDS,
                allow_redirects=False,
            )
            if answer.status_code >= 300:
                raise _refusal(f"{method} {path}", answer.status_code)
            return answer.json() if answer.content else None
        except (requests.RequestException, ValueError) as error:
            raise UpstreamError(f"GitHub's API, {method} {path}: {type(error).__name__}") from error

    def download(self, path: str) -> bytes:
        """Download a file. Raises CheckFailed if it has more than MOST_BYTES."""
        import requests

        try:
            with self._session.get(f"{self._base}/{path}", stream=True, timeout=ANSWER_SECONDS) as answer:
                if answer.status_code != 200:
                    raise _refusal(f"GET {path}", answer.status_code)
                content = b""
                for block in answer.iter_content(1 << 14):
                    content += block
                    if len(content) > MOST_BYTES:
                        raise too_large()
                return content
        except requests.RequestException as error:
            raise UpstreamError(f"GitHub's API, GET {path}: {type(error).__name__}") from error


def _refusal(request: str, status: int) -> UpstreamError:
    fix = PERMISSIONS if status in (401, 403, 404) else "run the job again"
    return UpstreamError(f"GitHub's API answers {status} to {request}", fix=fix)


def too_large() -> CheckFailed:
    return CheckFailed(f"the artifact {ARTIFACT} is larger than {MOST_BYTES:,} bytes: it is not read")


def changes(environ: Mapping[str, str]) -> int:
    """Read QNN_CI_REPORTS, the folder with the jobs' reports, and QNN_CI_BEFORE, the one with the default
    branch's, which may be missing. Write comment.json to the first."""
    folder, before = (
        Path(environ.get("GITHUB_WORKSPACE", ""), environ.get(name, "")).absolute()
        for name in ("QNN_CI_REPORTS", "QNN_CI_BEFORE")
    )
    result = changes_of(reports_in(folder, before), reports_in(before, folder))
    write_named(folder / FILE, result.to_json(), fix="name another folder with QNN_CI_REPORTS")
    sys.stdout.write(
        f"{result.worse} of {result.compared} programs became worse, {result.not_compared} not compared\n"
    )
    return 0


def comment(environ: Mapping[str, str]) -> int:
    """Read GITHUB_EVENT_PATH, the event `workflow_run`, and GH_TOKEN, which may write comments."""
    run = run_of(environ)
    if run is None:
        sys.stdout.write("the run was not of a pull request: there is nothing to comment on\n")
        return 0
    api = Api(environ)
    # Not those that the event names: of a fork it names none.
    of_branch = api("GET", "pulls", state="open", head=f"{run.owner}:{run.branch}", per_page=100)
    pulls = [pull for pull in of_branch if is_of(run, pull)]
    if len(pulls) != 1:
        sys.stdout.write(
            f"{len(pulls)} open pull requests have {run.commit[:12]} as their head: nothing is written\n"
        )
        return 0
    pull = int(pulls[0]["number"])
    place = f"{environ.get('GITHUB_SERVER_URL', '')}/{environ['GITHUB_REPOSITORY']}/actions/runs/{run.id}"
    try:
        comparison = uploaded_changes(run, api)
    except ToolkitError:
        write(pull, run, text_of(None, run, place), api, begin=False)
        raise
    if comparison is None:
        message = f"the run has no artifact {ARTIFACT}: give its call of gate.yml `comment: true`"
        sys.stdout.write(command("warning", message, title="comment") + "\n")
    # What an earlier run said of another commit does not stay beside a run that says nothing.
    write(pull, run, text_of(comparison, run, place), api, begin=comparison is not None)
    return 0


def run_of(environ: Mapping[str, str]) -> GateRun | None:
    """The run of the event; None if it was not of a pull request, or if the repository of the pull request is
    gone."""
    if environ.get("GITHUB_EVENT_NAME") != "workflow_run":
        raise UsageError(
            "this job runs on `workflow_run` alone", fix="copy the caller of comment.yml from docs/github.md"
        )
    try:
        event = json.loads(Path(environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
        run = event["workflow_run"]
        if run["event"] != "pull_request" or run["head_repository"] is None:
            return None
        return GateRun(
            int(run["id"]),
            int(run["run_number"]),
            int(run["run_attempt"]),
            str(run["conclusion"]),
            str(run["head_sha"]),
            int(run["head_repository"]["id"]),
            str(run["head_repository"]["owner"]["login"]),
            str(run["head_branch"]),
        )
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UsageError(f"GITHUB_EVENT_PATH: no event of a run that has ended ({error!r})") from error


def is_of(run: GateRun, pull: Any) -> bool:
    """Whether the run's commit is the head of this pull request. It is not if the pull request has newer
    commits."""
    head = pull["head"]
    at = head["repo"] is not None and head["repo"]["id"] == run.head and head["sha"] == run.commit
    return bool(at and pull["state"] == "open")


def uploaded_changes(run: GateRun, api: Api) -> Changes | None:
    """The changes that the run uploaded; None if it uploaded none. Raises CheckFailed if the file is not in
    our format."""
    newest: dict[str, int] = {}
    for row in pages(f"actions/runs/{run.id}/artifacts", api, "artifacts"):
        name, number = str(row["name"]), int(row["id"])
        if name == ARTIFACT or name.startswith(f"{ARTIFACT}-"):
            # Of an earlier attempt of the run there may be one of this name too.
            newest[name] = max(number, newest.get(name, 0))
    if len(newest) > MOST_CALLS:
        raise CheckFailed(f"the run has {len(newest)} artifacts {ARTIFACT}: at most {MOST_CALLS} are read")
    files = [read(api.download(f"actions/artifacts/{newest[name]}/zip")) for name in sorted(newest)]
    return together(files) if files else None


def read(archive: bytes) -> Changes:
    """Read the only file of the archive."""
    try:
        with zipfile.ZipFile(BytesIO(archive)) as files:
            (info,) = files.infolist()
            plain = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if info.filename != FILE or not plain or info.flag_bits & 1:
                raise ValueError(f"its file is {escape_line(info.filename)[:80]}")
            with files.open(info) as stream:
                text = stream.read(MOST_BYTES + 1)
    except Exception as error:  # zipfile raises whatever its parts do for an archive that is none
        message = f"the artifact {ARTIFACT} is not one archive with {FILE} alone: {error}"
        raise CheckFailed(escape_line(message)[:300]) from error
    if len(text) > MOST_BYTES:
        raise too_large()
    try:
        return Changes.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{FILE} does not fit manifests/schema/comment.json: {where}: {first['msg']}"
        raise CheckFailed(
            escape_line(message)[:300], fix="call gate.yml and comment.yml at one commit"
        ) from error


def together(calls: Sequence[Changes]) -> Changes:
    """Add up the changes of several calls of the gate, which have different programs."""
    worst_first = sorted((row for changes in calls for row in changes.changes), key=rank)

    def total(counts: Iterable[int]) -> int:
        return min(MOST_PROGRAMS, sum(counts))

    return Changes(
        schema=1,
        compared=total(changes.compared for changes in calls),
        not_compared=total(changes.not_compared for changes in calls),
        worse=total(changes.worse for changes in calls),
        changes=tuple(worst_first[:MOST_CHANGES]),
        left_out=total([len(worst_first[MOST_CHANGES:]), *(changes.left_out for changes in calls)]),
    )


def text_of(comparison: Changes | None, run: GateRun, place: str) -> str:
    """Write the text of the comment. From the file it takes numbers, words of ours, and names, which go
    through `code`."""
    mark = "✅" if run.conclusion == "success" else "❌"
    sentence = summary_of(comparison) if comparison else "It says nothing of programs."
    lines = [
        f"<!-- qnn-ci run={run.number} attempt={run.attempt} -->",
        "### QNN: what became worse",
        "",
        f"{mark} [The run]({place}) of {code(run.commit[:12])} ended with {cell(run.conclusion)}. {sentence}",
    ]
    if comparison is None or not comparison.changes:
        return "\n".join(lines) + "\n"
    rows = list(map(row_of, comparison.changes))
    lines += ["", "| program | what | before | now |", "| --- | --- | ---: | ---: |"]
    room = LONGEST - sum(len(line) + 1 for line in lines)
    count = 0
    while count < len(rows) and (room := room - len(rows[count]) - 1) > 0:
        count += 1
    more = len(rows) - count + comparison.left_out
    return "\n".join([*lines, *rows[:count], *(["", f"And {more:,} more."] if more else [])]) + "\n"


def row_of(change: ChangedFigure) -> str:
    cells = (
        f"{code(change.lane)} {code(change.program)}",
        WORSE[change.what],
        show_figure(change.what, change.before),
        show_figure(change.what, change.now),
    )
    return f"| {' | '.join(cells)} |"


def summary_of(changes: Changes) -> str:
    alone = f"{plural(changes.not_compared, 'program')} could not be compared."
    if not changes.compared:
        return alone
    programs = plural(changes.compared, "program")
    sentence = f"{changes.worse or 'None'} of {programs} became worse than on the default branch."
    return f"{sentence} {alone}" if changes.not_compared else sentence


def write(pull: int, run: GateRun, text: str, api: Api, *, begin: bool) -> None:
    """Write the comment, unless a later run already has; `begin` one if there is none. comment.yml lets one
    run of a pull request write at a time."""
    newest = max(ours(pull, api), default=None)
    if newest is None:
        if begin:
            api("POST", f"issues/{pull}/comments", {"body": text})
            sys.stdout.write(f"wrote the comment of #{pull}\n")
        return
    age, number = newest
    if age <= run.age:
        api("PATCH", f"issues/comments/{number}", {"body": text})
        sys.stdout.write(f"wrote the comment {number} of #{pull}\n")
    else:
        sys.stdout.write(f"the comment {number} of #{pull} is of a later run, {age[0]}: it stays\n")


def ours(pull: int, api: Api) -> Sequence[tuple[tuple[int, int], int]]:
    """The comments that we wrote: the age of the run that wrote each, and the comment's number."""
    comments = []
    for row in pages(f"issues/{pull}/comments", api):
        mark = MARK.match(row["body"] or "")
        if mark and (row["user"] or {}).get("login") == AUTHOR:
            comments.append(((int(mark[1]), int(mark[2])), int(row["id"])))
    return comments


def pages(path: str, api: Api, key: str = "") -> Iterator[Any]:
    """Yield the rows of all pages of a list, which is under `key` in each answer."""
    for page in range(1, MOST_PAGES + 1):
        answer = api("GET", path, per_page=100, page=page)
        rows = answer[key] if key else answer
        yield from rows
        if len(rows) < 100:
            return
