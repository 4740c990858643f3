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
    """`says`: parts of the message that name the thing, the expected and the found."""

    name: str
    code: int
    says: tuple[str, ...]
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
    Case("a misspelt flag", 2, ("'--model_pat'", "did you mean --model_path?"), ("--model_pat", "x")),
    Case("a flag that there is none like", 2, ("'--frobnicate=1'", "--help"), ("--frobnicate=1",)),
    Case("a word that is no flag", 2, ("'extra.pte'", "flags"), ("extra.pte",)),
    Case("a lone dash", 2, ("'-'",), ("-",)),
    Case(
        "a flag without its value",
        2,
        ("--metrics_path", "a value", "end of the command line"),
        ("--metrics_path",),
    ),
    Case("no iteration", 2, ("--iteration", "from 1", "'0'"), ("--iteration", "0")),
    Case("a word for a number", 2, ("--iteration", "whole number", "'many'"), ("--iteration=many",)),
    Case("a number with a tail", 2, ("--iteration", "'3x'"), ("--iteration=3x",)),
    Case(
        "a number beyond 32 bits",
        2,
        ("--iteration", "2147483647", "'2147483648'"),
        ("--iteration=2147483648",),
    ),
    Case(
        "a number beyond 64 bits",
        2,
        ("--debug_buffer_size", "'99999999999999999999'"),
        ("--debug_buffer_size=99999999999999999999",),
    ),
    Case("a negative number", 2, ("--warm_up", "from 0", "'-1'"), ("--warm_up", "-1")),
    Case("an empty number", 2, ("--method_index", "''"), ("--method_index=",)),
    Case(
        "a switch that is neither",
        2,
        ("--shared_buffer", "true or false", "'perhaps'"),
        ("--shared_buffer=perhaps",),
    ),
    Case(
        "a negated switch with a value",
        2,
        ("--noshared_buffer", "no value", "'true'"),
        ("--noshared_buffer=true",),
    ),
    Case("a negated flag that is no switch", 2, ("'--nomodel_path'",), ("--nomodel_path",)),
    Case("a level out of range", 2, ("--log_level", "to 5", "'9'"), ("--log_level", "9")),
]

MODELS = [
    Case("no model", 10, ("'none.pte'", "No such file"), ("--model_path", "none.pte")),
    Case("a model that is a folder", 10, ("'.'", "expected a file, found a folder"), ("--model_path", ".")),
    Case(
        "a model that is a pipe",
        10,
        ("'pipe'", "pipe or device"),
        ("--model_path", "pipe"),
        lambda b: os.mkfifo(b.folder / "pipe"),
    ),
    Case("an empty model", 11, ("'bad.pte'", "found a file of 0 bytes"), BAD, model(lambda _: b"")),
    Case("a short model", 11, ("'bad.pte'", "found a file of 20 bytes"), BAD, model(lambda data: data[:20])),
    Case(
        "text for a model",
        11,
        ("'bad.pte'", "`ET12`", "found ' tex'"),
        BAD,
        model(lambda _: b"I am text, not a program. " * 9),
    ),
    Case(
        "bytes for a model",
        11,
        ("'bad.pte'", r"'\xff\xff\xff\xff'"),
        BAD,
        model(lambda data: data[:4] + b"\xff" * 4 + data[8:]),
    ),
    Case(
        "another version's model",
        11,
        ("'bad.pte'", "found 'ET99'", "--version"),
        BAD,
        model(lambda data: data[:4] + b"ET99" + data[8:]),
    ),
    Case(
        "a truncated model",
        11,
        ("'bad.pte'", "damaged or truncated"),
        BAD,
        model(lambda data: data[: len(data) // 2]),
    ),
    Case(
        "a damaged model",
        11,
        ("'bad.pte'", "damaged or truncated"),
        BAD,
        model(lambda data: data[:60] + b"\x7f" * 200 + data[260:]),
    ),
    Case(
        "a method that is not there",
        12,
        ("--method_index", "2 methods", "0 add, 1 subtract", "found 2"),
        ("--method_index", "2"),
        program="two",
    ),
    Case(
        "a backend that is not there",
        13,
        ("NobodyBackend", "this runner has: ", "XnnpackBackend"),
        BAD,
        model(lambda data: data.replace(b"XnnpackBackend", b"NobodyBackend\0"), "conv"),
        "conv",
    ),
    Case(
        "a kernel that is not there",
        40,
        ("'bad.pte'", "could not be loaded", "OperatorMissing", "aten::abd.out"),
        BAD,
        model(lambda data: data.replace(b"aten::add", b"aten::abd")),
    ),
]

LISTS = [
    Case("no list", 20, ("'none.txt'", "No such file"), ("--input_list_path", "none.txt")),
    Case("a list that is a folder", 20, ("input list '.'", "found a folder"), ("--input_list_path", ".")),
    Case("an empty list", 21, ("'list.txt'", "a line for each inference", "found none"), LIST, listed("")),
    Case("a list of comments", 21, ("'list.txt'", "found none"), LIST, listed("# nothing\n\n# here\n")),
    Case(
        "too few files",
        21,
        ("list.txt:1:", "expected 2 files", "method forward", "found 1"),
        LIST,
        listed("add_in0.raw\n"),
    ),
    Case(
        "too many files, in the second line",
        21,
        ("list.txt:2:", "expected 2 files", "found 3", "quote"),
        LIST,
        listed("add_in0.raw add_in1.raw\na b c\n"),
    ),
    Case(
        "a quote that stays open",
        21,
        ("list.txt:1:", "closing quote", "column 13"),
        LIST,
        listed('add_in0.raw "add_in1.raw\n'),
    ),
    Case(
        "a quote with a tail",
        21,
        ("list.txt:1:", "space after the quote", "'x'"),
        LIST,
        listed('"add_in0.raw"x add_in1.raw\n'),
    ),
    Case("an empty name", 21, ("list.txt:1:", "file name", "empty"), LIST, listed('"" add_in1.raw\n')),
    Case(
        "a tensor for a list",
        21,
        ("list.txt:1:", "NUL", "raw tensor"),
        LIST,
        listed(struct.pack("<6f", *range(6))),
    ),
]

INPUTS = [
    Case(
        "no input file",
        22,
        ("input 1 of inference 0", "'none.raw'", "No such file"),
        LIST,
        listed("add_in0.raw none.raw"),
    ),
    Case(
        "an input that is beside its list only",
        22,
        ("'only.raw'", "No such file", "working folder", "beside the list"),
        ("--input_list_path", "sub/list.txt"),
        lambda b: (
            b.write("sub/only.raw", b"x" * 24),
            b.write("sub/list.txt", "add_in0.raw only.raw\n"),
        ),
    ),
    Case(
        "an input that is a folder",
        22,
        ("input 0 of inference 0", "'.'", "found a folder"),
        LIST,
        listed(". add_in1.raw"),
    ),
    Case(
        "an input that is a device",
        22,
        ("'/dev/zero'", "pipe or device"),
        LIST,
        listed("/dev/zero add_in1.raw"),
    ),
    Case(
        "a bad input of the last inference",
        22,
        ("input 1 of inference 2", "'none.raw'"),
        LIST,
        listed("add_in0.raw add_in1.raw\n" * 2 + "add_in0.raw none.raw\n"),
    ),
    Case(
        "an empty input",
        23,
        ("input 0 of inference 0", "expected 24 bytes for Float[2, 3], found 0"),
        LIST,
        lambda b: (b.write("e.raw", b""), listed("e.raw add_in1.raw")(b)),
    ),
    Case(
        "an input a byte short",
        23,
        ("'s.raw'", "expected 24 bytes", "found 23"),
        LIST,
        lambda b: (b.write("s.raw", b"x" * 23), listed("add_in0.raw s.raw")(b)),
    ),
    Case(
        "an input a byte long",
        23,
        ("'s.raw'", "expected 24 bytes", "found 25"),
        LIST,
        lambda b: (b.write("s.raw", b"x" * 25), listed("add_in0.raw s.raw")(b)),
    ),
    Case(
        "a dynamic input without its shape",
        23,
        ("expected 96 bytes for Float[8, 3], found 48", "--input_shape_path"),
        program="dynamic",
    ),
]

SHAPE_FILES = [
    Case(
        "no shape file",
        24,
        ("--input_shape_path", "'none.txt'", "No such file"),
        ("--input_shape_path", "none.txt"),
    ),
    Case(
        "words for a shape",
        24,
        ("shapes.txt:2:", "sizes like", "'four, 3'"),
        SHAPES,
        shapes("4, 3\nfour, 3\n"),
        "dynamic",
    ),
    Case("a negative size", 24, ("shapes.txt:1:", "'-4, 3'"), SHAPES, shapes("-4, 3\n4, 3\n"), "dynamic"),
    Case(
        "a size beyond 32 bits",
        24,
        ("shapes.txt:1:", "'4294967297, 3'"),
        SHAPES,
        shapes("4294967297, 3\n4, 3\n"),
        "dynamic",
    ),
    Case("a missing bracket", 24, ("shapes.txt:1:", "'(4, 3'"), SHAPES, shapes("(4, 3\n4, 3\n"), "dynamic"),
    Case(
        "too few shapes",
        24,
        ("'shapes.txt'", "expected 2 shapes", "found 1"),
        SHAPES,
        shapes("4, 3\n"),
        "dynamic",
    ),
    Case(
        "a shape of another rank",
        24,
        ("shapes.txt:2:", "within Float[8, 3]", "found [12]"),
        SHAPES,
        shapes("4, 3\n12\n"),
        "dynamic",
    ),
    Case(
        "a shape beyond the bound",
        24,
        ("shapes.txt:1:", "within Float[8, 3]", "found [9, 3]"),
        SHAPES,
        shapes("9, 3\n9, 3\n"),
        "dynamic",
    ),
    Case(
        "a file of another shape",
        23,
        ("expected 24 bytes for Float[2, 3], found 48",),
        SHAPES,
        shapes("2, 3\n2, 3\n"),
        "dynamic",
    ),
    Case(
        "another shape where it is fixed",
        24,
        ("input 0", "takes Float[2, 3]", "refused [1, 3]"),
        (*LIST, *SHAPES),
        lambda b: (b.write("s.raw", b"x" * 12), listed("s.raw s.raw")(b), shapes("1, 3\n1, 3\n")(b)),
    ),
    Case(
        "too few output shapes",
        24,
        ("--output_shape_path", "expected 2 shapes", "found 1"),
        ("--output_shape_path", "shapes.txt"),
        shapes("2, 3\n"),
    ),
    Case(
        "an output shape beyond the bound",
        24,
        ("shapes.txt:1:", "within Float[2, 3]", "found [3, 3]"),
        ("--output_shape_path", "shapes.txt"),
        shapes("3, 3\n2, 3\n"),
    ),
]

OUTPUTS = [
    Case(
        "a file for the output folder",
        30,
        ("output folder 'add.txt'", "found a file"),
        ("--output_folder_path", "add.txt"),
    ),
    Case(
        "an output folder in none",
        30,
        ("output folder 'no/where'", "No such file"),
        ("--output_folder_path", "no/where"),
    ),
    Case("an empty output folder", 30, ("output folder ''",), ("--output_folder_path=",)),
    Case(
        "an output folder below a device",
        30,
        ("'/dev/null/out'", "Not a directory"),
        ("--output_folder_path", "/dev/null/out"),
    ),
    Case(
        "a profile in no folder",
        30,
        ("--etdump_path", "'no/etdump'", "its folder", "No such file"),
        ("--etdump_path", "no/etdump"),
    ),
    Case("metrics in no folder", 30, ("--metrics_path", "'no/m.json'"), ("--metrics_path", "no/m.json")),
    Case(
        "a folder for the metrics", 30, ("--metrics_path", "'.'", "found a folder"), ("--metrics_path", ".")
    ),
    Case(
        "a mean time in no folder",
        30,
        ("--performance_output_path", "'no/t'"),
        ("--performance_output_path", "no/t"),
    ),
    Case(
        "recorded outputs in no folder",
        30,
        ("--debug_output_path", "'no/d'"),
        ("--dump_intermediate_outputs", "--debug_output_path", "no/d"),
    ),
    Case(
        "an output's name that is too long", 30, ("File name too long",), ("--output_folder_path", "o" * 300)
    ),
    Case("a disk that is full", 30, ("output 0", "'out/output_0_0.raw'", "File too large"), limit=10),
    Case(
        "a buffer that is too small",
        31,
        ("--debug_buffer_size", "at least", "found 8"),
        ("--dump_intermediate_outputs", "--debug_buffer_size", "8"),
    ),
]

INFERENCES = [
    Case(
        "an inference that fails",
        42,
        ("method forward failed", "InvalidArgument", "aten::embedding.out"),
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
    for part in case.says:
        assert part in ran.err
    written = {name for name in bench.files() - before if not (case.code == 31 and name.endswith(".raw"))}
    assert written == set()
