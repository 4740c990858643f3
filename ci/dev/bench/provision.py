"""Provisioning a whole SDK, from a loopback server to the tree: ours against what people use today."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TextIO, cast

from ci.dev.bench.frame import Aim, Benchmark, Contender
from ci.dev.bench.sdk import GeneratedSdk, generate
from ci.dev.bench.server import serving
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Artifact
from provisioning.base.settings import DEFAULT_SOC, DEFAULT_TARGET
from provisioning.manifest import Component, load_profile, soc_named
from provisioning.sources.archive import Archive
from provisioning.store import EVERYTHING, FileSelection, Store

PROFILE = "qnn-2.37"
COMPONENT: Literal["qnn-sdk"] = "qnn-sdk"
SEED = 237
QUICK_SCALE = 0.02

FULL, SELECTIVE, EXECUTORCH, SHELL = "full", "selective", "executorch", "shell"
AIMS = (
    Aim(FULL, EXECUTORCH, 2.0),
    Aim(FULL, SHELL, 3.5),
    Aim(SELECTIVE, EXECUTORCH, 5.0),
)
FIX = "nox -s bench -- provision"


@contextmanager
def prepared(work: Path, *, quick: bool) -> Iterator[Benchmark]:
    theirs = executorch_downloader()
    tools = shell_tools()
    component = load_profile(PROFILE).components[COMPONENT]
    served = work / "served"
    served.mkdir()
    root = f"qairt/{component.version}/"
    name = f"v{component.version}.zip"
    archive = generate(served / name, root, seed=SEED, scale=QUICK_SCALE if quick else 1.0)
    with serving(served) as base:
        sdk = ServedSdk(
            archive, f"{base}/{name}", Artifact.of("archive", archive.path).sha256, root, component
        )
        yield Benchmark(
            contenders=(
                Contender(FULL, sdk.provision_all, sdk.check_all),
                Contender(SELECTIVE, sdk.provision_some, sdk.check_some),
                Contender(EXECUTORCH, lambda into: run_theirs(theirs, sdk, into), sdk.check_all),
                Contender(SHELL, lambda into: run_shell(tools, sdk, into), sdk.check_all),
            ),
            aims=AIMS,
            facts={
                "archive_bytes": archive.path.stat().st_size,
                "unpacked_bytes": archive.unpacked,
                "files": archive.files,
            },
        )


@dataclass(frozen=True, slots=True)
class ServedSdk:
    archive: GeneratedSdk
    url: str
    sha256: str
    root: str
    component: Component

    @property
    def whole(self) -> Component:
        """The SDK with everything that its archive holds."""
        return self._from_here(keep_rules=False)

    @property
    def official(self) -> Component:
        """The SDK as the profile lays it out."""
        return self._from_here(keep_rules=True)

    def provision_all(self, into: Path) -> None:
        Store(into).provision(COMPONENT, self.whole, EVERYTHING, locked=True)

    def provision_some(self, into: Path) -> None:
        Store(into).provision(COMPONENT, self.official, self._want, locked=True)

    def check_all(self, directory: Path) -> None:
        """Every byte was unpacked, wherever a contender puts its tree."""
        trees = [path for path in _files(directory) if self._is_content(path)]
        size = sum(path.stat().st_size for path in trees)
        if (len(trees), size) != (self.archive.files, self.archive.unpacked):
            raise CheckFailed(
                f"{directory.name}: expected {self.archive.files} files of {self.archive.unpacked} bytes,"
                f" found {len(trees)} of {size}",
                fix=FIX,
            )

    def check_some(self, directory: Path) -> None:
        library = "lib/x86_64-linux-clang"
        libraries = [path for path in _files(directory) if path.parent.as_posix().endswith(library)]
        others = [
            path for path in _files(directory) if "aarch64" in path.as_posix() and self._is_content(path)
        ]
        if not libraries or others:
            raise CheckFailed(
                f"{directory.name}: expected {library} and nothing for other targets,"
                f" found {len(libraries)} files and {len(others)} others",
                fix=FIX,
            )

    @property
    def _want(self) -> FileSelection:
        return FileSelection(frozenset({DEFAULT_TARGET}), frozenset({soc_named(DEFAULT_SOC).arch}))

    def _is_content(self, path: Path) -> bool:
        return path.name.startswith(("libQnn", "Qnn"))

    def _from_here(self, *, keep_rules: bool) -> Component:
        part = self.component.parts[0]
        source = Archive(
            type="archive",
            url=self.url,
            sha256=self.sha256,
            size=self.archive.path.stat().st_size,
            strip=self.root,
        )
        local = part.model_copy(update={"source": source, "place": part.place if keep_rules else ()})
        return self.component.model_copy(update={"parts": (local,), "licence": None})


def _files(directory: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(directory):
        yield from (Path(folder, name) for name in names)


class Downloader(Protocol):
    """The part of ExecuTorch's downloader that is used here."""

    QNN_VERSION: str
    QNN_ZIP_URL: str
    _output_stream: TextIO
    logger: logging.Logger

    def _download_qnn_sdk(self, dst_folder: Path) -> Path | None: ...


def executorch_downloader() -> Downloader:
    """ExecuTorch's own module from the installed wheel, loaded alone as it needs nothing of its package."""
    package = importlib.util.find_spec("executorch")
    for place in (package.submodule_search_locations or ()) if package else ():
        path = Path(place, "backends", "qualcomm", "scripts", "download_qnn_sdk.py")
        spec = importlib.util.spec_from_file_location("executorch_download_qnn_sdk", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            with contextlib.redirect_stdout(io.StringIO()):
                spec.loader.exec_module(module)
            return cast(Downloader, module)
    raise EnvironmentLacking(
        f"expected ExecuTorch's downloader in the environment of {sys.executable}, found none", fix=FIX
    )


def run_theirs(module: Downloader, sdk: ServedSdk, into: Path) -> None:
    """Run their own functions with our address, on the disk that the others use."""
    module.logger.disabled = True
    module.QNN_ZIP_URL = sdk.url
    module.QNN_VERSION = sdk.component.version
    before, tempfile.tempdir = tempfile.tempdir, str(into)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            module._output_stream = output
            done = module._download_qnn_sdk(into / "sdk")
    finally:
        tempfile.tempdir = before
    if done is None:
        raise EnvironmentLacking(
            "expected ExecuTorch's downloader to unpack the SDK, found that it declined",
            fix="run this benchmark on Linux x86-64",
        )


def run_shell(tools: dict[str, str], sdk: ServedSdk, into: Path) -> None:
    archive = into / sdk.archive.path.name
    subprocess.run([tools["curl"], "-sSf", "-o", archive, sdk.url], check=True)
    listing = f"{sdk.sha256}  {archive}\n".encode()
    subprocess.run([tools["sha256sum"], "--check", "--quiet"], input=listing, check=True)
    subprocess.run([tools["unzip"], "-q", archive, "-d", into / "sdk"], check=True)


def shell_tools() -> dict[str, str]:
    programs = {name: shutil.which(name) for name in ("curl", "sha256sum", "unzip")}
    if missing := [name for name, path in programs.items() if path is None]:
        raise EnvironmentLacking(
            f"expected {', '.join(programs)} on PATH, found no {' and no '.join(missing)}",
            fix="apt-get install curl coreutils unzip",
        )
    return {name: path for name, path in programs.items() if path is not None}
