"""What build_x86 made of a tree is on PYTHONPATH for that tree alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning import environment
from provisioning.base.settings import Selection
from provisioning.environment import resolve
from provisioning.overlay import describe


class Empty:
    """A store with nothing in it."""

    def find(self, component_name: str, component: object, want: object) -> None:
        return None


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    for place in ("sdk/include/QNN", "sdk/lib/x86_64-linux-clang", "et/executorch/backends/qualcomm"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "sdk" / "sdk.yaml").touch()
    (tmp_path / "et" / "executorch" / "CMakeLists.txt").touch()
    return tmp_path / "sdk"


def python_path(sdk: Path, overlaid: Path, monkeypatch: pytest.MonkeyPatch, had: str = "") -> str | None:
    overlay = sdk.parent / "overlay"
    overlay.mkdir()
    describe(overlay, overlaid)
    monkeypatch.setattr(environment, "OVERLAY", overlay)
    selection = Selection("wheels", "x86_64-linux", "SM8650", sdk.parent / "store", Path("reports"))
    environ = {
        "QNN_SDK_ROOT": str(sdk),
        "EXECUTORCH_ROOT": str(sdk.parent / "et/executorch"),
        "PYTHONPATH": had,
    }
    return resolve(selection, environ, trees=Empty()).variables.get("PYTHONPATH")


def test_the_overlay_of_the_tree_comes_first(sdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = python_path(sdk, sdk.parent / "et/executorch", monkeypatch, had="/mine")
    assert found == f"{sdk.parent}/overlay:/mine"


def test_the_overlay_of_another_tree_is_left_alone(sdk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert python_path(sdk, sdk.parent / "another/executorch", monkeypatch, had="/mine") is None
