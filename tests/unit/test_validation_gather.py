"""What is gathered: only what rules need, and what components say of themselves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.base.settings import TARGETS, Selection
from provisioning.environment import Environment, Root
from provisioning.validation import State, check
from provisioning.validation import chosen as chosen_rules
from provisioning.validation.context import Context, Need, gather
from tests.support.environments import ANDROID, LINUX, PROFILE, X86, write_sdk


@pytest.fixture
def selection(tmp_path: Path) -> Selection:
    return Selection(PROFILE, "x86_64-linux", "SM8650", tmp_path / "store", tmp_path / "reports")


def gathered(selection: Selection, base: Path, *needs: Need, **environ: str) -> Context:
    sdk = write_sdk(base / "sdk")
    (context,) = gather(selection, {"QNN_SDK_ROOT": str(sdk), **environ}, needs)
    return context


def test_the_users_variables_are_kept_beside_the_corrected_ones(selection: Selection, tmp_path: Path) -> None:
    wrong = "/opt/qairt/lib/aarch64-android"
    context = gathered(selection, tmp_path, LD_LIBRARY_PATH=wrong)
    assert context.environ["LD_LIBRARY_PATH"] == wrong
    assert context.variables["LD_LIBRARY_PATH"] == str(tmp_path / "sdk/lib/x86_64-linux-clang")


@pytest.mark.parametrize(("targets", "questioned"), [(("aarch64-linux",), []), ((TARGETS[0],), ["SM8650"])])
def test_the_compiler_is_asked_unless_the_sdk_is_for_devices_alone(
    selection: Selection,
    tmp_path: Path,
    targets: tuple[str, ...],
    questioned: list[str],
) -> None:
    sdk = write_sdk(tmp_path / "device only")
    shutil.rmtree(sdk / "lib" / X86)
    chosen = replace(selection, target=targets[0], named_targets=targets)
    (context,) = gather(chosen, {"QNN_SDK_ROOT": str(sdk)}, {Need.COMPILER})
    assert list(context.answers) == questioned


def test_a_named_tree_is_the_sdk_and_needs_no_environment(selection: Selection, tmp_path: Path) -> None:
    sdk = write_sdk(tmp_path / "sdk")
    (context,) = gather(selection, {}, {Need.LIBRARIES, Need.COMPILER}, tree=sdk)
    assert (context.trees["qnn-sdk"].origin, len(context.libraries), context.answers) == ("tree", 22, {})


def test_every_target_is_judged_against_its_own_trees(selection: Selection, tmp_path: Path) -> None:
    """Two trees, provisioned one after the other, each with the libraries of one target."""
    host, linux = write_sdk(tmp_path / "host"), write_sdk(tmp_path / "linux")
    for device in (ANDROID, LINUX):
        shutil.rmtree(host / "lib" / device)
    shutil.rmtree(linux / "lib" / X86)
    trees = {"x86_64-linux": host, "aarch64-linux": linux}

    def resolve(chosen: Selection, environ: Mapping[str, str]) -> Environment:
        root = Root(trees[chosen.target], "store", "QNN_SDK_ROOT")
        return Environment(PROFILE, chosen.target, "SM8650", {"qnn-sdk": root}, {}, (), (), ())

    rules = chosen_rules(["required-libraries"])
    for targets in (tuple(trees), tuple(reversed(trees))):
        contexts = gather(replace(selection, named_targets=targets), {}, {Need.LIBRARIES}, resolve=resolve)
        assert [result.findings for result in check(contexts, rules)] == [()]
    (linux / "lib" / LINUX / "libQnnHtp.so").unlink()
    both = replace(selection, named_targets=tuple(trees))
    (result,) = check(gather(both, {}, {Need.LIBRARIES}, resolve=resolve), rules)
    assert result.state is State.FAIL
    assert [f.message for f in result.findings] == [
        "lacks libQnnHtp.so, which aarch64-linux needs (for aarch64-linux)"
    ]
