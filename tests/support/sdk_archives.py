"""Small archives in the official SDK's layout, components that name them, and a progress that remembers."""

from __future__ import annotations

import hashlib
import random
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provisioning.manifest import Component
from provisioning.store import Tree
from provisioning.store.inventory import Inventory
from tests.support.elves import AARCH64, HEXAGON, X86_64, Library
from tests.support.http_server import FileServer, Reply

VERSION = "2.37.0.250724"
BUILD_ID = "v2.37.0.250724175447_124859"
STRIP = f"qairt/{VERSION}/"

PLACE: list[dict[str, Any]] = [
    {"match": r"lib/x86_64-linux-clang/.+", "targets": ["x86_64-linux"]},
    {"match": r"bin/x86_64-linux-clang/.+", "targets": ["x86_64-linux"]},
    {"match": r"lib/aarch64-android/.+", "targets": ["aarch64-android"]},
    {
        "match": r"lib/hexagon-v(?P<arch>\d+)/.+",
        "targets": ["aarch64-android", "aarch64-linux"],
    },
    {"match": r"include/.+"},
    {"match": r"[^/]+"},
]


def sdk_files(build_id: str = BUILD_ID, version: str = VERSION, filler: int = 2000) -> dict[str, bytes]:
    """Paths below the SDK's root and their content."""
    noise = random.Random(7)

    def library(name: str, machine: int = X86_64) -> bytes:
        content = noise.randbytes(filler) + b"\0" + build_id.encode() + b"\0"
        return Library(machine=machine, soname=name, content=content).encode()

    files = {
        "sdk.yaml": f"product: QAIRT\nversion: {version}\n".encode(),
        "include/QNN/QnnTypes.h": b"#pragma once\n",
        "bin/x86_64-linux-clang/qnn-net-run": library("qnn-net-run"),
        "lib/x86_64-linux-clang/libQnnHtp.so": library("libQnnHtp.so"),
        "lib/aarch64-android/libQnnHtp.so": library("libQnnHtp.so", AARCH64),
    }
    for arch in (73, 75):
        name = f"libQnnHtpV{arch}Skel.so"
        files[f"lib/hexagon-v{arch}/unsigned/{name}"] = library(name, HEXAGON)
    return files


def write_zip(
    path: Path,
    files: Mapping[str, bytes],
    *,
    links: Mapping[str, str] | None = None,
    prefix: str = STRIP,
    stored: bool = False,
) -> Path:
    """A zip of these files; those in a bin/ directory are executable."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(prefix + name, (2026, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            info.external_attr = (0o100755 if "bin/" in name else 0o100644) << 16
            archive.writestr(info, content)
        for name, target in (links or {}).items():
            info = zipfile.ZipInfo(prefix + name, (2026, 1, 1, 0, 0, 0))
            info.external_attr = 0o120777 << 16
            archive.writestr(info, target)
    return path


def sdk_zip(path: Path, **changes: Any) -> Path:
    return write_zip(
        path, sdk_files(**changes), links={"lib/x86_64-linux-clang/libLatest.so": "libQnnHtp.so"}
    )


def component(url: str, archive: Path | None = None, **changes: Any) -> Component:
    """A component of one archive; locked to the bytes of `archive` when that is given."""
    source: dict[str, Any] = {"type": "archive", "url": url, "strip": STRIP}
    if archive is not None:
        content = archive.read_bytes()
        source |= {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    data: dict[str, Any] = {
        "version": VERSION,
        "build_id": BUILD_ID,
        "parts": [{"name": "sdk", "source": source, "place": PLACE}],
    }
    return Component.model_validate(data | changes, strict=False)


def tree_at(root: Path, component: str = "qnn-sdk", version: str = VERSION) -> Tree:
    """A committed tree that holds nothing."""
    inventory = Inventory(component, version, "", "key", "definition", (), (), ())
    return Tree(root, inventory)


@contextmanager
def served_here(profile: Path, archives: Mapping[str, bytes]) -> Iterator[None]:
    """The profile's file names these archives, served by this machine, in place of those of the same name."""
    replies = {path: Reply(body=body) for path, body in archives.items()}
    with FileServer(b"", paths=replies) as server:
        text = re.sub(r"^(sha256|size) = .*\n", "", profile.read_text(), flags=re.M)
        for path, body in archives.items():
            pins = f'sha256 = "{hashlib.sha256(body).hexdigest()}"\nsize = {len(body)}\n'
            address = rf'^url = ".*{re.escape(path)}"\n'
            text = re.sub(address, f'url = "{server.url(path)}"\n{pins}', text, flags=re.M)
        profile.write_text(text)
        yield
