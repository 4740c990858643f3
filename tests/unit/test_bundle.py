"""A bundle: exactly what a device needs, refused when its files do not fit together."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.device import bundle_contents
from ci.device.verb import BUNDLE
from ci.signing import signed_writer
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.files import hash_file
from tests.support import chains, programs
from tests.support.elves import AARCH64, HEXAGON, Library, skel
from tests.support.needs import program
from tests.support.scripts import script
from tests.support.typed import run_here

BUILD = "v2.37.0.250724175447_124859"
NEWER = "v2.49.40.260810104044"
SDK_FOLDER = "lib/aarch64-oe-linux-gcc11.2"
BASE = {"libQnnHtp.so", "libQnnSystem.so"}


def qnn(name: str, build: str = BUILD, **more: Any) -> Library:
    return Library(machine=AARCH64, soname=name, content=build.encode() + b"\0", **more)


@dataclass(frozen=True)
class Maker:
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

    def model(self, text: str = f"{BUILD} soc_type=SM8650;arch=75 \0") -> Path:
        path = self.root / "models" / "model.pte"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def make(self, *flags: str | Path, soc: str = "SM8650", target: str = "aarch64-linux") -> int:
        return self.run("--dist", self.dist, "--soc", soc, "--target", target, *flags)

    def run(self, *flags: str | Path) -> int:
        places = ("-o", self.bundle, "--reports", self.root / "reports", "--store", self.root / "store")
        return run_here(BUNDLE, *places, *flags)

    def rules(self) -> list[str]:
        report = json.loads((self.root / "reports" / "bundle.json").read_text(encoding="utf-8"))
        return sorted({finding["rule"] for finding in report["findings"]})


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    maker = Maker(tmp_path)
    for name in (*BASE, "libQnnHtpV75Stub.so", "libQnnHtpV79Stub.so"):
        needed = ["libc.so.6"] + (["libcdsprpc.so"] if "Stub" in name else [])
        qnn(name, needed=needed).write(maker.sdk / SDK_FOLDER / name)
    for arch in (75, 79):
        skel(arch, BUILD).write(
            maker.sdk / "lib" / f"hexagon-v{arch}" / "unsigned" / f"libQnnHtpV{arch}Skel.so"
        )
    (maker.sdk / "sdk.yaml").write_text("version: 2.37.0\n", encoding="utf-8")
    (maker.sdk / "include" / "QNN").mkdir(parents=True)
    (maker.sdk / "lib" / "x86_64-linux-clang").mkdir()
    backend = "libqnn_executorch_backend.so"
    Library(machine=AARCH64, needed=["libc.so.6", backend]).write(maker.dist / "bin" / "qnn_executor_runner")
    Library(machine=AARCH64, needed=["libc.so.6"], soname=backend).write(maker.dist / "lib" / backend)
    monkeypatch.setenv("QNN_SDK_ROOT", str(maker.sdk))
    return maker


def test_a_bundle_is_the_files_of_its_chip_alone(maker: Maker) -> None:
    assert maker.make(maker.model()) == 0
    places = {str(path.relative_to(maker.bundle)) for path in maker.bundle.rglob("*") if path.is_file()}
    assert places == {
        "bin/qnn_executor_runner",
        "lib/libqnn_executorch_backend.so",
        "lib/libQnnHtp.so",
        "lib/libQnnSystem.so",
        "lib/libQnnHtpV75Stub.so",
        "dsp/libQnnHtpV75Skel.so",
        "models/model.pte",
        "manifest.json",
        "run.sh",
    }


def add_libraries(maker: Maker) -> None:
    """One that the backend needs, and one that another runner needs."""
    lib, backend = maker.dist / "lib", "libqnn_executorch_backend.so"
    Library(machine=AARCH64, soname=backend, needed=["libllama.so", "libc.so.6"]).write(lib / backend)
    for name in ("libllama.so", "libother.so"):
        Library(machine=AARCH64, soname=name, needed=["libc.so.6"], content=b".symtab").write(lib / name)


def dialog(maker: Maker, *flags: str | Path, **changes: Any) -> int:
    """A language model's folder, bundled for a device."""
    folder = maker.root / "speaks"
    folder.mkdir(exist_ok=True)
    for name in ("libGenie.so", "libQnnHtpNetRunExtensions.so"):
        qnn(name, needed=["libc.so.6"]).write(maker.sdk / SDK_FOLDER / name)
    (folder / "decode_0.bin").write_text(f"{BUILD} soc_type=SM8650;arch=75 \0")
    for name in ("tokenizer.json", "htp.json", "README.md"):
        (folder / name).touch()
    engine: dict[str, Any] = {"backend": {"extensions": "htp.json"}}
    engine["model"] = {"binary": {"ctx-bins": changes.get("binaries", ["decode_0.bin"])}}
    config = {"dialog": {"tokenizer": {"path": "tokenizer.json"}, "engine": engine}}
    (folder / "genie_config.json").write_text(json.dumps(config))
    return maker.run("--soc", changes.get("soc", "SM8650"), "--target", "aarch64-linux", *flags, folder)


def test_a_language_model_is_bundled_with_genie(maker: Maker) -> None:
    assert dialog(maker) == 0 and maker.rules() == ["bundle-runner"]
    Library(machine=AARCH64, needed=["libGenie.so"]).write(
        maker.sdk / SDK_FOLDER.replace("lib", "bin", 1) / "genie-t2t-run"
    )
    assert dialog(maker) == 0 and maker.rules() == []
    places = {str(path.relative_to(maker.bundle)) for path in maker.bundle.rglob("*") if path.is_file()}
    assert places == {
        *("genie_config.json", "htp.json", "tokenizer.json", "decode_0.bin", "bin/genie-t2t-run"),
        *("lib/libGenie.so", "lib/libQnnHtpNetRunExtensions.so", "lib/libQnnHtpV75Stub.so"),
        *("dsp/libQnnHtpV75Skel.so", "manifest.json", "run.sh", *(f"lib/{name}" for name in BASE)),
    }


def test_a_language_model_that_does_not_fit_makes_no_bundle(maker: Maker) -> None:
    assert dialog(maker, soc="SM8750") == 1 and "bundle-model-soc" in maker.rules()
    with pytest.raises(CheckFailed, match=r"prefill_0\.bin"):
        dialog(maker, binaries=["prefill_0.bin"])
    with pytest.raises(CheckFailed, match="passwd"):
        dialog(maker, binaries=["../../etc/passwd"])
    with pytest.raises(UsageError, match="--dist"):
        dialog(maker, "--dist", maker.dist)
    assert not maker.bundle.exists()


@dataclass(frozen=True)
class Misfit:
    """A change of the maker, or a model, and what a bundle then says."""

    rule: str
    change: Callable[[Maker], object] = lambda maker: None
    model: str = f"{BUILD} soc_type=SM8650;arch=75 \0"
    code: int = 1


def _runner(maker: Maker, **more: Any) -> None:
    Library(**more).write(maker.dist / "bin" / "qnn_executor_runner")


def _without_backend(maker: Maker) -> None:
    (maker.dist / "lib" / "libqnn_executorch_backend.so").unlink()
    _runner(maker, machine=AARCH64, needed=["libc.so.6"])


@pytest.mark.parametrize(
    "misfit",
    [
        Misfit(
            "build-id", lambda b: qnn("libQnnSystem.so", NEWER).write(b.sdk / SDK_FOLDER / "libQnnSystem.so")
        ),
        # Published commands push `hexagon-v75/unsigned/libQnnHtpV79Skel.so`.
        Misfit(
            "arch", lambda b: skel(79, BUILD).write(b.sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so")
        ),
        Misfit(
            "name", lambda b: qnn("libQnnHtpV79Stub.so").write(b.sdk / SDK_FOLDER / "libQnnHtpV75Stub.so")
        ),
        Misfit("machine", lambda b: _runner(b, needed=[])),
        Misfit("needed", lambda b: _runner(b, machine=AARCH64, needed=["libc++_shared.so"])),
        Misfit("backend", _without_backend),
        Misfit("model-soc", model=f"{BUILD} soc_type=SM8750;arch=79 \0"),
        Misfit("model-sdk", model=f"{NEWER} soc_type=SM8650;arch=75 \0"),
        Misfit("model-sdk", model="v2.30.0.250101000000 soc_type=SM8650;arch=75 \0", code=0),
    ],
    ids=lambda misfit: misfit.rule,
)
def test_files_that_do_not_fit_together_make_no_bundle(maker: Maker, misfit: Misfit) -> None:
    misfit.change(maker)
    code = maker.make(maker.model(misfit.model))
    assert (code, f"bundle-{misfit.rule}" in maker.rules()) == (misfit.code, True)
    assert maker.bundle.exists() is (misfit.code == 0)


def test_a_program_that_is_not_what_its_record_says_makes_no_bundle(maker: Maker) -> None:
    model = maker.model()
    model.with_suffix(".json").write_text(json.dumps({"program": model.name, "sha256": hash_file(model)}))
    assert maker.make(model) == 0
    model.write_bytes(model.read_bytes()[:-1])
    with pytest.raises(CheckFailed, match=r"model\.pte"):
        maker.make(model)


def test_what_cannot_be_bundled_is_refused_before_anything_is_written(maker: Maker) -> None:
    (twin := maker.root / "elsewhere" / "model.pte").parent.mkdir()
    shutil.copy(maker.model(), twin)
    for name in ("net.onnx", "net.py"):
        twin.with_name(name).touch()
    for flags, words in (
        ((twin.with_name("net.onnx"),), "--target aarch64-windows"),
        ((twin.with_name("net.py"),), r"compile .*net\.py:FUNCTION"),
        ((maker.model(), twin), r"model\.pte"),
        (("--runner", "../lib/libqnn_executorch_backend.so"), "qnn_executor_runner"),
        (("--file", maker.root / "nowhere"), "nowhere"),
        (("--root", maker.model()), "--lpai"),
        (("--lpai", "--root", maker.root / "nowhere"), "nowhere"),
    ):
        with pytest.raises(UsageError) as refusal:
            maker.make(*flags)
        assert re.search(words, f"{refusal.value} {refusal.value.fix}")
    with pytest.raises(UsageError, match="x86_64-linux"):
        maker.make(maker.model(), target="x86_64-linux")
    (maker.sdk / SDK_FOLDER / "libQnnHtpV75Stub.so").unlink()
    with pytest.raises(EnvironmentLacking, match=r"libQnnHtpV75Stub\.so"):
        maker.make(maker.model())
    assert not maker.bundle.exists()


def test_a_folder_that_has_a_run_sh_of_its_own_is_not_overwritten(maker: Maker) -> None:
    maker.bundle.mkdir()
    (maker.bundle / "run.sh").touch()
    (maker.bundle / "thesis.txt").touch()
    with pytest.raises(UsageError, match=str(maker.bundle)):
        maker.make(maker.model())
    assert (maker.bundle / "thesis.txt").is_file()


def lpai_sdk(maker: Maker) -> None:
    """An SDK that is new enough for LPAI v6, whole for SM8850."""
    for name in (*BASE, "libQnnHtpV81Stub.so", "libQnnLpai.so", "libQnnLpaiStub.so"):
        qnn(name, NEWER, needed=["libc.so.6"]).write(maker.sdk / SDK_FOLDER / name)
    skel(81, NEWER).write(maker.sdk / "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so")
    lpai_skel = Library(
        machine=HEXAGON, flags=0x81, soname="libQnnLpaiSkel.so", content=f"{NEWER}\0".encode()
    )
    lpai_skel.write(maker.sdk / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so")
    (maker.sdk / "sdk.yaml").write_text("version: 2.49.40.260810\n", encoding="utf-8")


@pytest.fixture
def overlay(maker: Maker) -> Path:
    """A folder with the skel, signed as a rehearsal."""
    lpai_sdk(maker)
    library = maker.sdk / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so"
    signed = maker.root / "overlay/lib/lpai-v6/signed/libQnnLpaiSkel.so"
    signed.parent.mkdir(parents=True)
    signed.write_bytes(signed_writer.sign_library(library.read_bytes(), chains.signer()))
    return maker.root / "overlay"


SIGNED = "dsp/libQnnLpaiSkel.so"


def test_a_bundle_for_lpai_has_its_libraries_and_its_signed_skel(maker: Maker, overlay: Path) -> None:
    model = maker.model(f"{NEWER} soc_type=SM8850;arch=81 \0")
    signed = ("--lpai", "--signed", overlay, "--for", "development")
    assert maker.make(*signed, model, soc="SM8850") == 0
    files = {file.path: file.kind for file in bundle_contents.read_bundle(maker.bundle).files}
    assert files == {
        "bin/qnn_executor_runner": "runner",
        "lib/libqnn_executorch_backend.so": "library",
        **{f"lib/{name}": "qnn" for name in (*BASE, "libQnnHtpV81Stub.so")},
        **{f"lib/{name}": "qnn" for name in ("libQnnLpai.so", "libQnnLpaiStub.so")},
        "dsp/libQnnHtpV81Skel.so": "dsp",
        SIGNED: "signed",
        "models/model.pte": "model",
        "run.sh": "script",
    }


def signing_rules(
    maker: Maker, overlay: Path, *flags: str | Path, purpose: str = "development"
) -> tuple[int, list[str]]:
    code = maker.make("--lpai", "--signed", overlay, "--for", purpose, *flags, soc="SM8850")
    return code, [rule for rule in maker.rules() if rule.startswith("signing-")]


def test_who_signed_the_skel_is_reported(maker: Maker, overlay: Path) -> None:
    for name, signer in (("root.pem", chains.signer()), ("other.pem", chains.other_signer())):
        (maker.root / name).write_bytes(chains.root_pem(signer))
    assert signing_rules(maker, overlay) == (0, ["signing-development-only", "signing-signer-unknown"])
    assert signing_rules(maker, overlay, "--root", maker.root / "root.pem") == (
        0,
        ["signing-development-only", "signing-signer-known"],
    )
    shutil.rmtree(maker.bundle)
    code, rules = signing_rules(maker, overlay, "--root", maker.root / "other.pem")
    assert (code, "signing-root" in rules, maker.bundle.exists()) == (1, True, False)


def test_production_ships_no_rehearsal(maker: Maker, overlay: Path) -> None:
    (maker.root / "root.pem").write_bytes(chains.root_pem(chains.signer()))
    code = maker.make("--lpai", "--signed", overlay, "--root", maker.root / "root.pem", soc="SM8850")
    assert (code, "signing-production" in maker.rules(), maker.bundle.exists()) == (1, True, False)


def test_a_skel_that_is_not_signed_or_was_changed_since_does_not_ship(maker: Maker, overlay: Path) -> None:
    signed = overlay / "lib/lpai-v6/signed/libQnnLpaiSkel.so"
    signed.write_bytes(signed.read_bytes().replace(b"libQnnLpaiSkel.so", b"libQnnLpaiSkel.no"))
    code, rules = signing_rules(maker, overlay)
    assert (code, "signing-segments" in rules) == (1, True)
    shutil.copy(maker.sdk / "lib/lpai-v6/unsigned/libQnnLpaiSkel.so", signed)
    assert signing_rules(maker, overlay) == (1, ["signing-unsigned"])
    assert not maker.bundle.exists()


@pytest.mark.needs("shellcheck")
@pytest.mark.parametrize("target", ["aarch64-android", "aarch64-linux"])
def test_the_script_is_good_shell(tmp_path: Path, target: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(bundle_contents.run_script(target), encoding="utf-8")
    command = [program("shellcheck"), "--severity=style", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_run_sh_gives_the_runner_the_bundles_folders_first_and_its_arguments(tmp_path: Path) -> None:
    text = bundle_contents.run_script("aarch64-android")
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    answer = 'echo "$LD_LIBRARY_PATH|$ADSP_LIBRARY_PATH"; printf "%s|" "$@"'
    script(tmp_path / "bin" / "qnn_executor_runner", answer).chmod(0o644)
    environ = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/old"}
    command = ["sh", str(tmp_path / "run.sh"), "--model_path", "a model.pte"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path}/lib:/old|{tmp_path}/dsp;/")
    assert done.stdout.endswith("--model_path|a model.pte|")


@pytest.mark.parametrize(("old", "new"), [('"run.sh"', '"../run.sh"'), ("aarch64-linux", "riscv64-linux")])
def test_a_manifest_that_cannot_be_trusted_is_refused(maker: Maker, old: str, new: str) -> None:
    maker.make(maker.model())
    path = maker.bundle / "manifest.json"
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(new.strip('"'))):
        bundle_contents.read_bundle(maker.bundle)


def test_a_program_for_lpai_needs_what_lpai_needs(maker: Maker, overlay: Path) -> None:
    model = maker.root / "for.pte"
    content = programs.context("SM8850", 81, build_id=NEWER)
    spec = programs.options(soc_id=87, arch=81, backend_type=4)
    model.write_bytes(programs.program(data=content, spec=spec))
    assert (maker.make(model, soc="SM8850"), maker.rules()) == (1, ["bundle-lpai"])
    signed = ("--lpai", "--signed", overlay, "--for", "development")
    assert maker.make(*signed, model, soc="SM8850") == 0


def test_a_program_for_the_lpai_of_another_chip_makes_no_bundle(maker: Maker, overlay: Path) -> None:
    """Only the HTP's compiler writes the chip into its graph: of an LPAI program its options tell."""
    model = maker.root / "for.pte"
    spec = programs.options(soc_id=95, arch=81, vtcm_mb=4, backend_type=4)
    model.write_bytes(programs.program(data=f"{NEWER}\0".encode().ljust(256, b"\0"), spec=spec))
    code = maker.make("--lpai", "--signed", overlay, model, soc="SM8850")
    assert (code, "bundle-model-soc" in maker.rules(), maker.bundle.exists()) == (1, True, False)


def fix_for_a_phone(maker: Maker, *flags: str | Path) -> Fix:
    with pytest.raises(EnvironmentLacking) as lacking:
        maker.make(*flags, target="aarch64-android")
    assert isinstance(lacking.value.fix, Fix)
    return lacking.value.fix


def test_who_lacks_androids_libraries_is_told_so_before_a_build_and_by_its_profile(maker: Maker) -> None:
    """An hour of building would come to nothing."""
    shutil.rmtree(maker.dist)
    commands = fix_for_a_phone(maker, maker.model()).commands
    assert [command[0] for command in commands][:2] == ["provision", "build_android"]
    shutil.copytree(maker.sdk / SDK_FOLDER, maker.sdk / "lib" / "aarch64-android")
    profile = ("--profile", "qnn-2.37")
    assert fix_for_a_phone(maker, *profile, maker.model()).command == ("build_android", *profile)
