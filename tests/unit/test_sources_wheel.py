from __future__ import annotations

import hashlib
import importlib.metadata
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioning.base.errors import EnvironmentLacking, ManifestError
from provisioning.manifest import Wheel
from provisioning.sources import wheel
from provisioning.sources.wheel import Tags, explain, fetch_wheel, parse_filename, wheel_name
from tests.support.wheels import make_wheel

FILENAME = "tiny_sdk-1.0-cp311-cp311-manylinux_2_34_aarch64.whl"
WHEEL = make_wheel(FILENAME)
SHA = hashlib.sha256(WHEEL).hexdigest()


def source(sha256: str | None = SHA, filename: str = FILENAME) -> Wheel:
    return Wheel(type="wheel", package="tiny-sdk", version="1.0", filename=filename, sha256=sha256)


def use(monkeypatch: pytest.MonkeyPatch, *ways: wheel.Way) -> None:
    monkeypatch.setattr(wheel, "_ways", lambda environ: list(ways))


def test_a_finished_wheel_needs_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SHA).write_bytes(WHEEL)
    use(monkeypatch)
    assert fetch_wheel(source(), tmp_path).size == len(WHEEL)


def test_without_any_tool_the_remedy_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    with pytest.raises(EnvironmentLacking, match="neither pip nor uv") as caught:
        fetch_wheel(source(), tmp_path)
    assert "ensurepip" in caught.value.remedy


def test_a_file_name_that_is_none_is_the_manifests_fault(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="expected a wheel's file name"):
        fetch_wheel(source(filename="tiny.whl"), tmp_path)


def names(ways: Sequence[wheel.Way]) -> list[str]:
    return [way.func.__name__ if isinstance(way, partial) else way.__name__ for way in ways]


@pytest.mark.parametrize(
    ("pip", "environ", "expected"),
    [
        ("25.0", {}, ["_file_from_pip", "_address_from_uv"]),
        ("26.0.1", {}, ["_address_from_pip", "_file_from_pip", "_address_from_uv"]),
        ("25.0", {"UV_INDEX": "x"}, ["_address_from_uv", "_file_from_pip"]),
        ("25.0", {"UV_INDEX": "x", "PIP_INDEX_URL": "y"}, ["_file_from_pip", "_address_from_uv"]),
        (None, {}, ["_address_from_uv", "_file_from_pip"]),
    ],
)
def test_the_tool_that_the_settings_speak_to_is_asked_first(
    pip: str | None, environ: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_: str) -> str:
        if pip is None:
            raise importlib.metadata.PackageNotFoundError
        return pip

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(wheel, "_uv", lambda: Path("/x/uv"))
    monkeypatch.setattr("shutil.which", lambda tool: f"/x/{tool}")
    assert names(wheel._ways(environ)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ERROR: No matching distribution found for tiny-sdk==1.0", "does not have this wheel"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE INDEX", "other bytes"),
        ("ERROR: 401 Client Error: Unauthorized for url: https://i.invalid", "refused the request"),
        ("WARNING: Retrying\nERROR: Connection timed out", "could not be reached"),
        ("error: Failed to fetch\n  Caused by: dns error", "could not be reached"),
        ("boom", "pip failed: boom"),
        ("", "(it said nothing)"),
    ],
)
def test_the_tools_complaint_is_put_in_words(text: str, words: str) -> None:
    assert words in explain(source(), "pip", text).message


@given(st.from_regex(re.compile(r"[A-Z]{8,16}", re.ASCII), fullmatch=True))
def test_no_complaint_carries_a_secret(secret: str) -> None:
    text = (
        f"ERROR: could not open https://u:{secret}@i.invalid/simple?key={secret} (tried 'http://{secret}@x/')"
    )
    assert secret not in explain(source(), "pip", text).message


WORD = st.from_regex(re.compile(r"[a-z][a-z0-9_]{0,8}", re.ASCII), fullmatch=True)


@given(WORD, st.integers(0, 99), WORD, WORD, WORD, st.booleans())
def test_wheel_names_are_read_back(
    name: str, version: int, python: str, abi: str, platform: str, build: bool
) -> None:
    filename = f"{name}-{version}-{'1build-' if build else ''}{python}-{abi}-{platform}.whl"
    assert parse_filename(filename) == Tags(name, str(version), python, abi, platform)


@given(st.text(max_size=60))
def test_wheel_names_are_read_or_refused(text: str) -> None:
    try:
        tags = parse_filename(text)
    except ValueError as error:
        assert "whl" in str(error)
    else:
        assert text.startswith(f"{tags.name}-{tags.version}-")


@pytest.mark.parametrize(
    ("tag", "version"),
    [("cp311", "3.11"), ("cp39", "3.9"), ("py3", "3"), ("py2.py3", "3"), ("cp310.cp311", "3.11")],
)
def test_the_python_version_is_read_from_the_tag(tag: str, version: str) -> None:
    assert wheel._python_version(Tags("a", "1", tag, "none", "any")) == version


def test_the_wheels_name_is_read_from_its_address() -> None:
    assert wheel_name("https://i.invalid/a/x-1%2Bcpu-py3-none-any.whl#sha256=0") == "x-1+cpu-py3-none-any.whl"
