"""Summarize all reports of a run: in words, on a terminal, and as annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ci.diagnose.rules import page_of
from ci.report.collect import rows_of
from provisioning.base.findings import Finding, Outcome, Report, Severity, severity_counts
from provisioning.base.foreign import one_line, visible
from provisioning.base.rendering import (
    EARLIER_RUN,
    HARMLESS,
    VERDICTS,
    duration,
    errors_of,
    finding_lines,
    identity,
    plural,
    render,
    summary_of,
    verdict,
)
from provisioning.base.units import seconds

if TYPE_CHECKING:
    from rich.text import Text

MOST_NAMED = 3
"""A headline names at most this many models."""

VERDICT_COLUMNS = 15

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}

MOST = 10
"""A job annotates at most this many findings: GitHub shows no more of one level for a step, and drops the
rest without a word."""


def worst(reports: Iterable[Report]) -> Outcome:
    """The worst outcome of all stages that were to run; if there are none, it is no pass.

    A stage that did not run counts no worse than the failure that prevented it."""
    verdicts = {verdict(report) for report in reports}
    if "error" not in verdicts and "fail" in verdicts:
        return Outcome.FAIL
    return Outcome.PASS if "pass" in verdicts and verdicts <= HARMLESS else Outcome.ERROR


def headline(reports: Sequence[Report]) -> str:
    """The result of all reports in one line: the models, then the stages that were to run."""
    stages = [report for report in reports if verdict(report) != "skipped"]
    if not stages:
        return "no stage has reported"
    models = models_in(stages)
    counts = [failed_and_passed(models)] if models else []
    bad = [report for report in stages if verdict(report) != "pass"]
    # A stage that failed by its models says nothing more.
    names = [report.stage for report in bad if all(models_in([report]).values())]
    if not bad:
        counts.append(f"{plural(len(stages), 'stage')} passed")
    elif names:
        counts.append(f"{len(names)} of {plural(len(stages), 'stage')} did not pass ({', '.join(names)})")
    if earlier := [report.stage for report in reports if is_from_earlier_run(report)]:
        counts.append(f"{', '.join(earlier)} in an earlier run")
    if skipped := len(reports) - len(stages):
        counts.append(f"{skipped} skipped")
    return ", ".join(counts)


def models_in(reports: Iterable[Report]) -> dict[str, bool]:
    """Whether each program of a suite, and each model of a command, passed in every stage that has a row
    about it."""
    verdicts: dict[str, bool] = {}
    for report in reports:
        for name, row in rows_of(report, "programs", "models").items():
            verdicts[name] = verdicts.get(name, True) and row.passed
    return verdicts


def failed_and_passed(models: Mapping[str, bool]) -> str:
    """Say how many failed and passed, such as `bert 8a8w failed, 4 passed`; the chip is named if there are
    several."""
    # `bert/8a8w/SM8650` of a suite; `ci/net.py:bert 8a8w SM8650` of a command.
    words = {name: one_line(name).split(" " if " " in name else "/") for name in models}
    one_chip = len({word[-1] for word in words.values()}) == 1
    failed = [
        " ".join(words[name][:-1] if one_chip and words[name][1:] else words[name])
        for name, good in models.items()
        if not good
    ]
    if not failed:
        return f"{plural(len(models), 'model')} passed"
    listing = ", ".join(failed[:MOST_NAMED])
    more = f" and {len(failed) - MOST_NAMED} more" if failed[MOST_NAMED:] else ""
    good = len(models) - len(failed)
    return f"{listing}{more} failed" + (f", {good} passed" if good else "")


def is_from_earlier_run(report: Report) -> bool:
    return any(finding.rule == EARLIER_RUN for finding in report.findings)


def stage_line(report: Report, names: int) -> Text:
    """The stage's verdict, its time and its findings in a line; the name takes the columns of the longest."""
    from rich.text import Text

    word, style = VERDICTS[verdict(report)]
    summary = "" if verdict(report) == "pass" and not is_from_earlier_run(report) else summary_of(report)
    line = Text(f"{word:<{VERDICT_COLUMNS}}", style=style, no_wrap=True, overflow="ignore")
    text = f"{report.stage:<{names}}  {duration(report):>10}  {summary}".rstrip()
    return line.append(text, style="not bold default")


def conclusion(
    reports: Sequence[Report], more: str = "", *, colour: bool = False, width: int = 100, errors: int = 0
) -> str:
    """Some of the errors, the number of other findings if `more` shows it, and the verdict."""
    from rich.console import Group
    from rich.text import Text

    wrong = errors_of(reports) if errors else []
    parts = [finding_lines(finding, width) for finding in wrong[:errors]]
    if len(wrong) > errors:
        parts.append(Text(f"  … and {plural(len(wrong) - errors, 'more error')}", style="dim"))
    if wrong:
        parts.append(Text())
    counts = severity_counts(finding for report in reports for finding in report.findings)
    milder = ", ".join(
        plural(count, kind.value) for kind, count in counts.items() if count and kind is not Severity.ERROR
    )
    if milder and more:
        parts.append(Text(f"{milder}: {more}", style="dim", no_wrap=True, overflow="ignore"))
    word, style = VERDICTS[worst(reports).value]
    total = seconds(sum(report.seconds for report in reports))
    line = f"  {headline(reports)}, {total}"
    parts.append(Text.assemble((word, style), line, no_wrap=True, overflow="ignore"))
    return render(Group(*parts), colour=colour, width=width)


def github_annotations(reports: Iterable[Report]) -> str:
    """Write a command a line: the worst ten findings, each once. The last line says how many more there
    are."""
    ranks = list(Severity)
    pairs: dict[Hashable, tuple[Report, Finding]] = {}
    for report in reports:
        for finding in report.findings:
            pairs.setdefault(identity(report, finding), (report, finding))
    worst_first = sorted(pairs.values(), key=lambda pair: ranks.index(pair[1].severity))
    top = worst_first if len(worst_first) <= MOST else worst_first[: MOST - 1]
    lines = [_annotation(LEVELS[finding.severity], report, finding) for report, finding in top]
    if rest := worst_first[len(top) :]:
        level = LEVELS[rest[0][1].severity]
        lines.append(command(level, f"{plural(len(rest), 'more finding')} in the job's summary"))
    return "".join(f"{line}\n" for line in lines)


def command(name: str, message: str = "", **properties: str) -> str:
    """Write one workflow command: `::error title=…::message`."""
    property_list = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name}{' ' if property_list else ''}{property_list}::{_data(message)}"


def _annotation(level: str, report: Report, finding: Finding) -> str:
    text = "\n".join(filter(None, (describe_finding(finding), page_of(finding.rule))))
    title = one_line(f"{report.stage}: {finding.rule}")
    place = finding.place
    where = {"file": place.file, "line": str(place.line), "col": str(place.column or "")} if place else {}
    return command(level, text, **{name: visible(text) for name, text in where.items()}, title=title)


def describe_finding(finding: Finding) -> str:
    """Describe a finding to other programs: its subject, its message and its fix."""
    message = f"{finding.subject}: {finding.message}" if finding.subject else finding.message
    return visible(f"{message}\n→ {finding.fix}" if finding.fix else message)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
