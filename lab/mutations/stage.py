"""Tries drawn mutations of the last commit: are the tests nearest to the changed module red?

Each is made in a clone of its own, so nothing of the working tree is touched, and a clone tries one after the
other. The tests are those of `nox -s tests -- --changed`, as whoever made the change would run them.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab.mutations.drawn import Mutation, draw
from lab.stage import logged, stage_run
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UnknownName
from provisioning.base.findings import Severity
from provisioning.base.settings import ROOT, Selection
from provisioning.python_environments import environments_folder

TESTS = "nox -s tests"
PRODUCT = ("ci", "provisioning", "qnn_ci")
TESTED = ("tests/unit", "tests/conformance", "tests/lab", "tests/integration")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")

RED = (1, 2, 3)
"""pytest ends with these where a test or its collection failed."""
NO_TEST = (4, 5)
"""It ends with these where no test imports the module."""
LATE = -1


@dataclass(frozen=True, slots=True)
class MutationOptions:
    count: int
    seed: str
    timeout: float
    files: Sequence[str] = ()
    """Empty for the whole product."""


@dataclass(frozen=True, slots=True)
class TriedMutation:
    """A mutation, and how pytest ended with it."""

    mutation: Mutation
    exit_code: int

    @property
    def survived(self) -> bool:
        return self.exit_code not in (*RED, LATE)


def try_mutations(options: MutationOptions, selection: Selection) -> int:
    stage = stage_run("mutations", selection)
    with stage.reported(selection.reports, "mutation-not-tried"):
        folder = Path(selection.reports).absolute() / "mutations"
        with tempfile.TemporaryDirectory(prefix="qnn-ci-mutations-") as scratch:
            clones = [_clone(ROOT, Path(scratch) / str(number)) for number in range(os.cpu_count() or 1)]
            mutations = draw(_texts_of(clones[0], options.files), options.count, options.seed)
            _require_green(clones[0], folder)
            tried = try_mutations_of(mutations, clones, folder, options.timeout)
    for row in tried:
        if row.survived:
            stage.add("mutation-survived", Severity.WARNING, *describe_survivor(row))
    noticed = sum(not row.survived for row in tried)
    stage.metrics.update(tried=len(tried), noticed=noticed, seed=options.seed)
    sys.stdout.write(f"{noticed} of {len(tried)} changes were noticed\n")
    return stage.close(selection.reports)


def describe_survivor(row: TriedMutation) -> tuple[str, str, str]:
    """Return the subject, the message and the fix of a mutation that no test noticed."""
    mutation = row.mutation
    ran = "no test imports it" if row.exit_code in NO_TEST else "the tests nearest to it passed"
    fix = f"write a test that is red with it; {TESTS} -- --changed runs these tests"
    return f"{mutation.file}:{mutation.line}", f"{mutation}: {ran}", fix


def _texts_of(clone: Path, files: Sequence[str]) -> dict[str, str]:
    names = [
        path.relative_to(clone).as_posix() for folder in PRODUCT for path in (clone / folder).rglob("*.py")
    ]
    if unknown := sorted({*files} - {*names}):
        raise UnknownName(f"the last commit's product has no {unknown[0]}", unknown[0], names)
    return {name: (clone / name).read_text(encoding="utf-8") for name in files or names}


def _clone(repository: Path, clone: Path) -> Path:
    """Make a clone that shares the environments of this one."""
    command = ["git", "clone", "--quiet", "--shared", str(repository), str(clone)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentLacking(f"git clone: {done.stderr.strip()}", fix="commit first, in a git repository")
    (clone / ".nox").symlink_to(environments_folder())
    # By its content: two changes of one second and one length must not share bytecode.
    compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "."]
    subprocess.run(compile_all, cwd=clone, check=False)
    return clone


def _require_green(clone: Path, folder: Path) -> None:
    """Refuse where a test is red without any change: it would notice whatever there is."""
    command = [*PYTEST, "-n", "auto", *(name for name in TESTED if (clone / name).is_dir())]
    if _exit_code(command, clone, folder / "unchanged.log", None):
        message = f"tests are red without any change: {folder / 'unchanged.log'}"
        raise CheckFailed(message, fix=f"{TESTS} -- tests/unit")


def try_mutations_of(
    mutations: Sequence[Mutation],
    clones: Sequence[Path],
    folder: Path,
    timeout: float,
    command: Sequence[str] = (*PYTEST, "--changed"),
) -> list[TriedMutation]:
    """Run the command with each mutation, in a clone, and keep what it prints in the folder."""
    free: queue.Queue[Path] = queue.Queue()
    for clone in clones:
        free.put(clone)

    def try_one(number: int, mutation: Mutation) -> TriedMutation:
        clone = free.get()
        try:
            row = _try_in(clone, mutation, command, folder / f"{number}.log", timeout)
        finally:
            free.put(clone)
        word = "survived" if row.survived else "noticed"
        sys.stdout.write(f"{word:8} {mutation.file}:{mutation.line} {mutation}\n")
        sys.stdout.flush()
        return row

    with ThreadPoolExecutor(len(clones)) as pool:
        return list(pool.map(try_one, range(1, len(mutations) + 1), mutations))


def _try_in(
    clone: Path, mutation: Mutation, command: Sequence[str], log: Path, timeout: float
) -> TriedMutation:
    path = clone / mutation.file
    text = path.read_text(encoding="utf-8")
    path.write_text(mutation.apply(text), encoding="utf-8")
    try:
        return TriedMutation(mutation, _exit_code(command, clone, log, timeout))
    finally:
        path.write_text(text, encoding="utf-8")


def _exit_code(command: Sequence[str], clone: Path, log: Path, timeout: float | None) -> int:
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return logged(command, log, environ, cwd=clone, timeout=timeout)
    except EnvironmentLacking:
        # It made something endless, as a person would notice too.
        return LATE
