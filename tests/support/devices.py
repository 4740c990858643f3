"""What a bundle for a device that this machine can play is made of: stand-in QNN libraries, a program."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support import elves
from tests.support.miniature_executorch import BUILD_ID, make_sdk

FOLDERS = {"aarch64-linux": "aarch64-oe-linux-gcc11.2", "aarch64-android": "aarch64-android"}
PROGRAM = f"{BUILD_ID} soc_type=SM8650;arch=75 \0"


def make_device_sdk(
    root: Path, target: str, arch: int = 75, build_id: str = BUILD_ID, more: tuple[str, ...] = ()
) -> Path:
    """What a device of that arch loads can really be loaded: by the cross compiler's own C library."""
    make_sdk(root, build_id)
    folder = root / "lib" / FOLDERS[target]
    folder.mkdir(parents=True)
    for name in ("libQnnHtp.so", "libQnnSystem.so", f"libQnnHtpV{arch}Stub.so", *more):
        source = f'const char id[] __attribute__((used, visibility("default"))) = "{build_id}";\n'
        compiler = ["aarch64-linux-gnu-gcc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-xc", "-"]
        subprocess.run([*compiler, "-o", folder / name], input=source, text=True, check=True)
    skel = elves.skel(arch, build_id)
    skel.write(root / "lib" / f"hexagon-v{arch}" / "unsigned" / f"libQnnHtpV{arch}Skel.so")
    return root


def make_program(path: Path, content: str = PROGRAM) -> Path:
    path.write_bytes(content.encode())
    return path


def make_inputs(folder: Path, *contents: bytes) -> Path:
    """An input list with one raw file a line."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, content in enumerate(contents):
        (folder / f"input {index}.raw").write_bytes(content)
        lines.append(f'"input {index}.raw"\n')
    listed = folder / "list.txt"
    listed.write_text("".join(lines), encoding="utf-8")
    return listed
