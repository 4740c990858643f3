"""`--json [FILE]` of every verb: the command's answer as one document, for programs and agents.

Without FILE the document is all that standard output gets. Imports nothing heavy.
"""

from __future__ import annotations

import io
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from provisioning.base.commands import Fix, leave_out
from provisioning.base.errors import (
    INTERNAL,
    INTERRUPTED,
    TERMINATED,
    CheckFailed,
    EnvironmentLacking,
    ToolkitError,
    UnknownName,
    UpstreamError,
    UsageError,
)
from provisioning.base.findings import Edit, Place
from provisioning.base.foreign import map_values, visible

if TYPE_CHECKING:
    import argparse

    from provisioning.base.findings import Finding, Report

FLAG = "--json"
HELP = "the answer as one JSON document: to FILE.json [standard output, instead of text]"
OUTCOMES: dict[int, Any] = {
    0: "pass",
    CheckFailed.exit_code: "fail",
    UsageError.exit_code: "usage",
    EnvironmentLacking.exit_code: "lacking",
    UpstreamError.exit_code: "upstream",
    INTERNAL: "internal",
    INTERRUPTED: "interrupted",
    TERMINATED: "interrupted",
}
"""The outcome that an answer states, by exit code."""


@dataclass(frozen=True, slots=True)
class AnsweredFinding:
    rule: str
    severity: Literal["error", "warning", "note"]
    subject: str
    message: str
    fix: str
    """What to type or write next, in words."""
    next: str
    """The command to type next: the fix's, or this one as the fix changes it. Empty where there is none."""
    place: Place | None
    """The line in the user's repository that the finding is about."""
    edit: Edit | None
    """The change of a file that the fix names; `next` is then to be typed after it."""


@dataclass(frozen=True, slots=True)
class Answer:
    schema: Literal[1]
    verb: str
    command: str
    """The command as it was typed, without --json."""
    python: str
    """The interpreter that did the work."""
    exit_code: int
    outcome: Literal["pass", "fail", "usage", "lacking", "upstream", "internal", "interrupted"]
    findings: list[AnsweredFinding]
    next: str
    """The next command of the first finding that has one: errors come first, then warnings. If none has, it
    is what the command itself says is next."""
    output: list[str]
    """The lines that the command prints without --json."""


@dataclass
class _Open:
    """What is collected of the command that runs."""

    verb: str
    words: Sequence[str]
    facts: dict[str, Any] = field(default_factory=dict)
    reports: dict[str, Sequence[Finding]] = field(default_factory=dict)
    own_findings: list[Finding] = field(default_factory=list)
    corrected: dict[str, Sequence[str]] = field(default_factory=dict)
    """Maps a finding's message to this command with the name that was meant."""
    parser: argparse.ArgumentParser | None = None

    @property
    def findings(self) -> Iterator[Finding]:
        for rows in self.reports.values():
            yield from rows
        yield from self.own_findings


_open: _Open | None = None


def add(**facts: Any) -> None:
    """Add evidence of the command that runs, as fields of its answer."""
    if _open:
        _open.facts |= facts


def refuse(verb: str) -> None:
    """Refuse --json for a verb whose process becomes another program, or speaks a protocol."""
    if _open:
        raise UsageError(f"{verb} answers to what it talks with, not by {FLAG}", fix=leave_out(FLAG))


def add_findings(findings: Iterable[Finding]) -> None:
    if _open:
        _open.own_findings += findings


def add_report(report: Report) -> None:
    """A stage's findings, as it first ends: later it may be put together with what earlier commands said."""
    if _open:
        _open.reports.setdefault(report.stage, report.findings)


def add_error(error: ToolkitError) -> None:
    """Add the error that ended the command. A report may have it already."""
    from provisioning.base.findings import Finding, Severity

    if _open is None or any(
        error.message in finding.message or finding.message in error.message for finding in _open.findings
    ):
        return
    if isinstance(error, UnknownName) and error.near:
        pattern = re.compile(rf"(?<![^:=/]){re.escape(error.name)}(?![^:=/])")
        words = [_open.verb, *_open.words]
        _open.corrected[error.message] = [pattern.sub(lambda _: error.near, word, count=1) for word in words]
    _open.own_findings.append(Finding(error.rule, Severity.ERROR, _open.verb, error.message, error.fix))


def add_parser(parser: argparse.ArgumentParser) -> None:
    """Keep the command line that runs, to know which of its flags take a value."""
    if _open:
        _open.parser = parser


def split_json(words: Sequence[str]) -> tuple[list[str], str | None]:
    """The words without `--json [FILE]`, and its FILE, empty for standard output; None without the flag.

    The next word is FILE if it ends in .json: in `diagnose --json build.log` the log is no FILE."""
    rest, place = list(words), None
    end = rest.index("--") if "--" in rest else len(rest)
    for index in reversed(range(end)):
        if rest[index] == FLAG:
            has_file = index + 1 < end and rest[index + 1].endswith(".json")
            place = rest[index + 1] if has_file else ""
            del rest[index : index + 1 + has_file]
        elif rest[index].startswith(f"{FLAG}="):
            place = rest.pop(index).partition("=")[2]
    return rest, place


def write_answer(
    verb: str, words: Sequence[str], place: Path | None, work: Callable[[], int], *, starts: bool = False
) -> int:
    """The exit code of `work`, with its answer written to `place`, or to standard output.

    With `starts`, the work becomes the verb's process, which answers itself and needs our streams."""
    global _open
    outer, _open = _open, _Open(verb, words)
    try:
        with nullcontext(str) if starts else _collect_output(live=place is not None) as output:
            try:
                code = work()
            except SystemExit as stop:
                # argparse has said what is wrong with the command line, or printed its help.
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        text = _document(_open, code, output())
    finally:
        _open = outer
    if place is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return code
    from provisioning.base.files import write_named

    write_named(place, text)
    return code


@contextmanager
def _collect_output(*, live: bool) -> Iterator[Callable[[], str]]:
    """What is printed meanwhile, and shown only if `live`, as far as this process prints it; else what its
    children print is kept too."""
    sys.stdout.flush()
    if live:
        tee = Tee(sys.stdout)
        with redirect_stdout(tee):
            yield tee.copy.getvalue
        return
    import tempfile

    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace", buffering=1) as file:
        before = os.dup(1)
        os.dup2(file.fileno(), 1)

        def read() -> str:
            file.seek(0)
            return file.read()

        try:
            with redirect_stdout(file):
                yield lambda: text
        finally:
            file.flush()
            text = read()
            os.dup2(before, 1)
            os.close(before)


class Tee:
    """Standard output that also keeps what is written."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.copy = stream, io.StringIO()

    def write(self, text: str) -> int:
        self.copy.write(text)
        return self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _document(draft: _Open, code: int, output: str) -> str:
    import json

    findings = [_answer_finding(draft, finding) for finding in draft.findings]
    # What failed comes first, then what may.
    ranked = [finding for level in ("error", "warning") for finding in findings if finding.severity == level]
    answer = Answer(
        schema=1,
        verb=draft.verb,
        command=_typed_command(draft.verb, *draft.words),
        python=sys.executable,
        exit_code=code,
        outcome=OUTCOMES.get(code, "fail"),
        findings=findings,
        next=next(filter(None, [*(mistake.next for mistake in ranked), draft.facts.get("next", "")]), ""),
        output=output.splitlines(),
    )
    return json.dumps(map_values({**draft.facts, **asdict(answer)}, _printable), indent=2) + "\n"


def _answer_finding(draft: _Open, finding: Finding) -> AnsweredFinding:
    return AnsweredFinding(
        finding.rule,
        finding.severity.value,
        finding.subject,
        finding.message,
        finding.fix,
        _next(draft, finding),
        finding.place,
        finding.edit,
    )


def _next(draft: _Open, finding: Finding) -> str:
    """The command that the fix names, or this command as the fix changes it; empty where there is none."""
    if words := draft.corrected.get(finding.message):
        return _typed_command(*words)
    if finding.edit:
        return _typed_command(draft.verb, *draft.words)
    if finding.command:
        return _typed_command(*finding.command)
    fix, flags = finding.fix, _flags(draft.parser) if draft.parser else {}
    if not isinstance(fix, Fix):
        return ""
    names = {fix.without, *(word for word in fix.flags if word.startswith("-"))} - {""}
    if not names or names - flags.keys():
        return ""
    words = list(draft.words)
    for flag in names:
        words = _without(words, flag, takes=flags[flag])
    # In front: behind the words there may be a `--`.
    return _typed_command(draft.verb, *fix.flags, *words)


def _flags(parser: argparse.ArgumentParser) -> dict[str, bool]:
    """Map each flag to whether it takes a value."""
    return {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}


def _without(words: Sequence[str], flag: str, *, takes: bool) -> list[str]:
    rest: list[str] = []
    skipped = False
    for word in words:
        if skipped or word.startswith(f"{flag}="):
            skipped = False
        elif word == flag:
            skipped = takes
        else:
            rest.append(word)
    return rest


def _typed_command(*words: str) -> str:
    return shlex.join(["qnn-ci", *words])


def _printable(value: object) -> object:
    """Make a value safe to show: much of the text is of models, logs and files. JSON has no infinity."""
    if isinstance(value, str):
        return visible(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
