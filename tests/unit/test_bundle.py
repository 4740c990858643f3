"""A bundle: exactly what a device needs, refused when its files do not fit together."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ci.bundle import configure, contents, manifest, run, scripts
from ci.bundle.contents import Model
from ci.lowering.program import Delegate, Options, Program
from provisioning.errors import CheckFailed, EnvironmentLacking, ToolkitError, UsageError
from tests.support.elves import AARCH64, Library, skel

BUILD = "v2.37.0.250724175447_124859"
NEWER = "v2.49.40.260810104044"
SDK_FOLDER = "lib/aarch64-oe-linux-gcc11.2"
BASE = {"libQnnHtp.so", "libQnnSystem.so"}


def qnn(name: str, build: str = BUILD, **more: Any) -> Library:
    return Library(machine=AARCH64, soname=name, content=build.encode() + b"\0", **more)


@dataclass(frozen=True)
class Bench:
    """An SDK with v75 and v79, a build, and the command."""

    root: Path

    @property
    def sdk(self) -> Path:
        return self.root / "sdk"

    @property
    def dist(self) -> Path:
        return self.root / "dist"

    @property
    def bundle(self) -> Path:
        return self.root / "bundle"

    def model(self, text: str = f"{BUILD} soc_type=SM8650;arch=75 \0", name: str = "model.pte") -> Path:
        path = self.root / "models" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def make(self, *flags: str | Path, soc: str = "SM8650", target: str = "aarch64-linux") -> int:
        parser = argparse.ArgumentParser()
        configure(parser)
        places = ("--dist", self.dist, "-o", self.bundle, "--reports", self.root / "reports")
        words = ("--soc", soc, "--target", target, "--store", self.root / "store", *places, *flags)
        return run(parser.parse_args([str(word) for word in words]))

    def rules(self) -> list[str]:
        report = json.loads((self.root / "reports" / "bundle.json").read_text(encoding="utf-8"))
        return sorted({found["rule"] for found in report["findings"]})


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    for name in (*BASE, "libQnnHtpV75Stub.so", "libQnnHtpV79Stub.so"):
        needed = ["libc.so.6"] + (["libcdsprpc.so"] if "Stub" in name else [])
        qnn(name, needed=needed).write(made.sdk / SDK_FOLDER / name)
    for arch in (75, 79):
        skel(arch, BUILD).write(
            made.sdk / "lib" / f"hexagon-v{arch}" / "unsigned" / f"libQnnHtpV{arch}Skel.so"
        )
    (made.sdk / "sdk.yaml").write_text("version: 2.37.0\n", encoding="utf-8")
    (made.sdk / "include" / "QNN").mkdir(parents=True)
    (made.sdk / "lib" / "x86_64-linux-clang").mkdir()
    backend = "libqnn_executorch_backend.so"
    Library(machine=AARCH64, needed=["libc.so.6", backend]).write(made.dist / "bin" / "qnn_executor_runner")
    Library(machine=AARCH64, needed=["libc.so.6"], soname=backend).write(made.dist / "lib" / backend)
    monkeypatch.setenv("QNN_SDK_ROOT", str(made.sdk))
    return made


def test_a_bundle_is_the_files_of_its_chip_alone(bench: Bench) -> None:
    assert bench.make(bench.model()) == 0
    places = {str(path.relative_to(bench.bundle)) for path in bench.bundle.rglob("*") if path.is_file()}
    assert places == {
        "bin/qnn_executor_runner",
        "lib/libqnn_executorch_backend.so",
        "lib/libQnnHtp.so",
        "lib/libQnnSystem.so",
        "lib/libQnnHtpV75Stub.so",
        "dsp/libQnnHtpV75Skel.so",
        "models/model.pte",
        "manifest.json",
        "push.sh",
        "run.sh",
    }


def test_its_manifest_is_taken_back(bench: Bench) -> None:
    bench.make(bench.model())
    read = manifest.read_bundle(bench.bundle)
    assert (read.soc, read.qnn_build_id, read.models) == ("SM8650", BUILD, ("models/model.pte",))


def test_two_bundles_of_the_same_are_the_same(bench: Bench) -> None:
    bench.make(bench.model())
    first = (bench.bundle / "manifest.json").read_bytes()
    bench.make(bench.model())
    assert (bench.bundle / "manifest.json").read_bytes() == first


@pytest.mark.parametrize("name", ["libQnnSystem.so", "libQnnHtpV75Stub.so"])
def test_a_library_of_another_sdk_is_found(bench: Bench, name: str) -> None:
    qnn(name, NEWER).write(bench.sdk / SDK_FOLDER / name)
    assert (bench.make(bench.model()), "bundle-build-id" in bench.rules(), bench.bundle.exists()) == (
        1,
        True,
        False,
    )


def test_a_skel_of_another_arch_under_this_name_is_found(bench: Bench) -> None:
    """Published commands push `hexagon-v75/unsigned/libQnnHtpV79Skel.so`."""
    skel(79, BUILD).write(bench.sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so")
    assert (bench.make(bench.model()), bench.rules()) == (1, ["bundle-arch"])


def test_a_runner_of_another_machine_is_found(bench: Bench) -> None:
    Library(needed=[]).write(bench.dist / "bin" / "qnn_executor_runner")
    assert (bench.make(bench.model()), bench.rules()) == (1, ["bundle-machine"])


def test_what_nobody_provides_is_found(bench: Bench) -> None:
    Library(machine=AARCH64, needed=["libc++_shared.so"]).write(bench.dist / "bin" / "qnn_executor_runner")
    assert (bench.make(bench.model()), bench.rules()) == (1, ["bundle-needed"])


def test_a_program_for_another_chip_is_found(bench: Bench) -> None:
    model = bench.model(f"{BUILD} soc_type=SM8750;arch=79 \0")
    assert (bench.make(model), bench.rules()) == (1, ["bundle-model-soc"])


def test_a_program_of_a_newer_qnn_is_found(bench: Bench) -> None:
    model = bench.model(f"{NEWER} soc_type=SM8650;arch=75 \0")
    assert (bench.make(model), bench.rules()) == (1, ["bundle-model-sdk"])


def test_a_program_of_an_older_qnn_is_a_warning(bench: Bench) -> None:
    model = bench.model("v2.30.0.250101000000 soc_type=SM8650;arch=75 \0")
    assert (bench.make(model), bench.rules()) == (0, ["bundle-model-sdk"])


def test_a_build_without_the_backend_is_found(bench: Bench) -> None:
    (bench.dist / "lib" / "libqnn_executorch_backend.so").unlink()
    Library(machine=AARCH64, needed=["libc.so.6"]).write(bench.dist / "bin" / "qnn_executor_runner")
    assert (bench.make(bench.model()), bench.rules()) == (1, ["bundle-backend"])


def test_a_build_that_was_changed_since_is_refused(bench: Bench) -> None:
    recorded = {
        "target": "aarch64-linux",
        "files": [{"path": "bin/qnn_executor_runner", "sha256": "ab" * 32}],
    }
    (bench.dist / "manifest.json").write_text(json.dumps(recorded), encoding="utf-8")
    with pytest.raises(CheckFailed, match="as its build recorded"):
        bench.make(bench.model())


def test_no_build_names_the_command_that_makes_one(bench: Bench) -> None:
    shutil.rmtree(bench.dist)
    with pytest.raises(EnvironmentLacking) as caught:
        bench.make(bench.model())
    assert caught.value.remedy == "nox -s build_linux_arm64"


def test_a_missing_stub_is_named(bench: Bench) -> None:
    (bench.sdk / SDK_FOLDER / "libQnnHtpV75Stub.so").unlink()
    with pytest.raises(EnvironmentLacking, match=r"libQnnHtpV75Stub\.so"):
        bench.make(bench.model())


def test_a_report_is_written_also_when_it_ends_in_an_error(bench: Bench) -> None:
    shutil.rmtree(bench.dist)
    with pytest.raises(ToolkitError):
        bench.make(bench.model())
    report = json.loads((bench.root / "reports" / "bundle.json").read_text(encoding="utf-8"))
    assert report["outcome"] == "error"


def test_models_of_one_name_are_refused(bench: Bench) -> None:
    other = bench.root / "elsewhere" / "model.pte"
    other.parent.mkdir()
    shutil.copy(bench.model(), other)
    with pytest.raises(UsageError, match=r"two models are named model\.pte"):
        bench.make(bench.model(), other)


def test_bundles_are_for_devices(bench: Bench) -> None:
    with pytest.raises(UsageError, match="found x86_64-linux"):
        bench.make(bench.model(), target="x86_64-linux")


def test_another_folder_is_not_overwritten(bench: Bench) -> None:
    bench.bundle.mkdir()
    (bench.bundle / "thesis.txt").touch()
    with pytest.raises(UsageError, match="no bundle"):
        bench.make(bench.model())
    assert (bench.bundle / "thesis.txt").exists()


def test_lpai_is_refused_for_a_chip_without_it(bench: Bench) -> None:
    with pytest.raises(UsageError, match="SM8650 has no LPAI"):
        bench.make(bench.model(), "--lpai")


def lpai_sdk(bench: Bench) -> None:
    for name in ("libQnnHtpV81Stub.so", "libQnnLpai.so", "libQnnLpaiStub.so"):
        qnn(name, needed=["libc.so.6"]).write(bench.sdk / SDK_FOLDER / name)
    skel(81, BUILD).write(bench.sdk / "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so")


def test_lpai_needs_its_skel_signed(bench: Bench) -> None:
    lpai_sdk(bench)
    with pytest.raises(EnvironmentLacking) as caught:
        bench.make("--lpai", "--signed", bench.root / "signed", soc="SM8850")
    assert caught.value.remedy == "nox -s sign_lpai -- --soc SM8850"


def test_an_unsigned_skel_is_not_taken_for_a_signed_one(bench: Bench) -> None:
    lpai_sdk(bench)
    skel(81, BUILD).write(bench.root / "signed" / "lib/lpai-v6/signed/libQnnLpaiSkel.so")
    assert bench.make("--lpai", "--signed", bench.root / "signed", soc="SM8850") == 1
    assert [rule for rule in bench.rules() if rule.startswith("signing.")] == ["signing.unsigned"]


def test_a_program_that_compiles_on_the_device_brings_its_compiler(tmp_path: Path) -> None:
    delegate = Delegate("forward", "QnnBackend", None, 0, 0, Options(57, 75, 8, True, "fp16"), None)
    program = Program(0, 0, (), (delegate,), ())
    ahead = replace(delegate, options=Options(57, 75, 8, False, "fp16"))
    online, offline = (Model(tmp_path, replace(program, delegates=(each,))) for each in (delegate, ahead))
    assert (online.online, offline.online) == (True, False)


def test_run_sh_separates_the_dsps_folders_by_semicolons() -> None:
    text = scripts.run_script("aarch64-android")
    assert 'ADSP_LIBRARY_PATH="$here/dsp;/vendor/dsp/cdsp;/vendor/lib/rfsa/adsp;' in text


@pytest.mark.parametrize("target", ["aarch64-android", "aarch64-linux"])
def test_the_scripts_are_good_shell(tmp_path: Path, target: str) -> None:
    places = ["bin/qnn_executor_runner", "models/it's a model.pte", "run.sh"]
    for name, text in (
        ("run.sh", scripts.run_script(target)),
        ("push.sh", scripts.push_script(target, places)),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        checked = subprocess.run(
            ["sh", "-n", str(tmp_path / name)], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stderr


def test_what_is_no_bundle_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no manifest\.json"):
        manifest.read_bundle(tmp_path)


def test_a_context_binary_is_for_qnn(bench: Bench) -> None:
    assert contents.read_models([bench.model()])[0].for_qnn
