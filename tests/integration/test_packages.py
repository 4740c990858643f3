"""`inspect` of apps and folders: healthy ones pass, and each spoiled one is told by one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.bounds import Malformed
from ci.inspect import verb
from ci.inspect.package.android_xml import elements
from tests.support.apps import (
    FASTRPC,
    binary_manifest,
    in_abi,
    library,
    linked,
    manifest,
    package,
    qnn,
)
from tests.support.elves import skel
from tests.support.programs import context, options, program
from tests.support.runner import programs as runner_programs
from tests.support.sdk import skels
from tests.support.typed import run_here, typed

__all__ = ["runner_programs"]

pytestmark = pytest.mark.needs("aapt", "/usr/share/android-framework-res/framework-res.apk")

OTHER_BUILD = "v2.48.40.260702123456"
NEWER_BUILD = "v2.51.0.260901000000"

Members = dict[str, bytes]


def inspect(path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    answer = path.parent / "answer.json"
    code = run_here(verb, path, *flags, "--reports", path.parent / "reports", "--json", answer)
    return code, json.loads(answer.read_text(encoding="utf-8"))


def rules(document: dict[str, Any], severity: str = "error") -> list[str]:
    return [finding["rule"] for finding in document["findings"] if finding["severity"] == severity]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return binary_manifest(manifest(), tmp_path_factory.mktemp("manifest"))


def pte(**more: Any) -> bytes:
    return program(data=context(**more))


def app() -> Members:
    return {**in_abi(qnn()), "assets/net.pte": pte()}


def test_a_healthy_app_passes_and_its_parts_are_named(plain: bytes, tmp_path: Path) -> None:
    code, document = inspect(package(tmp_path / "app.apk", plain, app()), "--soc", "SM8650")
    assert (code, rules(document), rules(document, "warning")) == (0, [], [])
    (facts,) = document["packages"].values()
    assert facts["stubs"] == facts["skels"] == ["v75"]
    assert facts["asks the phone for"] == ["libcdsprpc.so"]
    (model,) = facts["models"]
    assert model.startswith("assets/net.pte:") and "SM8650" in model
    assert rules(document, "note") == ["package-adsp-path"]


def test_a_healthy_library_for_apps_passes(tmp_path: Path) -> None:
    members = in_abi(qnn(), "jni/arm64-v8a")
    code, document = inspect(package(tmp_path / "net.aar", manifest().encode(), members))
    assert (code, rules(document), rules(document, "warning")) == (0, [], [])


def test_a_healthy_app_in_splits_passes(plain: bytes, tmp_path: Path) -> None:
    split = ' split="config.arm64_v8a"'
    of_split = binary_manifest(manifest("", split=split), tmp_path / "work")
    package(tmp_path / "app/base.apk", plain, {"assets/net.pte": pte()})
    package(tmp_path / "app/split_config.arm64_v8a.apk", of_split, in_abi(qnn()))
    code, document = inspect(tmp_path / "app")
    assert (code, rules(document)) == (0, [])


def changed(name: str, data: bytes) -> Callable[[Members], None]:
    return lambda members: members.update({name: data})


def without(name: str) -> Callable[[Members], None]:
    return lambda members: members.__delitem__(name) if name in members else pytest.fail(name)


LIB = "lib/arm64-v8a"
SPOILED = {
    "a stub of another SDK": (
        changed(f"{LIB}/libQnnHtpV75Stub.so", library("libQnnHtpV75Stub.so", build=OTHER_BUILD)),
        "package-mixed",
    ),
    "a skel of another SDK": (
        changed(f"{LIB}/libQnnHtpV75Skel.so", skel(75, OTHER_BUILD).encode()),
        "package-mixed",
    ),
    "no skel": (without(f"{LIB}/libQnnHtpV75Skel.so"), "package-half"),
    "no stub": (without(f"{LIB}/libQnnHtpV75Stub.so"), "package-half"),
    "no System": (without(f"{LIB}/libQnnSystem.so"), "package-lacks"),
    "a skel for another arch": (
        changed(f"{LIB}/libQnnHtpV75Skel.so", skel(73).encode()),
        "package-skel-arch",
    ),
    "a stub under another's name": (
        changed(f"{LIB}/libQnnHtpV75Stub.so", library("libQnnHtpV79Stub.so")),
        "package-name",
    ),
    "a model for another arch": (
        changed("assets/net.pte", program(data=context("SM8750", 79), spec=options(69, 79))),
        "package-arch",
    ),
    "a model of a newer QNN": (changed("assets/net.pte", pte(build_id=NEWER_BUILD)), "package-model"),
    "a model that is cut short": (changed("assets/net.pte", pte()[:600]), "package-damaged"),
    "a library that is cut short": (
        changed(f"{LIB}/libQnnSystem.so", library("libQnnSystem.so")[:70]),
        "package-library",
    ),
    "a library of another machine": (
        changed(f"{LIB}/libnet.so", library("libnet.so").replace(b"\xb7\0", b"\x3e\0", 1)),
        "package-abi",
    ),
    "a library that is not there": (
        changed(f"{LIB}/libnet.so", library("libnet.so", "libc++_shared.so")),
        "package-needed",
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_is_wrong_is_one_error(how: str, plain: bytes, tmp_path: Path) -> None:
    members = app()
    spoil, rule = SPOILED[how]
    spoil(members)
    code, document = inspect(package(tmp_path / "app.apk", plain, members))
    assert (code, rules(document)) == (1, [rule])
    assert all(finding["fix"] for finding in document["findings"])


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, runner_programs: Path) -> Members:
    """The SDK's own skel, a program that its compiler made, and Android libraries that clang and lld made."""
    names = ("libQnnHtp.so", "libQnnSystem.so", "libQnnHtpV75Stub.so")
    held = linked(tmp_path_factory.mktemp("linked"), *names)
    held["libQnnHtpV75Skel.so"] = real_skel(75)
    return {**in_abi(held), "assets/net.pte": (runner_programs / "htp.pte").read_bytes()}


def real_skel(arch: int) -> bytes:
    (path,) = [path for path in skels() if path.name == f"libQnnHtpV{arch}Skel.so"]
    return path.read_bytes()


@pytest.mark.long("compiles a program")
@pytest.mark.heavy
@pytest.mark.needs("clang++", "ld.lld")
def test_an_app_of_a_real_skel_and_a_compiled_program_passes(
    plain: bytes, real: Members, tmp_path: Path
) -> None:
    code, document = inspect(package(tmp_path / "app.apk", plain, real), "--soc", "SM8650")
    assert (code, rules(document), rules(document, "warning")) == (0, [], [])


MANIFESTS: dict[str, tuple[str, dict[str, Any], list[str], list[str]]] = {
    "no libcdsprpc.so": (manifest(""), {}, ["package-fastrpc"], []),
    "no libcdsprpc.so before Android 12": (manifest("", target=30), {}, [], []),
    "skels stay in the APK": (manifest(unpacked=False), {}, ["package-unextracted"], []),
    "libraries compressed and not unpacked": (
        manifest(unpacked=False),
        {"packed": True},
        ["package-unextracted", "package-compressed"],
        [],
    ),
    "libraries on pages of 4 KB": (
        manifest(unpacked=False),
        {"page": 0x1000},
        ["package-unextracted"],
        ["package-alignment"],
    ),
}


@pytest.mark.parametrize("how", MANIFESTS)
def test_what_the_manifest_and_the_zip_say_decides(how: str, tmp_path: Path) -> None:
    text, zipped, errors, warnings = MANIFESTS[how]
    made = package(tmp_path / "app.apk", binary_manifest(text, tmp_path / "work"), app(), **zipped)
    code, document = inspect(made)
    assert (code, rules(document), rules(document, "warning")) == (int(bool(errors)), errors, warnings)


def test_segments_of_4_kb_are_a_warning(plain: bytes, tmp_path: Path) -> None:
    members = app()
    members[f"{LIB}/libnet.so"] = library("libnet.so", alignment=0x1000)
    code, document = inspect(package(tmp_path / "app.apk", plain, members))
    assert (code, rules(document), rules(document, "warning")) == (0, [], ["package-page-size"])


def test_a_chip_that_the_app_cannot_serve_is_an_error(plain: bytes, tmp_path: Path) -> None:
    code, document = inspect(package(tmp_path / "app.apk", plain, app()), "--soc", "SM8750")
    assert (code, rules(document)) == (1, ["package-arch"])


def test_a_package_without_qnn_is_an_error(plain: bytes, tmp_path: Path) -> None:
    made = package(tmp_path / "app.apk", plain, in_abi({"libnet.so": library("libnet.so", build="")}))
    code, document = inspect(made)
    assert (code, rules(document)) == (1, ["package-empty"])


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [("none.apk", None, 2), ("app.aab", b"PK", 2), ("no.apk", b"no archive", 1), ("cut.apk", b"PK\3\4", 1)],
)
def test_what_is_no_package_is_said_with_the_right_code(
    name: str, content: bytes | None, code: int, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = typed("inspect", tmp_path / name, "--reports", tmp_path / "reports")
    assert done.returncode == code and name in done.stderr and "try:" in done.stderr


def test_a_package_is_a_stage_of_the_gate(plain: bytes, tmp_path: Path) -> None:
    members = app()
    members.pop(f"{LIB}/libQnnSystem.so")
    made = package(tmp_path / "app.apk", plain, members)
    words = ("gate", "--only", "inspect", "--reports", tmp_path / "reports")
    done = typed(*words)
    assert done.returncode == 2 and "--package" in done.stderr
    done = typed(*words, "--package", made)
    assert done.returncode == 1
    report = json.loads((tmp_path / "reports/inspect.json").read_text())
    assert "package-lacks" in [finding["rule"] for finding in report["findings"]]


def genie(folder: Path, **changed_names: object) -> Path:
    folder.mkdir(parents=True)
    for index in range(2):
        (folder / f"part_{index}.bin").write_bytes(context())
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "b": 9}}}))
    (folder / "extension.json").write_text(json.dumps({"devices": [{"soc_id": 57, "dsp_arch": "v75"}]}))
    values = {"words": 10, "bins": ["part_0.bin", "part_1.bin"], "size": 512, **changed_names}
    binary = {"ctx-bins": values["bins"]}
    dialog = {
        "context": {"size": values["size"], "n-vocab": values["words"], "bos-token": 1, "eos-token": [2]},
        "tokenizer": {"path": "tokenizer.json"},
        "engine": {"backend": {"extensions": "extension.json"}, "model": {"binary": binary}},
    }
    (folder / "genie_config.json").write_text(json.dumps({"dialog": dialog}))
    return folder


def test_a_healthy_folder_for_genie_passes(tmp_path: Path) -> None:
    code, document = inspect(genie(tmp_path / "llm"))
    assert (code, document["findings"]) == (0, [])


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [
        (lambda folder: (folder / "part_1.bin").unlink(), "genie-missing"),
        (lambda folder: (folder / "part_1.bin").write_bytes(context("SM8750", 79)), "genie-mixed"),
        (lambda folder: (folder / "part_1.bin").write_bytes(context(build_id=OTHER_BUILD)), "genie-mixed"),
        (lambda folder: (folder / "part_1.bin").write_bytes(b"nothing"), "genie-binary"),
        (
            lambda folder: (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 10}}}'),
            "genie-tokenizer",
        ),
        (
            lambda folder: (folder / "extension.json").write_text('{"devices": [{"dsp_arch": "v79"}]}'),
            "genie-chip",
        ),
        (lambda folder: (folder / "genie_config.json").write_text("{}"), "genie-config"),
    ],
)
def test_a_folder_for_genie_that_contradicts_itself(
    spoil: Callable[[Path], object], rule: str, tmp_path: Path
) -> None:
    folder = genie(tmp_path / "llm")
    spoil(folder)
    code, document = inspect(folder)
    assert (code, rules(document)) == (1, [rule])


def test_a_hostile_manifest_is_refused_by_name(plain: bytes, tmp_path: Path) -> None:
    for size in (0, 7, 40, len(plain) // 2):
        with pytest.raises(Malformed):
            list(elements(plain[:size]))
    for at in range(0, len(plain), 3):
        spoiled = bytearray(plain)
        spoiled[at] ^= 0xFF
        try:
            list(elements(bytes(spoiled)))
        except Malformed:
            continue
    entity = b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'
    made = package(tmp_path / "net.aar", entity, in_abi(qnn(), "jni/arm64-v8a"))
    done = typed("inspect", made, "--reports", tmp_path / "reports")
    assert done.returncode == 1 and "AndroidManifest.xml" in done.stderr


def test_names_of_a_manifest_are_read_whatever_their_encoding(plain: bytes) -> None:
    found = [element for element in elements(plain) if element.path.endswith("uses-native-library")]
    (name,) = [element.attributes["name"] for element in found]
    assert FASTRPC.partition('"')[2].startswith(str(name))
