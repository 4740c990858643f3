"""A command that we print can be pasted: every value in it is quoted, whatever a path holds."""

from __future__ import annotations

import argparse
import ast
import copy
import io
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import dropwhile, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.__main__ import VERBS as CI
from ci.diagnose.rules import failure_rules, rules, table
from lab.__main__ import SESSIONS as OF_LABORATORY
from lab.__main__ import VERBS as LAB
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base import answer, commands
from provisioning.base.command_line import module_of
from provisioning.base.commands import Fix, add_flags, leave_out, quote_command, session
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding, Severity
from provisioning.base.parser import Parser
from provisioning.base.settings import ROOT, profile_names
from provisioning.base.stage_run import StageRun
from provisioning.known_faults import load_faults, load_fixes
from provisioning.manifest import load_profile
from tests.support.sources import nodes, our_files, walked

HEAD = re.compile(
    r"(?:^|[\s`(:&;])(?:nox -s \S+|python3? -m|-m pip|git -C|rm -|chmod|chown|touch |mkdir|apt-get install"
    r"|docker run|adb -s|export \w+=|patchelf|ln -s|mv |cp -)[^,:]*$"
)
"""A command up to a value in it. The name after `nox -s` is ours; a comma or colon ends it."""
QUOTING = {"quote_command", "session", "quote", "quoted_session"}

PRINTING = ("provisioning", "ci", "lab")

ELSEWHERE = {
    # Scripts that are run and not printed, and whose quoting their own tests hold.
    "ci/device/bundle_contents.py",
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
    for file in our_files(*PRINTING):
        place = file.relative_to(ROOT).as_posix()
        if place in ELSEWHERE:
            continue
        for node, value in _texts(nodes(file)):
            unquoted.append(f"{place}:{node.lineno}: {{{value}}} goes through provisioning.base.commands")
    assert not unquoted, "\n".join(unquoted)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_shell_reads_the_words_that_were_given(words: list[str]) -> None:
    assert shlex.split(quote_command(*words)) == words
    assert shlex.split(session("name", *words)) == ["nox", "-s", "name", "--", *words]
    assert shlex.split(session("name", *words).installed) == ["qnn-ci", "name", *words]


SESSIONS = {"tests", "lab"}
"""Sessions that are no verb."""
COMMON = {"--debug", "--help"}
COMMAND = re.compile(
    r"(?<![\w-])(nox -s lab --|nox -s|qnn-ci|python -m (?:ci|provisioning|lab))"
    r" ([a-z][\w-]*)(?![\w=-])([^;,`\n)]*)"
)
VALUE = re.compile(r"[A-Z\d].*|.*[./:@$\"'{].*|-.*")
"""A word that a user may give for a positional argument: a placeholder, a path, a number or a flag."""


@cache
def _parsers_of(name: str) -> tuple[Parser, ...]:
    """Of a verb, which both packages may have."""
    parsers = []
    for verb in filter(None, (CI.get(name), PROVISIONING.get(name), LAB.get(name))):
        parser = Parser(name, allow_abbrev=False)
        module_of(verb).configure(parser)
        parsers.append(parser)
    return tuple(parsers)


@cache
def _of_verb(name: str) -> tuple[set[str], set[str], bool]:
    """Of a verb that both packages have, what either takes."""
    found = [_of_parser(parser) for parser in _parsers_of(name)]
    flags, words, needs = zip(*found, strict=True)
    return COMMON.union(*flags), set[str]().union(*words), all(needs)


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


def _is_typed(start: str, verb: str) -> bool:
    """Whether a verb is one of those that are typed in this way."""
    if start in ("nox -s lab --", "python -m lab"):
        return verb in LAB
    return verb in CI or verb in PROVISIONING or (start == "nox -s" and verb in OF_LABORATORY)


def _wrong(text: str) -> Iterator[str]:
    """Commands in a text that cannot be typed."""
    for start, name, rest in COMMAND.findall(text):
        if not _is_typed(start, name):
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


def test_every_printed_command_is_one_that_its_verb_takes() -> None:
    texts = {str(file.relative_to(ROOT)): _strings(nodes(file)) for file in our_files(*PRINTING)}
    wrong = [f"{place}: {line}" for place, found in texts.items() for text in found for line in _wrong(text)]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


def test_a_command_that_cannot_be_typed_is_seen() -> None:
    assert list(_wrong("python -m ci audit says why"))
    assert list(_wrong("nox -s audit names all"))
    assert list(_wrong("nox -s test_onnx -- --no-such-flag"))
    assert list(_wrong("nox -s no_such_verb"))
    assert not list(_wrong("nox -s audit -- MODEL --precision fp16; nox -s test_onnx -- -k PROGRAM --keep"))


def _fixes_of_manifests() -> Iterator[tuple[str, Fix]]:
    yield from ((f"rule {rule.id}", rule.fix) for rule in rules().values())
    yield from ((f"failure {rule.id}", rule.fix) for rule in failure_rules().values())
    yield from ((f"speaker {row.name}", row.collect) for row in table().speakers)
    yield from ((f"fault {fault.id}", fault.shown_by) for fault in load_faults())
    yield from ((f"rewrite of {row.rule}", Fix(row.none, *row.commands)) for row in load_fixes())


STAGES = ("test_lowering", "test_emulator", "test_onnx", "test_llm", "test_upstream")
ANY_OF = {"STAGE": STAGES, "VERB": STAGES}
"""What stands for a verb that the reader fills in: one of these takes the rest."""
FILLED_IN = {"TARGET": "x86_64-linux", "SOC": "SM8650", "SECONDS": "600"}
"""Of flags that take some names alone."""


def _refusal(verb: str, words: Sequence[str]) -> str:
    """What the verb's own command line says against these words; empty if it takes them."""
    printed = io.StringIO()
    for parser in _parsers_of(verb):
        with redirect_stderr(printed), redirect_stdout(io.StringIO()):
            try:
                parser.parse_args(answer.split_json(words)[0])
            except SystemExit as stop:
                # 0 is --help.
                if stop.code:
                    continue
        return ""
    return printed.getvalue() or f"there is no verb {verb}"


def _taken(verb: str, words: Sequence[str]) -> bool:
    return not _refusal(verb, words)


def test_every_command_of_every_rule_parses_in_a_shell_and_by_its_verb() -> None:
    wrong, checked = [], 0
    for place, fix in _fixes_of_manifests():
        for command in fix.commands:
            verb, *words = shlex.split(Fix("{}", command).installed)[1:]
            typed = shlex.split(quote_command("nox", "-s", *command))[2:]
            checked += 1
            words = [FILLED_IN.get(word, word) for word in words]
            if typed != list(command) or not any(_taken(name, words) for name in ANY_OF.get(verb, (verb,))):
                wrong.append(f"{place}: {quote_command(*command)}")
    assert checked > 200 and not wrong, "\n".join(wrong)


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").glob("*.md"),
    *ROOT.glob("skills/**/*.md"),
]
INNER = re.compile(r"\$\(([^()]*)\)")
"""A command in the words of another."""
FRONTS = (("qnn-ci",), *(("python", "-m", package) for package in ("ci", "provisioning", "lab", "qnn_ci")))
OF_COMMAND = ("help", "version", "completion", "--version", "--help")
"""Of `qnn-ci` itself, which is no verb's."""


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command that a shell would start for this text."""
    for inner in INNER.findall(text):
        yield from _commands(inner)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    command = list[str]()
    for word in [*lexer, ";"]:
        if not set(word) <= set("|&;<>"):
            command.append(word)
        elif command and set(word) <= set("|&;"):
            yield command
            command = []


def _of_verbs(command: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The verbs that a command starts, each with its words; nothing of other programs."""
    words = list(dropwhile(re.compile(r"[A-Z_]+=").match, command))
    words = [FILLED_IN.get(word, word) for word in words]
    for front in FRONTS:
        if tuple(words[: len(front)]) == front and len(words) > len(front):
            if words[len(front)] not in OF_COMMAND:
                yield words[len(front)], words[len(front) + 1 :]
            return
    if words[:1] != ["nox"]:
        return
    sessions, dashes, rest = (list(group) for group in _at_dashes(words[1:]))
    if not sessions:
        sessions = ["-s", "gate"]
    if sessions[0] != "-s":
        return
    for name in sessions[1:]:
        if name == "lab" and dashes:
            yield from [] if rest[0] == "--help" else [(rest[0], rest[1:])]
        elif name not in SESSIONS:
            yield name, rest


def _at_dashes(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place : place + 1], words[place + 1 :]


def _refused(text: str) -> Iterator[str]:
    """Why what a shell would start for this text is not taken by its verbs' own parsers."""
    for command in _commands(text):
        for verb, words in _of_verbs(command):
            verbs = ANY_OF.get(verb, (verb,))
            if not any(_taken(name, words) for name in verbs):
                yield f"{quote_command(*command)}: {_refusal(verbs[0], words).splitlines()[0]}"


@pytest.mark.parametrize("name", [*CI, *PROVISIONING, *LAB])
def test_every_example_of_a_verbs_help_is_taken_by_its_parser(name: str) -> None:
    verb = {**LAB, **PROVISIONING, **CI}[name]
    examples = module_of(verb).EXAMPLES.replace("\\\n", " ").splitlines()
    assert not [line for example in examples for line in _refused(example)]
    assert not examples or any(list(_of_verbs(words)) for line in examples for words in _commands(line))


def _refused_on(page: Path) -> Iterator[str]:
    """Commands of a page that cannot be typed; one in a sentence may be left short."""
    blocks, sentences = list[str](), list[str]()
    text = page.read_text(encoding="utf-8")
    for number, part in enumerate(re.split(r"^ *```", text, flags=re.MULTILINE)):
        if number % 2:
            blocks += [line.strip().removeprefix("$ ") for line in part.replace("\\\n", " ").splitlines()]
        else:
            sentences += re.findall(r"`([^`\n]+)`", part)
    if page.name == "SKILL.md":
        # An agent types what stands in a sentence too.
        blocks, sentences = [*blocks, *sentences], []
    for line in filter(STARTED.search, blocks):
        yield from _refused(line)
    for line in filter(STARTED.search, sentences):
        yield from (refusal for refusal in _refused(line) if not LEFT_SHORT.search(refusal))
        yield from (wrong for wrong in _wrong(line) if " needs more in " not in wrong)


LEFT_SHORT = re.compile("are required|expected one argument")
STARTED = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:qnn-ci|nox|python -m|eval) ")
"""A line that is a command; others are what it prints."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_parses_by_its_verb(page: Path) -> None:
    assert not list(_refused_on(page))


def test_a_command_of_a_page_that_cannot_be_typed_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`qnn-ci tune --flor`\n```console\n$ qnn-ci audit  # more\nqnn-ci chips --al | cat\n```\n"
    )
    assert len(list(_refused_on(page))) == 3


def _licences(command: Sequence[str]) -> set[str]:
    """Those of what this `provision` fetches, which without them refuses."""
    words = dict(pairwise(command))
    profiles = [words["--profile"]] if "--profile" in words else profile_names()
    named = words.get("--component")
    return {
        pin.licence.id
        for profile in map(load_profile, profiles)
        for name, pin in profile.pins.items()
        if pin.licence is not None and (name == named if named else "--profile" in words)
    }


def test_a_printed_provision_accepts_the_licences_of_what_it_fetches() -> None:
    lacking = [
        f"{place}: {licence}"
        for place, fix in _fixes_of_manifests()
        for command in fix.commands
        if command[0] == "provision"
        for licence in _licences(command)
        if licence not in command
    ]
    assert not lacking, "\n".join(lacking)


def _written(call: ast.Call) -> Iterator[list[ast.expr]]:
    """The commands that a call makes, as far as the code says them."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name in ("session", "quoted_session", "leave_out", "add_flags"):
        yield call.args
    elif name == "Fix":
        yield from (part.elts for part in call.args[1:] if isinstance(part, ast.Tuple))


def _unknown(words: Sequence[ast.expr]) -> Iterator[str]:
    """What the verb has not, of the words that are said; the others may be anything."""
    verb, *rest = (str(word.value) if isinstance(word, ast.Constant) else None for word in words)
    if verb is None:
        return
    if verb.startswith("-"):
        # Of the command that was typed: some verb has it.
        flags = set().union(*(_of_verb(name)[0] for name in (*CI, *PROVISIONING, *LAB)))
        yield from (
            f"no verb has {word}"
            for word in (verb, *rest)
            if word and word.startswith("-") and word not in flags
        )
        return
    if verb == "lab" and rest and (rest[0] is None or rest[0] in LAB):
        verb, *rest = rest
        if verb is None:
            return
    elif verb not in CI and verb not in PROVISIONING and verb not in OF_LABORATORY:
        yield f"there is no {verb}"
        return
    flags, choices, needs = _of_verb(verb)
    yield from (
        f"{verb} has no {word}" for word in rest if word and re.match(r"--\w", word) and word not in flags
    )
    # Of a word that is put together, its flag is said.
    made = (text for word in words if not isinstance(word, ast.Constant) for text in _strings(walked(word)))
    begun = {match[0] for text in made if (match := re.match(r"--\w[\w-]*(?==)", text))}
    yield from (f"{verb} has no {flag}" for flag in begun - flags)
    if needs and not any(word is None or word in choices or VALUE.fullmatch(word) for word in rest):
        yield f"{verb} needs more"


def test_every_command_in_the_code_is_one_that_its_verb_takes() -> None:
    wrong, checked = [], 0
    for file in our_files():
        for node in nodes(file):
            for words in _written(node) if isinstance(node, ast.Call) else ():
                checked += 1
                wrong += [f"{file.relative_to(ROOT)}:{words[0].lineno}: {line}" for line in _unknown(words)]
    assert checked > 150 and not wrong, "\n".join(wrong)


def test_a_command_of_the_code_that_cannot_be_typed_is_seen() -> None:
    def unknown(text: str) -> list[str]:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        return [line for words in _written(call) for line in _unknown(words)]

    assert unknown("session('audit')") and unknown("session('provision', '--no-such-flag')")
    assert unknown("Fix('{} then {}', ('gate',), ('no_such_verb', path))")
    assert unknown("leave_out('--no-such-flag')") and not unknown("leave_out('--shard', ': and why')")
    assert unknown("session('repair', model, *(f'--suite={suite}' for suite in suites))")
    assert not unknown("Fix('{} or {}', ('gate',), ('audit', path, '--precision', 'fp16'))")


def _without_values() -> Iterator[str]:
    """Fixes that have a command as text, where no program sees it."""
    for file in sorted((ROOT / "manifests").rglob("*.toml")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if re.match(r"(fix|collect|none|words) = ", line) and OURS.search(line):
                yield f"{file.relative_to(ROOT)}:{number}"
    for file in our_files():
        for node in nodes(file):
            if not isinstance(node, ast.Call):
                continue
            named = ast.unparse(node.func).rpartition(".")[2] in ("Finding", "Problem", "Fix")
            values = [word.value for word in node.keywords if word.arg == "fix"] + node.args * named
            if any(OURS.search(text) for value in values for text in _strings(list(walked(value)))):
                yield f"{file.relative_to(ROOT)}:{node.lineno}"


OURS = re.compile(r"\bnox -s \w|\bqnn-ci [a-z]+\b|\bpython -m (?:ci|provisioning|lab)\b")


def test_a_command_in_a_fix_is_a_value_and_no_text() -> None:
    assert not list(_without_values())


PINNED = Fix("unset QNN_SDK_ROOT; {}; `{}` tells", ("provision", "--soc", "SM8650"), ("validate",))


@pytest.mark.parametrize(
    ("profile", "target", "fix", "commands"),
    [
        ("wheels", "x86_64-linux", session("provision"), ["provision"]),
        ("wheels-2.51", "x86_64-linux", session("provision"), ["provision --profile wheels-2.51"]),
        (
            "wheels-2.51",
            "aarch64-windows",
            PINNED,
            ["provision --profile wheels-2.51 --soc SM8650", "validate --profile wheels-2.51"],
        ),
        (
            "wheels-2.51",
            "aarch64-windows",
            Fix("{}, or another", ("provision", "--component", "qnn-sdk", "--profile", "qnn-2.48")),
            ["provision --component qnn-sdk --profile qnn-2.48"],
        ),
        ("wheels", "aarch64-linux", Fix('eval "$({})"', ("env",)), ["env --target aarch64-linux"]),
        ("wheels-2.51", "x86_64-linux", session("store", "repair"), ["store repair"]),
        ("", "", session("provision"), ["provision"]),
    ],
)
def test_a_printed_command_is_of_the_profile_that_the_stage_ran_with(
    tmp_path: Path, profile: str, target: str, fix: Fix, commands: list[str]
) -> None:
    stage = StageRun("bundle", profile, target, "")
    stage.add("bundle-arch", Severity.ERROR, "subject", "message", fix)
    error = EnvironmentLacking("it is not there", fix=fix)
    with pytest.raises(EnvironmentLacking), stage.reported(tmp_path, "bundle-stopped"):
        raise error
    for found in (error.fix, *(finding.fix for finding in stage.finish().findings)):
        assert isinstance(found, Fix) and [quote_command(*command) for command in found.commands] == commands
        # The words around them stay.
        assert [part for part in found.parts if isinstance(part, str)] == [
            part for part in fix.parts if isinstance(part, str)
        ]


@pytest.mark.parametrize(
    ("clone", "other"), [(True, r"qnn-ci [A-Za-z_]+"), (False, r"nox -s|python -m (ci|pro)")]
)
def test_a_finding_of_each_rule_has_the_spelling_of_the_copy_that_prints_it(
    clone: bool, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "CLONE", clone)
    # As a process of that copy reads them.
    printed = {
        place: Finding(place, Severity.ERROR, "", "", Fix.read(fix.parts)).fix
        for place, fix in _fixes_of_manifests()
    }
    assert len(printed) > 100 and not {name: fix for name, fix in printed.items() if re.search(other, fix)}
    # A verb that an installed copy has not cannot be typed there.
    assert session("lock", "--torch") == "nox -s lock -- --torch"


def test_a_fix_keeps_its_commands_through_json_and_within_another() -> None:
    fix = Fix("read {}; then {}", "{log}", session("diagnose", "a log"))
    read = Fix.read(json.loads(json.dumps(fix.parts)))
    assert read == fix and read.command == fix.command == ("diagnose", "a log")
    assert Fix("{}; or {}", fix, session("gate")).commands == [("diagnose", "a log"), ("gate",)]
    assert fix.plus("--json").command == ("diagnose", "a log", "--json")
    assert "{log}" in fix and copy.deepcopy(fix).command == fix.command


@pytest.mark.parametrize("word", ["MODEL", "net.py:NAME", "--budget=ddr=…", "DIR", "MODEL_ctx.onnx"])
def test_what_the_reader_must_fill_in_is_no_command_to_type(word: str) -> None:
    assert session("compile", word).command == () and add_flags("--output", word).flags == ()


def test_names_and_paths_of_the_user_are_no_placeholders() -> None:
    words = ("/opt/QAIRT/README", "SM8650", "SXR2330P", "net.py:make", "16a8w")
    assert session("compile", *words).command == ("compile", *words)
    assert add_flags("--soc", "SM8650").command == () and leave_out("--soc").commands == []
