"""`generate`: write the committed files that are made from code: JSON Schemas and the catalogue of checks."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import replace_text
from provisioning.base.settings import ROOT

EXAMPLES = """\
  nox -s generate
  nox -s generate -- --check
  python -m provisioning generate docs/checks.md
"""

GENERATED = {
    "manifests/schema/profile.json": "provisioning.verbs.generate:profile_schema",
    "manifests/schema/socs.json": "provisioning.verbs.generate:socs_schema",
    "manifests/schema/environments.json": "provisioning.verbs.generate:environments_schema",
    "manifests/schema/libraries.json": "provisioning.verbs.generate:libraries_schema",
    "manifests/schema/device_libraries.json": "provisioning.verbs.generate:device_libraries_schema",
    "manifests/schema/validation.json": "provisioning.verbs.generate:validation_schema",
    "manifests/schema/images.json": "ci.image.plan:schema",
    "manifests/schema/recipe.json": "ci.builds.recipes:schema",
    "manifests/schema/parity.json": "ci.parity.mapping:schema",
    "manifests/schema/report.json": "provisioning.verbs.generate:report_schema",
    "manifests/schema/suite.json": "ci.executorch.schemas:suite_schema",
    "manifests/schema/suggestions.json": "ci.executorch.schemas:suggestions_schema",
    "manifests/schema/tolerances.json": "ci.executorch.schemas:tolerances_schema",
    "manifests/schema/onnx_suite.json": "ci.onnx.schemas:suite_schema",
    "manifests/schema/onnx_options.json": "ci.onnx.schemas:options_schema",
    "docs/checks.md": "provisioning.validation.document:catalogue_markdown",
}
"""Each file, and the function `module:name` that returns its text."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="only these, as `--list` names them")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    parser.add_argument("--list", action="store_true", help="name the files and stop")


def run(args: argparse.Namespace) -> int:
    if args.list:
        sys.stdout.write("".join(f"{name}\n" for name in GENERATED))
        return 0
    for name in args.files:
        if name not in GENERATED:
            raise UsageError(f"{name} is not a generated file", remedy=f"use one of: {', '.join(GENERATED)}")
    out_of_date = stale(args.files or list(GENERATED))
    if args.check:
        if out_of_date:
            raise CheckFailed(f"stale: {', '.join(out_of_date)}", remedy="nox -s generate")
        return 0
    for name, text in out_of_date.items():
        replace_text(ROOT / name, text)
        sys.stdout.write(f"wrote {name}\n")
    return 0


def stale(names: list[str] | None = None, root: Path = ROOT) -> dict[str, str]:
    """Files that differ from what the code makes, with the text they should have."""
    found = {}
    for name in names or list(GENERATED):
        text = text_of(name)
        path = root / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found[name] = text
    return found


def text_of(name: str) -> str:
    module, _, function = GENERATED[name].partition(":")
    make = cast(Callable[[], str], getattr(importlib.import_module(module), function))
    return make()


def profile_schema() -> str:
    from provisioning.manifest import Profile

    return _schema(Profile, "A profile: one consistent set of pins", manifest=True)


def socs_schema() -> str:
    from provisioning.manifest import SocTable

    return _schema(SocTable, "The chips: id, Hexagon arch, VTCM, LPAI version", manifest=True)


def environments_schema() -> str:
    from provisioning.manifest import PythonEnvironments

    return _schema(PythonEnvironments, "The Python environments that sessions install", manifest=True)


def libraries_schema() -> str:
    from provisioning.validation.tables import LibraryTable

    return _schema(LibraryTable, "What an SDK must hold, and what its directories are for", manifest=True)


def device_libraries_schema() -> str:
    from provisioning.validation.tables import DeviceLibraries

    return _schema(DeviceLibraries, "Libraries that devices' own systems provide", manifest=True)


def validation_schema() -> str:
    from provisioning.validation.tables import ValidationTable

    return _schema(ValidationTable, "Thresholds and names that checks compare with", manifest=True)


def report_schema() -> str:
    from dataclasses import fields
    from typing import get_type_hints

    from pydantic import ConfigDict, Field, JsonValue, create_model

    from provisioning.base import findings

    # pydantic follows recursive aliases only by its own name for them.
    names = {**vars(findings), "Metric": JsonValue}
    hints: dict[str, Any] = get_type_hints(findings.Report, globalns=names)
    hints["schema"] = Literal[findings.SCHEMA]
    definitions: dict[str, Any] = {
        f"{field.name}_": (hints[field.name], Field(alias=field.name)) for field in fields(findings.Report)
    }
    model = create_model("Report", __config__=ConfigDict(extra="forbid"), **definitions)
    return _schema(model, "What a stage writes to reports/<stage>.json", manifest=False)


def _schema(model: Any, title: str, *, manifest: bool) -> str:
    from pydantic import TypeAdapter

    schema = TypeAdapter(model).json_schema(mode="validation" if manifest else "serialization")
    document = {"$schema": DIALECT, **schema, "title": title}
    return json.dumps(document, indent=2, sort_keys=True) + "\n"
