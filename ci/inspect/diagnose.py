"""`diagnose`: explain failures of QNN, FastRPC, the loader and ExecuTorch from logs and codes."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from provisioning.base.diagnosis import Diagnosis, Explanation, diagnose, explain_code
from provisioning.base.errors import UsageError

EXAMPLES = """\
  nox -s diagnose -- reports/delegate/*.log
  adb logcat -d | python -m ci diagnose
  nox -s diagnose -- 14001 0x80000406 -2147482618
  python -m ci diagnose --json build.log
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="*", metavar="LOG|CODE", help="files, numbers (decimal or 0x…), or - for stdin"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    parser.epilog = (parser.epilog or "") + (
        "\nA code that is negative is given after --: python -m ci diagnose -- -2147482618\n"
        "Exit code: 0 every input was explained, 1 at least one was not.\n"
    )


def run(args: argparse.Namespace) -> int:
    results = [_diagnose_input(name) for name in _inputs(args.inputs)]
    if args.json:
        print(json.dumps({"schema": 1, "inputs": [_as_json(result) for result in results]}, indent=2))
    else:
        print("\n\n".join(_as_text(result) for result in results))
    return 0 if all(result.explained for result in results) else 1


def _inputs(names: Sequence[str]) -> Iterable[str]:
    if names:
        return names
    if sys.stdin.isatty():
        raise UsageError(
            "nothing to diagnose: no log, no code, and nothing on stdin",
            remedy="nox -s diagnose -- FILE, or pipe a log into it",
        )
    return ["-"]


def _diagnose_input(name: str) -> Diagnosis:
    if name == "-":
        return diagnose(sys.stdin.buffer.read().decode("utf-8", "replace"), "stdin")
    path = Path(name)
    if not path.exists() and (number := _as_number(name)) is not None:
        return explain_code(number)
    try:
        return diagnose(path.read_text(encoding="utf-8", errors="replace"), name)
    except OSError as error:
        raise UsageError(
            f"{name}: expected a number or a log that can be read, found {error.strerror or error}",
            remedy="give a file, a code such as 14001 or 0x80000406, or - for stdin",
        ) from error


def _as_number(text: str) -> int | None:
    if re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]+", text):
        return int(text, 0) if text[:2].lower() == "0x" else int(text)
    return None


def _as_text(result: Diagnosis) -> str:
    if not result.explained:
        return f"{result.subject}: nothing known matches"
    lines = [result.subject]
    for shown in result.explanations:
        where = f"line {shown.line}: {shown.text}" if shown.line else ""
        lines += [f"  {shown.id}" + (f"  ({where})" if where else "")]
        lines += [f"    cause: {shown.cause}", f"    fix:   {shown.fix}", f"    see:   {shown.source}"]
    if any(shown.line for shown in result.explanations) or not result.explanations:
        lines += [f"  code {code}" for code in result.codes]
    return "\n".join(lines)


def _as_json(result: Diagnosis) -> dict[str, object]:
    return {
        "subject": result.subject,
        "explained": result.explained,
        "explanations": [_explanation(shown) for shown in result.explanations],
        "codes": [asdict(code) for code in result.codes],
    }


def _explanation(shown: Explanation) -> dict[str, object]:
    """As JSON. The key `mend` is older than the word `fix`, and its readers keep it."""
    fields = asdict(shown)
    return {**{key: fields[key] for key in fields if key != "fix"}, "mend": shown.fix}
