"""The runner built against the executorch wheel of another machine, bundled and run there over ssh."""

from __future__ import annotations

import array
import json
from pathlib import Path

import pytest

from provisioning.manifest import load_profile
from provisioning.store import Store
from tests.support.builds import run_stage
from tests.support.runner import build
from tests.support.runner import programs as runner_programs
from tests.support.sshd import HOST, ssh_server
from tests.support.stand_in_ndk import GLIBC

__all__ = ["runner_programs"]

TARGET = "aarch64-linux"


@pytest.mark.whole
@pytest.mark.heavy
@pytest.mark.needs("aarch64-linux-gnu-g++", "qemu-aarch64", "ssh", "sshd")
def test_an_xnnpack_program_runs_on_an_emulated_board(tmp_path: Path, runner_programs: Path) -> None:
    store = Store(tmp_path / "store")
    pin = load_profile("wheels").components["executorch-runtime"]
    package = store.provision("executorch-runtime", pin, {TARGET})
    built = build(tmp_path, "--target", TARGET, "--executorch", package.root)
    assert built.returncode == 0, built.stderr
    metrics = json.loads((tmp_path / "reports" / "build_runner.json").read_text("utf-8"))["metrics"]
    assert (metrics["machine"], metrics["interpreter"]) == ("AArch64", "/lib/ld-linux-aarch64.so.1")
    program, inputs = runner_programs / "conv.pte", runner_programs / "conv.txt"
    expected = array.array("f", (runner_programs / "conv_ref0.raw").read_bytes())
    bundle = ("--target", TARGET, "--dist", tmp_path / "dist", "-o", tmp_path / "bundle", program)
    reports = ("--reports", tmp_path / "reports")
    assert run_stage("bundle", *bundle, *reports, environ={}).returncode == 0
    (tmp_path / "keys").mkdir()
    with ssh_server(tmp_path / "keys") as environ:
        way = ("--ssh", HOST, "--wrap", f"qemu-aarch64 -L {GLIBC.parent}")
        where = ("--device-dir", tmp_path / "board", "--inputs", inputs)
        done = run_stage("run_device", tmp_path / "bundle", *way, *where, *reports, environ=environ)
    assert done.returncode == 0, done.stderr + done.stdout
    values = array.array("f")
    for artifact in json.loads((tmp_path / "reports" / "run_device.json").read_text("utf-8"))["artifacts"]:
        if artifact["kind"] == "output":
            values.frombytes(Path(artifact["path"]).read_bytes())
    assert list(values) == pytest.approx(list(expected), abs=1e-5)
