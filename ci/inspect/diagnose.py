"""`diagnose`: explain failures of QNN, FastRPC, the loader and ExecuTorch from logs and codes."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from ci.inspect.logs import UNREADABLE, Shown, is_one_log, logs_of
from provisioning.base import answer
from provisioning.base.command_line import Parser
from provisioning.base.commands import as_here
from provisioning.base.diagnosis import (
    Diagnosis,
    Explanation,
    Reading,
    explain_code,
    knowledge,
    pieces_of,
)
from provisioning.base.errors import UsageError
from provisioning.base.foreign import in_line
from provisioning.base.rules import explained, rules
from provisioning.base.settings import user_path
from provisioning.base.site import page_of

EXAMPLES = """\
  nox -s diagnose -- reports/delegate/*.log
  nox -s diagnose -- reports/logs/              every log below a folder
  nox -s diagnose -- logs_42.zip                the log archive of a GitHub run
  nox -s diagnose -- syslog.1.gz logs.tar.gz    what is packed
  nox -s diagnose -- --codes-of "$QNN_SDK_ROOT/lib/x86_64-linux-clang/libQnnHtp.so"
  adb logcat -d | python -m ci diagnose
  nox -s diagnose -- 14001 0x80000406 -2147482618
  nox -s diagnose -- emulator-accuracy          the rule of a finding: what it means, what to type
  nox -s diagnose -- log@16a4w                  an operator in a scheme, as measured
  python -m ci diagnose --json build.log
  python -m ci diagnose --messages memRegister    which library prints it, of what is provisioned
  python -m ci diagnose --bundle run.log libs/    what an issue needs, as one text
  python -m ci diagnose --bundle reports/         the same of the stage that failed
"""

OPERATOR = re.compile(r"([A-Za-z_][\w.]*)@(\w+)")
NOT_HERE = "if something failed, it does not show here; collect"
"""What stands before that, where no line tells of trouble."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="LOG|CODE|RULE|OPERATOR@SCHEME",
        help="files, folders, archives of logs (.zip, .tar, .gz, .bz2, .xz), numbers (decimal or 0x…), rules"
        " of findings, or - for stdin; or what was measured of an operator, such as log@16a4w",
    )
    parser.add_argument(
        "--codes-of",
        type=Path,
        metavar="LIBRARY",
        help="print the error codes that a QNN library for this machine names",
    )
    parser.add_argument(
        "--messages-of",
        type=Path,
        metavar="PATH",
        help="count what a library, or a folder of them and Python, prints, and the rules that match it",
    )
    parser.add_argument(
        "--messages-before",
        type=Path,
        metavar="PATH",
        help="with --messages-of: the earlier build; says what was gained, lost, and which rules match none",
    )
    parser.add_argument(
        "--messages",
        action="store_true",
        help="say which library prints the words that follow (none: count all), of what is provisioned",
    )
    parser.add_argument(
        "--bundle",
        action="store_true",
        help="print what an issue needs as one markdown text, without secrets and home folders: versions,"
        " chip, the finding, 200 lines of the log (first argument), and the QNN build of each library",
    )
    parser.epilog = (parser.epilog or "") + (
        "\nA code that is negative is given after --: python -m ci diagnose -- -2147482618\n"
        "Exit code: 0 every input was explained, 1 at least one was not.\n"
    )


def run(args: argparse.Namespace) -> int:
    if args.codes_of:
        from ci.inspect.error_names import error_names

        names = error_names(args.codes_of)
        answer.add(names=names)
        print("\n".join(f"{c}  {n}" for c, n in names.items()))
        return 0
    if args.messages:
        return _printed(args.inputs)
    if args.messages_of:
        return _messages(args.messages_of, args.messages_before)
    if args.messages_before:
        raise UsageError("--messages-before is given without --messages-of", fix="name the newer build too")
    if args.bundle:
        print(_bundle(args.inputs))
        return 0
    results = [result for name in _inputs(args.inputs) for result in _diagnose_input(name)]
    answer.add(inputs=[_facts(result) for result in results])
    print("\n\n".join(_as_text(result) for result in results))
    return 0 if all(result.explained for result in results) else 1


def _inputs(names: Sequence[str]) -> Iterable[str]:
    if names:
        return names
    if sys.stdin.isatty():
        raise UsageError(
            "nothing to diagnose: no log, no code, and nothing on stdin",
            fix="nox -s diagnose -- FILE, or pipe a log into it",
        )
    return ["-"]


def _diagnose_input(name: str) -> list[Diagnosis]:
    if name == "-":
        return [_diagnose(sys.stdin.buffer, "stdin")]
    path = user_path(name, "LOG", str(Parser.user_folder()))
    if not path.exists() and (number := _as_number(name)) is not None:
        return [explain_code(number)]
    if not path.exists() and (found := _of_rule(name)):
        return [found]
    if not path.exists() and (match := OPERATOR.fullmatch(name)):
        return [_diagnose_operator(name, *match.groups())]
    try:
        results = [_diagnose(log, subject) for subject, log in logs_of(path, _shown)]
    except UNREADABLE as error:
        message = (
            f"{name}: expected a number, a rule, a log, a folder or an archive of logs,"
            f" found {getattr(error, 'strerror', None) or error}"
        )
        if near := get_close_matches(name, [rule for rule in rules() if "*" not in rule], n=1):
            raise UsageError(message, fix=f"did you mean {near[0]}?") from error
        raise UsageError(
            message, fix="give a file, a code such as 14001 or 0x80000406, a rule, or - for stdin"
        ) from error
    if len(results) == 1:
        return results
    # Most logs of a folder are of steps that went well: show those with something known, else with trouble.
    known = (result for result in results if result.explanations or result.codes or result.operators)
    shown = [result for result in known if result.explained]
    return shown or [result for result in results if result.trouble] or [Diagnosis(name, (), ())]


def _printed(words: Sequence[str]) -> int:
    from ci.inspect.message_table import of_store, told
    from provisioning.base.settings import store_path

    rows = of_store(store_path(), words)
    answer.add(printed=[asdict(row) for row in rows])
    print(told(rows, searched=bool(words)))
    return 0


def _messages(now: Path, before: Path | None) -> int:
    from ci.inspect.messages import collect, document, told

    paths = [user_path(str(path), "PATH", str(Parser.user_folder())) for path in (now, before) if path]
    if missing := next((path for path in paths if not path.exists()), None):
        raise UsageError(
            f"{missing} is not there", fix="name a library, or a folder of libraries and Python files"
        )
    new, *old = map(collect, paths)
    earlier = old[0] if old else None
    answer.add(**document(new, earlier))
    print(told(new, earlier))
    return 0


def _bundle(names: Sequence[str]) -> str:
    from ci.inspect.issue_text import failed_report, log_of, markdown

    paths = [user_path(name, "LOG", str(Parser.user_folder())) for name in names]
    report = failed_report(paths[0]) if paths and paths[0].is_dir() else None
    if report and (kept := log_of(report, paths[0])):
        paths[0] = kept
    if not paths or not is_one_log(paths[0]):
        raise UsageError(
            f"--bundle: expected a log first, found {names[0] if names else 'nothing'}",
            fix="qnn-ci diagnose --bundle RUN.LOG [FOLDER WITH LIBRARIES], or reports/ after a failure",
        )
    if missing := next((path for path in paths if not path.exists()), None):
        raise UsageError(f"--bundle: {missing} is not there", fix="name a library, or a folder of libraries")
    with paths[0].open("rb") as log:
        found = _diagnose(log, paths[0].name)
    return markdown(found, _as_text(found), paths[0], paths[1:], report)


def _diagnose(log: BinaryIO, subject: str) -> Diagnosis:
    from ci.operators.in_logs import inexact_in

    reading, lossy = Reading(), dict[str, None]()
    for piece in pieces_of(Shown(log, subject)):
        reading.take(piece)
        lossy |= {f"{operator.message}: {operator.command}": None for operator in inexact_in(piece.text)}
    return replace(reading.diagnosis(subject), operators=tuple(lossy))


def _of_rule(name: str) -> Diagnosis | None:
    """What a finding's rule means, or a known failure that a finding names."""
    if rule := explained(name):
        shown = Explanation(name, rule.summary, as_here(rule.fix), rule.page, 0, "", True)
        return Diagnosis(name, (shown,), ())
    entry = next((entry for entry in knowledge().entries if entry.id == name), None)
    if entry is None:
        return None
    shown = Explanation(name, entry.cause, as_here(entry.fix), entry.source, 0, "", entry.decided)
    return Diagnosis(name, (shown,), ())


def _diagnose_operator(subject: str, operator: str, scheme: str) -> Diagnosis:
    from ci.operators.table import inexact, measured
    from ci.pipeline.precision import scheme_named

    scheme = scheme_named(scheme)
    lines = [f"{row.message}: {row.command}" for row in inexact([operator], scheme)]
    return Diagnosis(subject, (), (), operators=tuple(filter(None, [measured(operator, scheme), *lines])))


def _shown(path: Path) -> str:
    """The path as its user would type it."""
    folder = Parser.user_folder()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _as_number(text: str) -> int | None:
    if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", text):
        return int(text, 0) if text[:2].lower() == "0x" else int(text)
    return None


def _as_text(result: Diagnosis) -> str:
    if not result.explained and not result.trouble and not result.codes:
        silent = f"{in_line(result.subject)}: no line of it tells of an error, and nothing known matches"
        return f"{silent}\n  {NOT_HERE}: {result.collect}" if result.collect else silent
    lines = [in_line(result.subject)]
    for number, shown in enumerate(result.explanations):
        lines += ["  known from:"] if number == 1 else []
        where = f"line {shown.line}: {in_line(shown.text)}" if shown.line else ""
        lines += [f"  {shown.id}" + (f"  ({where})" if where else "")]
        cause, fix = ("cause:", "fix:  ") if shown.decided else ("means:", "check:")
        lines += [f"    {cause} {shown.cause}", f"    {fix} {shown.fix}", f"    see:   {shown.source}"]
        lines += [f"    page:  {page}"] if (page := page_of(shown.id)) else []
    undecided = [shown for shown in result.explanations if shown.line and not shown.decided]
    lines += ["    this log does not decide which cause it is"] if undecided else []
    lines += [f"  later, perhaps caused by it: {shown.id} (line {shown.line})" for shown in result.later]
    alone = result.explanations and not any(shown.line for shown in result.explanations)
    if not alone or len(result.codes) > 1:
        lines += [f"  code {code}" for code in result.codes]
    lines += [f"  data type {name}" for name in result.data_types]
    lines += [f"  operator {text}" for text in result.operators]
    beside = "beside it, no error" if result.trouble else "no error"
    lines += [f"  {beside}: {why}" for why in result.harmless]
    if not result.explained:
        lines += ["  the exact cause is not known"]
    lines += [f"  told by: {result.told_by}"] if result.told_by else []
    lines += [f"  kind of fault: {result.fault}"] if result.fault else []
    if result.collect and (undecided or not result.explanations):
        failing = result.trouble or undecided or result.codes
        lines += [f"  {'collect next' if failing else NOT_HERE}: {result.collect}"]
    return "\n".join(lines)


def _facts(result: Diagnosis) -> dict[str, object]:
    return {
        "subject": result.subject,
        "explained": result.explained,
        "explanations": [{**asdict(shown), "page": page_of(shown.id)} for shown in result.explanations],
        "later": [{"id": shown.id, "line": shown.line, "text": shown.text} for shown in result.later],
        "codes": [asdict(code) for code in result.codes],
        "data_types": list(result.data_types),
        "operators": list(result.operators),
        "harmless": list(result.harmless),
        "told_by": result.told_by,
        "fault": result.fault,
        "collect": result.collect,
    }
