"""No outdated result is used: attacks on what keys know of files, packages, libraries and records.

Attacks on what a user's code does beside exporting its model are in tests/integration/test_outdated.py."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.executorch.steps import running
from ci.lanes.llm.orders import CompileOrder
from ci.lanes.llm.steps import LlmPlan, checkpoint_of, compiling
from ci.lanes.onnx.steps import request_of
from ci.lanes.onnx.suite import programs_of as onnx_programs
from ci.suite.runner import Runner
from ci.suite.tensor_files import ChosenAmong, TensorFile
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from ci.work.request import NOTHING, key_of
from ci.work.results import CachedResults, digest_of, surroundings
from provisioning.base.settings import Selection
from tests.support.lowering import compiled_as, make_program, plan_of
from tests.support.onnx_suites import write_suite
from tests.support.scripts import script


def key_of_request(request: Any, store: Path) -> Any:
    return json.loads(json.dumps(key_of(request, CachedResults(store, "any").digest)))


def edited_in_place(path: Path, content: bytes) -> None:
    """The file then has the size and the time that it had."""
    times = path.stat()
    assert len(content) == times.st_size
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("op_packages", "Mine:{}:MineInterfaceProvider"),
        ("op_packages", "Other:{}:OtherInterfaceProvider:HTP,Mine:{}:MineInterfaceProvider:CPU"),
        ("op_affinity", "{}"),
    ],
)
def test_a_file_that_an_option_names_counts_by_its_bytes(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its path is relative to the user's folder, wherever the suite is."""
    (file := tmp_path / "mine.bin").write_bytes(b"one")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    suite = write_suite(tmp_path / "suites")
    suite.write_text(
        suite.read_text() + f'options = {{ {option} = "{value.replace("{}", "./mine.bin")}" }}\n'
    )

    def key() -> Any:
        return key_of_request(request_of(onnx_programs(suite)[0], NOTHING), tmp_path / "store")

    before = key()
    edited_in_place(file, b"two")
    assert key() != before


@pytest.mark.parametrize("place", ["shards/one.safetensors", "one.safetensors"])
def test_the_weights_of_a_checkpoint_count_by_their_bytes_in_whatever_folder_they_are(
    place: str, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    (weights := folder / place).parent.mkdir(parents=True)
    weights.write_bytes(b"one")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": place}}))
    sizes: dict[str, Any] = {"context": 64, "prefill": 32, "parts": 1, "calibration": []}
    order = CompileOrder(model=str(folder), through="genie", soc="SM8650", precision="fp16", **sizes)
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path / "store", tmp_path)
    program = checkpoint_of(order)
    plan = LlmPlan((program,), selection, WorkOptions(), tmp_path / "logs", {}, qnn_environment=None)

    def key() -> Any:
        return key_of_request(compiling(plan, order).request(program), tmp_path / "store")

    before = key()
    edited_in_place(weights, b"two")
    assert key() != before


def test_what_indices_choose_among_counts_by_its_bytes(tmp_path: Path) -> None:
    program, compiled = make_program(tmp_path), tmp_path / "compiled"
    compiled.mkdir()
    (values := compiled / "float_0_0.chosen").write_bytes(b"one")
    chosen = ChosenAmong(values.name, "float32", (1,), 0, 0.5)
    output = TensorFile("float_0_0.raw", "int64", (1,), chosen)
    runner = Runner(script(tmp_path / "dist/bin/runner", "exit 0"))
    record = compiled_as(expected=((output,),))
    step = running(
        plan_of(tmp_path, [program], WorkOptions()),
        runner,
        {program.name: Result(folder=compiled, record=record)},
    )
    before = key_of_request(step.request(program), tmp_path / "store")
    edited_in_place(values, b"two")
    assert key_of_request(step.request(program), tmp_path / "store") != before


class TestRecords:
    def test_a_record_under_the_name_of_another_key_is_not_used(self, tmp_path: Path) -> None:
        results = CachedResults(tmp_path, "toy")
        results.keep("net", {"model": "good"}, {"passes": True})
        folder = tmp_path / "cache/results/toy"
        name, other = (digest_of({"model": model}) for model in ("good", "bad"))
        (folder / other[:2]).mkdir(exist_ok=True)
        shutil.copy(folder / name[:2] / f"{name}.json", folder / other[:2] / f"{other}.json")
        assert results.find({"model": "bad"}) is None and results.find({"model": "good"})

    def test_a_result_to_whose_files_one_was_added_is_not_used(self, tmp_path: Path) -> None:
        """Steps after it find files by the ends of their names."""
        results = CachedResults(tmp_path, "toy")
        (folder := results.scratch()).joinpath("input_0_0.raw").write_bytes(b"one")
        kept = results.keep("net", {"model": "a"}, {}, folder)
        assert kept.folder and results.find({"model": "a"})
        (kept.folder / "input_0_1.raw").write_bytes(b"two")
        assert results.find({"model": "a"}) is None

    def test_a_file_of_a_result_that_was_edited_in_place_is_not_used(self, tmp_path: Path) -> None:
        results = CachedResults(tmp_path, "toy")
        (folder := results.scratch()).joinpath("program.pte").write_bytes(b"one")
        kept = results.keep("net", {"model": "a"}, {}, folder)
        assert kept.folder and results.find({"model": "a"})
        edited_in_place(kept.folder / "program.pte", b"two")
        assert CachedResults(tmp_path, "toy").find({"model": "a"}) is None


LIBRARIES: dict[str, Callable[[Path], object]] = {
    "another file": lambda folder: (folder / "libm.so.6").write_bytes(b"one"),
    "an edit in place": lambda folder: edited_in_place(folder / "libstdc++.so.6", b"two"),
    "for newer processors": lambda folder: _written(folder / "glibc-hwcaps/x86-64-v3/libstdc++.so.6"),
    "another target of a link": lambda folder: _linked(folder / "libstdc++.so.6", folder / "other"),
}


def _written(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"two")


def _linked(path: Path, target: Path) -> None:
    target.write_bytes(b"two")
    path.unlink()
    path.symlink_to(target)


class TestLibraryPath:
    @pytest.mark.parametrize("what", LIBRARIES)
    def test_another_library_that_the_loader_would_take_first_is_another_key(
        self, what: str, tmp_path: Path
    ) -> None:
        (folder := tmp_path / "libraries").mkdir()
        (folder / "libstdc++.so.6").write_bytes(b"one")
        environ = {"LD_LIBRARY_PATH": str(folder)}
        before = surroundings(tmp_path / "store", environ)
        assert surroundings(tmp_path / "store", environ) == before
        LIBRARIES[what](folder)
        assert surroundings(tmp_path / "store", environ) != before

    def test_the_order_of_its_folders_counts_and_their_paths_do_not(self, tmp_path: Path) -> None:
        for name in ("one", "two", "moved"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "libm.so.6").write_text(name.replace("moved", "one"))

        def key(*names: str) -> Any:
            path = ":".join(str(tmp_path / name) for name in names)
            return surroundings(tmp_path / "store", {"LD_LIBRARY_PATH": path})

        assert key("one", "two") != key("two", "one")
        assert key("one", "two") == key("moved", "two")
