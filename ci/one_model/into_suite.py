"""`compile --suite`: add a model to a new or an existing suite, as its author would write it.

`addition_of` refuses what cannot be added before anything is compiled; `Addition.write` writes the suite,
with comments and all else kept, and prints the command that accepts what it measures."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.models.user_model import UserModel, module_file
from ci.one_model.model import OneModel
from ci.one_model.product import Product
from ci.suite.precision import scheme_named, written_name
from ci.suite.programs import Program, SuiteRun
from ci.suite.suite_file import LaneForm, parse_suite
from provisioning.base import toml
from provisioning.base.commands import add_flags, leave_out, session
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.files import replace_text, repository_of
from provisioning.base.option_fields import suite_names
from provisioning.base.origin import this_copy
from provisioning.base.settings import MANIFESTS, PLACEHOLDER, profile_flags

WORKFLOW = MANIFESTS / "workflow.yml"
PIN = "@COMMIT # VERSION"
"""Stands for the toolkit's commit and version in a workflow that calls the gate."""

OURS = ("lane", "socs", "tags", "thresholds", "cpu_nodes", "delegates", "cpu_budget")
"""The keys of a run that we write or keep. A run with other keys was written by its author and is another
run."""


def _require_place(suite: Path) -> None:
    if suite.suffix != ".toml" or suite.is_dir():
        raise UsageError(f"--suite {suite}: expected a .toml file", fix="--suite models.toml")
    if not suite.parent.is_dir() or not os.access(suite.parent, os.W_OK):
        raise UsageError(f"--suite {suite}: its folder cannot be written", fix="name another file")
    _text(suite)


def factory_in(model: UserModel, suite: Path) -> str:
    """The model's name in this suite: a file relative to the suite, or a module as the suite imports it."""
    if model.factory.endswith(".pt2"):
        return os.path.relpath(model.search_path / model.factory, suite.parent)
    module, _, function = model.factory.partition(":")
    if suite.parent == model.search_path:
        return model.factory
    file = module_file(module, [model.search_path])
    if file is None:
        # An installed package.
        return model.factory
    if module_file(module, [suite.parent]) == file:
        return model.factory
    below = model.file is not None and file.is_relative_to(suite.parent)
    words = file.relative_to(suite.parent).with_suffix("").parts if below else ()
    if words and all(word.isidentifier() for word in words):
        return f"{'.'.join(words)}:{function}"
    raise UsageError(
        f"{suite}: a suite's modules must be in its folder, but {module} is in {model.search_path}",
        fix=add_flags("--suite", str(model.search_path / suite.name)),
    )


def suite_with(
    suite: Path,
    name: str,
    case: Mapping[str, object],
    lane: str,
    run: Mapping[str, object],
    socs: Sequence[str],
) -> tuple[str, int]:
    """Return the suite's text with this run of this case, and the run's number among the case's runs in this
    lane.

    An existing run with the same precision is updated, and keeps its chips and tags. Comments and everything
    else stay."""
    import tomlkit

    text = _text(suite)
    run = {**run, "precision": _spelling(run.get("precision"), lane)}
    document: Any = tomlkit.parse(text or "schema = 2\n")
    cases = document.setdefault("case", tomlkit.table(is_super_table=True))
    if name not in cases:
        cases[name] = tomlkit.table()
        cases[name].update(case)
    # As a suite has them: a list for a tuple.
    for key, value in tomlkit.item(dict(case)).unwrap().items():
        if cases[name].get(key) != value:
            raise UsageError(
                f"{suite}: case.{name} already exists with {key} = {cases[name].get(key)!r}, not {value!r}",
                fix="rename that case, or name another suite",
            )
    runs = cases[name].setdefault("run", tomlkit.aot())
    runs_of_lane = [entry for entry in runs if entry.get("lane") == lane]
    number = _number_of_run(runs_of_lane, run, lane)
    if number == len(runs_of_lane):
        runs.append(tomlkit.table())
        runs_of_lane.append(runs[-1])
    row = runs_of_lane[number]
    chips = tuple(dict.fromkeys([*row.get("socs", ()), *socs]))
    for key, value in {"lane": lane, **run, "socs": list(chips)}.items():
        if value in (None, [], ()):
            row.pop(key, None)
        else:
            row[key] = value
    return tomlkit.dumps(document), number


def _number_of_run(runs_of_lane: Sequence[Mapping[str, Any]], run: Mapping[str, object], lane: str) -> int:
    """Return the number of the run with the same precision and no other fields; that of a new run if there is
    none."""
    for number, entry in enumerate(runs_of_lane):
        is_same = "precision" in entry and _spelling(entry["precision"], lane) == run["precision"]
        if is_same and set(entry) <= {*OURS, *run}:
            return number
    return len(runs_of_lane)


@dataclass(frozen=True, slots=True)
class Addition:
    """A run of a model that will be added to a suite."""

    suites: LaneForm
    path: Path
    case_name: str
    case: Mapping[str, object]
    run: Mapping[str, object]
    socs: Sequence[str]
    profile: str

    def _extended(self, fields: Mapping[str, object]) -> tuple[str, SuiteRun]:
        """Return the suite's text with this run, and the run. Raises ManifestError if the suite would become
        invalid."""
        suites, run = self.suites, {**self.run, **fields}
        text, number = suite_with(self.path, self.case_name, self.case, suites.lane, run, self.socs)
        cases = parse_suite(toml.loads(text), self.path, suites).cases
        result: SuiteRun = cases[self.case_name].runs[number]
        return text, result

    def require_possible(self) -> None:
        self._extended({})

    def write(self, products: Sequence[Product]) -> None:
        """Write the suite with the fields that the products add to the run; prints the command that accepts
        its figures."""
        fields = products[0].run_fields
        for product in products:
            if field := next((name for name in fields if product.run_fields[name] != fields[name]), ""):
                raise UsageError(
                    f"{self.path}: {field} of these chips is {fields[field]} and {product.run_fields[field]},"
                    " and a suite's run has one",
                    fix="write chips of one kind into one suite: repeat the command for each kind",
                )
        is_new = not self.path.is_file()
        text, run = self._extended(fields)
        replace_text(self.path, text)
        profile = profile_flags(self.profile)
        stage, name = self.suites.stages[-1], f"{self.case_name}/{run.name}/"
        command = session(stage, "--suite", self.path, "-k", name, *profile, "--accept")
        sys.stdout.write(
            f"{self.path}: case {self.case_name}, run {run.name} for {', '.join(run.socs)}\n"
            f"hold it to what it measures:  {command}\n"
        )
        if is_new:
            sys.stdout.write(f"a workflow that holds pull requests to it:\n\n{self._workflow()}")

    def _workflow(self) -> str:
        repository = repository_of(self.path)
        inside = self.path.is_relative_to(repository)
        path = self.path.relative_to(repository) if inside else self.path.name
        ours = this_copy()
        pin = f"@{ours.commit} # v{ours.version}" if ours.commit else PIN
        workflow = WORKFLOW.read_text(encoding="utf-8").replace("ci/models.toml", str(path))
        return workflow.replace(PLACEHOLDER, ours.name).replace(PIN, pin)


def addition_of(
    model: OneModel, suites: LaneForm, programs: Callable[[Path], Sequence[Program]], suite: Path
) -> Addition:
    """Prepare the addition. Refuses a suite that cannot have the model, before anything is compiled."""
    backend = model.options.processor
    if backend != "htp":
        raise UsageError(
            f"--suite adds a run for the HTP, and --backend is {backend}",
            fix=leave_out("--suite", f', and write backend = "{backend}" into a run by hand'),
        )
    _require_place(suite)
    program = programs(suite)[0]
    case = program.case.model_dump(mode="json", exclude_defaults=True, exclude={"runs"})
    values = program.run.model_dump(mode="json", exclude_defaults=True)
    run = {name: values.get(name) for name in suite_names(type(model.options), "run")}
    socs, profile = model.selection.socs, model.selection.profile
    addition = Addition(suites, suite, program.case_name, case, run, socs, profile)
    addition.require_possible()
    return addition


def _spelling(precision: object, lane: str) -> object:
    """The spelling that `compile` writes for a precision of this lane; a value that is no precision stays
    unchanged."""
    if not isinstance(precision, str):
        return precision
    with suppress(UsageError):
        # ExecuTorch has one scheme for several of ONNX Runtime's.
        return written_name(scheme_named(precision) if lane == "executorch" else precision)
    return precision


def _text(suite: Path) -> str:
    if not suite.exists():
        return ""
    try:
        text = suite.read_text(encoding="utf-8")
        toml.loads(text)
    except (toml.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ManifestError(suite, "(syntax)", expected="TOML", found=str(error)) from error
    return text
