"""`inspect` of apps and folders: healthy ones pass, and each spoiled one is told by one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.inspect import verb
from tests.support.apps import in_abi, library, package, qnn
from tests.support.elves import skel
from tests.support.programs import BUILD_ID
from tests.support.typed import run_here, typed

OTHER_BUILD = "v2.48.40.260702123456"


def inspect(path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    answer = path.parent / "answer.json"
    code = run_here(verb, path, *flags, "--reports", path.parent / "reports", "--json", answer)
    return code, json.loads(answer.read_text(encoding="utf-8"))


def problems(document: dict[str, Any]) -> list[str]:
    return [f"{finding['rule']}: {finding['subject']}" for finding in document["findings"]]


def test_a_healthy_app_passes_and_its_libraries_are_listed(tmp_path: Path) -> None:
    members = {**in_abi(qnn()), "lib/arm64-v8a/libnet.so": library("libnet.so", "libQnnHtp.so", build="")}
    code, document = inspect(package(tmp_path / "app.apk", members), "--soc", "SM8650")
    assert (code, document["findings"]) == (0, [])
    (facts,) = document["packages"].values()
    assert [line.partition(":")[0] for line in facts["libraries"]] == sorted(in_abi(qnn()))
    assert all(BUILD_ID in line for line in facts["libraries"])


LIB = "lib/arm64-v8a"
SPOILED: dict[str, tuple[dict[str, bytes | None], str]] = {
    "a stub of another SDK": (
        {"libQnnHtpV75Stub.so": library("libQnnHtpV75Stub.so", build=OTHER_BUILD)},
        "package-mixed: QNN",
    ),
    "a skel of another SDK": (
        {"libQnnHtpV75Skel.so": skel(75, OTHER_BUILD).encode()},
        "package-mixed: QNN",
    ),
    "no skel": ({"libQnnHtpV75Skel.so": None}, "package-missing: libQnnHtpV75Stub.so"),
    "no stub": ({"libQnnHtpV75Stub.so": None}, "package-missing: libQnnHtpV75Skel.so"),
    "neither stub nor skel": (
        {"libQnnHtpV75Stub.so": None, "libQnnHtpV75Skel.so": None},
        "package-missing: libQnnHtp.so",
    ),
    "no System": ({"libQnnSystem.so": None}, "package-missing: HTP"),
    "a library that is cut short": (
        {"libQnnSystem.so": library("libQnnSystem.so")[:70]},
        f"package-damaged: {LIB}/libQnnSystem.so",
    ),
    "a library of another machine": (
        {"libnet.so": library("libnet.so").replace(b"\xb7\0", b"\x3e\0", 1)},
        f"package-abi: {LIB}/libnet.so",
    ),
    "a library that is not there": (
        {"libnet.so": library("libnet.so", "libc++_shared.so")},
        f"package-missing: {LIB}/libnet.so",
    ),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_what_is_wrong_is_one_error(spoiled: str, tmp_path: Path) -> None:
    changes, problem = SPOILED[spoiled]
    libraries = {name: data for name, data in {**qnn(), **changes}.items() if data is not None}
    code, document = inspect(package(tmp_path / "app.apk", in_abi(libraries)))
    assert (code, problems(document)) == (1, [problem])
    assert all(finding["fix"] for finding in document["findings"])


def test_a_chip_that_the_app_cannot_serve_is_an_error(tmp_path: Path) -> None:
    code, document = inspect(package(tmp_path / "app.apk", in_abi(qnn())), "--soc", "SM8750")
    assert (code, problems(document)) == (1, ["package-missing: SM8750"])


def test_a_package_without_qnn_is_an_error(tmp_path: Path) -> None:
    app = package(tmp_path / "app.apk", in_abi({"libnet.so": library("libnet.so", build="")}))
    code, document = inspect(app)
    assert (code, problems(document)) == (1, [f"package-empty: {app}"])


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


@pytest.fixture
def genie(tmp_path: Path) -> Path:
    """A folder as `compile` writes it, with libraries."""
    folder = tmp_path / "llm"
    for name, data in in_abi(qnn(), "llm/lib").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for name in ("part_0.bin", "part_1.bin", "tokenizer.json", "extension.json"):
        (folder / name).write_bytes(b"{}")
    dialog = {
        "tokenizer": {"path": "tokenizer.json"},
        "engine": {
            "backend": {"extensions": "extension.json"},
            "model": {"binary": {"ctx-bins": ["part_0.bin", "part_1.bin"]}},
        },
    }
    (folder / "genie_config.json").write_text(json.dumps({"dialog": dialog}))
    return folder


def test_a_healthy_folder_for_genie_passes(genie: Path) -> None:
    code, document = inspect(genie)
    assert (code, document["findings"]) == (0, [])


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "part_1.bin").unlink(), "package-missing: genie_config.json"),
        (
            lambda folder: (folder / "genie_config.json").write_text("{}"),
            "package-damaged: genie_config.json",
        ),
    ],
)
def test_a_folder_for_genie_that_contradicts_itself(
    spoil: Callable[[Path], object], problem: str, genie: Path
) -> None:
    spoil(genie)
    code, document = inspect(genie)
    assert (code, problems(document)) == (1, [problem])
