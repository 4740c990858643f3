"""A wheel, of any platform, from the package index that the user's pip or uv is set to.

pip finds the wheel's address, so that index, find-links, proxies and certificates mean what they mean
everywhere else; our own transfer fetches it, resumes and shows its progress.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import StringConstraints

from provisioning import pip_settings
from provisioning.base.commands import captured, quoted
from provisioning.base.errors import EnvironmentLacking, IntegrityError, ManifestError, UpstreamError
from provisioning.base.progress import SILENT, Progress
from provisioning.base.settings import MANIFESTS
from provisioning.download.server import MIRROR_VARIABLE, redact_text
from provisioning.download.transfer import Fetched, Transfer, fetch
from provisioning.sources import FileSource, Version

ANOTHER_INDEX = "name an index that has this wheel in PIP_INDEX_URL"


class Wheel(FileSource):
    """A wheel from the package index the user's pip or uv is set to."""

    type: Literal["wheel"]
    package: str
    version: Version
    filename: Annotated[str, StringConstraints(pattern=r"\.whl$")]

    @property
    def name(self) -> str:
        return self.filename

    @property
    def address(self) -> str:
        return f"wheel:{self.filename}"

    def fetch(self, downloads: Path, progress: Progress = SILENT) -> Fetched:
        into, sha256, size = self.landing_place(downloads), self.sha256, self.size
        # A finished copy needs no index, so a filled store works offline.
        if present := Transfer(into, sha256, size, progress, self.filename).reuse(tidy=False):
            return present
        url = pip_settings.with_credentials(_address(self), os.environ)
        try:
            return fetch(url, into, sha256=sha256, size=size, progress=progress, name=self.filename)
        except UpstreamError as error:
            # A mirror takes the place of other addresses than an index's.
            if MIRROR_VARIABLE not in (error.fix or ""):
                raise
            raise type(error)(error.message, fix=ANOTHER_INDEX, output=error.output) from None


def _address(source: Wheel) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        nothing_is_installed = ["--dry-run", "--ignore-installed", "--target", folder]
        done = captured(
            [*_pip(source), "install", *_options(source), *nothing_is_installed, "--report", str(report)],
            env=_environ(),
        )
        if done.returncode:
            raise explain(source, done.stderr)
        text = report.read_text(encoding="utf-8")
    try:
        urls: list[str] = [item["download_info"]["url"] for item in json.loads(text)["install"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UpstreamError(
            f"{source.filename}: pip's report cannot be read ({type(error).__name__})",
            fix=quoted(*_pip(source), "install", "--upgrade", "pip"),
        ) from error
    for url in urls:
        if wheel_name(url) == source.filename:
            return url
    names = ", ".join(sorted(map(wheel_name, urls))[:5]) or "nothing"
    raise UpstreamError(
        f"expected {source.filename} from the package index, found {names}",
        fix=ANOTHER_INDEX,
    )


def _pip(source: Wheel) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if pip := shutil.which("pip"):
        return [pip]
    raise EnvironmentLacking(
        f"{source.filename}: pip, which asks the package index, is not in this Python ({sys.executable})",
        fix=quoted(sys.executable, "-m", "ensurepip"),
    )


def _options(source: Wheel) -> list[str]:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        parse_wheel_filename(source.filename)
    except InvalidWheelFilename as error:
        raise ManifestError(
            MANIFESTS / "profiles", "filename", expected="a wheel's file name", found=repr(source.filename)
        ) from error
    python, abi, platforms = source.filename.removesuffix(".whl").split("-")[-3:]
    implementation = re.match(r"[a-z]+", python)
    return [
        *("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"),
        # If the index has no separate metadata, read it without fetching the whole wheel.
        "--use-feature=fast-deps",
        # A wheel for every Python 3 may still require a newer one than 3.0: then this one decides.
        *(("--python-version", version) if "." in (version := python_version(python)) else ()),
        *("--implementation", implementation.group() if implementation else "cp", "--abi", abi),
        *(word for platform in platforms.split(".") for word in ("--platform", platform)),
        f"{source.package}=={source.version}",
    ]


def _environ() -> dict[str, str]:
    """The user's settings, without those that concern installing."""
    installing = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_REQUIRE_HASHES": "0", "PIP_USER": "0"}
    return {**os.environ, **pip_settings.pip_variables(os.environ), **installing}


def python_version(tag: str) -> str:
    """`cp311` → 3.11, `py3` → 3, `py2.py3` → 3."""
    digits = max(re.findall(r"\d+", tag) or ["3"], key=lambda d: (d[0], int(d[1:] or 0)))
    return f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits


def wheel_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


_COMPLAINTS: Sequence[tuple[str, type[UpstreamError], str, str]] = (
    ("do not match the hashes", IntegrityError, "the index sent other bytes than it names", ""),
    (
        r"\b(401|403|407)\b|Unauthorized|Forbidden",
        UpstreamError,
        "the package index refused the request",
        "check the credentials of your index (`pip config list`, ~/.netrc)",
    ),
    (
        r"connection|resolve host|name resolution|timed? ?out|proxy|unreachable|certificate",
        UpstreamError,
        "the package index could not be reached",
        "check the network, HTTPS_PROXY and the index settings (`pip config list`)",
    ),
    (
        "no matching distribution|could not find a version",
        UpstreamError,
        "the package index you use does not have this wheel",
        "ask for it to be mirrored, or name an index that has it in PIP_INDEX_URL",
    ),
    ("", UpstreamError, "pip failed", "run the same command again with --debug"),
)
"""Our words for pip's complaints: pattern, error, message, fix. The first pattern that fits counts."""


def explain(source: Wheel, text: str) -> UpstreamError:
    text = redact_text(text)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    last_words = " ".join(errors[-2:])[:400] or "(it printed nothing)"
    kind, message, fix = next(
        (kind, message, fix)
        for pattern, kind, message, fix in _COMPLAINTS
        if re.search(pattern, text, re.IGNORECASE)
    )
    return kind(
        f"{source.package}=={source.version} ({source.filename}): {message}: {last_words}",
        fix=fix,
        output=text,
    )
