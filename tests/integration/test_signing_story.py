"""From signing to a device, as a team does it for LPAI: sign_lpai, signing verify, bundle, run_device.

Nothing of it is Qualcomm's. The signer is this project's development rehearsal. QNN's libraries are stand-ins
that a loader takes. The device is this machine behind sshd, with the runner under qemu. No real device takes
such a signature. Held here: every file reaches the place where a device looks for it, signed and whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.builds import Built, build, run_stage
from tests.support.devices import make_device_sdk, make_inputs, make_program
from tests.support.elves import HEXAGON, Library
from tests.support.miniature_executorch import digest, make_tree
from tests.support.sshd import HOST, ssh_server
from tests.support.stand_in_ndk import GLIBC

pytestmark = pytest.mark.needs("aarch64-linux-gnu-g++", "qemu-aarch64", "ssh", "sshd")

QNN = "v2.48.0.260626101010_100000"
LPAI = ("libQnnLpai.so", "libQnnLpaiStub.so")
PROFILE = ("--profile", "qnn-2.48")
SKEL = "dsp/libQnnLpaiSkel.so"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("story")
    sdk = make_device_sdk(folder / "sdk", "aarch64-linux", 81, QNN, LPAI)
    skel = Library(machine=HEXAGON, flags=0x81, soname="libQnnLpaiSkel.so", content=f"{QNN}\0".encode())
    skel.write(sdk / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so")
    return build("build_linux_arm64", folder, make_tree(folder), sdk)


@pytest.fixture(scope="module")
def reachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with ssh_server(tmp_path_factory.mktemp("keys")) as environ:
        yield environ


@pytest.mark.parametrize("soc", ["SM8850", pytest.param("SAR2230P", marks=pytest.mark.whole)])
def test_what_is_signed_is_bundled_pushed_and_run(
    built: Built, reachable: Mapping[str, str], soc: str, tmp_path: Path
) -> None:
    sdk, overlay, bundle = built.folder / "sdk", tmp_path / "overlay", tmp_path / "bundle"
    environ = {"QNN_SDK_ROOT": sdk, "QNN_CI_STORE": built.folder / "store"}
    target = (*PROFILE, "--target", "aarch64-linux", "--soc", soc, "--reports", tmp_path / "reports")

    signed = run_stage("sign_lpai", *PROFILE, "--soc", soc, "--signer", "dev", "-o", overlay, environ=environ)
    assert signed.returncode == 0, signed.stderr + signed.stdout
    skel = overlay / "lib/lpai-v6/signed/libQnnLpaiSkel.so"
    root = ("--root", overlay / "development-root.pem")
    purpose = ("--for", "development")
    verified = run_stage("signing", "verify", skel, *root, *purpose, environ=environ)
    assert verified.returncode == 0 and "development rehearsal" in verified.stdout

    program = make_program(tmp_path / "a model.pte", f"{QNN} soc_type={soc};arch=81 \0")
    places = ("--dist", built.dist, "-o", bundle, "--lpai", "--signed", overlay)
    bundled = run_stage("bundle", *target, *places, *root, *purpose, program, environ=environ)
    assert bundled.returncode == 0, bundled.stderr + bundled.stdout
    rules = {
        finding["rule"] for finding in json.loads((tmp_path / "reports/bundle.json").read_text())["findings"]
    }
    assert {"signing-development-only", "signing-signer-known"} <= rules
    assert digest(bundle / SKEL) == digest(skel)

    device = tmp_path / "board"
    ssh = ("--ssh", HOST, "--wrap", f"qemu-aarch64 -L {GLIBC.parent}")
    inputs = ("--inputs", make_inputs(tmp_path / "in", b"abc"))
    there = ("--device-dir", device, "--reports", tmp_path / "run")
    ran = run_stage("run_device", bundle, *ssh, *inputs, *there, environ={**environ, **reachable})
    assert ran.returncode == 0, ran.stderr + ran.stdout
    (output,) = (tmp_path / "run" / "device" / "outputs").iterdir()
    assert output.read_bytes() == b"bcd"
    assert digest(device / SKEL) == digest(skel)
    assert all((device / "lib" / name).is_file() for name in LPAI)
