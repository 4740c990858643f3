"""`diagnose`: explain failures of QNN, FastRPC, the loader and ExecuTorch.

A user gives it a log, a folder or a zip of logs, an error code, the rule of a finding, a known fault or an
operator. What it answers is in manifests/diagnose/ and the other tables; this module finds what was meant,
and prints it."""

from __future__ import annotations

import argparse
import io
import re
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from ci.diagnose.logs import Diagnosis, Explanation, diagnose_log, explain_number, explain_rule
from ci.diagnose.rules import ERRORS_PAGE, FAULTS_PAGE, RULES_PAGE, page_of, rule_named, rules
from ci.models.not_models import refuse_no_log
from provisioning.base import answer
from provisioning.base.commands import Fix, join_fixes, session
from provisioning.base.errors import UsageError, exit_code_of
from provisioning.base.findings import Report
from provisioning.base.flags import switch
from provisioning.base.foreign import escape_line, limit_work
from provisioning.base.parser import Parser
from provisioning.base.settings import user_path

if TYPE_CHECKING:
    from provisioning.known_faults import Fault

EXAMPLES = """\
  nox -s diagnose -- reports/delegate/*.log
  nox -s diagnose -- reports/logs/              every log below a folder
  nox -s diagnose -- logs_42.zip                the log archive of a GitHub run
  adb logcat -d | python -m ci diagnose
  nox -s diagnose -- 14001 0x80000406 -2147482618
  nox -s diagnose -- emulator-accuracy          the rule of a finding: what it means, what to type
  nox -s diagnose -- log@16a4w                  an operator in a scheme, as measured
  python -m ci diagnose --json build.log
  python -m ci diagnose --bundle run.log          what an issue needs, as one text
  python -m ci diagnose --bundle reports/         the same of the stage that failed
"""

LARGEST = 256 << 20
"""No more than so many bytes of a packed log are unpacked."""
LOG_NAME = re.compile(
    r"(?:log\.[\w.-]+|.*\.(?:log|txt|out|err)|syslog|logcat|dmesg|messages|stdout|stderr)(?:\.\d+)?",
    re.IGNORECASE,
)
"""Matches the name of a log: BitBake's are log.do_TASK.NUMBER, old ones of a system syslog.1."""
ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
UTF_16_STARTS = (b"\xff\xfe", b"\xfe\xff")
NO_TEXT = bytes(range(7)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes of control that no program writes into a log."""
SAMPLE = 4 << 10

OPERATOR = re.compile(r"([A-Za-z_][\w.]*)@(\w+)")
LATER = 3
"""The text names at most so many later failures; --json has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="LOG|CODE|RULE|OPERATOR@SCHEME",
        help="files, folders, archives of logs (.zip), numbers (decimal or 0x…), rules"
        " of findings, or - for stdin; or an operator at a precision, such as log@16a4w",
    )
    switch(
        parser,
        "--bundle",
        "print the text for an issue as markdown, without secrets and home folders: versions, chip, the"
        " finding and 200 lines of the log",
    )
    parser.epilog = (parser.epilog or "") + (
        "\nA code that is negative is given after --: python -m ci diagnose -- -2147482618\n"
        "Exit code: 0 every input was explained or is healthy, 1 at least one was not.\n"
    )


def run(args: argparse.Namespace) -> int:
    if args.bundle:
        print(_bundle(args.inputs))
        return 0
    if not args.inputs and sys.stdin.isatty():
        raise UsageError(
            "nothing to diagnose: no log, no code, and nothing on stdin",
            fix=Fix("{}, or pipe a log into it", ("diagnose", "FILE")),
        )
    results = [result for name in args.inputs or ["-"] for result in _diagnose_input(name)]
    answer.add(inputs=[_facts(result) for result in results])
    print("\n\n".join(_format_diagnosis(result) for result in results))
    return exit_code_of(good=all(result.explained for result in results))


def _diagnose_input(name: str) -> list[Diagnosis]:
    if name == "-":
        return _require_lines("stdin", [_diagnose_log("stdin", sys.stdin.buffer, LARGEST)])
    path = user_path(name, "LOG", str(Parser.user_folder()))
    if not path.exists():
        if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", name):
            return [explain_number(int(name, 0) if name[:2].lower() == "0x" else int(name))]
        if explanation := _explain_name(name):
            return [Diagnosis(name, (explanation,))]
        if match := OPERATOR.fullmatch(name):
            return [_diagnose_operator(name, *match.groups())]
    refuse_no_log(path, Path(name))
    if path.suffix == ".json":
        _refuse_report(path, name)
    try:
        results = [_diagnose_log(subject, log, size) for subject, log, size in logs_of(path, _name_of)]
    except (EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            f"{name} is damaged or cut off: {error}",
            fix="get it again, or unpack what is left of it, and give that",
        ) from error
    except OSError as error:
        message = (
            f"{name}: expected a number, a rule, a log, a folder or an archive of logs,"
            f" found {error.strerror or error}"
        )
        names = [*(rule for rule in rules() if "*" not in rule), *_faults()]
        from ci.operators.table import schemes_of

        if schemes := schemes_of(name):
            raise UsageError(
                f"{name} is an operator: expected its precision, too",
                fix=Fix(f"{{}}; measured at {', '.join(schemes)}", ("diagnose", f"{name}@{schemes[-1]}")),
            ) from error
        near = get_close_matches(name, names, n=1)
        fix = (
            f"did you mean {near[0]}?"
            if near
            else "give a file, a code such as 14001 or 0x80000406, a rule, or an operator such as log@16a4w"
        )
        raise UsageError(message, fix=fix) from error
    if len(results) == 1:
        return _require_lines(name, results)
    # Most logs of a folder are of steps that went well: show those with something known, else with trouble.
    answers = [result for result in results if result.explanations or result.operators]
    failures = [result for result in results if result.trouble]
    return answers or failures or [Diagnosis(name, lines=sum(result.lines for result in results) or 1)]


def _refuse_report(path: Path, name: str) -> None:
    """Refuse the report of a stage, which says by itself what is wrong."""
    try:
        report = Report.read(path)
    except (OSError, ValueError):
        # Many other programs write JSON, too.
        return
    raise UsageError(
        f"{name}: expected a log, found the report of {report.stage}",
        fix=Fix(
            "see it: {}; for an issue: {}",
            ("report", "--reports", str(Path(name).parent)),
            ("diagnose", "--bundle", str(Path(name).parent)),
        ),
    )


def _require_lines(name: str, results: list[Diagnosis]) -> list[Diagnosis]:
    if not any(result.lines for result in results):
        raise UsageError(
            f"{name} is empty: nothing to diagnose",
            fix=Fix(
                "write all that a command prints into a log, `COMMAND > run.log 2>&1`; then {}",
                ("diagnose", "run.log"),
            ),
        )
    return results


def _diagnose_log(subject: str, log: BinaryIO, size: int) -> Diagnosis:
    refusal = UsageError(
        f"{subject}: reading it takes more memory or time than a log of its size may",
        fix="give the failing log or its last part",
    )
    with limit_work(size, refusal):
        return diagnose_log(log, subject)


def _explain_name(name: str) -> Explanation | None:
    """Return what a finding's rule means, or a known failure or fault that a finding names."""
    if rule := rule_named(name):
        return Explanation(name, rule.summary, rule.fix, rule.page, 0, "", True)
    return explain_rule(name) or _explain_fault(name)


def _faults() -> dict[str, Fault]:
    """Load the known faults, by their ids. Imported late: it loads a package, which --help does without."""
    from provisioning.known_faults import load_faults

    return {fault.id: fault for fault in load_faults()}


def _explain_fault(name: str) -> Explanation | None:
    fault = _faults().get(name)
    if fault is None:
        return None
    sentences = [f"{fault.title} ({fault.product} {fault.versions}).", fault.effect]
    if fault.correct:
        sentences.append(f"Correct: {fault.correct}.")
    if fault.measurement:
        sentences.append(f"Measured: {fault.measurement}.")
    cause = " ".join(sentences)
    fix = join_fixes([f"{fault.fix}; type", fault.shown_by], " ")
    return Explanation(name, cause, fix, fault.source, 0, "", True)


def _page(name: str) -> str:
    if rule_named(name) is not None:
        return page_of(name, RULES_PAGE)
    return page_of(name, ERRORS_PAGE if explain_rule(name) is not None else FAULTS_PAGE)


def _diagnose_operator(subject: str, operator: str, scheme: str) -> Diagnosis:
    from ci.operators.table import lines_of, measured_operators
    from ci.suite.precision import scheme_named

    lines = tuple(lines_of(operator, scheme_named(scheme)))
    names = measured_operators()
    near = [] if lines or operator in names else get_close_matches(operator, names, n=1)
    if near:
        message = f"{subject}: no operator {operator} was measured"
        raise UsageError(message, fix=f"did you mean {near[0]}@{scheme}?")
    return Diagnosis(subject, operators=lines)


def _name_of(path: Path) -> str:
    """Return the path as its user would type it."""
    folder = Parser.user_folder()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _bundle(names: Sequence[str]) -> str:
    from ci.inspect.issue_text import failed_report, findings_text, log_of, markdown

    if len(names) != 1:
        raise UsageError(
            f"--bundle: expected one log, or a folder of reports, found {len(names)} names",
            fix=session("diagnose", "--bundle", "RUN.LOG"),
        )
    path = user_path(names[0], "LOG", str(Parser.user_folder()))
    report = failed_report(path) if path.is_dir() else None
    log = log_of(report, path) if report else path
    if not report and not is_one_log(path):
        raise UsageError(
            f"--bundle: expected a log, found {names[0]}",
            fix=Fix("{}, or reports/ after a failure", ("diagnose", "--bundle", "RUN.LOG")),
        )
    findings = findings_text(report).encode() if report else b""
    with log.open("rb") if log else io.BytesIO(findings) as content:
        diagnosis = diagnose_log(content, log.name if log else path.name)
    return markdown(diagnosis, _format_diagnosis(diagnosis), log, report)


def _format_diagnosis(result: Diagnosis) -> str:
    if result.lines and not result.trouble and not result.operators:
        note = f" ({result.harmless} look like it and are harmless)" if result.harmless else ""
        return f"{escape_line(result.subject)}: no line reports a failure{note}"
    lines = [escape_line(result.subject)]
    for number, row in enumerate(result.explanations):
        lines += ["  known from:"] if number == 1 else []
        where = f"line {row.line}: {escape_line(row.text)}" if row.line else ""
        lines += [f"  {row.id}" + (f"  ({where})" if where else "")]
        cause, fix = ("cause:", "fix:  ") if row.decided else ("means:", "check:")
        lines += [
            f"    {cause} {row.cause}",
            f"    {fix} {row.fix}",
        ]
        if row.public:
            lines += [f"    see:   {row.source}"]
        elif row.line:
            lines += [f"    see:   {session('diagnose', row.id)}"]
        lines += [f"    page:  {page}"] if (page := _page(row.id)) else []
    if result.later:
        later = ", ".join(f"{row.id} (line {row.line})" for row in result.later[:LATER])
        lines += [f"  later: {later}"]
    if not result.explanations or not result.explanations[0].line:
        lines += [f"  code {code}" for code in result.codes]
    lines += [f"  data type {name}" for name in result.data_types]
    lines += [f"  operator {text}" for text in result.operators]
    if not result.explanations and result.lines:
        lines += [f"  trouble: {escape_line(line)}" for line in result.trouble[:1]]
        lines += [] if result.explained else ["  the exact cause is not known"]
        lines += [f"  printed by: {result.told_by}"] if result.told_by else []
        lines += [f"  collect next: {result.collect}"]
    elif not result.explained:
        lines += ["  not known: neither QNN nor FastRPC has it, nor does a rule name it"]
    return "\n".join(lines)


def _facts(result: Diagnosis) -> dict[str, object]:
    return {
        "subject": result.subject,
        "explained": result.explained,
        "explanations": [{**asdict(row), "page": _page(row.id)} for row in result.explanations],
        "later": [{"id": row.id, "line": row.line, "text": row.text} for row in result.later],
        "codes": [asdict(code) for code in result.codes],
        "data_types": list(result.data_types),
        "operators": list(result.operators),
        "trouble": list(result.trouble),
        "harmless": result.harmless,
        "told_by": result.told_by,
        "collect": result.collect,
    }


# The logs that a path stands for: a file, those of a .zip or those below a folder


def logs_of(path: Path, name_of: Callable[[Path], str]) -> Iterator[tuple[str, BinaryIO, int]]:
    """Each log with its name and size, open until the next one."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if _is_log(file.as_posix()) and file.is_file())
        _refuse_none(name_of(path), bool(files))
        for file in files:
            with file.open("rb") as log:
                if _is_text(log):
                    yield name_of(file), log, file.stat().st_size
        return
    name = name_of(path)
    with path.open("rb") as log:
        if log.peek(4).startswith(ZIP_STARTS) or path.suffix == ".zip":
            yield from _logs_of_zip(path, name)
        elif _is_text(log):
            yield name, log, path.stat().st_size
        else:
            more = "give diagnose the output of the command that failed, unpacked; `{}` shows what this holds"
            raise UsageError(f"{name} is no text", fix=Fix(more, ("inspect", "FILE")))


def is_one_log(path: Path) -> bool:
    """Whether it is neither a folder nor packed."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return not file.peek(4).startswith(ZIP_STARTS)


def _is_log(path: str) -> bool:
    return LOG_NAME.fullmatch(path.rpartition("/")[2]) is not None


def _is_text(log: io.BufferedReader) -> bool:
    head = log.peek(SAMPLE)[:SAMPLE]
    return head.startswith(UTF_16_STARTS) or len(head) - len(head.translate(None, NO_TEXT)) <= len(head) // 20


def _logs_of_zip(path: Path, name: str) -> Iterator[tuple[str, BinaryIO, int]]:
    from provisioning.archive import DAMAGE, METHODS

    try:
        container = zipfile.ZipFile(path)
    except DAMAGE as error:
        raise zipfile.BadZipFile(error) from error
    with container as archive:
        # GitHub's archive contains each job's whole log, and each of its steps again in the job's folder.
        infos = [info for info in archive.infolist() if _is_log(info.filename)]
        logs = [info for info in infos if "/" not in info.filename] or infos
        _refuse_none(name, bool(logs))
        for info in logs:
            inside = f"{name}: {info.filename}"
            if info.file_size > LARGEST:
                raise UsageError(
                    f"{inside} unpacks to more than {LARGEST >> 20} MiB",
                    fix="unpack it yourself, and give the failing log or its last part",
                )
            unpacked = "unpack it yourself, and give the log"
            if info.compress_type not in METHODS:
                raise UsageError(f"{inside} is neither stored nor deflated", fix=unpacked)
            try:
                member = archive.open(info)
            except DAMAGE as error:
                # It wants a password.
                raise UsageError(f"{inside}: {error}", fix=unpacked) from error
            with member as log:
                yield inside, cast("BinaryIO", log), info.file_size


def _refuse_none(name: str, has_logs: bool) -> None:
    if not has_logs:
        raise UsageError(
            f"{name} has no log in it (.log, .txt, .out, .err, log.*)",
            fix="give the file that has what was printed",
        )
