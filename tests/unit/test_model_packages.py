"""The packages of one model: those that its command line or its suite names, and where others are found."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.executorch import HEAD
from ci.lanes.executorch.model_options import ExecutorchOptions
from ci.lanes.executorch.suite import SUITES
from ci.models.package_needs import NONE, Needs
from ci.models.projects import contradictions, nearest_project, version_at_hand
from ci.models.user_model import user_model
from ci.models.uv_packages import locked_versions
from ci.one_model.model import OneModel
from ci.one_model.packages import needs_of_model
from ci.suite.running import advice
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection
from tests.support.repositories import write

CASE = """
[case.net]
factory = "net:build"

[[case.net.run]]
lane = "executorch"
precision = "fp16"
socs = ["SM8650"]
"""
MODEL = "def build(): ...\n"
PROJECT = '[project]\nname = "vision"\nversion = "1"\ndependencies = [{}]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("QNN_CI_REQUIREMENTS", raising=False)
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        {
            "net.py": MODEL,
            "pyproject.toml": PROJECT.format('"einops"'),
            "old/pyproject.toml": PROJECT.format('"torch==2.1.0"'),
            "empty/notes.txt": "",
            "mine.txt": "einops",
        },
    )
    return tmp_path


def model(folder: Path, **options: Any) -> OneModel:
    selection = Selection("wheels", "x86_64-linux", "SM8650", folder, folder)
    return OneModel(selection, "net.py:build", HEAD, replace(ExecutorchOptions(), **options))


def test_a_requirement_a_wheel_and_a_project_are_taken_as_they_are_named(folder: Path) -> None:
    (folder / "acme-1.0-py3-none-any.whl").touch()
    named = ("timm>=1", "./acme-1.0-py3-none-any.whl", ".")
    needs = needs_of_model(model(folder, packages=named, project=folder), SUITES)
    assert needs.packages == ("timm>=1", str(folder / "acme-1.0-py3-none-any.whl"))
    assert needs.editable == (folder, folder)
    assert not needs.takes_nearest, "what is named is all"


@pytest.mark.parametrize("text", ["not a requirement", "./nowhere", "./empty", "nowhere.whl"])
def test_what_names_no_package_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(UsageError, match=f"--with {text}"):
        needs_of_model(model(folder, packages=(text,)), SUITES)


def test_another_version_of_a_locked_package_is_refused_by_name(folder: Path) -> None:
    torch = locked_versions()["torch"]
    wrong: list[dict[str, Any]] = [{"packages": (text,)} for text in ("torch==2.1.0", "./old")]
    for options in (*wrong, {"project": folder / "old"}):
        with pytest.raises(UsageError, match=rf"torch==2\.1\.0.*torch {re.escape(torch)}"):
            needs_of_model(model(folder, **options), SUITES)
    needs_of_model(model(folder, packages=(f"torch=={torch.partition('+')[0]}", "torch>1")), SUITES)


@pytest.mark.parametrize("marker", ["python_version < '3'", "sys_platform == 'win32'", "extra == 'old'"])
def test_a_pin_for_another_python_system_or_extra_contradicts_nothing(marker: str) -> None:
    assert list(contradictions([f"torch==1.13; {marker}"], {"torch": "2.9.0+cpu"})) == []


def test_a_projects_pins_that_do_not_count_are_told() -> None:
    pins = {"torch": "2.13.0+cpu", "executorch": "1.5.1"}
    texts = ["torch==2.13.0", "Torch<2; python_version>'3'", "executorch==1.4", "timm==1.0", "what?"]
    rows = [(name, version) for _, name, version in contradictions(texts, pins)]
    assert rows == [("torch", "2.13.0+cpu"), ("executorch", "1.5.1")]


def test_requirements_of_the_environment_are_for_one_model_too_and_flags_go_before_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_REQUIREMENTS", "mine.txt")
    assert needs_of_model(model(folder), SUITES).requirements == folder / "mine.txt"
    assert needs_of_model(model(folder, packages=("timm",)), SUITES).requirements is None
    assert "QNN_CI_REQUIREMENTS=mine.txt" in capsys.readouterr().err
    monkeypatch.setenv("QNN_CI_REQUIREMENTS", "nowhere.txt")
    with pytest.raises(UsageError, match=r"nowhere\.txt"):
        needs_of_model(model(folder), SUITES)


def test_a_project_that_is_not_there_is_named_and_no_index_is_asked(folder: Path) -> None:
    with pytest.raises(UsageError, match="nothere"):
        needs_of_model(model(folder, project=folder / "nothere"), SUITES)


def test_with_a_suite_its_own_packages_count_and_flags_are_refused(folder: Path) -> None:
    suite = folder / "models.toml"
    assert needs_of_model(model(folder), SUITES, suite) == NONE
    suite.write_text(f'schema = 2\nproject = "."\nrequirements = "mine.txt"\n{CASE}')
    assert needs_of_model(model(folder), SUITES, suite) == Needs(folder / "mine.txt", folder)
    with pytest.raises(UsageError, match="--with beside --suite"):
        needs_of_model(model(folder, packages=("timm",)), SUITES, suite)
    with pytest.raises(UsageError, match="--project beside --suite"):
        needs_of_model(model(folder, project=folder), SUITES, suite)


def test_the_nearest_project_is_that_of_the_model_unless_the_user_leaves_it(folder: Path) -> None:
    write(folder, {"sub/pyproject.toml": "[tool.ruff]\n", "sub/deep/net.py": MODEL})
    assert nearest_project(folder / "sub" / "deep") == folder
    assert nearest_project(Path("/")) is None
    assert needs_of_model(model(folder), SUITES).takes_nearest
    assert not needs_of_model(model(folder, takes_project=False), SUITES).takes_nearest


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX", ""])
def test_the_version_of_the_users_own_environment_is_found_by_what_is_imported(
    folder: Path, variable: str
) -> None:
    home = folder / ("active" if variable else ".venv")
    for name, module in (("opencv-python", "cv2"), ("torchvision", "torchvision")):
        site = home / "lib" / "python3.12" / "site-packages"
        info = f"{name.replace('-', '_')}-4.10.0+cu124.dist-info"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.10.0+cu124\n"
        record = f"{module}/__init__.py,,\n{info}/METADATA,,\n"
        write(site, {f"{info}/METADATA": text, f"{info}/RECORD": record})
    environ = {variable: str(home)} if variable else {}
    assert version_at_hand("cv2", folder, environ) == "opencv-python==4.10.0"
    assert version_at_hand("torchvision", folder, environ) == "torchvision", "torch's own decides its version"
    assert version_at_hand("timm", folder, environ) == ""


def test_a_module_is_not_taken_for_the_package_of_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger may have registered that name."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    assert advice(NONE, "cv2") == "--with opencv-python-headless"
    assert advice(NONE, "sklearn") == "--with scikit-learn"
    assert "--with einops" in advice(NONE, "einops")


LAYOUTS = {
    "src/vision/net.py:build": ("src", "vision.net:build"),
    "vision.net:build": ("src", "vision.net:build"),
    "src/alone.py:build": ("src", "alone:build"),
    "flat/pack/net.py:build": ("flat", "pack.net:build"),
    "script/net.py:build": ("script", "net:build"),
    "space/src/part/net.py:build": ("space/src", "part.net:build"),
    "loose/src/part/net.py:build": ("loose/src/part", "net:build"),
}


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_part_of_a_package_is_imported_as_its_package_has_it(folder: Path, text: str) -> None:
    relative = f"from .blocks import Block\n{MODEL}"
    write(
        folder,
        {
            "src/vision/__init__.py": "",
            "src/vision/net.py": relative,
            "src/alone.py": MODEL,
            "flat/pack/__init__.py": "",
            "flat/pack/net.py": relative,
            # As scripts are written: its folder is searched.
            "script/__init__.py": "",
            "script/net.py": f"from blocks import Block\n{MODEL}",
            "script/blocks.py": "",
            # Packages without __init__.py.
            "space/pyproject.toml": PROJECT.format(""),
            "space/src/part/net.py": relative,
            "loose/src/part/net.py": MODEL,
        },
    )
    (folder / "pyproject.toml").rename(folder / "other.toml")
    place, factory = LAYOUTS[text]
    found = user_model(text, folder)
    assert (found.search_path, found.factory) == (folder / place, factory)


def test_a_file_with_the_name_of_one_of_pythons_modules_is_refused_with_another_name(folder: Path) -> None:
    write(folder, {"keyword.py": MODEL, "part/__init__.py": "", "part/types.py": MODEL})
    with pytest.raises(UsageError, match=r"keyword") as refused:
        user_model("keyword.py:build", folder)
    assert "keyword_net.py" in refused.value.fix
    assert user_model("part/types.py:build", folder).factory == "part.types:build"
