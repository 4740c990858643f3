"""Validation against real things: the provisioned SDK, its compiler, the host's gcc, ld.so and readelf."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from provisioning import elf
from provisioning.base.settings import DEFAULT_PROFILE
from provisioning.elf import load_all
from provisioning.manifest import load_profile
from provisioning.qnn_libraries import libraries_in
from provisioning.sources import Wheel
from tests.support.sdk import link_or_copy, provisioned_sdk
from tests.support.typed import typed

PIN = load_profile(DEFAULT_PROFILE).components["qnn-sdk"]


@pytest.fixture(scope="module")
def sdk() -> Path:
    return provisioned_sdk()


def validate(reports: Path, *flags: str, **environ: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    dropped = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "QNN_SDK_ROOT", "GITHUB_ACTIONS", "QNN_CI_PROFILE")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    done = typed("validate", "--reports", reports, *flags, package="provisioning", env={**kept, **environ})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads((reports / "validate.json").read_text())


@pytest.mark.heavy
def test_the_provisioned_environment_passes_and_its_compiler_answers(sdk: Path, tmp_path: Path) -> None:
    code, report = validate(tmp_path, "--target", "all")
    state = report["metrics"]["rules"]["compiler-answers"]["state"]
    assert (code, report["outcome"], state) == (0, "pass", "pass"), report["findings"]
    (answer,) = report["metrics"]["compiler"].values()
    assert (answer["step"], answer["build_id"]) == ("program", PIN.build_id)


@pytest.mark.heavy
def test_an_sdk_of_the_users_own_without_its_compiler_is_an_error_of_the_rules_that_see_why(
    sdk: Path, tmp_path: Path
) -> None:
    shutil.copytree(sdk, tmp_path / "sdk", copy_function=link_or_copy)
    host = tmp_path / "sdk" / "lib" / "x86_64-linux-clang"
    for library in [*host.glob("libc++*"), host / "libHtpPrepare.so"]:
        library.unlink()
    rules = ("required-libraries", "needed-resolved", "compiler-answers")
    flags = [flag for rule in rules for flag in ("--rule", rule)]
    code, report = validate(tmp_path, *flags, QNN_SDK_ROOT=str(tmp_path / "sdk"))
    states = {rule: outcome["state"] for rule, outcome in report["metrics"]["rules"].items()}
    assert (code, states) == (1, {**dict.fromkeys(rules, "fail"), "compiler-answers": "not applicable"})


@pytest.mark.needs("readelf")
@pytest.mark.heavy
def test_every_library_reads_as_readelf_reads_it(sdk: Path) -> None:
    for library in libraries_in(sdk):
        if library.path.suffix == ".dll":
            continue
        shown = subprocess.run(
            ["readelf", "-hdlnVW", str(library.path)], capture_output=True, text=True, check=False
        ).stdout
        read = elf.read(library.path)
        assert {
            "class": f"ELF{read.bits}",
            "needed": list(read.needed),
            "soname": [read.soname] if read.soname else [],
            "paths": [":".join(paths) for paths in (read.rpath, read.runpath) if paths],
            "build id": [read.gnu_build_id] if read.gnu_build_id else [],
            "flags": hex(read.flags),
            "alignments": [hex(alignment) for alignment in read.alignments],
            "versions": sorted({version for _, version in read.versions}),
        } == {
            "class": re.findall(r"Class:\s+(\w+)", shown)[0],
            "needed": re.findall(r"\(NEEDED\).*\[(.*)\]", shown),
            "soname": re.findall(r"\(SONAME\).*\[(.*)\]", shown),
            "paths": re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", shown),
            "build id": re.findall(r"Build ID: (\w+)", shown),
            "flags": re.findall(r"Flags:\s+(0x\w+)", shown)[0],
            "alignments": re.findall(r"^\s+LOAD\s.*(0x\w+)$", shown, re.MULTILINE),
            "versions": sorted(
                set(re.findall(r"Name: (\S+)\s+Flags: \S+\s+Version", shown.split("version needs")[-1]))
            )
            if "version needs" in shown.lower()
            else [],
        }, library.place


# The host's own compiler and loader, on small libraries.


def compiled(folder: Path, name: str, *flags: str, needs: tuple[str, ...] = ()) -> Path:
    """lib<name>.so, linked against others of the folder that need not be found later."""
    library = folder / f"lib{name}.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.c"
    calls = "".join(f"extern int {need}(void);" for need in needs)
    total = " + ".join(["1", *(f"{need}()" for need in needs)])
    source.write_text(f"{calls} int {name}(void) {{ return {total}; }}")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library), str(source)]
    subprocess.run([*command, *flags], check=True, capture_output=True)
    return library


LAYOUTS = {
    "beside it, by its path": ("$ORIGIN/b", "b", ""),
    "elsewhere than its path says": ("$ORIGIN/x", "b", ""),
    "by LD_LIBRARY_PATH": ("$ORIGIN/x", "b", "b"),
    "nowhere": ("", "b", "y"),
}
"""The path that the library names, where what it needs is, and LD_LIBRARY_PATH."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_what_the_loader_finds_is_found_and_what_it_misses_is_missing(
    layout: str, tags: str, tmp_path: Path
) -> None:
    """liba needs libb, which needs libc1 that only liba's paths know: RPATH is inherited, RUNPATH is not."""
    path, place, environment = LAYOUTS[layout]
    rpath = f"-Wl,{tags}" + (f",-rpath,{path}" if path else "")
    c = compiled(tmp_path / place, "c1")
    b = compiled(tmp_path / place, "b1", str(c), needs=("c1",))
    a = compiled(tmp_path, "a1", rpath, str(b), f"-Wl,-rpath-link,{tmp_path / place}", needs=("b1",))
    library_path = str(tmp_path / environment) if environment else ""
    real = subprocess.run(
        ["ldd", str(a)],
        env={"PATH": os.environ["PATH"], **({"LD_LIBRARY_PATH": library_path} if library_path else {})},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    loading = load_all({a: elf.read(a)}, library_path)[a]
    assert list(loading.gaps) == re.findall(r"(\S+) => not found", real), real


def test_the_ndk_of_a_real_android_wheel_is_named(tmp_path: Path) -> None:
    wheel = Wheel(
        type="wheel",
        package="markupsafe",
        version="3.0.4",
        filename="markupsafe-3.0.4-cp313-cp313-android_24_arm64_v8a.whl",
        sha256="de8b364c423ef0a4bad9069657d617f9a5d2b2062457a89b1fa16ee199c399c1",
    ).fetch(tmp_path)
    with zipfile.ZipFile(wheel.path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".so"))
        (tmp_path / "libSpeedups.so").write_bytes(archive.read(name))
    read = elf.read(tmp_path / "libSpeedups.so")
    assert (read.android_api, read.ndk) == (24, ("r27d", "13750724"))
