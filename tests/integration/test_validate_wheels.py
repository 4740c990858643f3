"""Validation against real things: the provisioned SDK, its compiler, the host's gcc, ld.so and readelf."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from provisioning import elf
from provisioning import loader_search as loader
from provisioning.base.settings import DEFAULT_PROFILE, ROOT, Selection, selection_of
from provisioning.environment import resolve
from provisioning.manifest import load_profile
from provisioning.sources.wheel import Wheel
from provisioning.validation.scan import libraries
from tests.support.typed import typed

PIN = load_profile(DEFAULT_PROFILE).components["qnn-sdk"]


@pytest.fixture(scope="module")
def selection() -> Selection:
    import argparse

    from provisioning.base.settings import add_selection

    parser = argparse.ArgumentParser()
    add_selection(parser)
    return selection_of(parser.parse_args([]))


@pytest.fixture(scope="module")
def sdk(selection: Selection) -> Path:
    """The provisioned SDK, brought first where the store has none."""
    subprocess.run([sys.executable, "-m", "provisioning", "provision"], cwd=ROOT, check=True, timeout=1800)
    return resolve(selection, {}).roots["qnn-sdk"].path


def linked_copy(sdk: Path, into: Path) -> Path:
    """A user's own SDK to spoil: the files of the provisioned one, by hard link where the disk allows it."""
    shutil.copytree(sdk, into, copy_function=_link_or_copy)
    return into


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def validate(reports: Path, *flags: str, **environ: str) -> tuple[int, dict[str, object]]:
    dropped = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "QNN_SDK_ROOT", "GITHUB_ACTIONS", "QNN_CI_PROFILE")
    done = typed(
        "validate",
        "--reports",
        reports,
        *flags,
        package="provisioning",
        env={**{k: v for k, v in os.environ.items() if k not in dropped}, **environ},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads((reports / "validate.json").read_text())


def states(report: dict[str, object]) -> dict[str, str]:
    metrics = report["metrics"]
    assert isinstance(metrics, dict)
    return {rule: said["state"] for rule, said in metrics["rules"].items()}


@pytest.mark.heavy
def test_the_provisioned_environment_passes_and_its_compiler_answers(sdk: Path, tmp_path: Path) -> None:
    code, report = validate(tmp_path)
    assert (code, report["outcome"], states(report)["compiler-answers"]) == (0, "pass", "pass"), report[
        "findings"
    ]
    metrics = report["metrics"]
    assert isinstance(metrics, dict)
    (answer,) = metrics["compiler"].values()
    assert (answer["step"], answer["build_id"]) == ("device", PIN.build_id)


@pytest.mark.heavy
def test_a_v79_skel_pushed_into_hexagon_v75_is_caught(sdk: Path, tmp_path: Path) -> None:
    copy = linked_copy(sdk, tmp_path / "sdk")
    skels = sorted(copy.glob("lib/hexagon-v*/unsigned/*Skel.so"))
    source = skels[-1] if skels else None
    if source is None:
        from tests.support.elves import skel

        source = skel(79).write(tmp_path / "libQnnHtpV79Skel.so")
    wrong = copy / "lib" / "hexagon-v60" / "unsigned"
    wrong.mkdir(parents=True)
    shutil.copy(source, wrong)
    code, report = validate(tmp_path, "--tree", str(copy), "--rule", "hexagon-arch")
    findings = report["findings"]
    assert isinstance(findings, list)
    assert (code, [finding["subject"] for finding in findings]) == (
        1,
        [f"lib/hexagon-v60/unsigned/{source.name}"],
    )


@pytest.mark.heavy
def test_a_truncated_library_of_the_users_own_sdk_is_named(sdk: Path, tmp_path: Path) -> None:
    copy = linked_copy(sdk, tmp_path / "sdk")
    victim = copy / "lib" / "x86_64-linux-clang" / "libQnnSystem.so"
    content = victim.read_bytes()
    victim.unlink()
    victim.write_bytes(content[: len(content) // 2])
    code, report = validate(tmp_path, "--rule", "elf-readable", QNN_SDK_ROOT=str(copy))
    findings = report["findings"]
    assert isinstance(findings, list)
    assert [(code, f["subject"], "truncated" in f["message"]) for f in findings] == [
        (1, "lib/x86_64-linux-clang/libQnnSystem.so", True)
    ]


@pytest.mark.heavy
def test_an_sdk_without_its_offline_compiler_and_libcxx_is_explained(sdk: Path, tmp_path: Path) -> None:
    copy = linked_copy(sdk, tmp_path / "sdk")
    host = copy / "lib" / "x86_64-linux-clang"
    for gone in [*host.glob("libc++*"), host / "libHtpPrepare.so"]:
        gone.unlink()
    rules = ("required-libraries", "needed-resolved", "compiler-answers")
    flags = [flag for rule in rules for flag in ("--rule", rule)]
    code, report = validate(tmp_path, *flags, QNN_SDK_ROOT=str(copy))
    assert (code, states(report)) == (1, dict.fromkeys(rules, "fail"))


@pytest.mark.needs("readelf")
@pytest.mark.heavy
def test_every_library_reads_as_readelf_reads_it(sdk: Path) -> None:
    for library in libraries(sdk):
        if library.path.suffix == ".dll":
            continue
        shown = subprocess.run(
            ["readelf", "-hdlVW", str(library.path)], capture_output=True, text=True, check=False
        ).stdout
        read = elf.read(library.path)
        assert {
            "class": f"ELF{read.bits}",
            "needed": list(read.needed),
            "soname": [read.soname] if read.soname else [],
            "paths": [":".join(paths) for paths in (read.rpath, read.runpath) if paths],
            "flags": hex(read.flags),
            "alignments": [hex(alignment) for alignment in read.alignments],
            "versions": sorted({version for _, version in read.versions}),
        } == {
            "class": re.findall(r"Class:\s+(\w+)", shown)[0],
            "needed": re.findall(r"\(NEEDED\).*\[(.*)\]", shown),
            "soname": re.findall(r"\(SONAME\).*\[(.*)\]", shown),
            "paths": re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", shown),
            "flags": re.findall(r"Flags:\s+(0x\w+)", shown)[0],
            "alignments": re.findall(r"^\s+LOAD\s.*(0x\w+)$", shown, re.MULTILINE),
            "versions": sorted(
                set(re.findall(r"Name: (\S+)\s+Flags: \S+\s+Version", shown.split("version needs")[-1]))
            )
            if "version needs" in shown.lower()
            else [],
        }, library.place


@pytest.mark.heavy
def test_every_qnn_library_of_the_sdk_holds_the_pinned_build_id(sdk: Path) -> None:
    held = {build_id for library in libraries(sdk) for build_id in library.build_ids}
    assert held == {PIN.build_id}


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
    "beside it, by RUNPATH": ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/b", "b", ""),
    "beside it, by RPATH": ("-Wl,--disable-new-dtags,-rpath,$ORIGIN/b", "b", ""),
    "elsewhere than its RUNPATH says": ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/x", "b", ""),
    "by LD_LIBRARY_PATH": ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/x", "b", "b"),
    "nowhere": ("-Wl,--enable-new-dtags", "b", "y"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tags", ["--enable-new-dtags", "--disable-new-dtags"])
def test_what_the_loader_finds_is_found_and_what_it_misses_is_missing(
    layout: str, tags: str, tmp_path: Path
) -> None:
    """liba needs libb, which needs libc1 that only liba's paths know: RPATH is inherited, RUNPATH is not."""
    rpath, place, environment = LAYOUTS[layout]
    rpath = rpath.replace("--enable-new-dtags", tags).replace("--disable-new-dtags", tags)
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
    gaps = loader.unresolved(
        {a: elf.read(a)},
        library_path=library_path,
        system=loader.SystemLibraries(loader.read_cache(), loader.default_directories()),
        read=elf.read,
    )
    assert [gap.needed for gap in gaps] == re.findall(r"(\S+) => not found", real), real


def test_every_cut_of_a_real_library_is_reported_and_none_is_taken_for_whole(tmp_path: Path) -> None:
    library = compiled(tmp_path, "cut")
    subprocess.run(["strip", str(library)], check=True)
    whole = library.read_bytes()
    taken = []
    for end in range(0, len(whole), max(1, len(whole) // 700)):
        library.write_bytes(whole[:end])
        try:
            # A cut behind the last segment takes away what loaders do not read: elf-readable warns of it.
            if not elf.read(library).beyond_end:
                taken.append(end)
        except (elf.NotElf, elf.BrokenElf):
            continue
    assert taken == []


def test_the_hosts_cache_knows_its_c_library() -> None:
    found = loader.read_cache()["libc.so.6"]
    assert any(elf.identity(path) == (64, 62) for path in found)


def test_the_ndk_of_a_real_android_wheel_is_named(tmp_path: Path) -> None:
    wheel = Wheel(
        type="wheel",
        package="markupsafe",
        version="3.0.4",
        filename="markupsafe-3.0.4-cp313-cp313-android_24_arm64_v8a.whl",
        sha256="de8b364c423ef0a4bad9069657d617f9a5d2b2062457a89b1fa16ee199c399c1",
    ).fetch(tmp_path)
    (tmp_path / "tree").mkdir()
    with zipfile.ZipFile(wheel.path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".so"))
        (tmp_path / "tree" / "libSpeedups.so").write_bytes(archive.read(name))

    flags = ("--tree", str(tmp_path / "tree"), "--profile", "qnn-2.37", "--target", "aarch64-android")
    code, report = validate(tmp_path / "reports", *flags, "--rule", "android-ndk")

    findings = report["findings"]
    assert isinstance(findings, list)
    assert code == 0
    assert [(each["severity"], each["subject"], each["message"]) for each in findings] == [
        (
            "warning",
            "libSpeedups.so",
            "is built by NDK r27d (13750724); profile qnn-2.37 pins r26c (26.2.11394342)",
        )
    ]
