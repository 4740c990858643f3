"""What the runner computes, writes and measures."""

from __future__ import annotations

import array
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.artifacts.bounds import Malformed
from ci.artifacts.trace import events_of
from tests.support.runner import Bench, bench, dist, programs, runner_reports

__all__ = ["bench", "dist", "programs", "runner_reports"]
pytestmark = pytest.mark.heavy

EXACT = ("add", "two", "unplanned", "last", "count", "state", "lookup", "types")
"""Programs whose outputs are eager PyTorch's to the bit."""


FLAT_KB = 256
"""How far two runs' peaks lie apart when nothing leaks; a profile of 1,000 runs would be four times that."""
LIST_KB = 448
"""What a list of 1,000 more lines and their times take."""


def outputs(bench: Bench, folder: str = "out") -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((bench.folder / folder).iterdir())}


def produced(bench: Bench, name: str, *flags: str) -> dict[str, bytes]:
    """The outputs of a program that must run well."""
    ran = bench.program(name, *flags)
    assert ran.code == 0, ran.err
    return outputs(bench)


def references(bench: Bench, name: str, inferences: int = 1) -> dict[str, bytes]:
    count = len(list(bench.folder.glob(f"{name}_ref*.raw")))
    return {
        f"output_{n}_{i}.raw": bench.read(f"{name}_ref{i}.raw")
        for n in range(inferences)
        for i in range(count)
    }


def floats(data: bytes) -> list[float]:
    values = array.array("f")
    values.frombytes(data)
    return values.tolist()


@pytest.mark.parametrize("name", EXACT)
def test_gives_what_eager_gives(bench: Bench, name: str) -> None:
    assert produced(bench, name) == references(bench, name)


def test_runs_the_method_of_the_index(bench: Bench) -> None:
    ran = bench.program("two", "--method_index", "1")

    assert ran.code == 0, ran.err
    one, other = (floats(bench.read(f"two_in{i}.raw")) for i in range(2))
    assert floats(outputs(bench)["output_0_0.raw"]) == pytest.approx(
        [a - b for a, b in zip(one, other, strict=True)]
    )


@pytest.mark.parametrize("name", ["add", "unplanned", "conv"])
def test_repeated_runs_begin_from_the_same_inputs(bench: Bench, name: str) -> None:
    bench.program(name)
    once = outputs(bench)

    assert produced(bench, name, "--warm_up", "2", "--iteration", "3") == once


def test_state_lives_through_all_runs_of_a_process(bench: Bench) -> None:
    assert floats(produced(bench, "state", "--warm_up", "2", "--iteration", "3")["output_0_0.raw"]) == [6.0]


@pytest.mark.parametrize("text", ["\ufeffIN\r\nIN", '# two\n\n  IN  \n\n"add_in0.raw"\tadd_in1.raw\n'])
def test_reads_lists_as_people_write_them(bench: Bench, text: str) -> None:
    bench.write("add.txt", text.replace("IN", "add_in0.raw add_in1.raw"))

    assert produced(bench, "add") == references(bench, "add", inferences=2)


def test_takes_names_with_spaces_and_quotes(bench: Bench) -> None:
    name = 'in put "0" \\ ü.raw'
    shutil.copy(bench.folder / "add_in0.raw", bench.folder / name)
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    bench.write("add.txt", f'"{escaped}" add_in1.raw\n')

    assert produced(bench, "add") == references(bench, "add")


def test_a_method_without_inputs_runs_once_a_line_and_once_without_a_list(bench: Bench) -> None:
    ran = bench.run("--model_path", "count.pte", "--output_folder_path", "once")
    assert ran.code == 0, ran.err
    assert outputs(bench, "once") == references(bench, "count")

    bench.write("count.txt", "\n\n\n")
    assert produced(bench, "count") == references(bench, "count", inferences=3)


def test_takes_a_shape_for_each_inference(bench: Bench) -> None:
    for number in range(2):
        bench.write(f"half{number}.raw", bench.read(f"dynamic_in{number}.raw")[:24])
    bench.write("dynamic.txt", "dynamic_in0.raw dynamic_in1.raw\nhalf0.raw half1.raw\n")
    bench.write("shapes.txt", "4, 3\n(4, 3)\r\n[2,3,]\n2, 3\n\n")

    ran = bench.program("dynamic", "--input_shape_path", "shapes.txt")

    assert ran.code == 0, ran.err
    expected = references(bench, "dynamic")
    shorter = {f"output_1_{i}.raw": expected[f"output_0_{i}.raw"][:24] for i in range(2)}
    assert outputs(bench) == expected | shorter


def test_writes_the_part_of_an_output_that_is_asked_for(bench: Bench) -> None:
    bench.write("shapes.txt", "1, 3\n2, 3\n")

    ran = bench.program("add", "--output_shape_path", "shapes.txt")

    assert ran.code == 0, ran.err
    expected = references(bench, "add")
    assert outputs(bench) == expected | {"output_0_0.raw": expected["output_0_0.raw"][:12]}


def test_a_failure_leaves_the_outputs_of_earlier_inferences_whole(bench: Bench) -> None:
    bench.write("bad.raw", b"\x09" + b"\0" * 15)
    bench.write("lookup.txt", "lookup_in0.raw\nbad.raw\nlookup_in0.raw\n")

    ran = bench.program("lookup")

    assert ran.code == 42
    assert outputs(bench) == references(bench, "lookup")


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
def test_takes_flags_in_every_spelling(bench: Bench, flags: tuple[str, ...]) -> None:
    ran = bench.run(*flags)

    assert ran.code == 0, ran.err
    assert outputs(bench) == references(bench, "add")


def test_metrics_tell_times_memory_and_outputs(bench: Bench) -> None:
    bench.write("add.txt", "add_in0.raw add_in1.raw\n" * 2)

    ran = bench.program("add", "--metrics_path", "m.json", "--warm_up", "2", "--iteration", "3")

    assert ran.code == 0, ran.err
    metrics = json.loads(bench.read("m.json"))
    assert metrics["model_bytes"] == len(bench.read("add.pte"))
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


def test_metrics_tell_the_lpai_options_that_the_backend_took(bench: Bench) -> None:
    options = {"fps": 30, "ftrt_ratio": 50, "client_perf_type": 2, "affinity": 2, "core_selection": 3}
    flags = [word for name, value in options.items() for word in (f"--lpai_{name}", str(value))]

    plain = bench.program("add", "--metrics_path", "m.json")
    assert plain.code == 0, plain.err
    assert json.loads(bench.read("m.json"))["runtime_options"] == {}

    ran = bench.program("add", *flags, "--lpai_core_selection=0x3", "--metrics_path", "m.json")
    assert ran.code == 0, ran.err
    assert json.loads(bench.read("m.json"))["runtime_options"] == {
        f"qnn_runtime_lpai_{name}": value for name, value in options.items()
    }


def test_peak_memory_is_the_runners_own_and_not_that_of_who_started_it(bench: Bench) -> None:
    ballast = bytearray(os.urandom(1 << 20)) * 200

    peak = bench.peak_rss_kb("--model_path", "add.pte", "--input_list_path", "add.txt")

    assert peak < len(ballast) >> 10


def test_writes_a_profile_by_custom_and_none_when_told(bench: Bench) -> None:
    bench.program("add")
    assert b"Execute" in bench.read("etdump.etdp")
    (bench.folder / "etdump.etdp").unlink()

    ran = bench.program("add", "--etdump_path=", "--performance_output_path=")

    assert ran.code == 0, ran.err
    assert not (bench.folder / "etdump.etdp").exists()


def test_a_customary_file_that_cannot_be_written_is_a_warning(bench: Bench) -> None:
    (bench.folder / "etdump.etdp").mkdir()

    ran = bench.program("add")

    assert ran.code == 0
    assert "warning: --etdump_path 'etdump.etdp'" in ran.err


def test_a_profile_has_each_call_of_each_inference_and_damage_is_named(bench: Bench) -> None:
    assert bench.program("add", "--iteration", "3").code == 0
    events = {event.name: event for event in events_of(bench.folder / "etdump.etdp")}
    assert {"Method::execute", "native_call_add.out", "native_call_mul.out"} <= set(events)
    whole, add = events["Method::execute"], events["native_call_add.out"]
    assert len(whole.took) == len(add.took) == 3 and not add.delegated
    assert all(0 < part < took for part, took in zip(add.took, whole.took, strict=True))
    trace = bench.read("etdump.etdp")
    for damaged in (b"", trace[:60], trace[: len(trace) // 2], trace[:40] + b"\xff" * 8 + trace[48:]):
        with pytest.raises(Malformed):
            events_of(bench.write("damaged.etdp", damaged))


TIMES = """
import json, sys
from executorch.devtools import Inspector
from executorch.devtools.inspector import TimeScale

scale = dict(source_time_scale=TimeScale.CYCLES, target_time_scale=TimeScale.CYCLES)
blocks = Inspector(etdump_path=sys.argv[1], **scale).event_blocks
events = [event for block in blocks for event in block.events if event.perf_data]
print(json.dumps([[event.name, [int(took) for took in event.perf_data.raw]] for event in events]))
"""


@pytest.mark.whole
def test_a_profile_is_read_as_executorchs_inspector_reads_it(bench: Bench) -> None:
    assert bench.program("add", "--iteration", "3").code == 0
    command = [sys.executable, "-c", TIMES, "etdump.etdp"]
    shown = subprocess.run(command, cwd=bench.folder, capture_output=True, text=True, check=True).stdout
    ours = [[event.name, event.took] for event in events_of(bench.folder / "etdump.etdp")]
    theirs = json.loads(shown.splitlines()[-1])
    assert len(theirs) > 3 and sorted(ours) == sorted(theirs)


INSPECT = """
import json, sys
from executorch.devtools import Inspector

inspector = Inspector(etdump_path=sys.argv[1], debug_buffer_path=sys.argv[2])
events = [event for block in inspector.event_blocks for event in block.events]
data = {event.name: event.debug_data[0] for event in events if event.debug_data}
print(json.dumps({name: tensor.flatten().tolist() for name, tensor in data.items()}))
"""


@pytest.mark.whole
def test_records_intermediate_outputs_as_executorchs_inspector_reads_them(bench: Bench) -> None:
    ran = bench.program(
        "add", "--dump_intermediate_outputs", "--debug_output_path", "d.bin", "--etdump_path", "e.etdp"
    )

    assert ran.code == 0, ran.err
    command = [sys.executable, "-c", INSPECT, "e.etdp", "d.bin"]
    shown = subprocess.run(command, cwd=bench.folder, capture_output=True, text=True, check=True).stdout
    recorded = json.loads(shown.splitlines()[-1])
    assert recorded["native_call_add.out"] == pytest.approx(floats(bench.read("add_ref0.raw")))
    assert recorded["native_call_mul.out"] == pytest.approx(floats(bench.read("add_ref1.raw")))


def test_intermediate_outputs_are_written_where_a_file_for_them_is_named(bench: Bench) -> None:
    ran = bench.program(
        "add", "--dump_intermediate_outputs", "--debug_output_path", "d.bin", "--etdump_path", "e.etdp"
    )

    assert ran.code == 0, ran.err
    # The sum is one of them, as it is in memory.
    assert bench.read("add_ref0.raw") in bench.read("d.bin")


def test_shared_memory_that_is_not_there_is_a_warning(bench: Bench) -> None:
    ran = bench.program("add", "--shared_buffer")

    assert ran.code == 0, ran.err
    assert "--shared_buffer: there is no shared memory here" in ran.err
    assert outputs(bench) == references(bench, "add")


@pytest.mark.parametrize("name", ["add", "conv"])
def test_memory_stays_flat_over_a_thousand_inferences(bench: Bench, name: str) -> None:
    line = bench.read(f"{name}.txt").decode()
    peaks = []
    # The customary profile stops growing after 100 runs; what is left to grow is the list itself.
    for inferences in (150, 1150):
        bench.write("many.txt", line * inferences)
        peaks.append(bench.peak_rss_kb("--model_path", f"{name}.pte", "--input_list_path", "many.txt"))

    assert peaks[1] - peaks[0] < FLAT_KB + LIST_KB


def test_a_moved_bundle_runs_with_its_own_libraries(bench: Bench, tmp_path: Path) -> None:
    moved = tmp_path / "else where"
    shutil.copytree(bench.runner.parent.parent, moved)
    runner = Bench(moved / "bin" / bench.runner.name, bench.folder)
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
    expected = pytest.approx(floats(bench.read("conv_ref0.raw")), abs=1e-5)
    assert floats(outputs(bench)["output_0_0.raw"]) == expected
    ours = re.findall(r"libexecutorch\S* => (.+) \(", loaded)
    assert ours
    assert all(Path(path).resolve().is_relative_to(moved) for path in ours)


def test_an_interrupted_runner_leaves_no_part_of_a_file(bench: Bench) -> None:
    bench.write("conv.txt", bench.read("conv.txt").decode() * 20_000)
    flags = ("--model_path", "conv.pte", "--input_list_path", "conv.txt", "--output_folder_path", "out")
    process = subprocess.Popen([str(bench.runner), *flags], cwd=bench.folder, stderr=subprocess.DEVNULL)
    while not (bench.folder / "out" / "output_9_0.raw").exists():
        assert process.poll() is None

    process.terminate()

    assert process.wait(timeout=60) == -15
    assert {len(data) for data in outputs(bench).values()} == {len(bench.read("conv_ref0.raw"))}
