"""The tools that read workflows, actions and shell are really run by lint, and see what is planted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import MANIFESTS, ROOT
from tests.support.examples import example

# The lint itself is a job of every pull request; that it sees what is planted changes with its tools.
pytestmark = pytest.mark.whole

GATE = ".github/workflows/gate.yml"
ACTION = ".github/actions/run-stage/action.yml"

PR = ".github/workflows/pr.yml"
RELEASE = ".github/workflows/release.yml"
PINS = ".github/workflows/update-pins.yml"
CREDENTIALS = "          persist-credentials: false\n"
PINNED = "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2"
PLAN = "run: nox -f toolkit/noxfile.py -s github -- plan"

PLANTED = {
    "zizmor": [
        (GATE, CREDENTIALS, "", "artipacked"),
        (GATE, PINNED, "actions/checkout@v6", "unpinned-uses"),
        (GATE, PLAN, "run: echo ${{ github.head_ref }}", "template-injection"),
        (PR, "  pull_request:\n", "  pull_request_target:\n", "dangerous-triggers"),
        (RELEASE, "permissions: {}\n", "permissions: write-all\n", "excessive-permissions"),
    ],
    "workflows": [
        (GATE, "    timeout-minutes: 15\n", "    timeout-minute: 15\n", "timeout-minute"),
    ],
    "actions": [
        (ACTION, "  using: composite\n", "  using: composit\n", "composit"),
    ],
    "actionlint": [
        (GATE, "    needs: [plan, stage]\n", "    needs: [plan, stages]\n", "job-needs"),
        (GATE, "steps.memory.outputs.wheels-restore", "steps.memmory.outputs.wheels-restore", "memmory"),
        (PINS, "    runs-on: ubuntu-24.04\n", "    runs-on: ubuntu-99.04\n", "runner-label"),
    ],
    "shell": [
        (ACTION, "-s github -- stage", "-s github -- $STAGE", "SC2086"),
        ("careless", "", "#!/usr/bin/env bash\ncd $1\nrm -rf $2/*\n", "SC2164"),
    ],
    "site": [("docs/accuracy.md", "", "[x](operators.md#nowhere)\n", "#nowhere, which is not there")],
}
"""For each check: a file, what stands there, what is planted instead, and what the tool says of it."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the environment that `nox -s lint` has."""
    home = tmp_path_factory.mktemp("lint") / "environment"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, str(home)], check=True)
    python = home / "bin" / "python"
    locked = ["--require-hashes", "--no-deps", "-r", str(MANIFESTS / "locks" / "lint.txt")]
    subprocess.run([*uv, "pip", "install", "--python", str(python), *locked], check=True)
    return python


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    return root


def lint(python: Path, clone: Path, *checks: str) -> tuple[int, str]:
    flags = [part for check in checks for part in ("--only", check)]
    done = subprocess.run(
        [str(python), "-m", "lab", "lint", *flags],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_every_python_file_is_checked(python: Path, clone: Path) -> None:
    """ruff's own choice leaves out folders with names such as build."""
    ours = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=clone, capture_output=True, text=True, check=True
    ).stdout
    ruff = [str(python.parent / "ruff"), "check", "--show-files", "."]
    seen = subprocess.run(ruff, cwd=clone, capture_output=True, text=True, check=True).stdout
    left = {clone / name for name in ours.split()} - {Path(name) for name in seen.splitlines()}
    assert ours and not left


def test_the_workflow_that_comments_may_be_copied_as_it_is_and_its_one_exception_is_needed(
    python: Path, clone: Path
) -> None:
    text = example(ROOT / "docs" / "github.md", "name: QNN comment\n")
    copied = clone / ".github" / "workflows" / "qnn-comment.yml"
    copied.write_text(text, encoding="utf-8")
    code, output = lint(python, clone, "zizmor", "workflows")
    assert code == 0, output
    # The reason stands on the line of the trigger.
    copied.write_text(re.sub("# zizmor: ignore.*", "", text), encoding="utf-8")
    code, output = lint(python, clone, "zizmor")
    assert code == 1 and "dangerous-triggers" in output, output


@pytest.mark.parametrize("check", PLANTED)
def test_what_is_planted_is_found(python: Path, clone: Path, check: str) -> None:
    (clone / "careless").touch()
    for file, good, bad, _ in PLANTED[check]:
        path = clone / file
        text = path.read_text(encoding="utf-8")
        assert good in text
        path.write_text(text.replace(good, bad, 1), encoding="utf-8")
    code, output = lint(python, clone, check)
    assert code == 1 and f"FAIL {check}" in output, output
    assert [rule for _, _, _, rule in PLANTED[check] if rule not in output] == [], output
