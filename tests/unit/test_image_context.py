"""What images are built from: packages with the locked hashes, trees by hard links."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from ci.image import context
from ci.image.context import Apt, check_packages, keep_packages, link_tree, packages_in
from ci.image.engine import ContainerCommand, Engine
from ci.image.image_plan import DOCKER, DebianPackage, PackageLock, plan_of
from provisioning.base.errors import CheckFailed, IntegrityError, UpstreamError
from provisioning.store import Store

CONTENT = b"a package"
GPP = DebianPackage("g++", "4:12.2.0-3", hashlib.sha256(CONTENT).hexdigest())
LOCK = PackageLock((GPP,), "20261120T000000Z")


class AptInContainer(Engine):
    """Stands for an engine whose container leaves these files, or says this."""

    def __init__(self, files: dict[str, bytes], code: int = 0, stderr: str = "") -> None:
        self.files = files
        self.result = CompletedProcess([], code, "", stderr)
        self.jobs: list[ContainerCommand] = []
        self.pins = ""
        self.rootless = False

    def run(self, job: ContainerCommand) -> CompletedProcess[str]:
        self.jobs.append(job)
        folder = Path(job.mounts[0].source)
        self.pins = "".join(Path(m.source).read_text() for m in job.mounts if m.target == "/run/apt/pins")
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return self.result


@pytest.fixture
def apt() -> AptInContainer:
    return AptInContainer({"g++_4%3a12.2.0-3_amd64.deb": CONTENT})


def test_locked_packages_are_fetched_by_version_once_for_each_base(
    apt: AptInContainer, tmp_path: Path
) -> None:
    for base in ("base", "base", "other"):
        keep_packages(["g++"], LOCK, apt, base, Apt(), tmp_path / "packages")
    assert [job.command[-1] for job in apt.jobs] == ["g++"] * 2
    assert "Package: g++\nPin: version 4:12.2.0-3\n" in apt.pins
    assert apt.jobs[0].environment["SNAPSHOT"] == LOCK.snapshot
    assert packages_in(tmp_path / "packages") == [GPP]


def test_the_context_has_the_scripts_of_images_and_those_to_be_run_stay_so(
    apt: AptInContainer, tmp_path: Path
) -> None:
    # Without wheels, which come from the package index.
    plan = replace(plan_of("base"), debian=LOCK, environments=())
    context.assemble(plan, apt, "base", Store(tmp_path / "store"), Apt(), tmp_path / "context")
    copied, ours = (
        {path.name: (path.read_bytes(), os.access(path, os.X_OK)) for path in folder.iterdir()}
        for folder in (tmp_path / "context" / "docker", DOCKER)
    )
    assert copied == ours


def test_other_bytes_under_the_same_version_are_refused_each_time(
    apt: AptInContainer, tmp_path: Path
) -> None:
    keep_packages(["g++"], LOCK, apt, "base", Apt(), tmp_path / "packages")
    good, apt.files = apt.files, dict.fromkeys(apt.files, b"not the package")
    for _ in range(2):
        with pytest.raises(IntegrityError, match=GPP.sha256):
            keep_packages(["g++"], LOCK, apt, "other", Apt(), tmp_path / "packages")
    apt.files = good
    keep_packages(["g++"], LOCK, apt, "base", Apt(), tmp_path / "packages")
    assert packages_in(tmp_path / "packages") == [GPP]


@pytest.mark.parametrize(
    ("package", "error"),
    [
        (DebianPackage("zlib1g", "1.2", "0" * 64), CheckFailed),
        (DebianPackage("g++", "4:12.3", "0" * 64), UpstreamError),
    ],
)
def test_a_package_that_is_not_pinned_is_refused(package: DebianPackage, error: type[Exception]) -> None:
    with pytest.raises(error, match=re.escape(f"{package.name} {package.version}")):
        check_packages([GPP], [GPP, package])


@pytest.mark.parametrize("change", ["file changed", "file added", "folder removed"])
def test_packages_that_changed_since_they_were_fetched_are_fetched_again(
    apt: AptInContainer, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "packages"
    keep_packages(["g++"], LOCK, apt, "base", Apt(), folder)
    (package,) = folder.glob("*.deb")
    if change == "folder removed":
        shutil.rmtree(folder)
    else:
        place = package if change == "file changed" else folder / "more_1.0_all.deb"
        place.write_bytes(b"something else")
    keep_packages(["g++"], LOCK, apt, "base", Apt(), folder)
    assert (len(apt.jobs), packages_in(folder)) == (2, [GPP])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "lib").mkdir(parents=True, mode=0o700)
    (tmp_path / "tree" / "lib" / "a.so").write_text("a")
    (tmp_path / "tree" / "b.so").symlink_to("lib/a.so")
    return tmp_path / "tree"


def test_a_tree_is_linked_with_its_links_and_without_the_umask(tree: Path, tmp_path: Path) -> None:
    into = tmp_path / "linked"
    link_tree(tree, "key", into)
    assert (into / "lib" / "a.so").samefile(tree / "lib" / "a.so")
    assert (into / "b.so").readlink() == Path("lib/a.so")
    assert (into / "lib").stat().st_mode & 0o777 == 0o755


def test_a_half_linked_tree_is_not_taken_for_whole(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link_tree(tree, "key", tmp_path / "linked")
    with pytest.raises(shutil.Error), monkeypatch.context() as full:
        full.setattr(os, "link", _no_space)
        full.setattr(shutil, "copy2", _no_space)
        link_tree(tree, "other", tmp_path / "linked")
    link_tree(tree, "key", tmp_path / "linked")
    assert (tmp_path / "linked" / "lib" / "a.so").is_file()


def _no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
