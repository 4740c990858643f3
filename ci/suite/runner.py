"""Find and call the runner that stages start: ours, or ExecuTorch's own, each with its own flags. Imports
nothing heavy.

A `Runner` writes its list of inputs and its command line; `ready_runner` finds it, or has it built."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ci.work import File, how_it_ended, irrelevant, tail, trouble_of_ending
from provisioning.base.commands import Fix, interview
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import DEFAULT_TARGET, dist_path
from provisioning.base.stage_run import require_stage
from provisioning.dist import FOLDER, LIBRARIES, description_of
from provisioning.executorch import BY_WORD, Executorch

DIST = dist_path() / DEFAULT_TARGET
VARIABLE = "QNN_EXECUTOR_RUNNER"
ERROR = re.compile(
    r"^.*(?:error:|\[ERROR\]|^[EF] [\d:.]+ executorch:).*(?:\n {4}.*)?", re.MULTILINE | re.IGNORECASE
)
"""Matches an error of ours, of QNN, or of ExecuTorch's log. Our runner indents the runtime's own message,
which says why, below it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    owner: str
    quotes: bool
    """Whether a list of inputs may have quoted names."""
    nowhere: str
    """The value of a flag for a file that nobody wants."""
    figures: str
    """The flag that names the file for the runner's measurements."""


OURS = Dialect("qnn-ci's", quotes=True, nowhere="", figures="metrics_path")
EXECUTORCHS = Dialect("ExecuTorch's", quotes=False, nowhere=os.devnull, figures="performance_output_path")


@dataclass(frozen=True, slots=True)
class RunnerOrder:
    """A runner, as a worker receives it."""

    whose: str
    files: Mapping[str, File]
    """The program and its libraries, by name."""
    path: str = field(metadata=irrelevant("the program is one of the files"))


@dataclass(frozen=True, slots=True)
class Runner:
    path: Path
    dialect: Dialect = OURS

    @classmethod
    def at(cls, path: Path, again: Fix) -> Runner:
        """Return the runner in this file, which lists its flags; `again` builds one.

        Raises EnvironmentLacking if it does not start."""
        process = interview([str(path), "--help"], 60)
        dialects = [dialect for dialect in (OURS, EXECUTORCHS) if dialect.figures in process.stdout]
        if not dialects:
            words = "; ".join((process.stderr or process.stdout).strip().splitlines()[-2:])
            raise EnvironmentLacking(
                f"{path} is no qnn_executor_runner that starts here: {words or 'it lists no flags'}",
                fix=Fix("name another in {}, or build one: {}", VARIABLE, again),
            )
        return cls(path, dialects[0])

    @property
    def described(self) -> str:
        build = description_of(self.path.parents[1] / FOLDER)
        return f"{self.dialect.owner} {self.path}{f', built of {build}' if build else ''}"

    @property
    def order(self) -> RunnerOrder:
        """Describe this runner to a worker, which makes a runner of it again."""
        # The program loads the libraries that were built with it from beside it.
        libraries = sorted((self.path.parent.parent / LIBRARIES).glob("*.so*"))
        files = {path.name: File(str(path)) for path in (self.path, *libraries)}
        return RunnerOrder(self.dialect.owner, files, str(self.path))

    @classmethod
    def ordered(cls, order: RunnerOrder) -> Runner:
        (dialect,) = (dialect for dialect in (OURS, EXECUTORCHS) if dialect.owner == order.whose)
        return cls(Path(order.path), dialect)

    def write_inputs(self, file: Path, inferences: Iterable[Iterable[Path]]) -> Path:
        """Write the list of inputs: one line for each inference."""
        form = '"{}"' if self.dialect.quotes else "{}"
        lines = []
        for paths in inferences:
            names = [str(path) for path in paths]
            if not self.dialect.quotes and (spaced := [name for name in names if " " in name]):
                raise CheckFailed(
                    f"ExecuTorch's runner cannot read {spaced[0]}: it splits its list of inputs at spaces",
                    fix="name a store without spaces (QNN_CI_STORE, TMPDIR), or run with qnn-ci's runner",
                )
            lines.append(" ".join(map(form.format, names)) + "\n")
        file.write_text("".join(lines), encoding="utf-8")
        return file

    def command(self, program: Path, inputs: Path, outputs: Path, figures: Path | None = None) -> list[str]:
        """The command that writes outputs, and a file of figures if `figures` names one."""
        files = dict.fromkeys(("etdump_path", "performance_output_path"), self.dialect.nowhere)
        if figures:
            files[self.dialect.figures] = str(figures)
        return [
            str(self.path),
            *("--model_path", str(program), "--input_list_path", str(inputs)),
            *("--output_folder_path", str(outputs), *(f"--{name}={file}" for name, file in files.items())),
        ]

    def shapes_in(self, figures: Path) -> Sequence[Sequence[int]] | None:
        """The shapes of the outputs, or None if the runner does not print them: they are then as the program
        plans them."""
        if self.dialect == EXECUTORCHS:
            return None
        return [output["shape"] for output in json.loads(figures.read_text(encoding="utf-8"))["outputs"]]


def call_runner(
    command: Sequence[str], log: Path, environment: Mapping[str, str], timeout: float | None = None
) -> str:
    """Run the command with its output in the log. Return its last error and the known explanation, or
    nothing. Raises EnvironmentLacking if the machine ended it, and CheckFailed after the timeout."""
    from ci.diagnose.logs import nearest

    try:
        with log.open("wb") as stream:
            code = subprocess.run(
                command,
                cwd=log.parent,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                timeout=timeout,
                check=False,
            ).returncode
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(
            f"the runner ran longer than {timeout:g} s", fix="give it longer: --timeout"
        ) from error
    if not code:
        return ""
    text = tail(log, 4000)
    if trouble := trouble_of_ending("runner", code, text, [log.parent, Path(tempfile.gettempdir())]):
        raise EnvironmentLacking(trouble.message, fix=trouble.fix)
    errors = ERROR.findall(text) or text.splitlines()
    words = ": ".join(["", *map(str.strip, errors[-1].splitlines())]) if errors else ""
    explanation = nearest(text)
    return f"the runner {how_it_ended(code)}{words}" + (f". {explanation}" if explanation else "")


def find_runner(environ: Mapping[str, str], executorch: Executorch) -> Runner:
    """Return the runner that QNN_EXECUTOR_RUNNER names, else the one that belongs to this executorch."""
    value = environ.get(VARIABLE)
    path = Path(value).absolute() if value else executorch.runner(DIST)
    again = executorch.runner_command
    if not path.is_file():
        raise EnvironmentLacking(
            f"{VARIABLE}={value} is not a file" if value else f"qnn_executor_runner is not built yet: {path}",
            fix=Fix("unset {}, then {}", VARIABLE, again) if value else again,
        )
    overlay = path.parents[1] / FOLDER
    # Of a tree that is elsewhere, as a build that was copied here has it, there is no newer state here.
    if (build := description_of(overlay)) is not None and build.tree.is_dir():
        Executorch(build, overlay).current()
    return Runner.at(path, again)


def ready_runner(environ: Mapping[str, str], reports: Path, executorch: Executorch) -> Runner:
    """Return the runner as `find_runner` does, but first build ours if there is none for this executorch."""
    if not environ.get(VARIABLE) and executorch.overlay is None and _is_of_another(executorch):
        message = "qnn_executor_runner could not be built"
        by_word = () if executorch.build else BY_WORD
        require_stage("ci", "build_runner", by_word, reports, environ, message)
    return find_runner(environ, executorch)


def _is_of_another(executorch: Executorch) -> bool:
    """Whether our runner must be built for this wheel. `build_runner` knows best: it compares the content of
    the whole package, and a tree's wheel has one version before and after an edit."""
    runner = executorch.runner(DIST)
    if not runner.is_file() or executorch.build is not None:
        return True
    printed = interview([str(runner), "--version"], 60).stdout
    linked = re.search(r"for ExecuTorch (\S+)", printed)
    return linked is None or linked[1] != importlib.import_module("executorch.version").__version__
