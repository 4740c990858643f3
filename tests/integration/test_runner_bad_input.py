"""On bad input the runner names what is wrong, ends with the exit code of that error, and writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.support.runner import Home, dist, home, programs, runner_reports

__all__ = ["dist", "home", "programs", "runner_reports"]
pytestmark = pytest.mark.heavy

BAD = ("--model_path", "bad.pte")
LIST = ("--input_list_path", "list.txt")
SHAPES = ("--input_shape_path", "shapes.txt")
OUTPUT_SHAPES = ("--output_shape_path", "shapes.txt")
RECORD = "--dump_intermediate_outputs"


@dataclass(frozen=True)
class Case:
    code: int
    names: str
    """The part of the message that names the thing."""
    flags: tuple[str, ...] = ()
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    spoil: Callable[[bytes], bytes] | None = None
    """Makes bad.pte of the program."""
    program: str = "add"
    limit: int | None = None


def listed(text: str, **files: bytes) -> dict[str, str | bytes]:
    return {"list.txt": text, **{f"{name}.raw": content for name, content in files.items()}}


def of_shapes(code: int, names: str, text: str) -> Case:
    return Case(code, names, SHAPES, {"shapes.txt": text}, program="dynamic")


CASES = {
    "a misspelt flag": Case(2, "'--model_pat'", ("--model_pat", "x")),
    "a flag without its value": Case(2, "--metrics_path", ("--metrics_path",)),
    "a word for a number": Case(2, "--iteration", ("--iteration=many",)),
    "a number below its bound": Case(2, "--iteration", ("--iteration", "0")),
    "a number beyond 32 bits": Case(2, "--iteration", ("--iteration=2147483648",)),
    "a switch that is neither": Case(2, "--shared_buffer", ("--shared_buffer=perhaps",)),
    "a number of the LPAI beyond 32 bits": Case(2, "--lpai_fps", ("--lpai_fps=4294967297",)),
    "a word of the LPAI that is none": Case(2, "--lpai_affinity", ("--lpai_affinity=hard",)),
    "a mask of the LPAI without digits": Case(2, "--lpai_core_selection", ("--lpai_core_selection=0x",)),
    "no model": Case(10, "'none.pte'", ("--model_path", "none.pte")),
    "a model that is a pipe": Case(10, "'pipe'", ("--model_path", "pipe")),
    "an empty model": Case(11, "'bad.pte'", BAD, spoil=lambda data: b""),
    "another version's model": Case(11, "'bad.pte'", BAD, spoil=lambda data: data[:4] + b"ET99" + data[8:]),
    "a truncated model": Case(11, "'bad.pte'", BAD, spoil=lambda data: data[: len(data) // 2]),
    "a damaged model": Case(11, "'bad.pte'", BAD, spoil=lambda data: data[:60] + b"\x7f" * 200 + data[260:]),
    "a method that is not there": Case(12, "--method_index", ("--method_index", "2"), program="two"),
    "a backend that is not there": Case(
        *(13, "NobodyBackend", BAD),
        spoil=lambda data: data.replace(b"XnnpackBackend", b"NobodyBackend\x00"),
        program="conv",
    ),
    "a kernel that is not there": Case(
        40, "'bad.pte'", BAD, spoil=lambda data: data.replace(b"aten::add", b"aten::abd")
    ),
    "no list": Case(20, "'none.txt'", ("--input_list_path", "none.txt")),
    "an empty list": Case(21, "'list.txt'", LIST, listed("")),
    "too few files": Case(21, "list.txt:1:", LIST, listed("add_in0.raw\n")),
    "too many files, in the second line": Case(
        21, "list.txt:2:", LIST, listed("add_in0.raw add_in1.raw\na b c\n")
    ),
    "a quote that stays open": Case(21, "list.txt:1:", LIST, listed('add_in0.raw "add_in1.raw\n')),
    "an input that is beside its list only": Case(
        *(22, "'only.raw'", ("--input_list_path", "sub/list.txt")),
        {"sub/only.raw": b"x" * 24, "sub/list.txt": "add_in0.raw only.raw\n"},
    ),
    "an input that is a device": Case(22, "'/dev/zero'", LIST, listed("/dev/zero add_in1.raw")),
    "no input file in the last inference": Case(
        *(22, "input 1 of inference 2", LIST),
        listed("add_in0.raw add_in1.raw\n" * 2 + "add_in0.raw none.raw\n"),
    ),
    "an input a byte short": Case(23, "'s.raw'", LIST, listed("add_in0.raw s.raw", s=b"x" * 23)),
    "an input a byte long": Case(23, "'s.raw'", LIST, listed("add_in0.raw s.raw", s=b"x" * 25)),
    "a dynamic input without its shape": Case(23, "expected 96 bytes", program="dynamic"),
    "no shape file": Case(24, "--input_shape_path", ("--input_shape_path", "none.txt")),
    "words for a shape": Case(
        24, "shapes.txt:2:", SHAPES, {"shapes.txt": "4, 3\nfour, 3\n"}, program="dynamic"
    ),
    "a negative size": of_shapes(24, "shapes.txt:1:", "-4, 3\n4, 3\n"),
    "too few shapes": of_shapes(24, "'shapes.txt'", "4, 3\n"),
    "a shape of another rank": Case(
        24, "shapes.txt:2:", SHAPES, {"shapes.txt": "4, 3\n12\n"}, program="dynamic"
    ),
    "a shape beyond the bound": Case(
        24, "shapes.txt:1:", SHAPES, {"shapes.txt": "9, 3\n9, 3\n"}, program="dynamic"
    ),
    "a file of another shape": of_shapes(23, "expected 24 bytes", "2, 3\n2, 3\n"),
    "another shape where it is fixed": Case(
        *(24, "input 0", (*LIST, *SHAPES)),
        {**listed("s.raw s.raw", s=b"x" * 12), "shapes.txt": "1, 3\n1, 3\n"},
    ),
    "an output shape beyond the bound": Case(
        24, "shapes.txt:1:", OUTPUT_SHAPES, {"shapes.txt": "3, 3\n2, 3\n"}
    ),
    "a file for the output folder": Case(30, "'add.txt'", ("--output_folder_path", "add.txt")),
    "metrics in no folder": Case(30, "--metrics_path", ("--metrics_path", "no/m.json")),
    "recorded outputs in no folder": Case(30, "--debug_output_path", (RECORD, "--debug_output_path", "no/d")),
    "a disk that is full": Case(30, "output 0", limit=10),
    "a buffer that is too small": Case(31, "--debug_buffer_size", (RECORD, "--debug_buffer_size", "8")),
}


SAMPLE = {case.code: name for name, case in reversed(CASES.items())}
"""By exit code: its first case."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SAMPLE.values() else pytest.mark.whole) for name in CASES],
)
def test_bad_input_is_named_and_leaves_no_file(name: str, home: Home) -> None:
    case = CASES[name]
    os.mkfifo(home.folder / "pipe")
    for file, content in case.files.items():
        home.write(file, content)
    if case.spoil:
        home.write("bad.pte", case.spoil(home.read(f"{case.program}.pte")))
    before = home.files()

    ran = home.program(case.program, *case.flags, limit=case.limit)

    assert ran.code == case.code, ran.err
    assert case.names in ran.err
    # The buffer is found too small after the inference.
    written = {file for file in home.files() - before if not (case.code == 31 and file.endswith(".raw"))}
    assert written == set()
