"""What is newer than the profiles' pins. A person decides on these: each QNN fits other programs."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from packaging.version import Version

from lab.lock.files import resolve
from provisioning.addresses import mirror_of
from provisioning.base.errors import ToolkitError, UpstreamError
from provisioning.base.settings import MANIFESTS
from provisioning.components import ANDROID_NDK
from provisioning.download import fetch
from provisioning.manifest import load_profile

PACKAGES = ("executorch", "onnxruntime-qnn")
NDK = "https://dl.google.com/android/repository/repository2-3.xml"
_STABLE = re.compile(r'<remotePackage path="ndk;([\d.]+)">(?:(?!</remotePackage>).)*"channel-0"', re.DOTALL)


def table() -> str:
    """A row for each package and the NDK: the versions that profiles pin, and the newest release."""
    profiles = [load_profile(path.stem) for path in sorted((MANIFESTS / "profiles").glob("*.toml"))]
    lines = ["## Releases", "", "| | pinned | newest |", "| --- | --- | --- |"]
    for name in (*PACKAGES, ANDROID_NDK):
        pinned = {
            version
            for profile in profiles
            for pins in (profile.packages, profile.onnx, profile.components)
            for package, pin in pins.items()
            if package == name
            for version in [pin if isinstance(pin, str) else pin.version]
        }
        try:
            version = _newest_ndk(name) if name == ANDROID_NDK else _newest_package(name)
            shown = version if Version(version) <= max(map(Version, pinned)) else f"**{version}**: not tried"
        except ToolkitError as error:
            shown = f"not known: {error.message.splitlines()[0]}"
        lines.append(f"| {name} | {', '.join(sorted(pinned))} | {shown} |")
    return "\n".join([*lines, ""])


def _newest_package(name: str) -> str:
    # onnxruntime-qnn is made for no older Python.
    newest = f"{name}; python_version >= '3.11'"
    entries = resolve([newest], "--no-deps")
    return max((entry.version for entry in entries), key=Version)


def _newest_ndk(name: str) -> str:
    with tempfile.TemporaryDirectory(prefix="qnn-ci-releases-") as folder:
        file = Path(folder, "repository.xml")
        fetch(mirror_of(NDK), file, sha256=None, size=None)
        versions = _STABLE.findall(file.read_text(encoding="utf-8"))
    if not versions:
        raise UpstreamError(f"{NDK} lists no stable {name}")
    return str(max(versions, key=Version))
