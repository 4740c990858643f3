"""What a component's own files say that it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

METADATA = {"qnn-sdk": "sdk.yaml", "android-ndk": "source.properties"}
"""The file that holds a component's version, for the components that have one."""

_MOST_TEXT = 65536


@dataclass(frozen=True, slots=True)
class Identity:
    """Empty where the metadata does not say."""

    version: str = ""
    build_id: str = ""


def identity_of(component: str, root: Path) -> Identity:
    """Version and build id as the component's metadata has them; PermissionError where it may not be read."""
    if component not in METADATA:
        return Identity()
    text = metadata_text(root / METADATA[component])
    if component == "qnn-sdk":
        return Identity(_value(text, "version").removeprefix("v"), _value(text, "build[_-]?id"))
    revision = re.search(r"^Pkg\.Revision\s*=\s*(\S+)", text, re.MULTILINE)
    return Identity(revision.group(1) if revision else "")


def metadata_text(path: Path) -> str:
    """The beginning of a text file; empty where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(_MOST_TEXT)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def _value(text: str, key: str) -> str:
    """One scalar of a flat YAML file: enough for the few lines SDKs put there, and no parser to load."""
    match = re.search(rf"^\s*{key}\s*:\s*(['\"]?)([^\s'\"#]+)\1\s*(?:#.*)?$", text, re.MULTILINE)
    return match.group(2) if match else ""
