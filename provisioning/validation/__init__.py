"""The catalogue of rules, what a rule is, and the rules' manifests: their texts, and what they compare with.

A rule is a pure function over a `Context`: everything it looks at was gathered before, so that a test
can build a context by hand.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field

from provisioning.base.commands import Fix
from provisioning.base.documents import Model, load
from provisioning.base.errors import UnknownName
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import MANIFESTS
from provisioning.validation.context import Context
from provisioning.validation.ndk import android_api

CHAPTERS = {"versions": "Versions and variables", "libraries": "Libraries", "compiler": "The compiler"}
"""The modules with rules, in the order of the catalogue, with their titles."""


class AndroidTable(Model):
    page_size: Annotated[int, Field(gt=0)]

    @cached_property
    def api(self) -> int:
        return android_api()


class RuleText(Model):
    severity: Literal["error", "warning", "note"]
    told_by: tuple[str, ...] = ()
    """Rules whose error about a file tells why this one fires there too: it is left out then."""
    summary: str
    why: str
    example: str
    """A finding as a user meets it."""
    fix: str
    """What a finding without a fix of its own shows."""
    commands: tuple[tuple[str, ...], ...] = ()
    """What `{}` of it stands for."""

    @property
    def whole_fix(self) -> Fix:
        return Fix(self.fix, *self.commands)


class RuleTexts(Model):
    schema_: Literal[1] = Field(alias="schema")
    rule: dict[str, RuleText]


class ValidationTable(Model):
    schema_: Literal[1] = Field(alias="schema")
    android: AndroidTable


@cache
def validation_table() -> ValidationTable:
    return load(MANIFESTS / "validation.toml", ValidationTable)


@cache
def rule_texts() -> dict[str, RuleText]:
    return load(MANIFESTS / "checks.toml", RuleTexts).rule


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Without its own fix, the rule's fix is shown."""

    subject: str
    message: str
    fix: str = ""
    severity: Severity | None = None
    also: tuple[str, ...] = ()
    """Further subjects that are wrong for the same cause."""


class NotApplicable(Exception):
    """Nothing in this environment is of the kind that the rule checks; the text says why."""


class CouldNotRun(Exception):
    """The rule could not check: a warning with the reason, never a pass."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


Check = Callable[[Context], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    severity: Severity
    text: RuleText
    check: Check
    module: str
    asks_compiler: bool


class State(str, enum.Enum):
    """A rule's result. Notes do not keep it from passing."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    NOT_APPLICABLE = "not applicable"
    COULD_NOT_RUN = "could not run"


_WORST_FIRST = (State.FAIL, State.COULD_NOT_RUN, State.WARN, State.PASS, State.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Result:
    rule: Rule
    state: State
    findings: tuple[Finding, ...]
    reason: str = ""
    wrong: frozenset[str] = frozenset()
    """The subjects of its errors, also those that another's finding names."""


_RULES: dict[str, Rule] = {}


def rule(id_: str, *, asks_compiler: bool = False) -> Callable[[Check], Check]:
    """Enter a function in the catalogue. Severity and texts are in manifests/checks.toml."""

    def register(check: Check) -> Check:
        if id_ in _RULES:
            raise ValueError(f"two rules are called {id_}")
        module = check.__module__.rpartition(".")[2]
        text = rule_texts()[id_]
        _RULES[id_] = Rule(id_, Severity(text.severity), text, check, module, asks_compiler)
        return check

    return register


def catalogue() -> Mapping[str, Rule]:
    """Every rule by its id, in the order of the modules."""
    for name in CHAPTERS:
        importlib.import_module(f"provisioning.validation.{name}")
    order = list(CHAPTERS)
    return MappingProxyType(dict(sorted(_RULES.items(), key=lambda item: order.index(item[1].module))))


def rules_named(ids: Sequence[str]) -> list[Rule]:
    """The named rules, or all of them."""
    rules = catalogue()
    for id_ in ids:
        if id_ not in rules:
            raise UnknownName(f"there is no rule {id_!r}", id_, rules)
    return [rules[id_] for id_ in dict.fromkeys(ids)] if ids else list(rules.values())


def check(contexts: Sequence[Context], rules: Iterable[Rule]) -> list[Result]:
    """Apply each rule to every context. A rule's result is the worst of them, with all findings. If a file is
    wrong for one cause, only the rule that names the cause reports it."""
    results = []
    for rule_ in rules:
        results.append(_merge([_apply(rule_, context) for context in contexts], contexts))
    wrong = {result.rule.id: result.wrong for result in results}
    return [_drop_explained(result, wrong) for result in results]


def _drop_explained(result: Result, wrong: Mapping[str, frozenset[str]]) -> Result:
    subjects = {subject for id_ in result.rule.text.told_by for subject in wrong.get(id_, ())}
    findings = tuple(finding for finding in result.findings if finding.subject not in subjects)
    if len(findings) == len(result.findings):
        return result
    if not findings:
        by = ", ".join(id_ for id_ in result.rule.text.told_by if wrong.get(id_))
        return Result(result.rule, State.NOT_APPLICABLE, (), f"{by} tells why")
    return replace(result, state=_state_of(findings), findings=findings)


def _state_of(findings: Iterable[Finding]) -> State:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return State.FAIL
    return State.WARN if Severity.WARNING in severities else State.PASS


def _merge(results: Sequence[Result], contexts: Sequence[Context]) -> Result:
    if len(results) == 1:
        return results[0]
    findings: dict[Finding, None] = {}
    for result, context in zip(results, contexts, strict=True):
        for finding in result.findings:
            of_all = all(finding in row.findings for row in results)
            where = "" if of_all else f" (for {', '.join(context.targets)})"
            findings[replace(finding, message=f"{finding.message}{where}")] = None
    worst = min(results, key=lambda result: _WORST_FIRST.index(result.state))
    wrong = frozenset[str]().union(*(result.wrong for result in results))
    return replace(worst, findings=tuple(findings), wrong=wrong)


def _apply(rule_: Rule, context: Context) -> Result:
    try:
        problems = list(rule_.check(context))
    except NotApplicable as reason:
        return Result(rule_, State.NOT_APPLICABLE, (), str(reason))
    except CouldNotRun as obstacle:
        finding = Finding(
            rule_.id,
            Severity.WARNING,
            "environment",
            f"could not run: {obstacle}",
            obstacle.fix or rule_.text.whole_fix,
        )
        return Result(rule_, State.COULD_NOT_RUN, (finding,), str(obstacle))
    findings = tuple(
        Finding(rule_.id, p.severity or rule_.severity, p.subject, p.message, p.fix or rule_.text.whole_fix)
        for p in problems
    )
    errors = [p for p in problems if (p.severity or rule_.severity) is Severity.ERROR]
    wrong = frozenset(subject for p in errors for subject in (p.subject, *p.also))
    return Result(rule_, _state_of(findings), findings, wrong=wrong)
