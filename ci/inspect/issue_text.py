"""Write what an issue about a failure needs, as one markdown text without secrets or home folders, for
`diagnose --bundle`.

It has the versions, the command, the findings, and the lines of the log around the failure."""

from __future__ import annotations

import os
import platform
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ci.diagnose.logs import DECORATION, Diagnosis, tells_of_trouble
from provisioning.addresses import redact_text
from provisioning.base.findings import Report
from provisioning.base.foreign import escape_line, visible
from provisioning.base.rendering import LOG, errors_of
from provisioning.base.settings import DEFAULT_PROFILE, project, store_path
from provisioning.build_ids import build_ids
from provisioning.components import QNN_SDK
from provisioning.manifest import load_profile
from provisioning.stage_variables import HOST_LIBRARIES

LINES, BEFORE = 200, 60
FINDINGS = 10
LONGEST = 2000
"""A line of the log is cut after so many characters."""

HOME = re.compile(r"(?:/home/|/Users/|[A-Za-z]:[\\/]+Users[\\/]+)[^/\\\s:'\"]+|/root(?=[/\s:'\"]|$)")
SECRETS = (
    re.compile(r"\b(?:gh[opsur]_|github_pat_|hf_|glpat-|sk-|xox[abp]-|AKIA|AIza)[A-Za-z0-9_-]{8,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"),
    re.compile(r"(?i)(?<=bearer )\S+|(?<=basic )[A-Za-z0-9+/=]{8,}"),
    re.compile(
        r"(?i)(?:(?<=token)|(?<=secret)|(?<=password)|(?<=passwd)|(?<=api_key)|(?<=apikey)|(?<=api-key))"
        r"[\"']?\s*[:=]\s*[\"']?[^\s\"',;]{6,}"
    ),
    re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"),
)
KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
SECRET_NAME = re.compile(r"(?i)token|secret|passw|api_?key|private")


def remove_secrets(text: str, environ: Mapping[str, str]) -> str:
    for name, value in environ.items():
        if SECRET_NAME.search(name) and len(value) >= 6:
            text = text.replace(value, "***")
    text = redact_text(text)
    for pattern in SECRETS:
        text = pattern.sub("***", text)
    if (home := environ.get("HOME", "")) not in ("", "/"):
        text = text.replace(home, "~")
    return HOME.sub("~", text)


def failed_report(folder: Path) -> Report | None:
    """Return the report of the first stage with errors in a folder of reports, or None."""
    reports = list[Report]()
    for path in folder.glob("*.json"):
        with suppress(ValueError):  # it may be another document
            report = Report.read(path)
            reports += [report] if errors_of([report]) else []
    return min(reports, key=lambda report: report.started, default=None)


def log_of(report: Report, folder: Path) -> Path | None:
    paths = [Path(artifact.path) for artifact in report.artifacts if artifact.kind == LOG]
    logs = [*paths, folder / "logs" / f"{report.stage}.log"]
    return next((log for log in logs if log.is_file()), None)


def markdown(diagnosis: Diagnosis, explanation: str, log: Path | None, report: Report | None = None) -> str:
    """Write the text. `explanation` is what diagnose prints of the failure. A command for one model keeps no
    log."""
    at = min((row.line for row in diagnosis.explanations if row.line), default=0)
    findings = findings_text(report) if report else ""
    first, lines = _excerpt(log, at) if log else (0, [])
    chip = os.environ.get("QNN_CI_SOC", "")
    pins = load_profile((report.profile if report else "") or DEFAULT_PROFILE).packages
    rows = [
        ("qnn-ci", project().version),
        ("system", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"),
        ("pinned packages", ", ".join(" ".join(pin) for pin in pins.items())),
        *([("command", report.command)] if report else []),
        *([("profile and target", f"{report.profile}, {report.target}")] if report else []),
        *([("chip chosen", chip)] if chip else []),
        ("QNN builds provisioned", ", ".join(_builds_in(store_path())) or "none"),
        *_own_sdk(),
    ]
    table = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)
    excerpt = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", excerpt + explanation + findings)), default=0))
    sections = [f"| what | value |\n| --- | --- |\n{table}"]
    if report:
        sections.append(f"What {report.stage} found:\n\n{fence}text\n{findings}\n{fence}")
    if log or diagnosis.explanations:
        sections.append(f"What qnn-ci diagnose says:\n\n{fence}text\n{explanation}\n{fence}")
    if log:
        last = first + len(lines) - 1
        sections.append(f"The log, lines {first} to {last}:\n\n{fence}text\n{excerpt}\n{fence}")
    return remove_secrets("\n\n".join(sections), os.environ)


def _cell(text: str) -> str:
    return escape_line(text).replace("|", "\\|")


def findings_text(report: Report) -> str:
    errors = errors_of([report])
    lines = []
    for finding in errors[:FINDINGS]:
        lines += [f"{finding.rule}  {finding.subject}", finding.message]
        lines += [f"→ {finding.fix}"] if finding.fix else []
    lines += [f"… and {len(errors) - FINDINGS} more"] if errors[FINDINGS:] else []
    return visible("\n".join(lines))


def _builds_in(store: Path) -> Iterator[str]:
    trees = sorted((store / "trees").glob(f"{QNN_SDK}-*/"))
    # A build has a tree for each selection of it.
    yield from dict.fromkeys(tree.name.removeprefix(f"{QNN_SDK}-").rpartition("-")[0] for tree in trees)


def _own_sdk() -> Iterator[tuple[str, str]]:
    if sdk := os.environ.get("QNN_SDK_ROOT"):
        library = Path(sdk, "lib", HOST_LIBRARIES, "libQnnHtp.so")
        builds = build_ids(library) if library.is_file() else ()
        yield "QNN_SDK_ROOT", ", ".join(builds) or f"no {library.name} with a build id"


def _excerpt(path: Path, line: int) -> tuple[int, list[str]]:
    """Return the number of the first line, and at most LINES lines around `line`. If `line` is 0, they are
    around the first line that tells of trouble, or are the last ones."""
    before: deque[bytes] = deque(maxlen=BEFORE)
    first, excerpt, number = 0, list[bytes](), 0
    with path.open("rb") as log:
        for number, text in enumerate(_lines(log), 1):
            if len(excerpt) == LINES:
                break
            if excerpt:
                excerpt.append(text)
            elif number == line or (not line and tells_of_trouble(text)):
                first, excerpt = number - len(before), [*before, text]
            before.append(text)
    if not excerpt:
        first, excerpt = number - len(before) + 1, list(before)
    return first, _mask_keys(excerpt)


def _lines(log: BinaryIO) -> Iterator[bytes]:
    """Read lines. One longer than any log's is cut, not read whole."""
    while line := log.readline(1 << 20):
        if not line.endswith(b"\n"):
            while rest := log.readline(1 << 20):
                if rest.endswith(b"\n"):
                    break
        yield DECORATION.sub(b"", line).rstrip(b"\r\n")


def _mask_keys(lines: Iterable[bytes]) -> list[str]:
    texts, inside = list[str](), False
    for line in lines:
        text = visible(line.decode("utf-8", "replace"))[:LONGEST]
        inside = inside or KEY.search(text) is not None
        texts.append("***" if inside else text)
        inside = inside and "-----END" not in text
    return texts
