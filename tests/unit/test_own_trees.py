"""An SDK of the user's own: what changed since its first use is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioning.base.guard import guard
from provisioning.base.settings import Selection
from provisioning.environment import resolve
from provisioning.store.own_trees import changed_content
from provisioning.verbs import store as verb
from tests.support.sdk_archives import sdk_files
from tests.support.typed import parsed

HTP = "lib/x86_64-linux-clang/libQnnHtp.so"


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    for place, content in sdk_files().items():
        path = tmp_path / "sdk" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "sdk"


def notes(sdk: Path) -> list[str]:
    """What a stage says of this SDK when it starts."""
    selection = Selection("qnn-2.37", "x86_64-linux", "SM8650", sdk.parent / "store", Path("reports"))
    return [note.text for note in resolve(selection, {"QNN_SDK_ROOT": str(sdk)}).notes]


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, (1, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda sdk: (sdk / "lib/x86_64-linux-clang/libEvil.so").touch(),
            "added lib/x86_64-linux-clang/libEvil.so",
        ),
        (lambda sdk: (sdk / HTP).unlink(), f"removed {HTP}"),
        (lambda sdk: rewrite(sdk / HTP), f"changed {HTP}"),
        (lambda sdk: shutil.rmtree(sdk / "include"), "removed include"),
        (lambda sdk: (sdk / "sdk.yaml").write_text("version: 2.48.0.260626\n"), "2.37.0.250724"),
    ],
    ids=["added", "removed", "changed", "a folder", "upgraded"],
)
def test_what_changed_since_the_first_use_is_named_until_it_is_adopted(
    sdk: Path, change: Callable[[Path], None], words: str
) -> None:
    assert notes(sdk) == notes(sdk) == []
    change(sdk)
    (note,) = notes(sdk)
    assert words in note and f"store adopt {sdk}" in note.replace(" -- ", " ")
    args = parsed(verb, "adopt", sdk, "--store", sdk.parent / "store")
    assert guard(lambda: verb.run(args), debug=False) == 0
    assert notes(sdk) == []


def test_validate_sees_other_bytes_of_the_same_size_and_time(sdk: Path) -> None:
    store = sdk.parent / "store"
    assert notes(sdk) == []
    assert changed_content(store, sdk) is None
    time = (sdk / HTP).stat().st_mtime_ns
    (sdk / HTP).chmod(0o700)
    assert changed_content(store, sdk) is None
    (sdk / HTP).write_bytes((sdk / HTP).read_bytes()[::-1])
    os.utime(sdk / HTP, ns=(time, time))
    assert notes(sdk) == []
    for _ in range(2):
        assert HTP in str(changed_content(store, sdk))
    args = parsed(verb, "adopt", sdk, "--store", store)
    assert guard(lambda: verb.run(args), debug=False) == 0
    assert changed_content(store, sdk) is None


def test_a_folder_that_is_no_sdk_is_not_adopted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed(verb, "adopt", tmp_path, "--store", tmp_path / "store")
    assert guard(lambda: verb.run(args), debug=False) == 2
    assert f"{tmp_path}: expected the root of" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
