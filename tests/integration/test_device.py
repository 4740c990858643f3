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
from contextlib import contextmanager
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from provisioning.base.settings import ROOT
from tests.support.builds import Built, build, gone, run_stage
from tests.support.devices import make_device_sdk, make_inputs, make_program
from tests.support.miniature_executorch import make_llama, make_tree
from tests.support.sshd import HOST, ssh_server
from tests.support.stand_in_adb import SERIAL, Phone, adb_server
from tests.support.stand_in_ndk import GLIBC, make_device_root, make_ndk

pytestmark = pytest.mark.needs(
    "aarch64-linux-gnu-g++", "adb", "clang++", "ld.lld", "qemu-aarch64", "ssh", "sshd"
)

QEMU = f"qemu-aarch64 -L {GLIBC.parent}"


@dataclass(frozen=True)
class Bench:
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
def linux(arm64: Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = arm64.folder
    program = make_program(folder / "a model.pte")
    made = bundle(arm64, folder / "sdk", program, target="aarch64-linux")
    assert made.returncode == 0, made.stderr + made.stdout
    keys = tmp_path_factory.mktemp("keys")
    with ssh_server(keys) as config:
        flags = ("--ssh", HOST, "--ssh-config", config, "--wrap", QEMU)
        yield Bench(folder / "bundle", flags, {}, tmp_path_factory.mktemp("board") / "qnn ci")


@pytest.fixture(scope="module")
def phone() -> Phone:
    return Phone()


@pytest.fixture(scope="module")
def android(tmp_path_factory: pytest.TempPathFactory, phone: Phone) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("android")
    sdk = make_device_sdk(folder / "sdk", "aarch64-android")
    built = build("build_android", folder, make_tree(folder), sdk, ndk=make_ndk(folder / "ndk"))
    made = bundle(built, sdk, make_program(folder / "a model.pte"), target="aarch64-android")
    assert made.returncode == 0, made.stderr + made.stdout
    programs = folder / "programs"
    programs.mkdir()
    (programs / "logcat").write_text("#!/bin/sh\necho 'adsprpc: no unsigned PD'\n", encoding="utf-8")
    (programs / "logcat").chmod(0o755)
    phone.path = f"{programs}:{phone.path}"
    root = make_device_root(folder / "device")
    wrap = f"env LD_LIBRARY_PATH=/system/lib64:./lib qemu-aarch64 -L {root}"
    with adb_server(phone) as environ:
        flags = ("--serial", SERIAL, "--wrap", wrap)
        yield Bench(folder / "bundle", flags, environ, tmp_path_factory.mktemp("phone") / "qnn ci")


def test_a_program_runs_over_ssh_and_its_outputs_come_back(linux: Bench, tmp_path: Path) -> None:
    done = linux.run("--inputs", make_inputs(tmp_path / "in", b"abc", b"HAL"), into=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    outputs = sorted((tmp_path / "device" / "outputs").iterdir())
    assert [path.read_bytes() for path in outputs] == [b"bcd", b"IBM"]


@pytest.mark.whole
def test_a_runner_of_language_models_runs_with_arguments_of_its_own(
    arm64: Built, linux: Bench, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.bin").write_bytes(b"words")
    given = ("--runner", "llama_main", "--file", tmp_path / "tokenizer.bin", "-o", tmp_path / "bundle")
    program = make_program(tmp_path / "llama.pte")
    made = bundle(arm64, arm64.folder / "sdk", *given, program, target="aarch64-linux")
    assert made.returncode == 0, made.stderr + made.stdout
    done = linux.run("--runner-arg=--prompt=hello", into=tmp_path, bundle=tmp_path / "bundle")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "hello" in (tmp_path / "device" / "run.log").read_text(encoding="utf-8").splitlines()
    assert (linux.folder / "files" / "tokenizer.bin").read_bytes() == b"words"


def test_a_bundle_that_was_changed_is_refused(linux: Bench, tmp_path: Path) -> None:
    other = tmp_path / "bundle"
    shutil.copytree(linux.bundle, other)
    (other / "lib" / "libQnnSystem.so").write_bytes(b"something else")
    done = linux.run(into=tmp_path, bundle=other)
    assert (done.returncode, "libQnnSystem.so" in done.stderr) == (1, True)


@pytest.mark.whole
def test_a_runner_that_hangs_is_ended_on_the_device(linux: Bench, tmp_path: Path) -> None:
    flags = [flag for flag in linux.flags if flag not in ("--wrap", QEMU)]
    sleeper = make_sleeper(tmp_path)
    slow = Bench(linux.bundle, (*flags, "--wrap", str(sleeper)), {}, linux.folder)
    done = slow.run("--timeout", "3", into=tmp_path)
    assert (done.returncode, report(tmp_path)["metrics"]["exit_code"]) == (1, None)
    process = int((linux.folder / "sleeper.pid").read_text(encoding="utf-8"))
    assert gone(process)


def test_push_sh_does_the_same(linux: Bench, tmp_path: Path) -> None:
    config = linux.flags[3]
    environ = {**os.environ, "DEVICE_DIR": str(tmp_path / "board")}
    subprocess.run(
        ["sh", str(linux.bundle / "push.sh"), "-F", str(config), HOST], env=environ, check=True, timeout=120
    )
    pushed = {str(p.relative_to(tmp_path / "board")) for p in (tmp_path / "board").rglob("*") if p.is_file()}
    listed = json.loads((linux.bundle / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert pushed == {file["path"] for file in listed}


@pytest.mark.whole
def test_a_second_run_in_the_folder_is_refused_and_goes_on_when_the_first_is_over(
    linux: Bench, tmp_path: Path
) -> None:
    with at_work(linux, tmp_path) as first:
        refused = linux.run("--push-only", into=tmp_path / "second")
        waiting = ("--push-only", "--wait", "0.2")
        given_up = linux.run(*waiting, into=tmp_path / "third")
    assert (refused.returncode, given_up.returncode) == (3, 3)
    assert f"in use by {getuser()} on " in refused.stderr and f"process {first.pid}," in refused.stderr
    assert linux.run("--push-only", into=tmp_path / "last").returncode == 0


def test_a_program_runs_over_adb_and_its_outputs_come_back(android: Bench, tmp_path: Path) -> None:
    done = android.run("--inputs", make_inputs(tmp_path / "in", b"abc"), into=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [path.read_bytes() for path in (tmp_path / "device" / "outputs").iterdir()] == [b"bcd"]


def test_the_phones_own_log_comes_back_when_a_run_fails(android: Bench, tmp_path: Path) -> None:
    done = android.run("--runner-arg=--model_path=nowhere.pte", into=tmp_path)
    assert done.returncode == 1
    assert "adsprpc" in (tmp_path / "device" / "system.log").read_text(encoding="utf-8")


def test_a_phone_that_loses_bytes_is_found_out(android: Bench, phone: Phone, tmp_path: Path) -> None:
    phone.corrupt = True
    try:
        done = android.run("--inputs", make_inputs(tmp_path / "in", b"lost"), into=tmp_path)
    finally:
        phone.corrupt = False
    assert (done.returncode, "after pushing" in done.stderr) == (4, True)


def test_a_phone_that_is_not_authorised_is_named(android: Bench, phone: Phone, tmp_path: Path) -> None:
    phone.state = "unauthorized"
    try:
        done = android.run(into=tmp_path)
    finally:
        phone.state = "device"
    assert (done.returncode, "unauthorized" in done.stderr) == (3, True)


def test_push_sh_does_the_same_over_adb(android: Bench, tmp_path: Path) -> None:
    phone = tmp_path / "a phone's folder"
    environ = {**os.environ, **android.environ, "DEVICE_DIR": str(phone)}
    subprocess.run(
        ["sh", str(android.bundle / "push.sh"), "-s", SERIAL], env=environ, check=True, timeout=120
    )
    pushed = {str(path.relative_to(phone)) for path in phone.rglob("*") if path.is_file()}
    listed = json.loads((android.bundle / "manifest.json").read_text(encoding="utf-8"))["files"]
    assert pushed == {file["path"] for file in listed}


@pytest.mark.parametrize("how", [pytest.param(signal.SIGINT, marks=pytest.mark.whole), signal.SIGTERM])
def test_an_interrupted_run_ends_the_runner(linux: Bench, tmp_path: Path, how: signal.Signals) -> None:
    with at_work(linux, tmp_path) as process:
        process.send_signal(how)
        assert process.wait(timeout=60) == 130
    assert gone(int((linux.folder / "sleeper.pid").read_text(encoding="utf-8")))


@contextmanager
def at_work(linux: Bench, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose runner does not end by itself, and is there when this begins."""
    (linux.folder / "sleeper.pid").unlink(missing_ok=True)
    flags = [flag for flag in linux.flags if flag not in ("--wrap", QEMU)]
    command = [sys.executable, "-m", "ci", "run_device", linux.bundle, *flags, "--wrap", make_sleeper(folder)]
    command += ["--device-dir", linux.folder, "--reports", folder]
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE) as process:
        try:
            written = linux.folder / "sleeper.pid"
            deadline = time.monotonic() + 60
            while not (written.is_file() and written.read_text(encoding="utf-8").strip()):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.05)
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.wait(timeout=60)


def make_sleeper(folder: Path) -> Path:
    """Stands before the runner, takes any flags and never ends by itself."""
    sleeper = folder / "sleeper"
    sleeper.write_text("#!/bin/sh\necho $$ > sleeper.pid\nexec sleep 300\n", encoding="utf-8")
    sleeper.chmod(0o755)
    return sleeper
