"""What is installed in an interpreter, as it is in every key."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ci.work import digests
from ci.work.digests import digests_of_installed


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "site-packages"
    install(folder, "part", "1.0", {"part/__init__.py": "x = 1"})
    (folder / "own.pth").write_text(f"{tmp_path}/src\n")
    yield folder
    as_in_a_new_process()


def install(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    rows = []
    for file, text in files.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{file},sha256={digest},{len(text)}")
    record = folder / f"{name}-{version}.dist-info" / "RECORD"
    record.parent.mkdir(exist_ok=True)
    # As an installer does: it writes the RECORD last.
    time.sleep(0.02)
    record.write_text("\n".join([*rows, f"../../../bin/{name},sha256=x,5", f"{record.parent.name}/RECORD,,"]))


def as_in_a_new_process() -> None:
    digests.contents.clear()
    digests.files_in.cache_clear()


def seen(site: Path, *search: Path) -> dict[str, str]:
    as_in_a_new_process()
    return digests_of_installed((str(site),), [str(path) for path in search], site.parent / "store")


def later(path: Path, text: str) -> None:
    time.sleep(0.02)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def with_another_name(path: Path) -> Path:
    os.link(path, path.parents[2] / "linked")
    return path


CHANGES: dict[str, Callable[[Path], object]] = {
    "another package": lambda site: install(site, "models", "1.0", {"models/__init__.py": ""}),
    "another version": lambda site: install(site, "part", "2.0", {"part/__init__.py": "x = 2"}),
    "the same version made anew": lambda site: install(site, "part", "1.0", {"part/__init__.py": "x = 2"}),
    "an edit in place": lambda site: later(site / "part/__init__.py", "x = 3"),
    "an edit in place where it has another name": lambda site: later(
        with_another_name(site / "part/__init__.py"), "x = 3"
    ),
    "a file that no RECORD has": lambda site: later(site / "part/more.py", ""),
    "a file two folders down": lambda site: later(site / "part/inner/more.py", ""),
    "a file that is gone": lambda site: (site / "part/__init__.py").unlink(),
    "sitecustomize": lambda site: later(site / "sitecustomize.py", ""),
    "a .pth": lambda site: later(site / "more.pth", "import os"),
    "a .pth's text": lambda site: later(site / "own.pth", "/elsewhere"),
    "sitecustomize on PYTHONPATH": lambda site: later(site.parent / "path/sitecustomize.py", ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_an_installation_changes_is_seen(change: str, site: Path, tmp_path: Path) -> None:
    """Stale cases 9 to 11."""
    before = seen(site, tmp_path / "path")
    assert seen(site, tmp_path / "path") == before
    CHANGES[change](site)
    assert seen(site, tmp_path / "path") != before


def test_a_file_of_another_size_than_its_record_says_is_seen_whatever_its_times_are(site: Path) -> None:
    """One with two names, whose time of change says nothing."""
    module = with_another_name(site / "part/__init__.py")
    times = module.stat().st_atime_ns, module.stat().st_mtime_ns
    before = seen(site)
    module.write_text("x = 1234")
    os.utime(module, ns=times)
    assert seen(site) != before


def test_a_file_that_has_just_changed_is_neither_remembered_nor_believed(tmp_path: Path) -> None:
    """It can change again, and look the same."""
    store, file = tmp_path / "store", tmp_path / "file"
    file.write_text("now")
    right = hashlib.sha256(b"now").hexdigest()
    known = digests.Digests(store)
    assert known.of(file) == right
    known.save()
    rows = store / "cache" / "results" / "digests.json"
    assert not rows.exists()
    rows.parent.mkdir(parents=True)
    rows.write_text(json.dumps({str(file): [*digests.stamp_of(file.stat()), "before"]}))
    assert digests.Digests(store).of(file) == right


def test_each_folder_has_its_own_packages(site: Path, tmp_path: Path) -> None:
    install(other := tmp_path / "other", "more", "2.0", {"more.py": ""})
    assert {"part", "more"} <= digests_of_installed((str(site), str(other)), [], tmp_path / "store").keys()


def test_where_a_project_lies_that_is_installed_editable_is_no_matter(tmp_path: Path) -> None:
    keys = []
    for project in (tmp_path / "clone", tmp_path / "other"):
        (folder := project / "site-packages").mkdir(parents=True)
        (folder / "net.pth").write_text(f"{project}/src")
        keys.append(digests_of_installed((str(folder),), [], tmp_path / "store", (project,)))
    assert keys[0] == keys[1]


def test_where_and_when_it_was_installed_is_no_matter(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "site-packages"
    install(other, "part", "1.0", {"part/__init__.py": "x = 1"})
    (other / "own.pth").write_text((site / "own.pth").read_text())
    (other / "part-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///elsewhere"}')
    (other / "part" / "__pycache__").mkdir()
    (other / "part" / "__pycache__" / "x.pyc").write_text("x")
    # As uv does for another environment: that changes the file's ctime and nothing else.
    os.link(other / "part/__init__.py", tmp_path / "linked.py")
    assert seen(other) == seen(site)


@pytest.mark.parametrize(
    "copied", ["cp -a {0} {1}", "chmod -R g+w {0}; cp -a {0} {1}", "cp -a {0} {1}; touch {1}/*/RECORD"]
)
def test_an_edit_is_seen_whatever_a_copy_makes_of_the_times(copied: str, site: Path, tmp_path: Path) -> None:
    """A copy writes the RECORD before the other files or after them, whatever was changed last."""
    before, module, copy = seen(site), site / "part/__init__.py", tmp_path / "copied" / "site-packages"
    times = module.stat().st_atime_ns, module.stat().st_mtime_ns
    module.write_text("x = 2")
    os.utime(module, ns=times)
    copy.parent.mkdir()
    subprocess.run(["sh", "-c", copied.format(site, copy)], check=True)
    for folder in (site, copy):
        os.utime(folder / "part-1.0.dist-info/RECORD")
        assert seen(folder)["(files)"] != before["(files)"]


@pytest.mark.parametrize("has_environment", [True, False])
def test_a_file_is_read_once_for_each_inode_and_time_of_change(
    has_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own environment remembers it for all stores."""
    site = tmp_path / "lib/python3/site-packages"
    install(site, "part", "1.0", {"part/__init__.py": "x = 1", "part/more.py": "y = 1"})
    if has_environment:
        (tmp_path / "pyvenv.cfg").touch()
    read = list[str]()
    monkeypatch.setattr(digests, "YOUNG_SECONDS", -10.0)
    monkeypatch.setattr(digests, "hash_whole", _recorded(digests.hash_whole, read))

    def names_read(store: str) -> set[str]:
        as_in_a_new_process()
        read.clear()
        digests_of_installed((str(site),), [], tmp_path / store)
        return {Path(name).name for name in read if name.endswith(".py")}

    assert names_read("store") == {"__init__.py", "more.py"}
    assert names_read("store") == set()
    assert (names_read("another") == set()) is has_environment
    os.link(site / "part/more.py", tmp_path / "linked")
    assert names_read("store") == {"more.py"}


def _recorded(function: Callable[[str], str], calls: list[str]) -> Callable[[str], str]:
    def call(path: str) -> str:
        calls.append(path)
        return function(path)

    return call


def test_a_link_to_nothing_hides_no_file_beside_it(site: Path) -> None:
    names = [f"part/{number}.py" for number in range(20)]
    for name in names:
        (site / name).touch()
    (site / "part/broken").symlink_to("nowhere")
    files = digests.files_in(str(site))
    assert {*names, "part/__init__.py", "part/broken"} <= {*files}
