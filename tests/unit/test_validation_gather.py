"""What is gathered: only what rules need, and what components say of themselves."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.settings import Selection
from provisioning.validation import gather as gathering
from provisioning.validation.context import Context, Need
from provisioning.validation.gather import gather, stated_versions
from provisioning.validation.scan import Cache
from tests.support.environments import NDK, PIN, PROFILE, write_ndk, write_sdk


@pytest.fixture
def selection(tmp_path: Path) -> Selection:
    return Selection(PROFILE, "x86_64-linux", "SM8650", tmp_path / "store", tmp_path / "reports")


def gathered(selection: Selection, base: Path, *needs: Need, **environ: str) -> Context:
    sdk = write_sdk(base / "sdk")
    return gather(selection, {"QNN_SDK_ROOT": str(sdk), **environ}, needs, cache=Cache(None))


def test_what_no_rule_needs_is_not_gathered(
    selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ask", "libraries", "_host", "_system_libraries"):
        monkeypatch.delattr(gathering, name)
    context = gathered(selection, tmp_path)
    assert (context.libraries, context.host, context.answers) == ((), None, {})


def test_the_users_variables_are_kept_beside_the_mended_ones(selection: Selection, tmp_path: Path) -> None:
    wrong = "/opt/qairt/lib/aarch64-android"
    context = gathered(selection, tmp_path, LD_LIBRARY_PATH=wrong)
    assert context.environ["LD_LIBRARY_PATH"] == wrong
    assert context.variables["LD_LIBRARY_PATH"] == str(tmp_path / "sdk/lib/x86_64-linux-clang")


def test_every_target_of_the_selection_brings_its_components(selection: Selection, tmp_path: Path) -> None:
    ndk = write_ndk(tmp_path / "ndk")
    both = replace(selection, targets=("x86_64-linux", "aarch64-android"))
    context = gathered(both, tmp_path, ANDROID_NDK_ROOT=str(ndk))
    assert context.trees["android-ndk"].stated == {"source.properties": NDK}


def test_a_named_tree_is_the_sdk_and_needs_no_environment(selection: Selection, tmp_path: Path) -> None:
    sdk = write_sdk(tmp_path / "sdk")
    context = gather(selection, {}, {Need.LIBRARIES, Need.COMPILER}, cache=Cache(None), tree=sdk)
    assert (context.trees["qnn-sdk"].origin, len(context.libraries), context.answers) == ("tree", 18, {})


def test_the_host_is_this_one(selection: Selection, tmp_path: Path) -> None:
    host = gathered(selection, tmp_path, Need.HOST, PATH=os.environ["PATH"]).host
    assert host is not None
    assert host.python == ".".join(str(part) for part in sys.version_info[:3])


def test_a_tools_version_is_asked_of_the_one_on_path(
    selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "bin" / "clang"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Debian clang version 17.0.6 (target x86_64)'\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    host = gathered(selection, tmp_path, Need.HOST, PATH=f"{tool.parent}:/bin").host
    assert host is not None
    assert (host.tools["clang"].version, host.tools["clang"].path) == ("17.0.6", str(tool))


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("version: 2.37.0.250724\n", {"sdk.yaml": "2.37.0.250724"}),
        ("product:\n  version: '2.37.0'\n", {"sdk.yaml": "2.37.0"}),
        ("version: 1\nbuild_id: v1_2\n", {"sdk.yaml": "1", "sdk.yaml build_id": "v1_2"}),
        ("nothing: here\n", {}),
    ],
)
def test_an_sdk_yaml_states_version_and_build_id(text: str, stated: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sdk.yaml").write_text(text)
    assert stated_versions("qnn-sdk", tmp_path) == stated


@pytest.mark.parametrize(
    ("name", "stated"),
    [(PIN.version, {"directory": PIN.version}), (f"v{PIN.version}", {"directory": PIN.version}), ("qnn", {})],
)
def test_a_directorys_name_states_a_version_when_it_is_one(
    name: str, stated: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    assert stated_versions("hexagon-sdk", tmp_path / name) == stated


def test_a_link_to_an_sdk_states_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "2.37.0.250724").mkdir()
    (tmp_path / "current").symlink_to("2.37.0.250724")
    assert stated_versions("qnn-sdk", tmp_path / "current") == {"directory": "2.37.0.250724"}
