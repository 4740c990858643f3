"""Show a report in words and numbers: findings by severity, artifacts, the verdict last.

`show` prints a report as this terminal supports it, with colour or without. Findings that differ in nothing
but the program that they are about become one."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TextIO

from provisioning.base.commands import session
from provisioning.base.findings import Artifact, Finding, Report, Severity, severity_counts
from provisioning.base.foreign import one_line, visible
from provisioning.base.units import align, seconds, size, terminal_width, wrap_text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Verdict = Literal["pass", "fail", "error", "did not run", "skipped"]

HARMLESS: frozenset[Verdict] = frozenset({"pass", "skipped"})
"""Verdicts of stages that passed, or were not to run now."""

DID_NOT_RUN = "report-did-not-run"
"""The finding of a report that stands in for a stage that did not run; a note if it was not to."""

EARLIER_RUN = "report-earlier-run"
"""The finding of a report from an earlier run than the newest on the page."""

LOG = "log"
"""The kind of artifact that has a stage's output."""


def verdict(report: Report) -> Verdict:
    for finding in report.findings:
        if finding.rule == DID_NOT_RUN:
            return "skipped" if finding.severity is Severity.NOTE else "did not run"
    return report.outcome.value


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def counts_of(report: Report) -> str:
    """`2 errors, 1 warning`; `nothing found` when there is nothing."""
    counts = severity_counts(report.findings)
    return ", ".join(plural(count, kind.value) for kind, count in counts.items() if count) or "nothing found"


def summary_of(report: Report) -> str:
    """The findings in numbers, or the reason why the stage did not look."""
    reasons = [finding.message for finding in report.findings if finding.rule == DID_NOT_RUN]
    if reasons:
        return one_line(reasons[0])
    earlier = [finding.message for finding in report.findings if finding.rule == EARLIER_RUN]
    rest = counts_of(replace(report, findings=tuple(f for f in report.findings if f.rule != EARLIER_RUN)))
    return "; ".join([rest, *map(one_line, earlier)])


def errors_of(reports: Iterable[Report]) -> list[Finding]:
    """All errors in order, each once."""
    errors: dict[Hashable, Finding] = {}
    for report in reports:
        for finding in report.findings:
            if finding.severity is Severity.ERROR and finding.rule != DID_NOT_RUN:
                errors.setdefault(identity(report, finding), finding)
    return list(errors.values())


def identity(report: Report, finding: Finding) -> Hashable:
    """Return what is equal for two reports of one error, whether of one program or of one line of the suite's
    file."""
    if finding.place and finding.subject == report.stage:
        return finding.place, finding.message
    return finding.rule, finding.subject, finding.message


def notable_artifacts(report: Report) -> list[Artifact]:
    """Artifacts worth a row; a stage's log only if the stage did not pass."""
    harmless = verdict(report) in HARMLESS
    return [artifact for artifact in report.artifacts if not (harmless and artifact.kind == LOG)]


def duration(report: Report) -> str:
    return "–" if verdict(report) in ("did not run", "skipped") else seconds(report.seconds)


def group_by_severity(findings: Iterable[Finding]) -> dict[Severity, list[Finding]]:
    """Worst first; severities without findings are left out."""
    groups: dict[Severity, list[Finding]] = {severity: [] for severity in Severity}
    for finding in findings:
        groups[finding.severity].append(finding)
    return {severity: group for severity, group in groups.items() if group}


def scalar_metrics(report: Report) -> dict[str, str]:
    """The metrics that fit in a line, in the report's order."""
    texts: dict[str, str] = {}
    for name, value in report.metrics.items():
        if isinstance(value, bool):
            texts[name] = "yes" if value else "no"
        elif isinstance(value, int):
            texts[name] = size(value) if name.endswith("bytes") else f"{value:,}"
        elif isinstance(value, float):
            texts[name] = seconds(value) if name.endswith("seconds") else f"{value:.4g}"
        elif isinstance(value, str):
            texts[name] = one_line(value)
    return texts


SHOWN = 40
"""Findings of one severity shown; the report file has them all."""

STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
VERDICTS = {
    "pass": ("✓ PASS", "bold green"),
    "fail": ("✗ FAIL", "bold red"),
    "error": ("✗ ERROR", "bold red"),
    "did not run": ("✗ DID NOT RUN", "bold red"),
    "skipped": ("– SKIPPED", "bold yellow"),
}


def console(report: Report, *, colour: bool = False, width: int = 100) -> str:
    """The report as text of `width` columns, ending in a verdict that is one line however long."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for severity, group in group_by_severity(report.findings).items():
        parts.append(Text(plural(len(group), severity.value), style=f"bold {STYLES[severity]}"))
        shown = alike_in_one(group)
        parts += [finding_lines(finding, width) for finding in shown[:SHOWN]]
        if len(shown) > SHOWN:
            parts.append(Text(f"  … and {len(shown) - SHOWN:,} more in {report.stage}.json", style="dim"))
        parts.append(Text())
    if artifacts := notable_artifacts(report):
        parts += [artifact_rows(artifacts, width), Text()]
    if metrics := scalar_metrics(report):
        parts += [_metrics(metrics, width), Text()]
    return render(Group(*parts, _verdict(report)), colour=colour, width=width)


def show(report: Report, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> None:
    """Print the report in the way this terminal supports."""
    stream = stream or sys.stdout
    colour, width = wants_colour(stream, environ), terminal_width(environ)
    write(console(report, colour=colour, width=width), stream)


def write(text: str, stream: TextIO) -> None:
    """Print; characters that the stream's encoding lacks become `?` instead of a traceback.

    If the reader has closed the pipe, the work goes on and the exit code stays the same."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "replace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        drop_output(stream)


def drop_output(stream: TextIO) -> None:
    """Drop the rest of the output, which nobody reads any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """NO_COLOR and FORCE_COLOR decide; otherwise a terminal, or GitHub's log, which shows colours."""
    if environ.get("NO_COLOR"):
        return False
    if (environ.get("FORCE_COLOR") or "0") != "0" or environ.get("GITHUB_ACTIONS") == "true":
        return True
    return stream.isatty() and environ.get("TERM") != "dumb"


def render(renderable: RenderableType, *, colour: bool, width: int) -> str:
    console = _console(colour, width)
    console.print(renderable, crop=False)
    text = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _console(colour: bool, width: int) -> Console:
    from rich.console import Console

    return Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if colour else None,
        force_terminal=colour,
        no_color=not colour,
        legacy_windows=False,
        _environ={},
    )


def alike_in_one(findings: Sequence[Finding]) -> list[Finding]:
    """Findings whose commands choose another program each, and differ in nothing else, as one finding."""
    groups: dict[object, list[Finding]] = {}
    for finding in findings:
        words = finding.command
        is_choice = "-k" in words and finding.fix == session(*words)
        key = (finding.rule, finding.message, _narrow_command(words, "")) if is_choice else id(finding)
        groups.setdefault(key, []).append(finding)
    return [group[0] if len(group) == 1 else _merge_findings(group) for group in groups.values()]


def _merge_findings(findings: Sequence[Finding]) -> Finding:
    names = [finding.command[finding.command.index("-k") + 1] for finding in findings]
    words = _narrow_command(findings[0].command, " or ".join(names))
    subjects = ", ".join(finding.subject for finding in findings)
    return replace(findings[0], subject=subjects, place=None, fix=session(*words))


def _narrow_command(words: Sequence[str], expression: str) -> tuple[str, ...]:
    """The command with this choice of programs."""
    value = words.index("-k") + 1
    return (*words[:value], expression, *words[value + 1 :])


def finding_lines(finding: Finding, width: int) -> Text:
    """Show what it is about, its message and its fix. No word is broken: a path or a command can be
    pasted."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    text.append(f"  {one_line(finding.rule)}", style=STYLES[finding.severity])
    text.append(f"  {one_line(finding.subject)}", style="bold")
    if finding.other_place:
        text.append(f"  {one_line(finding.other_place)}")
    for line in visible(finding.message).strip().splitlines():
        text.append("\n" + "\n".join(wrap_text(line, width, "    ", "    ")))
    for number, line in enumerate(visible(finding.fix).strip().splitlines()):
        text.append("\n    " + ("  " if number else "→ "), style="green")
        text.append("\n".join(wrap_text(line, width, " " * 6, " " * 6))[6:])
    return text


def _verdict(report: Report) -> Text:
    from rich.text import Text

    word, style = VERDICTS[verdict(report)]
    about = ", ".join(visible(part) for part in (report.profile, report.target) if part)
    return Text.assemble(
        (word, style),
        "  ",
        (visible(report.stage), "bold"),
        f"{f' ({about})' if about else ''}: {summary_of(report)}, {duration(report)}",
        no_wrap=True,
        overflow="ignore",
    )


def artifact_rows(artifacts: Sequence[Artifact], width: int) -> RenderableType:
    from rich.text import Text

    rows = [(one_line(a.kind), size(a.size), a.sha256[:12], one_line(a.path)) for a in artifacts]
    lines = align([("artifact", "size", "sha256", "path"), *rows], width)
    # A path that is longer than a line stays one word, to be pasted.
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def _metrics(metrics: Mapping[str, str], width: int) -> RenderableType:
    from rich.text import Text

    line = " · ".join(f"{visible(name)} {value}" for name, value in metrics.items())
    return Text("\n".join(wrap_text(line, width, "", "")), style="dim", no_wrap=True, overflow="ignore")
