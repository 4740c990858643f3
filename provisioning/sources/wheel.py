"""A wheel, of any platform, from the package index that the user's pip or uv is set to.

The user's own tool finds the wheel, so that index, find-links, credentials, proxies and certificates mean
what they mean everywhere else. Where the tool tells only the address, our own transfer follows, with its
resume and progress; where the address needs what only the tool has, the tool transfers too. The bytes are
checked against the manifest either way.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from provisioning.base.errors import EnvironmentLacking, IntegrityError, ManifestError, UpstreamError
from provisioning.base.progress import Progress
from provisioning.base.settings import MANIFESTS
from provisioning.download import Fetched, fetch, finished, redact, supplied
from provisioning.sources import landing_place

if TYPE_CHECKING:
    from provisioning.manifest import Wheel

TELLS_ADDRESS = (26, 0)
"""From this version on pip's --dry-run names a wheel's address without transferring the wheel; older ones
transfer it to read its metadata, so with them pip had better keep what it transfers."""

UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
PIP_INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CONFIG_FILE")


@dataclass(frozen=True, slots=True)
class Tags:
    """What a wheel's file name says of where it works; the platform may be several joined by dots."""

    name: str
    version: str
    python: str
    abi: str
    platform: str


def parse_filename(filename: str) -> Tags:
    """Read `name-version(-build)?-python-abi-platform.whl`; ValueError when it is not of that form."""
    stem = filename.removesuffix(".whl")
    pieces = stem.split("-")
    if stem == filename or len(pieces) not in (5, 6) or not all(re.fullmatch(r"[\w.+!]+", p) for p in pieces):
        raise ValueError(f"expected NAME-VERSION-PYTHON-ABI-PLATFORM.whl, found {filename!r}")
    if len(pieces) == 6 and not pieces[2][0].isdigit():
        raise ValueError(f"expected a build number, found {pieces[2]!r} in {filename!r}")
    return Tags(pieces[0], pieces[1], *pieces[-3:])


def fetch_wheel(source: Wheel, downloads: Path, *, progress: Progress | None = None) -> Fetched:
    into = landing_place(downloads, source.sha256, f"wheel:{source.filename}", source.filename)
    # A finished copy needs no index at all: a warm store works offline.
    found = finished(into, sha256=source.sha256, size=source.size, name=source.filename)
    if found is not None:
        return found
    tags = _tags(source)
    failures: list[UpstreamError] = []
    for way in _ways(os.environ):
        try:
            return way(source, tags, into, progress)
        except IntegrityError:
            raise
        except UpstreamError as error:
            failures.append(error)
    if not failures:
        raise EnvironmentLacking(
            f"{source.filename}: neither pip nor uv is here to ask the package index",
            remedy=f"{sys.executable} -m ensurepip, or install uv",
        )
    raise failures[0]


Way = Callable[["Wheel", Tags, Path, "Progress | None"], Fetched]


def _ways(environ: Mapping[str, str]) -> list[Way]:
    """How to get the wheel, in turn: first with the tool that the user's settings speak to."""
    own_pip: list[Way] = []
    version = _pip_version()
    if version is not None:
        address: list[Way] = [_address_from_pip] if version >= TELLS_ADDRESS else []
        own_pip = [*address, partial(_file_from_pip, [sys.executable, "-m", "pip"])]
    uv: list[Way] = [_address_from_uv] if _uv() is not None else []
    other = shutil.which("pip") if version is None else None
    other_pip: list[Way] = [partial(_file_from_pip, [other])] if other else []
    speaks_uv = any(environ.get(v) for v in UV_INDEXES) and not any(environ.get(v) for v in PIP_INDEXES)
    return [*uv, *own_pip, *other_pip] if speaks_uv else [*own_pip, *uv, *other_pip]


def _file_from_pip(
    pip: Sequence[str], source: Wheel, tags: Tags, into: Path, progress: Progress | None
) -> Fetched:
    @contextlib.contextmanager
    def download() -> Iterator[Path]:
        folder = into.with_name(f".{into.name}.pip")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            command = [*pip, "download", *_pip_options(source, tags), "--dest", str(folder)]
            _run(command, source, environ=_pip_environ())
            got = folder / source.filename
            if not got.is_file():
                raise _not_the_wheel(source, [path.name for path in folder.iterdir()])
            yield got
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return _supplied(download, source, into, progress)


def _supplied(
    supply: Callable[[], AbstractContextManager[Path]], source: Wheel, into: Path, progress: Progress | None
) -> Fetched:
    """A transfer that is not ours shows as one step."""
    if progress is not None:
        progress.start(source.filename, source.size)
    try:
        fetched = supplied(
            into, supply, sha256=source.sha256, size=source.size, progress=progress, name=source.filename
        )
        if progress is not None:
            progress.advance(fetched.size)
        return fetched
    finally:
        if progress is not None:
            progress.finish()


def _address_from_pip(source: Wheel, tags: Tags, into: Path, progress: Progress | None) -> Fetched:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *_pip_options(source, tags), *options]
        _run([*command, "--use-feature=fast-deps"], source, environ=_pip_environ())
        told = report.read_text(encoding="utf-8")
    try:
        urls = [item["download_info"]["url"] for item in json.loads(told)["install"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UpstreamError(
            f"{source.filename}: pip's report cannot be read ({type(error).__name__})",
            remedy=f"{sys.executable} -m pip install --upgrade pip",
        ) from error
    return _from_address(urls, source, into, progress)


def _address_from_uv(source: Wheel, tags: Tags, into: Path, progress: Progress | None) -> Fetched:
    from provisioning.locks import has_no_index

    environ = dict(os.environ)
    if "PIP_FIND_LINKS" in environ:
        environ.setdefault("UV_FIND_LINKS", ",".join(environ["PIP_FIND_LINKS"].split()))
    options = ["--no-deps", "--only-binary", ":all:", "--format", "pylock.toml", "--no-header", "--universal"]
    if has_no_index(environ):
        options.append("--no-index")
    output = _run(
        [str(_uv()), "pip", "compile", "--quiet", "--python-version", _python_version(tags), *options, "-"],
        source,
        environ=environ,
        standard_input=f"{source.package}=={source.version}\n",
    )
    # Only the addresses are wanted of this TOML; every basic string in it is on one line.
    urls = re.findall(r'\b(?:url|path) = "([^"\s]+)"', output)
    return _from_address(urls, source, into, progress)


def _from_address(urls: Sequence[str], source: Wheel, into: Path, progress: Progress | None) -> Fetched:
    for url in urls:
        if wheel_name(url) != source.filename:
            continue
        if urlsplit(url).scheme in ("http", "https"):
            return fetch(
                url,
                into,
                sha256=source.sha256,
                size=source.size,
                progress=progress,
                name=source.filename,
            )
        return _supplied(partial(_as_it_is, _local_path(url)), source, into, progress)
    raise _not_the_wheel(source, sorted(wheel_name(url) for url in urls))


def _as_it_is(path: Path) -> AbstractContextManager[Path]:
    return contextlib.nullcontext(path)


def _local_path(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else Path(url)


def wheel_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _pip_options(source: Wheel, tags: Tags) -> list[str]:
    platforms = [word for platform in tags.platform.split(".") for word in ("--platform", platform)]
    python = re.match(r"[a-z]+", tags.python)
    return [
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        _python_version(tags),
        "--implementation",
        python.group() if python else "cp",
        "--abi",
        tags.abi,
        *platforms,
        f"{source.package}=={source.version}",
    ]


def _pip_environ() -> dict[str, str]:
    """The user's settings, less those about where and how to install: nothing is installed here."""
    installing = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_REQUIRE_HASHES": "0", "PIP_USER": "0"}
    return {**os.environ, **installing}


def _python_version(tags: Tags) -> str:
    """`cp311` → 3.11, `py3` → 3, `py2.py3` → 3."""
    digits = max(re.findall(r"\d+", tags.python) or ["3"], key=lambda d: (d[0], int(d[1:] or 0)))
    return f"{digits[0]}.{digits[1:]}" if len(digits) > 1 else digits


def _run(
    command: Sequence[str],
    source: Wheel,
    *,
    environ: Mapping[str, str] | None = None,
    standard_input: str | None = None,
) -> str:
    done = subprocess.run(
        list(command),
        input=standard_input,
        stdin=subprocess.DEVNULL if standard_input is None else None,
        env=environ,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise explain(source, Path(command[0]).name, done.stderr)
    return done.stdout


def explain(source: Wheel, tool: str, text: str) -> UpstreamError:
    """The tool's complaint in our words, and its own last words without secrets."""
    wanted = f"{source.package}=={source.version} ({source.filename})"
    said = _last_words(text)
    if "HASH" in text or "hash mismatch" in text.lower():
        return IntegrityError(f"{wanted}: the index sent other bytes than it names: {said}")
    network = r"connection|resolve host|name resolution|timed? ?out|proxy|unreachable|certificate|dns error"
    if re.search(network, text, re.IGNORECASE):
        return UpstreamError(
            f"{wanted}: the package index could not be reached: {said}",
            remedy="check the network, HTTPS_PROXY and the index settings (`pip config list`)",
        )
    if re.search(r"\b(401|403|407)\b|Unauthorized|Forbidden", text):
        return UpstreamError(
            f"{wanted}: the package index refused the request: {said}",
            remedy="check the credentials of your index (`pip config list`, ~/.netrc)",
        )
    if re.search(
        r"no matching distribution|could not find a version|no solution found|not found", text, re.I
    ):
        return UpstreamError(
            f"{wanted}: the package index you use does not have this wheel: {said}",
            remedy="ask for it to be mirrored, or name an index that has it in PIP_INDEX_URL",
        )
    return UpstreamError(f"{wanted}: {tool} failed: {said}", remedy="run the same command again with --debug")


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    errors = [line for line in lines if re.match(r"error|×|╰|caused by", line, re.IGNORECASE)] or lines
    shown = re.sub(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)]+", lambda m: redact(m.group()), " ".join(errors[-2:]))
    return shown[:400] or "(it said nothing)"


def _not_the_wheel(source: Wheel, found: Sequence[str]) -> UpstreamError:
    shown = ", ".join(found[:5]) or "nothing"
    return UpstreamError(
        f"expected {source.filename} from the package index, found {shown}",
        remedy="name an index that has this wheel in PIP_INDEX_URL",
    )


def _tags(source: Wheel) -> Tags:
    try:
        return parse_filename(source.filename)
    except ValueError as error:
        raise ManifestError(
            MANIFESTS / "profiles", "filename", expected="a wheel's file name", found=repr(source.filename)
        ) from error


def _pip_version() -> tuple[int, ...] | None:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _uv() -> Path | None:
    """uv beside this interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("uv")
    if beside.is_file():
        return beside
    found = shutil.which("uv")
    return Path(found) if found else None
