"""`diagnose`: explain failures of QNN, FastRPC, the loader and ExecuTorch from logs and codes."""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ci.diagnose.explain import Diagnosis, Explanation, diagnosed, of_failure, of_number
from ci.diagnose.rules import ERRORS, FAULTS, RULES, explained, page_of, rules
from ci.inspect.logs import UNREADABLE, is_one_log, logs_of
from provisioning.base import answer
from provisioning.base.command_line import Parser, switch
from provisioning.base.commands import Fix, joined, session
from provisioning.base.errors import UsageError, exit_code_of
from provisioning.base.foreign import in_line
from provisioning.base.settings import user_path

if TYPE_CHECKING:
    from provisioning.known_faults import Fault

EXAMPLES = """\
  nox -s diagnose -- reports/delegate/*.log
  nox -s diagnose -- reports/logs/              every log below a folder
  nox -s diagnose -- logs_42.zip                the log archive of a GitHub run
  nox -s diagnose -- syslog.1.gz                what is packed
  adb logcat -d | python -m ci diagnose
  nox -s diagnose -- 14001 0x80000406 -2147482618
  nox -s diagnose -- emulator-accuracy          the rule of a finding: what it means, what to type
  nox -s diagnose -- log@16a4w                  an operator in a scheme, as measured
  python -m ci diagnose --json build.log
  python -m ci diagnose --bundle run.log          what an issue needs, as one text
  python -m ci diagnose --bundle reports/         the same of the stage that failed
"""

OPERATOR = re.compile(r"([A-Za-z_][\w.]*)@(\w+)")
LATER = 3
"""So many later failures are named; --json has all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="LOG|CODE|RULE|OPERATOR@SCHEME",
        help="files (also .gz), folders, archives of logs (.zip), numbers (decimal or 0x…), rules"
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
    print("\n\n".join(_as_text(result) for result in results))
    return exit_code_of(good=all(result.explained for result in results))


def _diagnose_input(name: str) -> list[Diagnosis]:
    if name == "-":
        return [diagnosed(sys.stdin.buffer, "stdin")]
    path = user_path(name, "LOG", str(Parser.user_folder()))
    if not path.exists():
        if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", name):
            return [of_number(int(name, 0) if name[:2].lower() == "0x" else int(name))]
        if found := _of_rule(name):
            return [Diagnosis(name, (found,))]
        if match := OPERATOR.fullmatch(name):
            return [_diagnose_operator(name, *match.groups())]
    try:
        results = [diagnosed(log, subject) for subject, log in logs_of(path, _shown)]
    except UNREADABLE as error:
        message = (
            f"{name}: expected a number, a rule, a log, a folder or an archive of logs,"
            f" found {getattr(error, 'strerror', None) or error}"
        )
        named = [*(rule for rule in rules() if "*" not in rule), *_faults()]
        near = get_close_matches(name, named, n=1)
        fix = (
            f"did you mean {near[0]}?"
            if near
            else "give a file, a code such as 14001 or 0x80000406, or a rule"
        )
        raise UsageError(message, fix=fix) from error
    if len(results) == 1:
        return results
    # Most logs of a folder are of steps that went well: show those with something known, else with trouble.
    known = [result for result in results if result.explanations or result.operators]
    troubled = [result for result in results if result.trouble]
    return known or troubled or [Diagnosis(name, lines=sum(result.lines for result in results) or 1)]


def _of_rule(name: str) -> Explanation | None:
    """What a finding's rule means, or a known failure or fault that a finding names."""
    if rule := explained(name):
        return Explanation(name, rule.summary, rule.fix, rule.page, 0, "", True)
    return of_failure(name) or _of_fault(name)


def _faults() -> dict[str, Fault]:
    """By id. The module loads a package, which --help does without."""
    from provisioning.known_faults import load_faults

    return {fault.id: fault for fault in load_faults()}


def _of_fault(name: str) -> Explanation | None:
    fault = _faults().get(name)
    if fault is None:
        return None
    sentences = [f"{fault.title} ({fault.product} {fault.versions}).", fault.effect]
    if fault.correct:
        sentences.append(f"Correct: {fault.correct}.")
    if fault.measurement:
        sentences.append(f"Measured: {fault.measurement}.")
    cause = " ".join(sentences)
    fix = joined([f"{fault.fix}; type", fault.shown_by], " ")
    return Explanation(name, cause, fix, fault.source, 0, "", True)


def _page(name: str) -> str:
    if explained(name) is not None:
        return page_of(name, RULES)
    return page_of(name, ERRORS if of_failure(name) is not None else FAULTS)


def _diagnose_operator(subject: str, operator: str, scheme: str) -> Diagnosis:
    from ci.operators.table import inexact, measured
    from ci.suite.precision import scheme_named

    scheme = scheme_named(scheme)
    lines = [row.message for row in inexact([operator], scheme)] or [measured(operator, scheme)]
    return Diagnosis(subject, operators=tuple(filter(None, lines)))


def _shown(path: Path) -> str:
    """The path as its user would type it."""
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
        found = diagnosed(content, log.name if log else path.name)
    return markdown(found, _as_text(found), log, report)


def _as_text(result: Diagnosis) -> str:
    if result.lines and not result.trouble and not result.operators:
        beside = f" ({result.harmless} look like it and are harmless)" if result.harmless else ""
        return f"{in_line(result.subject)}: no line reports a failure{beside}"
    lines = [in_line(result.subject)]
    for number, shown in enumerate(result.explanations):
        lines += ["  known from:"] if number == 1 else []
        where = f"line {shown.line}: {in_line(shown.text)}" if shown.line else ""
        lines += [f"  {shown.id}" + (f"  ({where})" if where else "")]
        cause, fix = ("cause:", "fix:  ") if shown.decided else ("means:", "check:")
        lines += [
            f"    {cause} {shown.cause}",
            f"    {fix} {shown.fix}",
        ]
        if shown.public:
            lines += [f"    see:   {shown.source}"]
        elif shown.line:
            lines += [f"    see:   {session('diagnose', shown.id)}"]
        lines += [f"    page:  {page}"] if (page := _page(shown.id)) else []
    if result.later:
        others = ", ".join(f"{shown.id} (line {shown.line})" for shown in result.later[:LATER])
        lines += [f"  later: {others}"]
    if not result.explanations or not result.explanations[0].line:
        lines += [f"  code {code}" for code in result.codes]
    lines += [f"  data type {name}" for name in result.data_types]
    lines += [f"  operator {text}" for text in result.operators]
    if not result.explanations and result.lines:
        lines += [f"  trouble: {in_line(line)}" for line in result.trouble[:1]]
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
        "explanations": [{**asdict(shown), "page": _page(shown.id)} for shown in result.explanations],
        "later": [{"id": shown.id, "line": shown.line, "text": shown.text} for shown in result.later],
        "codes": [asdict(code) for code in result.codes],
        "data_types": list(result.data_types),
        "operators": list(result.operators),
        "trouble": list(result.trouble),
        "harmless": result.harmless,
        "told_by": result.told_by,
        "collect": result.collect,
    }
