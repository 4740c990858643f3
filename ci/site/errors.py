"""The page of errors: known failures, numbers and the rules of findings, each with an anchor."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

from ci.diagnose.log_text import plain_text
from ci.diagnose.tables import QNN, RULES, FailureRule, failure_rules, table
from ci.inspect.messages import key
from provisioning.base import toml
from provisioning.base.rules import Rule, rules
from provisioning.known_faults import load_faults

PROGRAMS = {
    "errors/qnn.html": "QNN",
    "errors/executorch.html": "ExecuTorch",
    "errors/onnxruntime.html": "ONNX Runtime",
    "errors/devices.html": "devices and apps",
    "errors/building.html": "builds, packages and machines",
    "errors/ai_hub.html": "AI Hub",
}
"""Each page of failures, and whose they are."""


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """What logs show of it, why, and what to do."""

    id: str
    anchor: str
    page: str
    message: str
    """A line of its example, in which numbers and names are cut."""
    several: bool
    """Whether it has one of several causes, as `cause` tells."""
    cause: str
    fix: str
    source: str
    versions: str
    """Empty where no build is known to have it alone."""
    codes: Sequence[str]
    """Anchors of numbers."""
    example: str
    patterns: Sequence[str]


@dataclass(frozen=True, slots=True)
class Number:
    anchor: str
    of: str
    number: int
    spellings: Sequence[str]
    name: str
    failures: Sequence[str]
    """Those that it is known from."""


@cache
def failures() -> tuple[KnownFailure, ...]:
    versions = {fault.id: f"{fault.product} {fault.versions}" for fault in load_faults()}
    listed = {number.anchor for number in numbers()}
    files = {
        row["id"]: f"errors/{path.stem}.html"
        for path in RULES.glob("*.toml")
        for row in toml.loads(path.read_text(encoding="utf-8"))["rule"]
    }
    return tuple(
        KnownFailure(
            rule.id,
            f"failure-{rule.id}" if rule.id in rules() else rule.id,
            files[rule.id],
            _message(rule),
            rule.several,
            rule.cause,
            rule.fix.installed,
            rule.source,
            versions.get(rule.id, ""),
            [anchor for of, code in sorted(rule.codes) if (anchor := _anchor(of, code)) in listed],
            rule.example,
            [pattern.source for pattern in rule.patterns],
        )
        for rule in sorted(failure_rules().values(), key=lambda rule: rule.id)
    )


def _message(rule: FailureRule) -> str:
    text = plain_text(rule.example.encode())
    starts = [match.start() for pattern in rule.patterns if (match := pattern.search(text))]
    if not starts and rule.patterns and not rule.codes:
        return ""
    line = text[text.rfind(b"\n", 0, min(starts, default=0)) + 1 :].partition(b"\n")[0]
    return key(line.decode("utf-8", "replace"))


@cache
def numbers() -> tuple[Number, ...]:
    known = table()
    named: dict[tuple[str, int], list[str]] = defaultdict(list)
    for rule in failure_rules().values():
        for number in rule.codes:
            named[number].append(rule.id)
    rows = list[tuple[str, str, int, str]]()
    for code, name in sorted(known.codes.items()):
        component = next((of for of, (low, high) in known.ranges.items() if low <= code <= high), QNN)
        rows.append((QNN, component, code, name))
    rows += ((row.of, row.of, code, name) for row in known.numbers for code, name in row.names.items())
    return tuple(
        Number(_anchor(of, code), component, code, _spellings(code), name, named[of, code])
        for of, component, code, name in rows
    )


def _anchor(of: str, code: int) -> str:
    return f"{of.lower().replace(' ', '-')}-{code}"


def _spellings(code: int) -> list[str]:
    """Decimal, hexadecimal, and as a signed number of 32 bits where that is another; FastRPC's short form."""
    signed = [str(code - (1 << 32))] if code >= 1 << 31 else []
    short = [hex(code - 0x80000400)] if 0x80000400 < code < 0x80000800 else []
    return [str(code), hex(code & 0xFFFFFFFF), *signed, *short]


def all_rules() -> list[Rule]:
    return sorted(rules().values(), key=lambda rule: rule.id)


def as_json() -> str:
    """All of it, for other programs."""
    document = {
        "schema": 1,
        "failures": [asdict(failure) for failure in failures()],
        "numbers": [asdict(number) for number in numbers()],
        "rules": [{**asdict(rule), "fix": rule.fix.installed, "anchor": rule.id} for rule in all_rules()],
        "speakers": [
            {"name": speaker.name, "collect": speaker.collect.installed} for speaker in table().speakers
        ],
    }
    return json.dumps(document, indent=1) + "\n"
