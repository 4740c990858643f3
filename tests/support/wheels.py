"""Small wheels, and the pages of an index that offers them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Mapping

from tests.support.http_server import Reply

SRC_PROJECT = """\
    [build-system]
    requires = ["setuptools>=61"]
    build-backend = "setuptools.build_meta"

    [project]
    name = "mynet"
    version = "1.0"
    dependencies = ["einops>=0.7"]

    [tool.setuptools.packages.find]
    where = ["src"]
    """
"""The pyproject.toml of a model's package in a src/ layout, which needs a package of its own."""


STEERING = '[project]\nname = "theirs"\nversion = "1"\n[tool.uv]\nrequired-version = ">=99"\n'
"""The pyproject.toml of a user's whose settings for uv would stop ours."""


def make_wheel(filename: str, *, padding: int = 0, more: Mapping[str, str | bytes] | None = None) -> bytes:
    """`more`: files and their content, in place of its own or besides."""
    name, version, python, abi, platform = filename.removesuffix(".whl").split("-")
    info = f"{name}-{version}.dist-info"
    tags = "".join(f"Tag: {python}-{abi}-{part}\n" for part in platform.split("."))
    files: dict[str, str | bytes] = {
        f"{name}/__init__.py": "",
        f"{name}/padding.txt": "x" * padding,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\n{tags}",
        **(more or {}),
    }
    record = "".join(f"{path},,\n" for path in files) + f"{info}/RECORD,,\n"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(path), content)
    return stream.getvalue()


def index_paths(name: str, wheels: Iterable[tuple[str, bytes]]) -> dict[str, Reply]:
    """What a server must answer to be a simple index at /simple/."""
    page = {"Content-Type": "text/html"}
    links = ""
    paths: dict[str, Reply] = {}
    for filename, content in wheels:
        digest = hashlib.sha256(content).hexdigest()
        links += f'<a href="/files/{filename}#sha256={digest}">{filename}</a>\n'
        paths[f"/files/{filename}"] = Reply(body=content)
    listing = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
    return {**paths, f"/simple/{name}/": Reply(body=listing, headers=page)}
