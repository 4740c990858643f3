"""The committed schemas, which editors read, say what loading says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import MANIFESTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def fits(file: Path, text: str) -> bool:
    """Whether a manifest's text fits the schema that its first line names."""
    # It costs two seconds.
    import jsonschema

    first = text.splitlines()[0]
    rules = json.loads((file.parent / first.removeprefix("#:schema ")).read_text())
    jsonschema.Draft202012Validator.check_schema(rules)
    return bool(jsonschema.Draft202012Validator(rules).is_valid(tomllib.loads(text)))


def test_each_manifest_fits_the_schema_that_it_names() -> None:
    naming = [file for file in MANIFESTS.rglob("*.toml") if file.read_text().startswith("#:schema ")]
    assert {"wheels.toml", "socs.toml", "environments.toml", "lowering.toml"} <= {one.name for one in naming}
    assert [file for file in naming if not fits(file, file.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("profiles/wheels.toml", "schema = 1", 'schema = 1\ncolour = "red"'),
        ("suites/onnx.toml", 'precision = "u16u8"', 'precision = "u16u9"'),
        ("suites/onnx.toml", "{ sqnr_db = ", "{ sqnr_db = -"),
    ],
)
def test_a_schema_refuses_what_loading_refuses(file: str, right: str, wrong: str) -> None:
    path = MANIFESTS / file
    text = path.read_text(encoding="utf-8")
    assert right in text and not fits(path, text.replace(right, wrong, 1))
