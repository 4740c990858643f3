"""Write pins into a profile's text; comments, order and layout stay as they are."""

from __future__ import annotations

from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from provisioning.base.documents import parse
from provisioning.base.errors import ManifestError
from provisioning.manifest import Profile


def with_source_keys(path: Path, component: str, part: str, keys: dict[str, str | int]) -> str:
    """The text of the profile at `path` with `keys` in the source of one part.

    A key that is there with another value is an error: a pin is changed by hand, with the reason in the
    commit.
    """
    text = path.read_text(encoding="utf-8")
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ManifestError(path, "(syntax)", expected="TOML", found=str(error)) from error
    profile = parse(document.unwrap(), Profile, path)
    parts = profile.pins[component].parts
    number = next(index for index, candidate in enumerate(parts) if candidate.name == part)
    source = parts[number].source
    for key, value in keys.items():
        recorded = getattr(source, key)
        if recorded not in (None, value):
            raise ManifestError(
                path,
                f"components.{component}.parts.{number}.source.{key}",
                expected=f"{recorded} (as recorded)",
                found=str(value),
            )
    written: Table = document["components"][component]["parts"][number]["source"]
    for key, value in keys.items():
        if key not in written:
            written.append(key, value)
    changed = document.as_string()
    parse(document.unwrap(), Profile, path)
    return changed
