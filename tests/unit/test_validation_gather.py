"""What is gathered: only what rules need, and what components say of themselves."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.base.settings import TARGETS, Selection
from provisioning.validation import gather as gathering
from provisioning.validation import scan
from provisioning.validation.context import Context, Need
from provisioning.validation.gather import gather, stated_versions
from provisioning.validation.probe import Answer
from provisioning.validation.scan import Cache
from tests.support.environments import NDK, PIN, PROFILE, X86, write_ndk, write_sdk


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


@pytest.mark.parametrize(("targets", "asked"), [(("aarch64-linux",), []), ((TARGETS[0],), ["SM8650"])])
def test_the_compiler_is_asked_unless_the_sdk_is_for_devices_alone(
    selection: Selection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    targets: tuple[str, ...],
    asked: list[str],
) -> None:
    monkeypatch.setattr("provisioning.validation.gather.ask", lambda soc, variables: Answer("absent"))
    sdk = write_sdk(tmp_path / "device only")
    shutil.rmtree(sdk / "lib" / X86)
    chosen = replace(selection, target=targets[0], targets=targets)
    context = gather(chosen, {"QNN_SDK_ROOT": str(sdk)}, {Need.COMPILER}, cache=Cache(None))
    assert list(context.answers) == asked


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
    host = gathered(selection, tmp_path, Need.HOST, Need.TOOLS, PATH=f"{tool.parent}:/bin").host
    assert host is not None
    assert (host.tools["clang"].version, host.tools["clang"].path) == ("17.0.6", str(tool))


@pytest.fixture
def executorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enough of an installed executorch for its files to be watched; every file counts as settled."""
    package = tmp_path / "site" / "executorch"
    adaptor = package / "backends/qualcomm/python/PyQnnManagerAdaptor.so"
    adaptor.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    adaptor.write_text("1")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "executorch", raising=False)
    monkeypatch.setattr(scan, "_SETTLED_NS", -(10**18))
    return adaptor


def asked(
    selection: Selection, base: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, **environ: str
) -> bool:
    """Whether the compiler itself was asked, with the cache kept between calls."""
    calls: list[str] = []

    def ask(soc: str, variables: object) -> Answer:
        calls.append(soc)
        return answer

    monkeypatch.setattr(gathering, "ask", ask)
    sdk = base / "sdk" if (base / "sdk").is_dir() else write_sdk(base / "sdk")
    cache = Cache(base / "cache.json")
    context = gather(selection, {"QNN_SDK_ROOT": str(sdk), **environ}, {Need.COMPILER}, cache=cache)
    remembered = replace(answer, remembered=not calls)
    assert context.answers == {selection.soc: remembered}
    return bool(calls)


DEVICE = Answer("device", made_device=True, build_id="v2.48.0.260626121212")


def test_a_device_is_remembered(
    executorch: Path, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(selection, tmp_path, monkeypatch, DEVICE)
    assert (first, asked(selection, tmp_path, monkeypatch, DEVICE)) == (True, False)


def test_a_device_is_remembered_wherever_reports_go(
    executorch: Path, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(selection, tmp_path, monkeypatch, DEVICE, QNN_CI_REPORTS="one")
    assert not asked(selection, tmp_path, monkeypatch, DEVICE, QNN_CI_REPORTS="two")


def test_a_refusal_is_never_remembered(
    executorch: Path, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Answer("backend", code=14001)
    asked(selection, tmp_path, monkeypatch, refusal)
    assert asked(selection, tmp_path, monkeypatch, refusal)


@pytest.mark.parametrize("changed", ["adaptor", "library", "variable", "chip"])
def test_whatever_the_answer_depends_on_makes_it_asked_again(
    changed: str, executorch: Path, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(selection, tmp_path, monkeypatch, DEVICE)
    environ = {}
    if changed == "adaptor":
        executorch.write_text("2")
    elif changed == "library":
        (tmp_path / "sdk/lib/x86_64-linux-clang/libQnnHtp.so").write_text("another")
    elif changed == "variable":
        environ = {"LD_PRELOAD": "libasan.so"}
    else:
        selection = replace(selection, soc="SM8750")
    assert asked(selection, tmp_path, monkeypatch, DEVICE, **environ)


def test_an_answer_about_files_of_this_moment_is_not_remembered(
    executorch: Path, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_SETTLED_NS", 10**18)
    asked(selection, tmp_path, monkeypatch, DEVICE)
    assert asked(selection, tmp_path, monkeypatch, DEVICE)


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
