"""What is newer than the profiles' pins. A person decides on these: each QNN fits other programs."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from provisioning import lock_files
from provisioning.base.documents import read
from provisioning.base.errors import ToolkitError, UpstreamError
from provisioning.base.settings import MANIFESTS
from provisioning.components import ANDROID_NDK
from provisioning.download import fetch, mirrored
from provisioning.manifest import load_profile

PACKAGES = ("executorch", "onnxruntime-qnn")
ACTIONS = MANIFESTS / "actions.toml"
API = "https://api.github.com"
NDK = "https://dl.google.com/android/repository/repository2-3.xml"
_STABLE = re.compile(r'<remotePackage path="ndk;([\d.]+)">(?:(?!</remotePackage>).)*"channel-0"', re.DOTALL)


def table() -> str:
    """A row for each package and the NDK: the versions that profiles pin, and the newest release; and for
    actions that are behind."""
    rows = [(name, _packages_pinned(name), _newest_package) for name in PACKAGES]
    rows.append((ANDROID_NDK, _ndk_pinned(), _newest_ndk))
    lines = ["## Releases", "", "| | pinned | newest |", "| --- | --- | --- |"]
    for name, pinned, newest in rows:
        try:
            version = newest(name)
            shown = version if Version(version) <= max(map(Version, pinned)) else f"**{version}**: not tried"
        except ToolkitError as error:
            shown = f"not known: {error.message.splitlines()[0]}"
        lines.append(f"| {name} | {', '.join(sorted(pinned))} | {shown} |")
    behind = actions_behind(read(ACTIONS)["actions"], _newest_tag)
    return "\n".join([*lines, *behind, ""])


def actions_behind(pinned: Mapping[str, Mapping[str, str]], newest_tag: Callable[[str], str]) -> list[str]:
    """A row for each repository of actions that has a newer major version than workflows use."""
    versions: dict[str, set[str]] = {}
    for action, pin in pinned.items():
        versions.setdefault("/".join(action.split("/")[:2]), set()).add(pin["version"])
    rows = []
    for repository, used in sorted(versions.items()):
        try:
            newest = newest_tag(repository)
            if _major(newest) <= min(map(_major, used)):
                continue
            shown = f"**{newest}**: Dependabot proposes it, as a workflow may not"
        except (ToolkitError, InvalidVersion) as error:
            shown = f"not known: {str(error).splitlines()[0]}"
        rows.append(f"| {repository} | {', '.join(sorted(used))} | {shown} |")
    return rows


def _major(tag: str) -> int:
    return Version(tag.removeprefix("v")).major


def _newest_tag(repository: str) -> str:
    url = f"{os.environ.get('GITHUB_API_URL', API)}/repos/{repository}/releases/latest"
    with tempfile.TemporaryDirectory(prefix="qnn-ci-releases-") as folder:
        file = Path(folder, "latest.json")
        fetch(mirrored(url), file, sha256=None, size=None)
        answer = json.loads(file.read_text(encoding="utf-8"))
    tag = answer.get("tag_name") if isinstance(answer, dict) else None
    if not isinstance(tag, str):
        raise UpstreamError(f"{url} names no release")
    return tag


def _profiles() -> list[str]:
    return sorted(path.stem for path in (MANIFESTS / "profiles").glob("*.toml"))


def _packages_pinned(name: str) -> set[str]:
    profiles = map(load_profile, _profiles())
    return {pins[name] for profile in profiles for pins in (profile.packages, profile.onnx) if name in pins}


def _ndk_pinned() -> set[str]:
    return {
        component.version
        for name in _profiles()
        for kind, component in load_profile(name).components.items()
        if kind == ANDROID_NDK
    }


def _newest_package(name: str) -> str:
    # onnxruntime-qnn is made for no older Python.
    newest = f"{name}; python_version >= '3.11'"
    entries = lock_files.parse(lock_files.resolve("releases", [newest], "", ["--no-deps"]))
    versions = [entry.line.partition("==")[2].partition(";")[0].strip() for entry in entries]
    return max(versions, key=Version)


def _newest_ndk(name: str) -> str:
    with tempfile.TemporaryDirectory(prefix="qnn-ci-releases-") as folder:
        file = Path(folder, "repository.xml")
        fetch(mirrored(NDK), file, sha256=None, size=None)
        versions = _STABLE.findall(file.read_text(encoding="utf-8"))
    if not versions:
        raise UpstreamError(f"{NDK} lists no stable {name}")
    return str(max(versions, key=Version))
