"""The lint stage: every tool and tree rule that a change must pass, run side by side."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from provisioning.cli import command_line
from provisioning.errors import UsageError
from provisioning.findings import Finding, Outcome, Severity, StageRun
from provisioning.settings import ROOT, add_selection, selection_of

EXAMPLES = """\
  python -m ci lint
  python -m ci lint --only types --only tree
  python -m ci lint --fix
"""

LARGEST_FILE = 1 << 20

REGISTRY_HOSTS = tuple(
    ".".join(labels)
    for labels in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("deb", "debian", "org"),
        ("crates", "io"),
        ("pytorch", "org", "whl"),
    )
)
"""Spelled in parts, so that this file passes its own rule."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:home|Users|root|work|farm)/[A-Za-z]")

MAY_BE_BINARY = ("ci/runner/fuzz/seeds/",)
"""Fuzzers' inputs of a few bytes, with NULs between arguments."""

LEFT_BEHIND = re.compile(
    r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|Not" r"ImplementedError|pytest\.mark\.(?:skip|xfail)"
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that exits 0 when all is well. `fix` is the same program mending what it can."""

    command: Sequence[str]
    remedy: str
    fix: Sequence[str] = ()


PYTHON = sys.executable

TOOLS = {
    "style": Tool(["ruff", "check", "."], "nox -s lint -- --fix", ["ruff", "check", "--fix", "."]),
    "format": Tool(["ruff", "format", "--check", "."], "nox -s lint -- --fix", ["ruff", "format", "."]),
    "types": Tool(["mypy"], "correct the types named above"),
    "generated": Tool(
        [PYTHON, "-m", "provisioning", "generate", "--check"],
        "nox -s generate",
        [PYTHON, "-m", "provisioning", "generate"],
    ),
    "locks": Tool([PYTHON, "-m", "provisioning", "lock", "--check"], "nox -s lock"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument(
        "--only", action="append", metavar="CHECK", help="run only this check; may be repeated"
    )
    parser.add_argument("--fix", action="store_true", help="let the tools mend what they can first")


def run(args: argparse.Namespace) -> int:
    checks: dict[str, Callable[[], list[Finding]]] = {
        **{name: lambda name=name, tool=tool: _run_tool(name, tool) for name, tool in TOOLS.items()},  # type: ignore[misc]
        "tree": lambda: list(tree_findings(ROOT, tracked_files(ROOT))),
    }
    chosen = args.only or list(checks)
    for name in chosen:
        if name not in checks:
            raise UsageError(f"there is no check {name!r}", remedy=f"use one of: {', '.join(checks)}")
    selection = selection_of(args)
    stage = StageRun("lint", selection.profile, "", command_line("nox -s lint --", sys.argv[2:]))
    if args.fix:
        for name in chosen:
            if name in TOOLS and TOOLS[name].fix:
                subprocess.run(TOOLS[name].fix, cwd=ROOT, env=_environment(), check=False)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, (findings, seconds) in zip(
            chosen, pool.map(lambda n: _timed(checks[n]), chosen), strict=True
        ):
            stage.findings += findings
            stage.metrics[f"{name}_seconds"] = round(seconds, 2)
            print(f"{'FAIL' if findings else 'ok  '} {name:<10} {seconds:5.1f} s", flush=True)
            for finding in findings:
                print(f"     {finding.subject}: {finding.message}\n       try: {finding.remedy}")
    report = stage.finish()
    report.write(selection.reports)
    return 0 if report.outcome is Outcome.PASS else 1


def tracked_files(root: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := root / name).is_file()]


def tree_findings(root: Path, files: Sequence[Path]) -> Iterator[Finding]:
    """What no file of the repository may hold."""
    for path in files:
        name = str(path.relative_to(root))
        size = path.stat().st_size
        if size > LARGEST_FILE:
            yield _finding(
                "tree-large-file", name, f"{size} bytes are too many for git", "keep it out of git"
            )
            continue
        data = path.read_bytes()
        if b"\0" in data:
            if name.startswith(MAY_BE_BINARY):
                continue
            yield _finding(
                "tree-binary", name, "a binary file", "generate it in the test or stage that needs it"
            )
            continue
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            yield from _line_findings(f"{name}:{number}", line, code=path.suffix == ".py")


def _line_findings(subject: str, line: str, *, code: bool) -> Iterator[Finding]:
    for host in REGISTRY_HOSTS:
        if host in line.replace("/", "."):
            yield _finding("tree-registry-host", subject, f"names {host}", 'write "the package index"')
    if found := MACHINE_PATH.search(line):
        yield _finding(
            "tree-machine-path",
            subject,
            f"an absolute path: {found[0]}…",
            "use a relative path or a variable",
        )
    if code and (found := LEFT_BEHIND.search(line)):
        yield _finding(
            "tree-left-behind", subject, f"{found[0]!r} is work left for later", "do it, or open an issue"
        )


def _finding(rule: str, subject: str, message: str, remedy: str) -> Finding:
    return Finding(rule, Severity.ERROR, subject, message, remedy)


def _run_tool(name: str, tool: Tool) -> list[Finding]:
    try:
        done = subprocess.run(
            tool.command,
            cwd=ROOT,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return [_finding(f"lint-{name}", tool.command[0], "is not installed here", "nox -s lint")]
    if done.returncode == 0:
        return []
    return [_finding(f"lint-{name}", " ".join(tool.command), f"\n{done.stdout.strip()}", tool.remedy)]


def _environment() -> dict[str, str]:
    """Tools are taken from beside the running Python first."""
    return {**os.environ, "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def _timed(check: Callable[[], list[Finding]]) -> tuple[list[Finding], float]:
    begun = time.monotonic()
    return check(), time.monotonic() - begun
