"""Commands that a page shows first, typed as its reader types them: tests/journeys.toml, and what runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, model_validator

from provisioning.base.documents import Model, load
from provisioning.base.settings import ROOT, project, store_path
from provisioning.components import KINDS
from tests.support.installed import installed_site
from tests.support.journey_files import FILES
from tests.support.scripts import locked_environment, script
from tests.support.typed import typed

TABLE = ROOT / "tests" / "journeys.toml"

OURS = re.compile(r"^(?:\w+=\S+ )*(?:qnn-ci|nox|python -m (?:ci|provisioning))\b")
"""A line that types one of our commands."""
PROMPT = re.compile(r"^(?:\$ |\s*- )?")
USES = re.compile(rf"^ *(?:- )?(uses: {re.escape(project().name)}/\S+)")
FIRST_SCREEN = re.compile(r"^(?:python -m pip|uv tool|qnn-ci) ")


class Row(Model):
    page: str
    command: str
    """As the page prints it."""
    story: str = ""
    """Here: typed in the folder of this story, after the story's earlier rows."""
    same: str = ""
    """What proves it is another row's: PAGE: COMMAND."""
    test: str = ""
    """An ordinary test that runs this command."""
    job: str = ""
    """A row of manifests/gate.toml that runs it."""
    why: str = ""
    """Why it does not run here."""
    type: str = ""
    """Typed in its place."""
    small: str = ""
    """How that is smaller."""
    code: int = 0
    leaves: tuple[str, ...] = ()
    """Files, as patterns."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """By JSON file: what is in it, perhaps among more. A text such as "> 30" is for a number."""

    @property
    def name(self) -> str:
        return f"{self.page}: {self.command}"

    @property
    def typed(self) -> str:
        return self.type or self.command

    @model_validator(mode="after")
    def _one_proof(self) -> Row:
        if sum(map(bool, (self.story, self.same, self.test, self.job))) != 1:
            raise ValueError(f"{self.name}: expected one of story, same, test, job")
        if bool(self.type) != bool(self.small) or (self.type and not self.story):
            raise ValueError(f"{self.name}: type and small go together, with a story")
        if bool(self.job) != bool(self.why):
            raise ValueError(f"{self.name}: job and why go together")
        if self.story and not (self.leaves or self.facts or self.code):
            raise ValueError(f"{self.name}: expected leaves or facts, which show what it has done")
        return self


class Story(Model):
    """Rows that are typed one after the other in one folder."""

    lane: Literal["executorch", "onnx"]
    """Which of the two files of tests has it: each is one worker's."""
    files: dict[str, str] = Field(default_factory=dict)
    """By name: which of FILES lies there."""
    nightly: str = ""
    """Why its rows are typed in the whole suites alone."""
    long: str = ""
    """Why the ordinary run leaves its rows out."""

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        nightly = [pytest.mark.whole] if self.nightly else []
        return [*nightly, pytest.mark.long(self.long)] if self.long else nightly


class Journeys(Model):
    story: dict[str, Story]
    row: tuple[Row, ...]

    @model_validator(mode="after")
    def _names_exist(self) -> Journeys:
        for row in self.row:
            if row.story and row.story not in self.story:
                raise ValueError(f"{row.name}: there is no story {row.story}")
        for name, story in self.story.items():
            if unknown := set(story.files.values()) - set(FILES):
                raise ValueError(f"story.{name}: there is no file {', '.join(sorted(unknown))}")
        return self

    def of_lane(self, lane: str) -> list[Any]:
        """As parameters of a test."""
        rows = [row for row in self.row if row.story]
        return [
            pytest.param(row, id=row.name, marks=self.story[row.story].marks)
            for row in rows
            if self.story[row.story].lane == lane
        ]


def journeys() -> Journeys:
    return load(TABLE, Journeys)


def promised(page: str, text: str) -> list[str]:
    """The commands for which this page's row must be in the table."""
    return list(_of_readme(text)) if page == "README.md" else [*_examples(text)][:1]


def _of_readme(text: str) -> Iterator[str]:
    """Those of the first screens, of the table below "What to type", and what is to be put into a workflow:
    of such a block the line that uses ours."""
    first, _, rest = text.partition("\n## What to type\n")
    for line in _fenced(first):
        if FIRST_SCREEN.match(typed := line.removeprefix("$ ")):
            yield typed
    for line in _fenced(text):
        if uses := USES.match(line):
            yield uses[1]
    for line in rest.partition("\n## ")[0].splitlines():
        if line.startswith("| ") and not line.startswith("| to … |"):
            yield from re.findall("`([^`]+)`", line.split(" | ")[1])


def _examples(text: str) -> Iterator[str]:
    for line in _fenced(text):
        typed = PROMPT.sub("", line)
        if typed != line and OURS.match(typed):
            yield typed


def _fenced(text: str) -> Iterator[str]:
    """Lines between fences, without the comment behind a command."""
    inside = False
    for line in text.splitlines():
        if line.startswith("```"):
            inside = not inside
        elif inside:
            yield re.split(r"\s+# ", line)[0].rstrip()


STEERING = {name for kind in KINDS.values() for name in (kind.variable, *kind.aliases)}
JOB = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "ADSP_LIBRARY_PATH", "LD_LIBRARY_PATH")
"""Variables of whoever runs the tests that would change what a command does."""


SHARED = ("trees", "downloads", "locks", "staging", "cache/results/runner")
"""Of the user's store. The runner is built in place, for all tests of a run."""


COMMAND = shlex.quote(str(Path(__file__).with_name("journey_command.py")))
PYTHON = """\
flags=
while :; do
  case "$1" in
    -u) flags="$flags -u"; shift ;;
    -X) flags="$flags -X $2"; shift 2 ;;
    *) break ;;
  esac
done
[ "$1 $2" != "-m ci" ] || exec {python} $flags {command} "$@"
exec {python} $flags "$@\""""
"""The Python of every environment."""


def _shared(factory: pytest.TempPathFactory) -> Path:
    """The programs and the store of all stages of a run, whichever worker has them."""
    run = factory.getbasetemp()
    shared = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "stage"
    own = factory.mktemp("stage")
    if shared.is_dir():
        return shared
    python = shlex.quote(sys.executable)
    for lock in (ROOT / "manifests" / "locks").glob("*.txt"):
        locked_environment(own / "environments", lock.stem, PYTHON.format(python=python, command=COMMAND))
    script(own / "bin" / "nox", f'exec {python} -m nox -f {shlex.quote(str(ROOT / "noxfile.py"))} "$@"')
    script(own / "bin" / "python", f'exec {python} "$@"')
    for name in SHARED:
        (store_path() / name).mkdir(parents=True, exist_ok=True)
        (own / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (own / "store" / name).symlink_to(store_path() / name)
    # Another worker may have been quicker.
    with contextlib.suppress(OSError):
        own.rename(shared)
    return shared


def _installed(factory: pytest.TempPathFactory) -> Path:
    """The folder of a `qnn-ci` as a wheel installs it, with a cache of its own."""
    site = installed_site(factory)
    start = f"import sys; sys.path[0] = {str(site)!r}; import qnn_ci; sys.exit(qnn_ci.main())"
    program = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(start)}"
    cache = f"export XDG_CACHE_HOME={shlex.quote(str(site.parent / 'cache'))}"
    folder = factory.mktemp("installed")
    script(folder / "qnn-ci", f'{cache}\n{program} "$@"')
    return folder


class Stage:
    """Where journeys run: an installed `qnn-ci` and this clone's `nox` on PATH, with this Python for every
    environment; trees, downloads and the runner of the user's store, and cached results that the run begins
    without. The processes that import torch are those of the whole run."""

    def __init__(self, factory: pytest.TempPathFactory, table: Journeys) -> None:
        self.factory, self.table = factory, table
        self.base = factory.mktemp("journeys")
        # Through the links of `_shared` nobody can change the store.
        provisioned = typed("provision", "--reports", self.base, package="provisioning")
        assert provisioned.returncode == 0, provisioned.stderr
        self._played: dict[str, dict[str, str]] = {}

    @cached_property
    def variables(self) -> dict[str, str]:
        shared = _shared(self.factory)
        dropped = {*STEERING, *JOB}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in dropped and not name.startswith("QNN_CI_")
        }
        return {
            **kept,
            "PATH": os.pathsep.join([str(_installed(self.factory)), str(shared / "bin"), os.environ["PATH"]]),
            "QNN_CI_ENVIRONMENTS": str(shared / "environments"),
            "QNN_CI_STORE": str(shared / "store"),
            "CLONE": str(ROOT),
        }

    def problem(self, row: Row) -> str:
        """Why the row's promise is not kept; empty where it is. Its story is played when first asked for."""
        if row.story not in self._played:
            self._played[row.story] = dict(self._play(row.story))
        return self._played[row.story][row.name]

    def _play(self, name: str) -> Iterator[tuple[str, str]]:
        folder = self.base / name
        folder.mkdir()
        for file, kind in self.table.story[name].files.items():
            FILES[kind](folder / file)
        for row in self.table.row:
            if row.story == name:
                yield row.name, self._type(row, folder)

    def _type(self, row: Row, folder: Path) -> str:
        done = subprocess.run(
            ["sh", "-c", row.typed],
            cwd=folder,
            env={**self.variables, "QNN_CI_REPORTS": str(folder / "reports")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        missed = [] if done.returncode == row.code else [f"exit code {done.returncode}, expected {row.code}"]
        missed += [f"leaves no {leaf}" for leaf in row.leaves if not list(folder.glob(leaf))]
        for file, expected in row.facts.items():
            path = folder / file
            found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
            missed += differences(expected, found, file)
        return "\n".join([f"$ {row.typed}", done.stdout, *missed]) if missed else ""


def differences(expected: Any, found: Any, place: str) -> list[str]:
    """Where a document has not what is expected of it. It may have more."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        pairs = ((expected[key], found.get(key), f"{place}: {key}") for key in expected)
        return [difference for pair in pairs for difference in differences(*pair)]
    if isinstance(expected, list) and isinstance(found, list) and expected:
        lacking = [row for row in expected if all(differences(row, other, place) for other in found)]
        return [f"{place}: expected {row!r} among {found!r}" for row in lacking]
    if isinstance(expected, str) and expected.startswith("> ") and isinstance(found, (int, float)):
        holds = found > float(expected.removeprefix("> "))
    else:
        holds = expected == found
    return [] if holds else [f"{place}: expected {expected!r}, found {found!r}"]
