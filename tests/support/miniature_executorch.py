"""A small tree in ExecuTorch's layout, really compiled by tests, and the QNN SDK that it is built against."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from provisioning.base.findings import Artifact
from provisioning.base.settings import ROOT

SOURCE = ROOT / "tests" / "support" / "executorch_tree"
LLAMA = ROOT / "tests" / "support" / "llama_tree"
BUILD_ID = "v2.37.0.250724175447_124859"
IDENTITY = {
    **{f"GIT_{who}_NAME": "tests" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "tests@example.invalid" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def make_tree(folder: Path, *, pybind11: bool = False, commit: bool = True, name: str = "executorch") -> Path:
    """A copy of the tree, committed to a repository of its own."""
    root = folder / name
    shutil.copytree(SOURCE, root)
    # A submodule that no build of ours reads, not fetched.
    (root / "backends" / "mlx" / "third-party" / "mlx").mkdir(parents=True)
    if pybind11:
        (root / "third-party" / "pybind11" / "include").symlink_to(_pybind11_headers())
    else:
        # What it is for is built for x86 alone; other targets do without.
        shutil.rmtree(root / "third-party" / "pybind11")
    if commit:
        for arguments in (["init", "-q"], ["add", "-A"]):
            subprocess.run(["git", *arguments], cwd=root, env=_git_environment(), check=True)
        commit_all(root)
    return root


def commit_all(root: Path) -> None:
    """What is in the index."""
    subprocess.run(["git", "commit", "-qm", "miniature"], cwd=root, env=_git_environment(), check=True)


def make_old(root: Path) -> None:
    """As trees of 2024 were: with a second adaptor."""
    folder = root / "backends" / "qualcomm" / "aot" / "python"
    text = (folder / "CMakeLists.txt").read_text(encoding="utf-8")
    (folder / "CMakeLists.txt").write_text(
        text + text.replace("PyQnnManagerAdaptor", "PyQnnWrapperAdaptor"), encoding="utf-8"
    )
    source = (folder / "PyQnnManagerAdaptor.cpp").read_text(encoding="utf-8")
    (folder / "PyQnnWrapperAdaptor.cpp").write_text(
        source.replace("PyQnnManagerAdaptor", "PyQnnWrapperAdaptor"), encoding="utf-8"
    )


def make_llama(root: Path) -> None:
    """As newer trees are: with two runners of language models."""
    shutil.copytree(LLAMA, root, dirs_exist_ok=True)


def make_sdk(root: Path, build_id: str = BUILD_ID) -> Path:
    """Headers alone: enough to compile against."""
    headers = root / "include" / "QNN"
    headers.mkdir(parents=True)
    (headers / "QnnCommon.h").write_text('#pragma once\n#define QNN_API_VERSION "2.27.0"\n', encoding="utf-8")
    (headers / "QnnInterface.h").write_text('#pragma once\n#include "QnnCommon.h"\n', encoding="utf-8")
    version = build_id.removeprefix("v").partition("_")[0][:13]
    (root / "sdk.yaml").write_text(f"version: {version}\n", encoding="utf-8")
    (root / "LICENSE.pdf").write_bytes(b"%PDF-1.4\n% a stand-in\n")
    host = root / "lib" / "x86_64-linux-clang"
    host.mkdir(parents=True)
    (host / "libQnnHtp.so").write_bytes(build_id.encode())
    return root


def digest(path: Path) -> str:
    return Artifact.of("", path).sha256


def _pybind11_headers() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "include"


def _git_environment() -> dict[str, str]:
    import os

    return {**os.environ, **IDENTITY}
