"""What images are built from: Debian packages with the locked hashes."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from ci.image.contents import keep_packages, packages_in, plan_of
from ci.image.engine import ContainerCommand, Engine
from provisioning.base.errors import IntegrityError

CONTENT = b"a package"
GPP = f"g++ 4:12.2.0-3 {hashlib.sha256(CONTENT).hexdigest()}"
LOCK = f"# written\n# snapshot: 20261120T000000Z\n{GPP}\n"
BASE = plan_of("base")
PLAN = replace(BASE, debian=LOCK, system=BASE.system.model_copy(update={"packages": ("g++",)}))


class AptInContainer(Engine):
    """Stands for an engine whose container leaves these files, or says this."""

    def __init__(self, files: dict[str, bytes], code: int = 0, stderr: str = "") -> None:
        self.files = files
        self.result = CompletedProcess([], code, "", stderr)
        self.jobs: list[ContainerCommand] = []
        self.rootless = False

    def run(self, job: ContainerCommand, *_: object) -> CompletedProcess[str]:
        self.jobs.append(job)
        folder = job.outputs["/packages"]
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return self.result


@pytest.fixture
def apt() -> AptInContainer:
    return AptInContainer({"g++_4%3a12.2.0-3_amd64.deb": CONTENT})


def test_locked_packages_are_fetched_once_for_each_base(apt: AptInContainer, tmp_path: Path) -> None:
    for base in ("base", "base", "other"):
        keep_packages(PLAN, apt, base, tmp_path / "packages")
    assert [job.command[-1] for job in apt.jobs] == ["g++"] * 2
    assert apt.jobs[0].environment["SNAPSHOT"] == "20261120T000000Z"
    assert packages_in(tmp_path / "packages") == [GPP]


def test_other_bytes_under_the_same_version_are_refused_each_time(
    apt: AptInContainer, tmp_path: Path
) -> None:
    keep_packages(PLAN, apt, "base", tmp_path / "packages")
    good, apt.files = apt.files, dict.fromkeys(apt.files, b"not the package")
    for _ in range(2):
        with pytest.raises(IntegrityError, match=hashlib.sha256(b"not the package").hexdigest()):
            keep_packages(PLAN, apt, "other", tmp_path / "packages")
    apt.files = good
    keep_packages(PLAN, apt, "base", tmp_path / "packages")
    assert packages_in(tmp_path / "packages") == [GPP]


@pytest.mark.parametrize("file", ["zlib1g_1.2_amd64.deb", "g++_4%3a12.3_amd64.deb"])
def test_a_package_that_is_not_pinned_is_refused(apt: AptInContainer, tmp_path: Path, file: str) -> None:
    apt.files[file] = CONTENT
    with pytest.raises(IntegrityError, match=r"is not in manifests/image-packages\.txt"):
        keep_packages(PLAN, apt, "base", tmp_path / "packages")


@pytest.mark.parametrize("change", ["file changed", "file added", "folder removed"])
def test_packages_that_changed_since_they_were_fetched_are_fetched_again(
    apt: AptInContainer, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "packages"
    keep_packages(PLAN, apt, "base", folder)
    (package,) = folder.glob("*.deb")
    if change == "folder removed":
        shutil.rmtree(folder)
    else:
        place = package if change == "file changed" else folder / "more_1.0_all.deb"
        place.write_bytes(b"something else")
    keep_packages(PLAN, apt, "base", folder)
    assert (len(apt.jobs), packages_in(folder)) == (2, [GPP])
