"""The sessions: which environment each runs in and which one command it runs. `nox -l` lists them.

Arguments after `--` go to that command: `nox -s validate -- --help`.
Sessions share a few locked environments (manifests/locks/) under .nox/, built once and again when their
lock changes, so the sessions themselves have none of their own.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import nox

# nox itself runs on others, too; executorch has no wheel for them.
if not (3, 10) <= sys.version_info < (3, 14):
    sys.exit(f"Python 3.10 to 3.13 is needed, this is {sys.version.split()[0]}: install nox with one")

sys.path.insert(0, str(Path(__file__).parent))
from lab.__main__ import SESSIONS, environment_of
from lab.__main__ import VERBS as LABORATORY
from provisioning.base.command_line import STARTED_BY, STARTED_IN, Verb, unknown_verb
from provisioning.base.errors import ToolkitError
from provisioning.base.settings import BUILDS_TREE
from provisioning.installer import uv_program
from provisioning.python_environments import PythonEnvironments
from qnn_ci.command import VERBS, check, program_of

OF_NOX = {
    **VERBS,
    **{name: LABORATORY[name] for name in SESSIONS},
    "lab": Verb("lab", "measure what manifests/ hold"),
    "tests": Verb("tests", "run the tests"),
}


def edit_log(record: logging.LogRecord) -> bool:
    """Say in nox's error about sessions that are not there which ones may be meant. Leave out that it has no
    uv, which no session of ours has it use."""
    message = record.getMessage()
    _, _, names = message.partition("Sessions not found: ")
    if names:
        errors = [unknown_verb(name, OF_NOX) for name in names.split(", ")]
        record.msg = "\n".join([message, *(f"{error.message}\n  try: {error.fix}" for error in errors)])
        record.args = ()
    return "uv binary not found" not in message


logging.getLogger("nox").addFilter(edit_log)
nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["gate"]

os.environ.setdefault("QNN_CI_RUN", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
"""The sessions of one call of nox are one run: reports of another run are not compared with theirs."""


def run_verb(session: nox.Session, verb: str) -> None:
    folder = user_folder(session)
    package, environment = program_of(verb, session.posargs, folder)
    environments = PythonEnvironments(session.cache_dir.parent, session.log)
    if not environments.current_python(environment) and not {"-h", "--help"} & {*session.posargs}:
        try:
            check(verb, session.posargs, folder)
        except ToolkitError as error:
            session.error(f"{error.message}: {error.fix}" if error.fix else error.message)
    run(session, environment, "-m", package, verb)
    if verb in FOR_DEVICES:
        # What this call runs on this machine afterwards is of the same tree.
        os.environ[BUILDS_TREE] = "1"


FOR_DEVICES = ("build_android", "build_linux_arm64")


def run_in_laboratory(session: nox.Session, verb: str) -> None:
    run(session, environment_of([verb, *session.posargs]), "-m", "lab", verb)


def add_session(name: str, verb: Verb, run_one: Callable[[nox.Session, str], None]) -> None:
    """Add a session of the verb's name, for `nox -l` with the verb's summary."""

    def run_verb(session: nox.Session) -> None:
        run_one(session, name)

    run_verb.__doc__ = f"{verb.summary[0].upper()}{verb.summary[1:]}."
    nox.session(name=name)(run_verb)


for name, verb in VERBS.items():
    add_session(name, verb, run_verb)
for name in SESSIONS:
    add_session(name, LABORATORY[name], run_in_laboratory)


@nox.session
def lab(session: nox.Session) -> None:
    """Measure what manifests/ hold, and keep this repository in order; `-- --help` lists the verbs."""
    run(session, environment_of(session.posargs), "-m", "lab")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on every core; `-- tests/unit` for the quick ones, `-- -n0` one at a time."""
    # Files in the order of their names: the long ones of tests/integration first, the short ones last, so
    # that all cores are done at about the same time.
    spread = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
    run(session, "tests", "-m", "pytest", *spread)


WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": None}
"""Tests start Python some hundred times, and each would compile torch anew."""


def run(session: nox.Session, environment: str, *command: str) -> None:
    signal.signal(signal.SIGTERM, _pass_on)
    # An interrupted stage ends its children and writes its report. nox itself waits only half a second.
    session.run(
        interpreter(session, environment),
        *command,
        *session.posargs,
        external=True,
        env=_variables(session) if command[1] != "pytest" else WITH_BYTECODE,
        interrupt_timeout=15,
        terminate_timeout=20,
    )


def _pass_on(number: int, _frame: FrameType | None) -> NoReturn:
    """Pass a signal on to the children: nox ends at once and would leave them running."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for child in (children.read_text(encoding="utf-8") if children.is_file() else "").split():
        os.kill(int(child), number)
    raise KeyboardInterrupt


def user_folder(session: nox.Session) -> Path:
    """Return the folder where the user typed the command: nox itself went to this file's folder."""
    invoked_from = Path(session.invoked_from)
    return Path(os.environ.get(STARTED_IN) or invoked_from) if invoked_from == Path.cwd() else invoked_from


def _variables(session: nox.Session) -> dict[str, str | None]:
    # For suites with packages of their own: the locked environments have no uv.
    variables: dict[str, str | None] = {"QNN_CI_UV": os.environ.get("QNN_CI_UV") or uv_program()}
    folder = user_folder(session)
    variables[STARTED_BY] = sys.executable
    return variables if folder == Path.cwd() else {**variables, STARTED_IN: str(folder)}


def interpreter(session: nox.Session, environment: str) -> str:
    """Return the Python of a locked environment, made or rebuilt first if it is not exactly its lock; nox's
    own if the command needs no package."""
    if not environment:
        return sys.executable
    try:
        return PythonEnvironments(session.cache_dir.parent, session.log).interpreter(environment)
    except ToolkitError as error:
        session.error(f"{error.message}: {error.fix}" if error.fix else error.message)
