"""release.yml run from the tag to the pull request after it, with stand-ins for what takes hours.

Maintainers start this workflow and no user does, so that its only test may be a nightly one.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from ci.github.release import project_version
from provisioning.base.settings import ROOT
from tests.support.repositories import IDENTITY
from tests.support.workflows.run import Finished, run_workflow

pytestmark = pytest.mark.whole

NOXFILE = """\
import pathlib

import nox

PYTHON = {python!r}
IMAGE = '''
import pathlib, sys
from tests.support.image_archives import archive
name, _, file = sys.argv[1:]
path = pathlib.Path(file)
path.parent.mkdir(parents=True, exist_ok=True)
path.write_bytes(archive(name, {{"etc/hostname": b""}}))
path.with_suffix(".cdx.json").write_text("{{}}")
'''


@nox.session(python=False)
def github(session):
    session.run(PYTHON, "-m", "ci", "github", *session.posargs, external=True)


@nox.session(python=False)
def site(session):
    session.run(PYTHON, "-m", "ci", "site", external=True)


@nox.session(python=False)
def generate(session):
    session.run(PYTHON, "-m", "ci", "generate", *session.posargs, external=True)


@nox.session(python=False)
def image(session):
    session.run(PYTHON, "-c", IMAGE, *session.posargs, external=True)


@nox.session(python=False)
def test_golden(session):
    folder = pathlib.Path("golden", "onnx" if "--lane" not in session.posargs else "executorch")
    folder.mkdir(parents=True)
    (folder / "SHA256SUMS").touch()
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    root = tmp_path_factory.mktemp("root") / "released"
    version = project_version(ROOT)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(root)], check=True)
    (root / "noxfile.py").write_text(NOXFILE.format(python=sys.executable))
    log = root / "CHANGELOG.md"
    log.write_text(re.sub(r"^## .*$", f"## {version}", log.read_text(), count=1, flags=re.MULTILINE))
    subprocess.run(["git", *IDENTITY, "commit", "--quiet", "--all", "-m", "x"], cwd=root, check=True)
    return run_workflow(
        tmp_path_factory.mktemp("run"),
        "release",
        root,
        event="push",
        ref=f"refs/tags/v{version}",
        variables={"QNN_CI_REGISTRY": "registry.example"},
    )


def test_every_job_succeeds_in_its_order(released: Finished) -> None:
    jobs = ("build", "golden", "images", "attest", "publish", "push", "propose")
    assert released.results() == dict.fromkeys(jobs, "success"), released.failures()


def test_images_are_attested_by_the_digests_that_the_pull_request_writes(released: Finished) -> None:
    push, propose = released.log("push"), released.log("propose")
    place = r"registry\.example/somebody/released-executorch"
    assert re.search(rf"would attest {place}$", push, re.MULTILINE)
    (digest,) = re.findall(r"^executorch-digest=(sha256:[0-9a-f]{64})$", push, re.MULTILINE)
    for file in ("manifests/images.toml", "docs/docker.md", ".devcontainer/devcontainer.json"):
        assert f" M {file}" in propose
    assert len(re.findall(rf"^\+.*{place}@{digest}", propose, re.MULTILINE)) == 3
