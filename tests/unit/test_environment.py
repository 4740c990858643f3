"""Resolving a selection into roots and variables, with a store that holds what the test says."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, UsageError
from provisioning.base.settings import Selection
from provisioning.dist import BuiltFrom, describe
from provisioning.environment import Environment, resolve
from provisioning.manifest import Component
from provisioning.source_tree import TreeState
from provisioning.stage_variables import DEVICE_DSP_DIRECTORIES
from provisioning.store import Tree, trees
from provisioning.store.inventory import Difference
from tests.support.sdk_archives import tree_at

HOST = "lib/x86_64-linux-clang"


@dataclass
class Trees(trees.Trees):
    """A store that holds these components."""

    roots: dict[str, Path]
    holds: Callable[[Set[str]], bool] = lambda targets: True

    def find(self, component_name: str, component: Component, targets: Set[str]) -> Tree | None:
        if component_name not in self.roots or not self.holds(targets):
            return None
        return tree_at(self.roots[component_name], component_name, component.version)

    def differing_names(self, tree: Tree) -> list[Difference]:
        return []


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def sdk(store: Path) -> Path:
    return _sdk(store / "trees" / "qnn-sdk")


def _sdk(root: Path) -> Path:
    (root / HOST).mkdir(parents=True)
    return root


def _selection(store: Path, **chosen: object) -> Selection:
    selection = Selection("wheels", "x86_64-linux", "SM8650", store, Path("reports"))
    return replace(selection, **chosen)  # type: ignore[arg-type]


def _resolved(sdk: Path, environ: dict[str, str], **chosen: object) -> Environment:
    store = sdk.parent.parent
    return resolve(_selection(store, **chosen), environ, trees=Trees({"qnn-sdk": sdk}))


def test_the_host_gets_its_libraries_and_the_selection(sdk: Path) -> None:
    environment = _resolved(sdk, {})
    assert environment.variables == {
        "QNN_CI_PROFILE": "wheels",
        "QNN_CI_TARGET": "x86_64-linux",
        "QNN_CI_SOC": "SM8650",
        "QNN_CI_STORE": str(sdk.parent.parent),
        "QNN_SDK_ROOT": str(sdk),
        "LD_LIBRARY_PATH": str(sdk / HOST),
    }


@pytest.mark.parametrize("target", ["x86_64-linux", "aarch64-linux"])
def test_the_runner_that_was_built_is_named_unless_the_user_names_one(
    sdk: Path, tmp_path: Path, target: str
) -> None:
    def shell(environ: dict[str, str]) -> Environment:
        return _resolved(sdk, {}, target=target).for_shell(environ, tmp_path / "dist")

    bare = shell({})
    assert "QNN_EXECUTOR_RUNNER" not in bare.variables and "build_runner" in bare.notes[-1].text
    dist = tmp_path / "dist" / target
    ours, executorchs = (place / "bin" / "qnn_executor_runner" for place in (dist / "wheel", dist))
    for path in (ours, executorchs):
        path.parent.mkdir(parents=True)
        path.touch()
    (dist / "manifest.json").touch()
    # On this machine a tree's runner is that of whoever names the tree.
    runner = ours if target == "x86_64-linux" else executorchs
    assert shell({}).variables["QNN_EXECUTOR_RUNNER"] == str(runner)
    executorchs.unlink()
    assert shell({}).variables["QNN_EXECUTOR_RUNNER"] == str(ours)
    assert "QNN_EXECUTOR_RUNNER" not in shell({"QNN_EXECUTOR_RUNNER": "mine"}).variables


def test_the_users_own_directory_goes_before_the_store(sdk: Path, tmp_path: Path) -> None:
    own = _sdk(tmp_path / "own sdk")
    environment = _resolved(sdk, {"QNN_SDK_ROOT": str(own)})
    assert environment.roots["qnn-sdk"].path == own
    assert environment.roots["qnn-sdk"].origin == "directory"
    assert environment.variables["LD_LIBRARY_PATH"] == str(own / HOST)


def test_a_tree_that_env_set_for_another_profile_is_ignored_and_reported(sdk: Path) -> None:
    other = _sdk(sdk.parent / "of-another-profile")
    environment = _resolved(sdk, {"QNN_SDK_ROOT": str(other), "QNN_CI_PROFILE": "qnn-2.37"})
    assert (environment.roots["qnn-sdk"].path, environment.roots["qnn-sdk"].origin) == (sdk, "store")
    (note,) = environment.notes
    assert str(other) in note.text and str(sdk) in note.text


def test_a_component_that_the_caller_needs_is_not_left_out_because_its_variable_is_wrong(sdk: Path) -> None:
    selection = _selection(sdk.parent.parent)
    with pytest.raises(EnvironmentLacking, match=r"EXECUTORCH_ROOT=/nowhere"):
        resolve(
            selection,
            {"EXECUTORCH_ROOT": "/nowhere"},
            trees=Trees({"qnn-sdk": sdk}),
            needs=("qnn-sdk", "executorch-source"),
        )


@pytest.mark.parametrize(("target", "is_mistake"), [("aarch64-android", True), ("x86_64-linux", False)])
def test_a_wrong_variable_is_a_mistake_where_the_target_takes_its_component(
    sdk: Path, target: str, is_mistake: bool
) -> None:
    environment = _resolved(sdk, {"ANDROID_NDK_ROOT": "/nowhere"}, target=target)
    (note,) = environment.notes
    assert "/nowhere" in note.text and (note.variable == "ANDROID_NDK_ROOT") is is_mistake


def test_the_provision_that_a_message_prints_has_the_consents_without_which_it_refuses(store: Path) -> None:
    with pytest.raises(EnvironmentLacking) as lacking:
        resolve(_selection(store, profile="qnn-2.37"), {}, trees=Trees({}))
    assert isinstance(lacking.value.fix, Fix)
    (command,) = lacking.value.fix.commands
    assert command[0] == "provision" and "--trust-first-download" in command
    assert command[command.index("--accept-licence") + 1] == "qualcomm-ai-stack"


def test_a_tree_without_the_hosts_part_still_serves_a_device(sdk: Path, store: Path) -> None:
    trees = Trees({"qnn-sdk": sdk}, holds=lambda targets: "x86_64-linux" not in targets)
    environment = resolve(_selection(store, target="aarch64-linux"), {}, trees=trees)
    assert environment.roots["qnn-sdk"].path == sdk


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("/q/lib/aarch64-android", "holds a device's libraries"),
        ("/q/lib/hexagon-v75/unsigned", "holds a device's libraries"),
        ("/other/sdk/lib/x86_64-linux-clang/", "is of another QNN SDK"),
        ("", "current directory"),
    ],
)
def test_libraries_that_would_get_in_the_way_are_left_out_and_reported(
    sdk: Path, entry: str, why: str
) -> None:
    environment = _resolved(sdk, {"LD_LIBRARY_PATH": f"/a:{entry}:/b"})
    assert environment.variables["LD_LIBRARY_PATH"] == f"{sdk / HOST}:/a:/b"
    assert [note for note in environment.notes if entry in note.text and why in note.text]


def test_a_folder_with_a_copy_of_qnns_libraries_is_left_out(sdk: Path, tmp_path: Path) -> None:
    (tmp_path / "libQnnHtp.so").touch()
    environment = _resolved(sdk, {"LD_LIBRARY_PATH": f"{tmp_path}:/a"})
    assert environment.variables["LD_LIBRARY_PATH"] == f"{sdk / HOST}:/a"
    (note,) = environment.notes
    assert note.variable == "LD_LIBRARY_PATH" and f"{tmp_path} is of another QNN SDK" in note.text


def test_a_preloaded_library_of_another_qnn_is_left_out(sdk: Path) -> None:
    ours = sdk / HOST / "libQnnHtp.so"
    others = ("/q/libQnnSystem.so", "/q/libHtpPrepare.so")
    preloaded = f"{others[0]} /usr/lib/libjemalloc.so:{ours}:{others[1]}:libQnnHtp.so"
    environment = _resolved(sdk, {"LD_PRELOAD": preloaded})
    assert environment.variables["LD_PRELOAD"] == f"/usr/lib/libjemalloc.so:{ours}:libQnnHtp.so"
    assert [note.variable for note in environment.notes] == ["LD_PRELOAD", "LD_PRELOAD"]
    assert all(other in note.text for other, note in zip(others, environment.notes, strict=True))


def test_the_two_variables_of_one_sdk_agree(sdk: Path, tmp_path: Path) -> None:
    own = str(_sdk(tmp_path / "own sdk"))
    environment = _resolved(sdk, {"QNN_SDK_ROOT": own, "QAIRT_SDK_ROOT": "/q"})
    assert environment.variables["QAIRT_SDK_ROOT"] == own
    (note,) = environment.notes
    assert note.variable == "QAIRT_SDK_ROOT" and "contradicts" in note.text
    assert _resolved(sdk, {"QNN_SDK_ROOT": own, "QAIRT_SDK_ROOT": own}).notes == ()


@pytest.mark.parametrize(
    ("environ", "wrong"),
    [
        ({"QNN_SDK_ROOT": ""}, "QNN_SDK_ROOT"),
        ({"ANDROID_NDK_ROOT": "", "ANDROID_NDK_HOME": ""}, "ANDROID_NDK_ROOT ANDROID_NDK_HOME"),
        ({"ANDROID_NDK_ROOT": "/one", "ANDROID_NDK_HOME": "/other"}, "ANDROID_NDK_HOME ANDROID_NDK_ROOT"),
        ({"ADSP_LIBRARY_PATH": "/a:/b"}, "ADSP_LIBRARY_PATH"),
        ({"LD_LIBRARY_PATH": "/q/lib/aarch64-android"}, "LD_LIBRARY_PATH"),
    ],
)
def test_each_variable_that_is_not_taken_as_it_is_has_a_note_of_its_own(
    sdk: Path, environ: dict[str, str], wrong: str
) -> None:
    notes = _resolved(sdk, environ, target="aarch64-android").notes
    assert [note.variable for note in notes] == wrong.split()


def test_resolving_within_the_environment_changes_nothing(sdk: Path) -> None:
    (sdk / "bin/x86_64-linux-clang").mkdir(parents=True)
    once = _resolved(sdk, {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/a"}, target="aarch64-android")
    again = _resolved(sdk, once.merged({"PATH": "/usr/bin"}), target="aarch64-android")
    assert again.variables == once.variables
    assert again.notes == ()


@pytest.mark.parametrize("name", ["a:b", "$ORIGIN"])
def test_a_root_that_the_loader_would_misread_is_refused(sdk: Path, tmp_path: Path, name: str) -> None:
    own = _sdk(tmp_path / name)
    with pytest.raises(UsageError, match="LD_LIBRARY_PATH"):
        _resolved(sdk, {"QNN_SDK_ROOT": str(own)})


def test_a_device_gets_its_dsp_path_and_the_host_keeps_its_own_libraries(sdk: Path) -> None:
    environment = _resolved(sdk, {}, target="aarch64-android")
    expected = ("/data/local/tmp/qnn-ci", *DEVICE_DSP_DIRECTORIES["aarch64-android"])
    assert environment.variables["ADSP_LIBRARY_PATH"].split(";") == list(expected)
    assert environment.variables["LD_LIBRARY_PATH"] == str(sdk / HOST)


@pytest.fixture
def own_sdk(tmp_path: Path) -> Path:
    for place in ("sdk/include/QNN", "sdk/lib/x86_64-linux-clang", "et/executorch/backends/qualcomm"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "sdk" / "sdk.yaml").touch()
    (tmp_path / "et" / "executorch" / "CMakeLists.txt").touch()
    return tmp_path / "sdk"


@pytest.mark.parametrize(("overlaid", "path"), [("et", "{0}/overlay:/mine"), ("another", None)])
def test_the_overlay_of_the_users_tree_comes_first_and_another_trees_is_left_alone(
    own_sdk: Path, overlaid: str, path: str | None
) -> None:
    base = own_sdk.parent
    (base / "overlay").mkdir()
    describe(base / "overlay", BuiltFrom(base / overlaid / "executorch", "wheels", TreeState()))
    environ = {
        "QNN_SDK_ROOT": str(own_sdk),
        "EXECUTORCH_ROOT": f"{base}/et/executorch",
        "PYTHONPATH": "/mine",
    }
    environment = resolve(_selection(base / "store"), environ, trees=Trees({}), overlay=base / "overlay")
    assert environment.variables.get("PYTHONPATH") == (path and path.format(base))
