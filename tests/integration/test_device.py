"""Bundles, really run: the arm64 runner under qemu over ssh, the Android one behind the real adb client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioning.base.settings import ROOT
from tests.support.builds import Built, build, gone, run_stage
from tests.support.devices import make_device_sdk, make_inputs, make_program
from tests.support.miniature_executorch import make_llama, make_tree
from tests.support.scripts import script
from tests.support.sshd import HOST, ssh_server
from tests.support.stand_in_adb import SERIAL, Phone, adb_server
from tests.support.stand_in_ndk import GLIBC, make_device_root, make_ndk

pytestmark = pytest.mark.needs(
    "aarch64-linux-gnu-g++", "adb", "clang++", "ld.lld", "qemu-aarch64", "ssh", "sshd"
)

QEMU = f"qemu-aarch64 -L {GLIBC.parent}"


@dataclass(frozen=True)
class Kit:
    """One kind of device, and a bundle for it."""

    bundle: Path
    flags: tuple[str | Path, ...]
    environ: Mapping[str, str]
    folder: Path
    """On the device."""

    def run(
        self, *flags: str | Path, into: Path, bundle: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        places = ("--device-dir", self.folder, "--reports", into)
        return run_stage(
            "run_device", bundle or self.bundle, *self.flags, *places, *flags, environ=self.environ
        )


def report(folder: Path, stage: str = "run_device") -> Any:
    return json.loads((folder / f"{stage}.json").read_text(encoding="utf-8"))


def bundle(built: Built, sdk: Path, *flags: str | Path, target: str) -> subprocess.CompletedProcess[str]:
    places = ("--dist", built.dist, "-o", built.folder / "bundle", "--reports", built.folder / "reports")
    return run_stage(
        "bundle",
        *("--profile", "qnn-2.37", "--target", target, "--soc", "SM8650"),
        *places,
        *flags,
        environ={"QNN_SDK_ROOT": sdk, "QNN_CI_STORE": built.folder / "store"},
    )


@pytest.fixture(scope="module")
def arm64(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("linux")
    tree = make_tree(folder)
    make_llama(tree)
    return build("build_linux_arm64", folder, tree, make_device_sdk(folder / "sdk", "aarch64-linux"))


@pytest.fixture(scope="module")
def linux(arm64: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    folder = arm64.folder
    program = make_program(folder / "a model.pte")
    bundled = bundle(arm64, folder / "sdk", program, target="aarch64-linux")
    assert bundled.returncode == 0, bundled.stderr + bundled.stdout
    keys = tmp_path_factory.mktemp("keys")
    with ssh_server(keys) as environ:
        flags = ("--ssh", HOST, "--wrap", QEMU)
        yield Kit(folder / "bundle", flags, environ, tmp_path_factory.mktemp("board") / "qnn ci")


@pytest.fixture(scope="module")
def phone() -> Phone:
    return Phone()


@pytest.fixture(scope="module")
def android(tmp_path_factory: pytest.TempPathFactory, phone: Phone) -> Iterator[Kit]:
    folder = tmp_path_factory.mktemp("android")
    sdk = make_device_sdk(folder / "sdk", "aarch64-android")
    built = build("build_android", folder, make_tree(folder), sdk, ndk=make_ndk(folder / "ndk"))
    bundled = bundle(built, sdk, make_program(folder / "a model.pte"), target="aarch64-android")
    assert bundled.returncode == 0, bundled.stderr + bundled.stdout
    logcat = script(folder / "programs" / "logcat", "echo 'adsprpc: no unsigned PD'")
    phone.path = f"{logcat.parent}:{phone.path}"
    root = make_device_root(folder / "device")
    wrap = f"env LD_LIBRARY_PATH=/system/lib64:./lib qemu-aarch64 -L {root}"
    with adb_server(phone) as environ:
        flags = ("--serial", SERIAL, "--wrap", wrap)
        yield Kit(folder / "bundle", flags, environ, tmp_path_factory.mktemp("phone") / "qnn ci")


def test_a_program_runs_over_ssh_and_its_outputs_come_back(linux: Kit, tmp_path: Path) -> None:
    done = linux.run("--inputs", make_inputs(tmp_path / "in", b"abc", b"HAL"), into=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    outputs = sorted((tmp_path / "device" / "outputs").iterdir())
    assert [path.read_bytes() for path in outputs] == [b"bcd", b"IBM"]


def test_a_runner_of_language_models_runs_with_arguments_of_its_own(
    arm64: Built, linux: Kit, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.bin").write_bytes(b"words")
    flags = ("--runner", "llama_main", "--file", tmp_path / "tokenizer.bin", "-o", tmp_path / "bundle")
    program = make_program(tmp_path / "llama.pte")
    bundled = bundle(arm64, arm64.folder / "sdk", *flags, program, target="aarch64-linux")
    assert bundled.returncode == 0, bundled.stderr + bundled.stdout
    done = linux.run("--runner-arg=--prompt=hello", into=tmp_path, bundle=tmp_path / "bundle")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "hello" in (tmp_path / "device" / "run.log").read_text(encoding="utf-8").splitlines()
    assert (linux.folder / "files" / "tokenizer.bin").read_bytes() == b"words"


def test_a_bundle_that_was_changed_is_refused(linux: Kit, tmp_path: Path) -> None:
    other = tmp_path / "bundle"
    shutil.copytree(linux.bundle, other)
    (other / "lib" / "libQnnSystem.so").write_bytes(b"something else")
    done = linux.run(into=tmp_path, bundle=other)
    assert (done.returncode, "libQnnSystem.so" in done.stderr) == (1, True)


def test_a_program_runs_over_adb_and_its_outputs_come_back(android: Kit, tmp_path: Path) -> None:
    done = android.run("--inputs", make_inputs(tmp_path / "in", b"abc"), into=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [path.read_bytes() for path in (tmp_path / "device" / "outputs").iterdir()] == [b"bcd"]


def test_a_phone_that_loses_bytes_is_found_out(android: Kit, phone: Phone, tmp_path: Path) -> None:
    phone.corrupt = True
    try:
        done = android.run("--inputs", make_inputs(tmp_path / "in", b"lost"), into=tmp_path)
    finally:
        phone.corrupt = False
    assert (done.returncode, "after pushing" in done.stderr) == (4, True)


def with_a_sleeper(linux: Kit, folder: Path) -> list[str]:
    """The command of a run whose runner takes any flags and never ends by itself."""
    (linux.folder / "sleeper.pid").unlink(missing_ok=True)
    sleeper = script(folder / "sleeper", "echo $$ > sleeper.pid\nexec sleep 300")
    flags = [flag for flag in linux.flags if flag not in ("--wrap", QEMU)]
    command = [sys.executable, "-m", "ci", "run_device", linux.bundle, *flags, "--wrap", sleeper]
    return list(map(str, [*command, "--device-dir", linux.folder, "--reports", folder]))


@pytest.mark.whole
def test_a_runner_that_hangs_is_ended_on_the_device(linux: Kit, tmp_path: Path) -> None:
    command = [*with_a_sleeper(linux, tmp_path), "--timeout", "3"]
    assert subprocess.run(command, cwd=ROOT, env={**os.environ, **linux.environ}, check=False).returncode == 1
    assert report(tmp_path)["metrics"]["exit_code"] is None
    assert gone(int((linux.folder / "sleeper.pid").read_text(encoding="utf-8")))


def test_an_interrupted_run_ends_the_runner_and_a_second_run_meanwhile_is_refused(
    linux: Kit, tmp_path: Path
) -> None:
    pid_file = linux.folder / "sleeper.pid"
    command, environ = with_a_sleeper(linux, tmp_path), {**os.environ, **linux.environ}
    with subprocess.Popen(command, cwd=ROOT, env=environ) as process:
        deadline = time.monotonic() + 60
        while not (pid_file.is_file() and pid_file.read_text(encoding="utf-8").strip()):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        second = linux.run("--push-only", into=tmp_path / "second")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    assert gone(int(pid_file.read_text(encoding="utf-8")))
    assert (second.returncode, f"process {process.pid}," in second.stderr) == (3, True)
