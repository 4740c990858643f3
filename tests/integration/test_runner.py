"""What the runner computes, writes and measures."""

from __future__ import annotations

import array
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest

from tests.support.runner import Home, dist, home, programs, runner_reports
from tests.support.typed import typed

__all__ = ["dist", "home", "programs", "runner_reports"]
pytestmark = pytest.mark.heavy

EXACT = ("add", "two", "unplanned", "last", "count", "state", "lookup", "types")
"""Programs whose outputs are eager PyTorch's to the bit."""


FLAT_KB = 256
"""How far two runs' peaks lie apart when nothing leaks; a profile of 1,000 runs would be four times that."""
LIST_KB = 448
"""What a list of 1,000 more lines and their times take."""


def outputs(home: Home, folder: str = "out") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((home.folder / folder).iterdir())}


def produced(home: Home, name: str, *flags: str) -> dict[str, bytes]:
    """The outputs of a program that must run well."""
    ran = home.program(name, *flags)
    assert ran.code == 0, ran.err
    return outputs(home)


def references(home: Home, name: str, inferences: int = 1) -> dict[str, bytes]:
    count = len(list(home.folder.glob(f"{name}_ref*.raw")))
    return {
        f"output_{n}_{i}.raw": home.read(f"{name}_ref{i}.raw")
        for n in range(inferences)
        for i in range(count)
    }


def floats(data: bytes) -> list[float]:
    values = array.array("f")
    values.frombytes(data)
    return values.tolist()


@pytest.mark.long("the runner may have to be built")
def test_the_verb_run_reads_the_plain_numbers_that_a_program_gives(programs: Path, tmp_path: Path) -> None:
    done = typed("run", programs / "numbers.pte", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    numbers = [numpy.load(tmp_path / "out" / f"output_{number}.npy").item() for number in (1, 2, 3)]
    assert numbers == [3, 2.5, True]


@pytest.mark.parametrize("name", EXACT)
def test_gives_what_eager_gives(home: Home, name: str) -> None:
    assert produced(home, name) == references(home, name)


def test_runs_the_method_of_the_index(home: Home) -> None:
    ran = home.program("two", "--method_index", "1")

    assert ran.code == 0, ran.err
    one, other = (floats(home.read(f"two_in{i}.raw")) for i in range(2))
    assert floats(outputs(home)["output_0_0.raw"]) == pytest.approx(
        [a - b for a, b in zip(one, other, strict=True)]
    )


@pytest.mark.parametrize("name", ["add", "unplanned", "conv"])
def test_repeated_runs_begin_from_the_same_inputs(home: Home, name: str) -> None:
    home.program(name)
    once = outputs(home)

    assert produced(home, name, "--warm_up", "2", "--iteration", "3") == once


def test_state_lives_through_all_runs_of_a_process(home: Home) -> None:
    assert floats(produced(home, "state", "--warm_up", "2", "--iteration", "3")["output_0_0.raw"]) == [6.0]


@pytest.mark.parametrize("text", ["\ufeffIN\r\nIN", '# two\n\n  IN  \n\n"add_in0.raw"\tadd_in1.raw\n'])
def test_reads_lists_as_people_write_them(home: Home, text: str) -> None:
    home.write("add.txt", text.replace("IN", "add_in0.raw add_in1.raw"))

    assert produced(home, "add") == references(home, "add", inferences=2)


def test_takes_names_with_spaces_and_quotes(home: Home) -> None:
    name = 'in put "0" \\ ü.raw'
    shutil.copy(home.folder / "add_in0.raw", home.folder / name)
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    home.write("add.txt", f'"{escaped}" add_in1.raw\n')

    assert produced(home, "add") == references(home, "add")


def test_a_method_without_inputs_runs_once_a_line_and_once_without_a_list(home: Home) -> None:
    ran = home.run("--model_path", "count.pte", "--output_folder_path", "once")
    assert ran.code == 0, ran.err
    assert outputs(home, "once") == references(home, "count")

    home.write("count.txt", "\n\n\n")
    assert produced(home, "count") == references(home, "count", inferences=3)


def test_takes_a_shape_for_each_inference(home: Home) -> None:
    for number in range(2):
        home.write(f"half{number}.raw", home.read(f"dynamic_in{number}.raw")[:24])
    home.write("dynamic.txt", "dynamic_in0.raw dynamic_in1.raw\nhalf0.raw half1.raw\n")
    home.write("shapes.txt", "4, 3\n(4, 3)\r\n[2,3,]\n2, 3\n\n")

    ran = home.program("dynamic", "--input_shape_path", "shapes.txt")

    assert ran.code == 0, ran.err
    expected = references(home, "dynamic")
    shorter = {f"output_1_{i}.raw": expected[f"output_0_{i}.raw"][:24] for i in range(2)}
    assert outputs(home) == expected | shorter


def test_a_failure_leaves_the_outputs_of_earlier_inferences_whole(home: Home) -> None:
    home.write("bad.raw", b"\x09" + b"\0" * 15)
    home.write("lookup.txt", "lookup_in0.raw\nbad.raw\nlookup_in0.raw\n")

    ran = home.program("lookup")

    assert ran.code == 42
    assert outputs(home) == references(home, "lookup")


@pytest.mark.parametrize(
    "flags",
    [
        ("--model_path=add.pte", "--input_list_path=add.txt", "--output_folder_path=out"),
        ("-model_path", "add.pte", "-input_list_path=add.txt", "--output-folder-path", "out"),
        (
            *("--model_path", "add.pte", "--input_list_path", "add.txt", "--output_folder_path", "out"),
            *("--noshared_buffer", "--dump_intermediate_outputs=no", "--debug_buffer_size=0x100"),
        ),
    ],
    ids=["equals", "one dash and hyphens", "switches"],
)
def test_takes_flags_in_every_spelling(home: Home, flags: tuple[str, ...]) -> None:
    ran = home.run(*flags)

    assert ran.code == 0, ran.err
    assert outputs(home) == references(home, "add")


def test_metrics_tell_times_memory_and_outputs(home: Home) -> None:
    home.write("add.txt", "add_in0.raw add_in1.raw\n" * 2)

    ran = home.program("add", "--metrics_path", "m.json", "--warm_up", "2", "--iteration", "3")

    assert ran.code == 0, ran.err
    metrics = json.loads(home.read("m.json"))
    assert metrics["model_bytes"] == len(home.read("add.pte"))
    assert metrics["method"] == "forward"
    assert [(len(run["warm_up_ms"]), len(run["ms"])) for run in metrics["inferences"]] == [(2, 3), (2, 3)]
    assert metrics["outputs"][0] == {
        "file": "output_1_0.raw",
        "type": "Float",
        "shape": [2, 3],
        "bytes": 24,
    }
    assert 0 < metrics["load_ms"] < metrics["first_output_ms"]
    assert 1000 < metrics["peak_rss_kb"] < 1_000_000


@pytest.mark.filterwarnings("ignore")
def test_executorchs_inspector_finds_each_call_of_each_inference_in_a_profile(home: Home) -> None:
    from executorch.devtools import Inspector
    from executorch.devtools.inspector import TimeScale

    assert home.program("add", "--iteration", "3").code == 0
    scales = {f"{whose}_time_scale": TimeScale.CYCLES for whose in ("source", "target")}
    blocks = Inspector(etdump_path=str(home.folder / "etdump.etdp"), **scales).event_blocks
    events = {
        event.name: event.perf_data.raw for block in blocks for event in block.events if event.perf_data
    }
    assert {"Method::execute", "native_call_add.out", "native_call_mul.out"} <= set(events)
    whole, add = events["Method::execute"], events["native_call_add.out"]
    assert len(whole) == len(add) == 3
    assert all(0 < part < took for part, took in zip(add, whole, strict=True))


@pytest.mark.parametrize("name", ["add", "conv"])
def test_memory_stays_flat_over_a_thousand_inferences(home: Home, name: str) -> None:
    line = home.read(f"{name}.txt").decode()
    peaks = []
    # The customary profile stops growing after 100 runs; what is left to grow is the list itself.
    for inferences in (150, 1150):
        home.write("many.txt", line * inferences)
        peaks.append(home.peak_rss_kb("--model_path", f"{name}.pte", "--input_list_path", "many.txt"))

    assert peaks[1] - peaks[0] < FLAT_KB + LIST_KB


def test_a_moved_bundle_runs_with_its_own_libraries(home: Home, tmp_path: Path) -> None:
    moved = tmp_path / "else where"
    shutil.copytree(home.runner.parent.parent, moved)
    runner = Home(moved / "bin" / home.runner.name, home.folder)
    bare = {"LD_LIBRARY_PATH": ""}

    ran = runner.program("conv", environ=bare)
    loaded = subprocess.run(
        [str(runner.runner)],
        env={**os.environ, **bare, "LD_TRACE_LOADED_OBJECTS": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert ran.code == 0, ran.err
    expected = pytest.approx(floats(home.read("conv_ref0.raw")), abs=1e-5)
    assert floats(outputs(home)["output_0_0.raw"]) == expected
    ours = re.findall(r"libexecutorch\S* => (.+) \(", loaded)
    assert ours
    assert all(Path(path).resolve().is_relative_to(moved) for path in ours)


def test_an_interrupted_runner_leaves_no_part_of_a_file(home: Home) -> None:
    home.write("conv.txt", home.read("conv.txt").decode() * 20_000)
    flags = ("--model_path", "conv.pte", "--input_list_path", "conv.txt", "--output_folder_path", "out")
    process = subprocess.Popen([str(home.runner), *flags], cwd=home.folder, stderr=subprocess.DEVNULL)
    while not (home.folder / "out" / "output_9_0.raw").exists():
        assert process.poll() is None

    process.terminate()

    assert process.wait(timeout=60) == -15
    assert {len(data) for data in outputs(home).values()} == {len(home.read("conv_ref0.raw"))}
