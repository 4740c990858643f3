"""`generate`: write the committed files that are made from code: JSON Schemas and the catalogue of checks."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any, Literal

from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UnknownName
from provisioning.base.files import replace_text
from provisioning.base.flags import switch
from provisioning.base.settings import ROOT

EXAMPLES = """\
  nox -s generate
  nox -s generate -- --check
  nox -s generate -- docs/checks.md
"""

SCHEMAS = {
    "profile": ("provisioning.manifest:Profile", "A profile: one consistent set of pins"),
    "socs": ("provisioning.manifest:SocTable", "The chips: id, Hexagon arch, VTCM, LPAI version"),
    "refused": ("lab.generate.chips_page:RefusedTable", "Operators that a Hexagon does not compile"),
    "variables": ("ci.work.child:Variables", "The variables of a process that does a user's work"),
    "environments": (
        "lab.lock.files:Environments",
        "The Python environments that sessions install",
    ),
    "libraries": (
        "provisioning.qnn_libraries:LibraryTable",
        "What an SDK must hold, and what its directories are for",
    ),
    "device_libraries": (
        "provisioning.qnn_libraries:DeviceLibraries",
        "Libraries that devices' own systems provide",
    ),
    "validation": (
        "provisioning.validation:ValidationTable",
        "Thresholds and names that checks compare with",
    ),
    "checks": ("provisioning.validation:RuleTexts", "The rules of validate, in words"),
    "operators": (
        "ci.operators.table:OperatorTable",
        "What each operator does on HTP in each scheme, as measured",
    ),
    "values": ("lab.operators.value_cases:ValueTable", "Values and shapes that operators are tried with"),
    "onnx_tests": (
        "lab.onnx_operators.suite:Rules",
        "How the plain test of each ONNX operator is chosen, where its schema does not say it",
    ),
    "upstream_suites": ("ci.lanes.upstream.suite:SuiteTable", "ExecuTorch's suites of tests"),
    "upstream_reports": (
        "lab.upstream_reports.reports:Reports",
        "Mistakes of upstream's tests, as issues",
    ),
    "golden": ("lab.golden.contexts:Golden", "Programs that later QNN builds must still run"),
    "known_faults": ("provisioning.known_faults:Faults", "Faults of QNN builds and of what drives them"),
    "images": ("ci.image.contents:Images", "The container images, and the system under them"),
    "recipe": ("ci.builds.tree:Recipe", "A recipe: what is built from ExecuTorch's source for a target"),
    "parity": (
        "ci.parity.mapping:Mapping",
        "Which Buck and CMake targets are the same, and what differs on purpose",
    ),
    "suite": (
        "lab.generate.suite_schema:Suite",
        "A suite: models, the lanes, precisions and chips that they run at, and what is expected",
    ),
    "fixes": ("provisioning.known_faults:Fixes", "What repairs a finding, and how a graph is rewritten so"),
    "tolerances": (
        "ci.suite.accepted:Tolerances",
        "How much worse than its baseline a program may become",
    ),
    "forecast": (
        "ci.one_model.forecast:Forecasts",
        "Phones that forecasts are for, and the models that they are fitted by",
    ),
    "comment": ("ci.report.changes:Changes", "What became worse in a pull request, for comment.yml"),
    "onnx_options": (
        "ci.lanes.onnx.options:OptionTable",
        "What ONNX Runtime's QNN provider, its sessions and runs take",
    ),
}
"""manifests/schema/<name>.json: its model, `module:class`, and its title. A stage adds its row here."""

REPORT = "manifests/schema/report.json"
PAGES = {
    "README.md": "lab.generate.shared_tables:readme",
    "docs/start.md": "lab.generate.shared_tables:start",
    "docs/accuracy.md": "lab.generate.shared_tables:accuracy_page",
    "docs/llm.md": "lab.generate.shared_tables:llm_page",
    "docs/commands.md": "lab.generate.commands_page:page",
    "docs/checks.md": "lab.generate.checks_page:page",
    "docs/chips.md": "lab.generate.chips_page:page",
    "docs/findings.md": "lab.generate.findings_page:page",
    "docs/upgrades.md": "lab.compat.stage:page",
    "docs/errors.md": "lab.generate.errors_page:page",
    "docs/rules.md": "lab.generate.rules_page:page",
    "docs/options.md": "lab.generate.options_page:page",
    "docs/operators.md": "lab.operators.pages:markdown",
    "manifests/workflow.yml": "lab.generate.adopter_workflow:text",
    "manifests/flags.json": "lab.generate.flags_table:text",
    "manifests/lanes.toml": "lab.generate.suite_schema:lanes",
    "manifests/onnx_operators.json": "lab.onnx_operators.cells:text",
    "manifests/suites/onnx_operators.toml": "lab.onnx_operators.suite:suite",
    "docs/environments.md": "lab.generate.published_images:page",
    ".devcontainer/devcontainer.json": "lab.generate.published_images:devcontainer",
    "manifests/schema/answer.json": "lab.generate.answer_schema:text",
}
"""Pages, and the function `module:name` that returns the text."""

GENERATED = sorted([*(f"manifests/schema/{name}.json" for name in SCHEMAS), REPORT, *PAGES])

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="only these, as `--list` names them")
    switch(parser, "--check", "write nothing; fail when a file is stale")
    switch(parser, "--list", "name the files and stop")


def run(args: argparse.Namespace) -> int:
    if args.list:
        sys.stdout.write("".join(f"{name}\n" for name in GENERATED))
        return 0
    for name in args.files:
        if name not in GENERATED:
            raise UnknownName(f"{name} is not a generated file", name, GENERATED)
    outdated = stale(args.files)
    if args.check and outdated:
        raise CheckFailed(f"stale: {', '.join(outdated)}", fix=session("generate"))
    for name, text in outdated.items():
        replace_text(ROOT / name, text)
        sys.stdout.write(f"wrote {name}\n")
    return 0


def stale(names: list[str] | None = None, root: Path = ROOT) -> dict[str, str]:
    """Files that differ from what the code generates, with their new text."""
    texts = {name: text_of(name) for name in names or GENERATED}
    return {
        name: text
        for name, text in texts.items()
        if not (root / name).is_file() or (root / name).read_text(encoding="utf-8") != text
    }


def text_of(name: str) -> str:
    if name in PAGES:
        return str(_named(PAGES[name])())
    if name == REPORT:
        from provisioning.base.findings import Report

        return _schema(Report, "What a stage writes to reports/<stage>.json", mode="serialization")
    model, title = SCHEMAS[Path(name).stem]
    return _schema(_named(model), title, mode="validation")


def _named(text: str) -> Any:
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def _schema(model: Any, title: str, *, mode: Literal["validation", "serialization"]) -> str:
    from pydantic import TypeAdapter

    document = {"$schema": DIALECT, **TypeAdapter(model).json_schema(mode=mode), "title": title}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
