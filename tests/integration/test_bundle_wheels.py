"""Bundles of Qualcomm's own libraries, those of the wheels profile, for a chip of every arch that it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioning.manifest import load_profile, load_socs
from tests.support import programs, sdk
from tests.support.builds import run_stage, write_build

pytestmark = pytest.mark.heavy

ARCHES = sorted({soc.arch: name for name, soc in sorted(load_socs().items())}.items())
BETWEEN = pytest.mark.long("each bundle has a hundred megabytes of libraries")
CHIPS = [pytest.param(*row, marks=BETWEEN if row in ARCHES[1:-1] else ()) for row in ARCHES]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_build(tmp_path_factory.mktemp("dist"))


def bundle(dist: Path, folder: Path, soc: str, program: bytes) -> tuple[int, list[str]]:
    """The exit code and the rules of its findings."""
    (folder / "model.pte").write_bytes(program)
    places = ("--dist", dist, "-o", folder / "bundle", "--reports", folder, "--store", folder / "store")
    chosen = ("--target", "aarch64-linux", "--soc", soc)
    environ = {"QNN_SDK_ROOT": sdk.sdk_root()}
    done = run_stage("bundle", *chosen, *places, folder / "model.pte", environ=environ)
    findings = json.loads((folder / "bundle.json").read_text("utf-8"))["findings"]
    return done.returncode, [finding["rule"] for finding in findings]


@pytest.mark.parametrize(("arch", "soc"), CHIPS)
def test_the_libraries_of_a_chip_fit_together(dist: Path, tmp_path: Path, arch: int, soc: str) -> None:
    build_id = load_profile("wheels").components["qnn-sdk"].build_id
    assert build_id is not None
    data = programs.context(soc, arch, build_id=build_id)
    spec = programs.options(load_socs()[soc].id, arch)
    assert bundle(dist, tmp_path, soc, programs.program(data=data, spec=spec)) == (0, [])
    qnn = sorted(path.name for path in (tmp_path / "bundle").glob("*/libQnn*.so"))
    base = ["libQnnHtp.so", f"libQnnHtpV{arch}Skel.so", f"libQnnHtpV{arch}Stub.so", "libQnnSystem.so"]
    assert qnn == base
