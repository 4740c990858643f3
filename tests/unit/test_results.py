"""Cached results: what is found, what is left of them whatever happens, and when two are the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.artifacts.program import digest_without_time
from ci.work import digests
from ci.work import results as cache
from ci.work.results import CachedResults, folder_digest, processor, relocate_lines, surroundings, toolkit
from provisioning.base.errors import UsageError
from provisioning.base.files import hash_file
from provisioning.base.settings import ROOT
from tests.support.programs import context, program

KEY: Mapping[str, Any] = {"model": "a", "run": {"precision": "fp16", "nodes": ["x", "y"]}}


@pytest.fixture
def results(tmp_path: Path) -> CachedResults:
    return CachedResults(tmp_path / "store", "toy")


def kept(results: CachedResults, key: Mapping[str, Any] = KEY, text: str = "program") -> Path:
    folder = results.scratch()
    (folder / "sub").mkdir()
    (folder / "sub" / "program.bin").write_text(text)
    result = results.keep("net", key, {"figures": [1.5, None], "text": "ä"}, folder)
    assert result.folder is not None
    return result.folder


def test_what_was_kept_is_found_with_its_files_also_by_another_machine(
    results: CachedResults, tmp_path: Path
) -> None:
    folder = kept(results)
    found = results.find(KEY)
    assert found and found.facts == {"figures": [1.5, None], "text": "ä"} and found.folder == folder
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    other = CachedResults(tmp_path / "other", "toy").find(KEY)
    assert other and other.folder and (other.folder / "sub/program.bin").read_text() == "program"
    assert CachedResults(tmp_path / "store", "other kind").find(KEY) is None


@pytest.mark.parametrize(
    "other",
    [
        {"model": "b", "run": {"precision": "fp16", "nodes": ["x", "y"]}},
        {"model": "a", "run": {"precision": "fp16", "nodes": ["y", "x"]}},
        {"model": "a", "run": {"precision": "fp16", "nodes": ["x, y"]}},
        {"model": "a", "run": {"precision": "fp16"}},
        {"model": "a", "run": {"precision": "fp16", "nodes": ["x", "y"]}, "more": None},
    ],
)
def test_another_value_or_another_row_is_another_key(
    results: CachedResults, other: Mapping[str, Any]
) -> None:
    kept(results)
    assert results.find(other) is None
    assert results.find({name: KEY[name] for name in sorted(KEY, reverse=True)})


def test_the_row_in_which_a_program_differs_from_its_last_result_is_named(results: CachedResults) -> None:
    assert results.difference("net", KEY) == "not run before"
    kept(results)
    other = {**KEY, "run": {"precision": "8a8w", "nodes": ["x", "y"]}}
    assert results.difference("net", other) == "run.precision: fp16 → 8a8w"
    assert results.difference("another net", other) == "not run before"


def test_what_a_record_has_as_a_list_is_no_difference_from_a_tuple(results: CachedResults) -> None:
    files: Any = ({"file": "float_0_0.raw", "shape": (1, 3)},)
    results.keep("net", {"expected": files, "files": "a"}, {})
    assert results.difference("net", {"expected": files, "files": "b"}) == "files: a → b"


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "no folder", "half a record", "another record"])
def test_a_damaged_result_is_none(results: CachedResults, damage: str) -> None:
    folder = kept(results)
    (record,) = (path for path in folder.parent.glob("*.json"))
    file = folder / "sub/program.bin"
    if damage == "cut":
        file.write_text("progra")
    elif damage == "flipped":
        stat = file.stat()
        file.write_text("Program")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    elif damage == "gone":
        file.unlink()
    elif damage == "no folder":
        shutil.rmtree(folder)
    elif damage == "half a record":
        record.write_text(record.read_text()[:-20])
    else:
        record.write_text(record.read_text().replace("1.5", "2.5"))
    assert CachedResults(results._top.parents[2], "toy").find(KEY) is None
    # The next result of that key takes its place.
    assert kept(results) and results.find(KEY)


def test_two_writers_of_one_key_leave_a_whole_result(results: CachedResults, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ci.work.results import CachedResults\n"
        "for number in range(60):\n"
        "    results = CachedResults(Path(sys.argv[1]), 'toy'); folder = results.scratch()\n"
        "    (folder / 'program.bin').write_text(sys.argv[2] * 1000)\n"
        "    results.keep('net', {'model': 'a'}, {'of': sys.argv[2]}, folder)\n"
        "    found = results.find({'model': 'a'})\n"
        "    assert found is None or (found.folder / 'program.bin').read_text() == found.facts['of'] * 1000\n"
    )
    commands = [[sys.executable, "-c", script, str(tmp_path / "store"), name] for name in ("a", "b")]
    runs = [subprocess.Popen(command, cwd=ROOT) for command in commands]
    assert [run.wait() for run in runs] == [0, 0]
    assert results.find({"model": "a"})


def test_an_equal_result_of_another_process_is_never_taken_away(tmp_path: Path) -> None:
    script = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; from pathlib import Path\n"
        "from ci.work.results import CachedResults\n"
        "sys.setswitchinterval(1e-6)\n"
        "def work(_):\n"
        "    results = CachedResults(Path(sys.argv[1]), 'toy')\n"
        "    for number in range(60):\n"
        "        folder = results.scratch(); (folder / 'program.bin').write_text('a')\n"
        "        kept = results.keep('net', {'model': number}, {}, folder)\n"
        "        (kept.folder / 'program.bin').read_text()\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(work, range(4)))\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT).returncode == 0


def test_a_writer_that_is_killed_leaves_no_result_and_its_files_go(tmp_path: Path) -> None:
    results = CachedResults(tmp_path / "store", "toy")
    (results.scratch() / "half.bin").write_text("pro")
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (time.time() - 25 * 3600,) * 2)
    results.close()
    assert results.find(KEY) is None and not any((tmp_path / "store").rglob("half.bin"))


def test_a_result_that_nobody_used_for_60_days_goes_and_no_other(results: CachedResults) -> None:
    used, unused = kept(results), kept(results, {"model": "b"})
    for days, folder in ((59, used), (61, unused)):
        for path in (folder, *folder.parent.glob("*.json")):
            os.utime(path, (time.time() - days * 86400,) * 2)
    results.close()
    assert used.is_dir() and not unused.is_dir()


def test_beyond_the_limit_what_was_not_used_for_longest_goes_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QNN_CI_RESULTS_GB", "0.00001")
    results = CachedResults(tmp_path / "store", "toy")
    folders = [kept(results, {"model": number}, "x" * 4000) for number in range(4)]
    for hours, folder in ((4, folders[0]), (2, folders[1]), (3, folders[2])):
        record = next(folder.parent.glob(f"{folder.name.partition('-')[0]}.json"))
        os.utime(record, (time.time() - hours * 3600,) * 2)
    results.close()
    assert [folder.is_dir() for folder in folders] == [False, True, False, True]
    assert capsys.readouterr().err.count("2 removed") == 1


def test_a_result_in_use_stays_whatever_the_limit_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_RESULTS_GB", "0")
    results = CachedResults(tmp_path / "store", "toy")
    folder = kept(results)
    results.close()
    assert folder.is_dir() and results.find(KEY)


def test_a_result_of_an_earlier_step_stays_however_long_the_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_RESULTS_GB", "0")
    results = CachedResults(tmp_path / "store", "toy")
    folder = kept(results)
    later = time.time() + 3 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    results.close()
    assert folder.is_dir() and results.find(KEY)


def test_a_result_with_the_files_of_an_earlier_one_has_them_after_the_step(results: CachedResults) -> None:
    first, second = kept(results, KEY, "a"), kept(results, KEY, "b")
    for days, folder in ((3, first), (2, second)):
        os.utime(folder, (time.time() - days * 86400,) * 2)
    again = kept(results, KEY, "a")
    results.close()
    assert again == first and again.is_dir() and results.find(KEY)


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan"])
def test_a_limit_that_is_no_number_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("QNN_CI_RESULTS_GB", text)
    with pytest.raises(UsageError):
        CachedResults(tmp_path / "store", "toy")


def test_a_disk_without_room_is_an_error_of_the_system_and_leaves_nothing(
    results: CachedResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    folder = results.scratch()
    monkeypatch.setattr(cache, "replace_text", full)
    with pytest.raises(OSError, match="No space"):
        results.keep("net", KEY, {}, folder)
    assert results.find(KEY) is None


def test_an_edit_in_place_of_an_installed_package_is_another_key_and_a_touch_is_none(tmp_path: Path) -> None:
    site = tmp_path / "environment" / "lib" / "python3" / "site-packages"
    (site / "tool").mkdir(parents=True)
    module = site / "tool" / "__init__.py"
    module.write_text("WIDTH = 1\n")

    def key() -> Mapping[str, Any]:
        digests.contents.clear()
        digests.files_in.cache_clear()
        return surroundings(tmp_path / "store", {}, tmp_path / "environment")

    first = key()
    os.utime(module, (1, 1))
    assert key() == first
    stat = module.stat()
    module.write_text("WIDTH = 2\n")
    os.utime(module, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert key() != first


@pytest.mark.parametrize(
    ("name", "counts"), [("TZ", True), ("HOME", False), ("PATH", False), ("MINE", False)]
)
def test_of_the_environment_what_is_fixed_is_in_the_key(tmp_path: Path, name: str, counts: bool) -> None:
    keys = [surroundings(tmp_path, {name: value}) for value in ("one", "other")]
    assert (keys[0] != keys[1]) == counts


def test_another_kind_of_processor_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text
    texts = ("model name\t: A\nflags\t\t: sse\n\nprocessor: 1", "model name\t: A\nflags\t\t: sse avx\n")
    found = []
    for text in texts:
        processor.cache_clear()
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text, **__: text)
        found.append(processor())
    monkeypatch.setattr(Path, "read_text", read)
    processor.cache_clear()
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("kind", "is_read_again"), [("ext4", False), ("squashfs", True), ("fuse.erofs", True)]
)
def test_of_a_file_on_a_mounted_image_the_stamp_is_not_trusted(
    kind: str, is_read_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another image in its place may have the same size, times and inodes."""
    mounts, image = tmp_path / "mountinfo", tmp_path / "an image"
    image.mkdir()
    file = image / "libQnnHtp.so"
    file.write_bytes(b"new")
    place = str(image).replace(" ", "\\040")
    mounts.write_text(f"36 35 98:0 / {place} ro,relatime - {kind} /dev/loop0 ro\n")
    monkeypatch.setattr(digests, "MOUNTS", mounts)
    monkeypatch.setattr(digests, "YOUNG_SECONDS", -10.0)
    remembered = tmp_path / "store/cache/results/digests.json"
    remembered.parent.mkdir(parents=True)
    remembered.write_text(json.dumps({str(file): [*digests.stamp_of(file.stat()), "old"]}))
    digest = digests.Digests(tmp_path / "store").of(file)
    assert digest == (hash_file(file) if is_read_again else "old")


def test_another_python_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = surroundings(tmp_path, {})
    monkeypatch.setattr(sys, "version", "3.12.99 (main)")
    assert surroundings(tmp_path, {}) != before


def test_a_change_of_any_of_the_toolkits_modules_is_another_key_but_of_a_model_that_it_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "ROOT", tmp_path)
    names = (
        "ci/work/schedule.py",
        "ci/lanes/onnx/parts.py",
        "provisioning/elf.py",
        "ci/models/shipped/vision.py",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("A = 1\n")

    def key() -> object:
        toolkit.cache_clear()
        return surroundings(tmp_path / "store", {})

    before, counts = key(), {}
    for name in names:
        (tmp_path / name).write_text("A = 2\n")
        counts[name] = key() != before
        (tmp_path / name).write_text("A = 1\n")
    toolkit.cache_clear()
    assert [*counts.values()] == [True, True, True, False]


def test_a_folder_is_known_by_its_modules_without_hidden_ones(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("A = 1\n")
    first = folder_digest(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.py").touch()
    (tmp_path / "notes.md").touch()
    assert folder_digest(tmp_path) == first
    (tmp_path / "net.py").write_text("A = 2\n")
    assert folder_digest(tmp_path) != first
    (tmp_path / "net.py").write_text("A = 1\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "net.py").rename(tmp_path / "inside" / "net.py")
    assert folder_digest(tmp_path) != first


class TestLines:
    FACTS: Mapping[str, Any] = {
        "left": [{"source": "net.py:3", "code": "y = f(x)", "node": "add"}],
        "message": "quantizing loses most at net.py:3 `y = f(x)`, and not at net.py:31",
    }
    THEN: Mapping[str, Any] = {"add": ("net.py:3", "y = f(x)"), "mul": ("net.py:31", "return y")}

    def test_facts_have_the_lines_of_today(self) -> None:
        now = {"add": ("net.py:31", "y = f(x)  # A comment."), "mul": ("net.py:59", "return y")}
        facts = relocate_lines(self.FACTS, self.THEN, now)
        assert facts is not None
        assert facts["left"] == [{"source": "net.py:31", "code": "y = f(x)  # A comment.", "node": "add"}]
        words = "quantizing loses most at net.py:31 `y = f(x)  # A comment.`, and not at net.py:59"
        assert facts["message"] == words

    def test_another_clone_has_its_own_paths(self) -> None:
        now = {name: (f"/other/{place}", code) for name, (place, code) in self.THEN.items()}
        facts = relocate_lines(self.FACTS, self.THEN, now)
        assert facts is not None and "at /other/net.py:3 `" in facts["message"]

    def test_lines_that_moved_apart_say_nothing(self) -> None:
        then = {"add": ("net.py:3", "y = f(x)"), "mul": ("net.py:3", "y = f(x)")}
        now = {"add": ("net.py:3", "z = x + 1"), "mul": ("net.py:4", "y = z * 2")}
        assert relocate_lines(self.FACTS, then, now) is None


def test_a_program_repeats_to_the_bit_but_for_the_time_of_its_context(tmp_path: Path) -> None:
    def digest(data: bytes) -> str:
        (tmp_path / "program.pte").write_bytes(data)
        return digest_without_time(tmp_path / "program.pte")

    def program_of(at: bytes, binary: bytes = context()) -> bytes:
        return program(data=b"\xcd\xab\x78\x56" + at + len(binary).to_bytes(8, "little") + binary)

    first = digest(program_of(b"12345678"))
    assert first == digest(program_of(b"87654321"))
    assert first != digest(program_of(b"12345678", context(soc="SM8750")))
    assert digest(program(data=b"12345678" + context())) != digest(program(data=b"87654321" + context()))
    assert digest(b"no program") != digest(b"another")
    (tmp_path / "one.raw").write_bytes(program_of(b"12345678"))
    (tmp_path / "other.raw").write_bytes(program_of(b"87654321"))
    assert digest_without_time(tmp_path / "one.raw") != digest_without_time(tmp_path / "other.raw")
