"""Bills of materials held against CycloneDX's own schema."""

from __future__ import annotations

import json


def faults(text: str) -> str:
    """What the schema of the version that a bill names says about it; empty for a valid one."""
    # Importing the validator takes seconds: it compiles the grammar of every kind of URL.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    version = SchemaVersion.from_version(json.loads(text)["specVersion"])
    errors = JsonStrictValidator(version).validate_str(text)
    return str(errors) if errors else ""
