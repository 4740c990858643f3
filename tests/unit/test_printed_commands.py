"""A command that we print can be pasted: every value in it is quoted, whatever a path holds."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.__main__ import VERBS as CI
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base import commands, toml
from provisioning.base.command_line import Parser
from provisioning.base.commands import quoted, session, typed
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding, Severity
from provisioning.base.rules import rules
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun
from tests.support.sources import nodes, walked

HEAD = re.compile(
    r"(?:^|[\s`(:&;])(?:nox -s \S+|python3? -m|-m pip|git -C|rm -|chmod|chown|touch |mkdir|apt-get install"
    r"|docker run|adb -s|export \w+=|patchelf|ln -s|mv |cp -)[^,:]*$"
)
"""A command up to a value in it. The name after `nox -s` is ours; a comma or colon ends it."""
QUOTING = {"quoted", "session", "typed", "quote", "quoted_session"}

ELSEWHERE = {
    # Scripts that are run and not printed, and whose quoting their own tests hold.
    "ci/builds/script.py",
    "ci/device/bundle/scripts.py",
    "ci/device/claim.py",
    "ci/device/session.py",
}


def _texts(tree: Sequence[ast.AST]) -> Iterator[tuple[ast.JoinedStr, str]]:
    """F-strings that hold the beginning of a command, each with the values that are put in unquoted."""
    for node in tree:
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part, following in zip(node.values, [*node.values[1:], None], strict=True):
            after = str(following.value) if isinstance(following, ast.Constant) else ""
            if isinstance(part, ast.Constant):
                before += str(part.value)
            elif isinstance(part, ast.FormattedValue):
                in_command = HEAD.search(before.rpartition("\n")[2]) or after.startswith(" -m ")
                if in_command and not _is_quoted(part.value):
                    yield node, ast.unparse(part.value)
                before += "x" if before.endswith("nox -s ") else "{}"


def _is_quoted(value: ast.expr) -> bool:
    """Quoted by the helper, or a constant of the code, which holds nothing of the user's."""
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in QUOTING
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return bool(name) and name == name.upper()


def test_no_command_is_printed_with_a_value_that_is_not_quoted() -> None:
    unquoted = []
    for folder in ("provisioning", "ci"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            place = file.relative_to(ROOT).as_posix()
            if place in ELSEWHERE:
                continue
            for node, value in _texts(nodes(file)):
                unquoted.append(f"{place}:{node.lineno}: {{{value}}} goes through provisioning.base.commands")
    assert not unquoted, "\n".join(unquoted)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_shell_reads_the_words_that_were_given(words: list[str]) -> None:
    assert shlex.split(quoted(*words)) == words
    assert shlex.split(session("name", *words)) == ["nox", "-s", "name", "--", *words]
    assert shlex.split(typed("nox -s name --", words)) == ["nox", "-s", "name", "--", *words]


SESSIONS = {"tests", "lint"}
"""Sessions that are no verb."""
COMMON = {"--debug", "--help"}
COMMAND = re.compile(
    r"(?<![\w-])(nox -s|qnn-ci|python -m (?:ci|provisioning)) ([a-z][\w-]*)(?![\w=-])([^;,`\n)]*)"
)
VALUE = re.compile(r"[A-Z\d].*|.*[./:@$\"'{].*|-.*")
"""A word that a user may give for a positional argument: a placeholder, a path, a number or a flag."""


@cache
def _of_verb(name: str) -> tuple[set[str], set[str], bool]:
    """Of a verb that both packages have, what either takes."""
    flags, words, needs = set[str](COMMON), set[str](), True
    for verb in filter(None, (CI.get(name), PROVISIONING.get(name))):
        module, _, attribute = verb.module.partition(":")
        configured = importlib.import_module(module)
        parser = Parser("verb")
        (getattr(configured, attribute) if attribute else configured).configure(parser)
        found = _of_parser(parser)
        flags, words, needs = flags | found[0], words | found[1], needs and found[2]
    return flags, words, needs


def _of_parser(parser: argparse.ArgumentParser) -> tuple[set[str], set[str], bool]:
    """Its flags and its subcommands' with theirs, and whether it cannot do without a word."""
    flags, words, needs = set[str](), set[str](), False
    for action in parser._actions:
        flags.update(action.option_strings)
        if not action.option_strings:
            words.update(action.choices or ())
        if isinstance(action, argparse._SubParsersAction):
            for choice in action.choices.values():
                flags |= _of_parser(choice)[0]
        needs |= not action.option_strings and action.nargs not in ("?", "*", "...", "A...")
    return flags, words, needs


def _wrong(text: str) -> Iterator[str]:
    """Commands in a text that cannot be typed."""
    for start, name, rest in COMMAND.findall(text):
        if name not in CI and name not in PROVISIONING:
            # Other things than the command are called qnn-ci too, such as a clone.
            if start != "qnn-ci" and (start != "nox -s" or name not in SESSIONS):
                yield f"there is no {name} in `{start} {name}{rest}`"
            continue
        flags, words, needs = _of_verb(name)
        arguments = rest.split()
        if start == "nox -s":
            arguments = arguments[1:] if arguments[:1] == ["--"] else []
        unknown = {re.split("[=.:]", word)[0] for word in arguments if re.match(r"--\w", word)} - flags
        yield from (f"{name} has no {flag} in `{start} {name}{rest}`" for flag in unknown)
        # A sentence may go on after a command without --.
        sure = start == "nox -s" or (bool(arguments) and bool(VALUE.fullmatch(arguments[0])))
        if needs and not (arguments and (sure or arguments[0] in words)):
            yield f"{name} needs more in `{start} {name}{rest}`"


def _strings(tree: Sequence[ast.AST]) -> Iterator[str]:
    """All text of a module; values in it are X."""
    inner: set[int] = set()
    for node in tree:
        if isinstance(node, ast.JoinedStr):
            inner.update(id(part) for part in walked(node) if part is not node)
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


def _texts_of(table: object) -> Iterator[str]:
    if isinstance(table, str):
        yield table
    elif isinstance(table, dict):
        yield from (text for value in table.values() for text in _texts_of(value))
    elif isinstance(table, list):
        yield from (text for value in table for text in _texts_of(value))


def test_every_printed_command_is_one_that_its_verb_takes() -> None:
    texts = {
        f"{folder}: {file.relative_to(ROOT)}": _strings(nodes(file))
        for folder in ("ci", "provisioning")
        for file in sorted((ROOT / folder).rglob("*.py"))
    }
    for name in ("rules", "checks", "parity_checks", "diagnose", "known_faults", "fixes"):
        texts[f"manifests/{name}.toml"] = _texts_of(
            toml.loads((ROOT / "manifests" / f"{name}.toml").read_text("utf-8"))
        )
    wrong = [f"{place}: {line}" for place, found in texts.items() for text in found for line in _wrong(text)]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_a_command_that_cannot_be_typed_is_seen() -> None:
    assert list(_wrong("python -m ci audit says why"))
    assert list(_wrong("nox -s audit names all"))
    assert list(_wrong("nox -s test_onnx -- --no-such-flag"))
    assert list(_wrong("nox -s no_such_verb"))
    assert not list(_wrong("nox -s audit -- MODEL --precision fp16; nox -s test_onnx -- -k PROGRAM --keep"))


@pytest.mark.parametrize(
    ("profile", "target", "fix", "printed"),
    [
        ("wheels", "x86_64-linux", "nox -s provision", "nox -s provision"),
        ("wheels-2.51", "x86_64-linux", "nox -s provision", "nox -s provision -- --profile wheels-2.51"),
        (
            "wheels-2.51",
            "aarch64-windows",
            "unset QNN_SDK_ROOT; nox -s provision -- --soc SM8650; `nox -s validate` tells",
            "unset QNN_SDK_ROOT; nox -s provision -- --profile wheels-2.51 --soc SM8650;"
            " `nox -s validate -- --profile wheels-2.51` tells",
        ),
        (
            "wheels-2.51",
            "aarch64-windows",
            "nox -s provision -- --component qnn-sdk --profile qnn-2.48, or another",
            "nox -s provision -- --component qnn-sdk --profile qnn-2.48, or another",
        ),
        (
            "wheels",
            "aarch64-linux",
            'eval "$(python -m provisioning env)"',
            'eval "$(python -m provisioning env --target aarch64-linux)"',
        ),
        ("wheels-2.51", "x86_64-linux", "python -m provisioning store repair", None),
        ("", "", "nox -s provision", None),
    ],
)
def test_a_printed_command_is_of_the_profile_that_the_stage_ran_with(
    tmp_path: Path, profile: str, target: str, fix: str, printed: str | None
) -> None:
    stage = StageRun("bundle", profile, target, "")
    stage.add("bundle-arch", Severity.ERROR, "subject", "message", fix)
    error = EnvironmentLacking("it is not there", fix=fix)
    with pytest.raises(EnvironmentLacking), stage.reported(tmp_path, "bundle-stopped"):
        raise error
    assert {error.fix, *(finding.fix for finding in stage.finish().findings)} == {printed or fix}


@pytest.mark.parametrize(
    ("clone", "other"), [(True, r"qnn-ci [A-Za-z_]+"), (False, r"nox -s|python -m (ci|pro)")]
)
def test_a_fix_of_each_rule_has_the_spelling_of_the_copy_that_prints_it(
    clone: bool, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "CLONE", clone)
    printed = {rule.id: Finding(rule.id, Severity.ERROR, "", "", rule.fix).fix for rule in rules().values()}
    assert len(printed) > 100 and not {name: fix for name, fix in printed.items() if re.search(other, fix)}
