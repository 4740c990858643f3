"""On bad input the runner names what is wrong, ends with the exit code of that error, and writes nothing."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support.runner import Bench, bench, dist, programs, runner_reports

__all__ = ["bench", "dist", "programs", "runner_reports"]
pytestmark = pytest.mark.heavy


@dataclass(frozen=True)
class Case:
    """`says`: the part of the message that names the thing."""

    name: str
    code: int
    says: str
    flags: tuple[str, ...] = ()
    prepare: Callable[[Bench], object] = lambda bench: None
    program: str = "add"
    limit: int | None = None


def model(change: Callable[[bytes], bytes], program: str = "add") -> Callable[[Bench], object]:
    return lambda bench: bench.write("bad.pte", change(bench.read(f"{program}.pte")))


def listed(text: str | bytes) -> Callable[[Bench], object]:
    return lambda bench: bench.write("list.txt", text)


def shapes(text: str) -> Callable[[Bench], object]:
    return lambda bench: bench.write("shapes.txt", text)


BAD = ("--model_path", "bad.pte")
LIST = ("--input_list_path", "list.txt")
SHAPES = ("--input_shape_path", "shapes.txt")

USAGE = [
    Case("a misspelt flag", 2, "'--model_pat'", ("--model_pat", "x")),
    Case("a flag without its value", 2, "--metrics_path", ("--metrics_path",)),
    Case("no iteration", 2, "--iteration", ("--iteration", "0")),
    Case("a word for a number", 2, "--iteration", ("--iteration=many",)),
    Case("a number beyond 32 bits", 2, "--iteration", ("--iteration=2147483648",)),
    Case("a negative number", 2, "--warm_up", ("--warm_up", "-1")),
    Case("a switch that is neither", 2, "--shared_buffer", ("--shared_buffer=perhaps",)),
    Case("a negated switch with a value", 2, "--noshared_buffer", ("--noshared_buffer=true",)),
    Case("a level out of range", 2, "--log_level", ("--log_level", "9")),
]

MODELS = [
    Case("no model", 10, "'none.pte'", ("--model_path", "none.pte")),
    Case("a model that is a folder", 10, "'.'", ("--model_path", ".")),
    Case(
        "a model that is a pipe",
        10,
        "'pipe'",
        ("--model_path", "pipe"),
        lambda b: os.mkfifo(b.folder / "pipe"),
    ),
    Case("an empty model", 11, "'bad.pte'", BAD, model(lambda _: b"")),
    Case("a short model", 11, "'bad.pte'", BAD, model(lambda data: data[:20])),
    Case("bytes for a model", 11, "'bad.pte'", BAD, model(lambda data: data[:4] + b"\xff" * 4 + data[8:])),
    Case("another version's model", 11, "'bad.pte'", BAD, model(lambda data: data[:4] + b"ET99" + data[8:])),
    Case("a truncated model", 11, "'bad.pte'", BAD, model(lambda data: data[: len(data) // 2])),
    Case(
        "a damaged model",
        11,
        "'bad.pte'",
        BAD,
        model(lambda data: data[:60] + b"\x7f" * 200 + data[260:]),
    ),
    Case("a method that is not there", 12, "--method_index", ("--method_index", "2"), program="two"),
    Case(
        "a backend that is not there",
        13,
        "NobodyBackend",
        BAD,
        model(lambda data: data.replace(b"XnnpackBackend", b"NobodyBackend\x00"), "conv"),
        "conv",
    ),
    Case(
        "a kernel that is not there",
        40,
        "'bad.pte'",
        BAD,
        model(lambda data: data.replace(b"aten::add", b"aten::abd")),
    ),
]

LISTS = [
    Case("no list", 20, "'none.txt'", ("--input_list_path", "none.txt")),
    Case("a list that is a folder", 20, "input list '.'", ("--input_list_path", ".")),
    Case("an empty list", 21, "'list.txt'", LIST, listed("")),
    Case("too few files", 21, "list.txt:1:", LIST, listed("add_in0.raw\n")),
    Case(
        "too many files, in the second line",
        21,
        "list.txt:2:",
        LIST,
        listed("add_in0.raw add_in1.raw\na b c\n"),
    ),
    Case("a quote that stays open", 21, "list.txt:1:", LIST, listed('add_in0.raw "add_in1.raw\n')),
    Case("a tensor for a list", 21, "list.txt:1:", LIST, listed(struct.pack("<6f", *range(6)))),
]

INPUTS = [
    Case("no input file", 22, "input 1 of inference 0", LIST, listed("add_in0.raw none.raw")),
    Case(
        "an input that is beside its list only",
        22,
        "'only.raw'",
        ("--input_list_path", "sub/list.txt"),
        lambda b: (b.write("sub/only.raw", b"x" * 24), b.write("sub/list.txt", "add_in0.raw only.raw\n")),
    ),
    Case("an input that is a device", 22, "'/dev/zero'", LIST, listed("/dev/zero add_in1.raw")),
    Case(
        "a bad input of the last inference",
        22,
        "input 1 of inference 2",
        LIST,
        listed("add_in0.raw add_in1.raw\n" * 2 + "add_in0.raw none.raw\n"),
    ),
    Case(
        "an empty input",
        23,
        "input 0 of inference 0",
        LIST,
        lambda b: (b.write("e.raw", b""), listed("e.raw add_in1.raw")(b)),
    ),
    Case(
        "an input a byte short",
        23,
        "'s.raw'",
        LIST,
        lambda b: (b.write("s.raw", b"x" * 23), listed("add_in0.raw s.raw")(b)),
    ),
    Case(
        "an input a byte long",
        23,
        "'s.raw'",
        LIST,
        lambda b: (b.write("s.raw", b"x" * 25), listed("add_in0.raw s.raw")(b)),
    ),
    Case(
        "a dynamic input without its shape",
        23,
        "expected 96 bytes for Float[8, 3], found 48",
        program="dynamic",
    ),
]

SHAPE_FILES = [
    Case("no shape file", 24, "--input_shape_path", ("--input_shape_path", "none.txt")),
    Case("words for a shape", 24, "shapes.txt:2:", SHAPES, shapes("4, 3\nfour, 3\n"), "dynamic"),
    Case("a negative size", 24, "shapes.txt:1:", SHAPES, shapes("-4, 3\n4, 3\n"), "dynamic"),
    Case("too few shapes", 24, "'shapes.txt'", SHAPES, shapes("4, 3\n"), "dynamic"),
    Case("a shape of another rank", 24, "shapes.txt:2:", SHAPES, shapes("4, 3\n12\n"), "dynamic"),
    Case("a shape beyond the bound", 24, "shapes.txt:1:", SHAPES, shapes("9, 3\n9, 3\n"), "dynamic"),
    Case(
        "a file of another shape",
        23,
        "expected 24 bytes for Float[2, 3], found 48",
        SHAPES,
        shapes("2, 3\n2, 3\n"),
        "dynamic",
    ),
    Case(
        "another shape where it is fixed",
        24,
        "input 0",
        (*LIST, *SHAPES),
        lambda b: (b.write("s.raw", b"x" * 12), listed("s.raw s.raw")(b), shapes("1, 3\n1, 3\n")(b)),
    ),
    Case(
        "too few output shapes",
        24,
        "--output_shape_path",
        ("--output_shape_path", "shapes.txt"),
        shapes("2, 3\n"),
    ),
    Case(
        "an output shape beyond the bound",
        24,
        "shapes.txt:1:",
        ("--output_shape_path", "shapes.txt"),
        shapes("3, 3\n2, 3\n"),
    ),
]

OUTPUTS = [
    Case("a file for the output folder", 30, "output folder 'add.txt'", ("--output_folder_path", "add.txt")),
    Case("an output folder in none", 30, "output folder 'no/where'", ("--output_folder_path", "no/where")),
    Case("an empty output folder", 30, "output folder ''", ("--output_folder_path=",)),
    Case("metrics in no folder", 30, "--metrics_path", ("--metrics_path", "no/m.json")),
    Case("a folder for the metrics", 30, "--metrics_path", ("--metrics_path", ".")),
    Case(
        "recorded outputs in no folder",
        30,
        "--debug_output_path",
        ("--dump_intermediate_outputs", "--debug_output_path", "no/d"),
    ),
    Case("an output's name that is too long", 30, "File name too long", ("--output_folder_path", "o" * 300)),
    Case("a disk that is full", 30, "output 0", limit=10),
    Case(
        "a buffer that is too small",
        31,
        "--debug_buffer_size",
        ("--dump_intermediate_outputs", "--debug_buffer_size", "8"),
    ),
]

INFERENCES = [
    Case(
        "an inference that fails",
        42,
        "method forward failed",
        LIST,
        lambda b: (b.write("i.raw", struct.pack("<2q", 1, 9)), listed("i.raw")(b)),
        "lookup",
    ),
]

CASES = USAGE + MODELS + LISTS + INPUTS + SHAPE_FILES + OUTPUTS + INFERENCES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_named_and_leaves_no_file(case: Case, bench: Bench) -> None:
    case.prepare(bench)
    before = bench.files()

    ran = bench.program(case.program, *case.flags, limit=case.limit)

    assert ran.code == case.code, ran.err
    assert case.says in ran.err
    written = {name for name in bench.files() - before if not (case.code == 31 and name.endswith(".raw"))}
    assert written == set()
