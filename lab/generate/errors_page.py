"""docs/errors.md: the failures that `diagnose` knows, and the numbers of errors, from manifests/diagnose/."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ci.diagnose.logs import plain_text
from ci.diagnose.rules import QNN, RULES, FailureRule, failure_rules, table
from lab.messages import key
from provisioning.base import toml

HEAD = """\
<!-- Generated from manifests/diagnose/ and manifests/diagnose.toml: `nox -s generate` renews it. -->
# Errors

What does a message of QNN, FastRPC, the loader, ExecuTorch or ONNX Runtime mean, and what do you do?
`qnn-ci diagnose LOG` finds the ones that your log has, and `qnn-ci diagnose 14001` explains a number.
"""

TITLES = {
    "qnn": "QNN",
    "models": "Models in PyTorch",
    "executorch": "ExecuTorch",
    "onnxruntime": "ONNX Runtime",
    "devices": "Devices and apps",
    "building": "Builds, packages and machines",
    "ai_hub": "AI Hub",
}
"""The chapter of each file of rules."""


def page() -> str:
    return "\n".join([HEAD, *_failures(), *_numbers()])


def _failures() -> Iterator[str]:
    known = failure_rules()
    for stem, title in TITLES.items():
        rows = toml.loads((RULES / f"{stem}.toml").read_text(encoding="utf-8"))["rule"]
        yield f"## {title}\n"
        yield "| message | cause | fix |\n| --- | --- | --- |"
        for row in rows:
            rule = known[row["id"]]
            message = f'<a id="{rule.id}"></a>`{_cell(_message(rule)) or rule.id}`'
            yield f"| {message} | {_cell(rule.cause)} | {_cell(rule.fix.installed)} |"
        yield ""


def _message(rule: FailureRule) -> str:
    """The line of its example that its pattern matches, in which numbers and names are cut."""
    text = plain_text(rule.example.encode())
    starts = [match.start() for pattern in rule.patterns if (match := pattern.search(text))]
    line = text[text.rfind(b"\n", 0, min(starts, default=0)) + 1 :].partition(b"\n")[0]
    return key(line.decode("utf-8", "replace")).replace("`", "'")


def _numbers() -> Iterator[str]:
    known = table()
    yield "## Numbers\n"
    yield "| number | of | name |\n| --- | --- | --- |"
    for code, name in sorted(known.codes.items()):
        component = next((of for of, (low, high) in known.ranges.items() if low <= code <= high), QNN)
        yield f"| {_spelled(code)} | {component} | `{name}` |"
    for row in known.numbers:
        for code, name in sorted(row.names.items()):
            yield f"| {_spelled(code)} | {row.of} | `{name}` |"
    yield ""


def _spelled(code: int) -> str:
    """Decimal and hexadecimal, and as a signed number of 32 bits where that is another."""
    signed = f", {code - (1 << 32)}" if code >= 1 << 31 else ""
    return f"{code}, {code & 0xFFFFFFFF:#x}{signed}"


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()).replace("<", "&lt;"))
