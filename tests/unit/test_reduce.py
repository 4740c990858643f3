"""The search for the smallest program that still shows a fault, over real graphs and an oracle of our own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ci.lanes.onnx.pieces import OnnxPieces
from ci.lanes.onnx.reproducer import HTP, HowCompiled, ids_of, reproducer
from ci.lanes.onnx.values import values_of
from ci.pipeline.models.arrays import Sample
from ci.pipeline.models.pieces import NotAPiece
from ci.pipeline.models.simple_values import FORMS, simple, source_of
from ci.pipeline.precision import precision_named
from ci.pipeline.reduce import Condition, PieceSearch, Reduced, Subgraph
from ci.pipeline.reduction import Reduction, reduced
from ci.pipeline.reproducer import MOST_LINES, Reproducer, said
from ci.pipeline.trial import Outcome
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.manifest import soc_named

OPERATORS = 50
WRONG, RIGHT = Outcome(figures={"sqnr_db": 3.0}), Outcome(figures={"sqnr_db": 60.0})


def chain(path: Path) -> OnnxPieces:
    """50 operators in a row, every fourth a MatMul with weights."""
    generator, nodes, weights, name = np.random.default_rng(0), [], [], "x"
    for index in range(OPERATORS):
        kind, made = ("MatMul", "Relu", "Neg", "Tanh")[index % 4], f"/t/{index}"
        more = []
        if kind == "MatMul":
            more = [f"weight.{index}"]
            weights += [numpy_helper.from_array(generator.normal(0, 0.3, (8, 8)).astype("f4"), more[0])]
        nodes += [helper.make_node(kind, [name, *more], [made], name=f"n{index}")]
        name = made
    shape = [4, 8]
    values = [helper.make_tensor_value_info(end, 1, shape) for end in ("x", name)]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    samples = [{"x": generator.normal(0, 1, shape).astype("f4")} for _ in range(2)]
    return OnnxPieces(model, values_of(model, samples, path))


@pytest.fixture
def pieces(tmp_path: Path) -> OnnxPieces:
    return chain(tmp_path)


class Told(Reduction[onnx.ModelProto]):
    """Each piece is built and checked; a function says what becomes of it."""

    suffix = ".onnx"
    case: ClassVar[Any] = None
    versions: ClassVar = {}
    environment: ClassVar = {}

    def __init__(
        self, pieces: OnnxPieces, place: Path, outcome: Callable[[set[str]], Outcome | None]
    ) -> None:
        super().__init__("chain", pieces, place, 2)
        self.outcome, self.asked = outcome, list[set[str]]()

    def save(self, model: onnx.ModelProto, sample: Sample, path: Path) -> None:
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(path))

    def tried(self, folders: Sequence[Path], *, fresh: bool) -> list[Outcome | None]:
        self.asked += [
            {node.name for node in onnx.load(str(folder / "piece.onnx")).graph.node} for folder in folders
        ]
        return [self.outcome(names) for names in self.asked[-len(folders) :]]

    def outcomes_in(self, plan: object) -> list[Outcome | None]:
        raise AssertionError("a piece is looked at here, and not compiled")

    def reproducer(self, name: str, title: str, piece: Subgraph, condition: Condition) -> Reproducer:
        raise AssertionError("a search writes nothing")

    def operators_of(self, piece: Subgraph) -> list[str]:
        return [*piece.operators]


def found(
    pieces: OnnxPieces, place: Path, outcome: Callable[[set[str]], Outcome | None], when: str = "wrong"
) -> tuple[Reduced, Told]:
    work = Told(pieces, place, outcome)
    return reduced(work, Condition.of(when), 60, lambda line: None), work


def test_the_one_guilty_operator_of_fifty_is_found_in_few_programs(
    pieces: OnnxPieces, tmp_path: Path
) -> None:
    result, work = found(pieces, tmp_path, lambda names: WRONG if "n37" in names else RIGHT)
    assert result.piece.operators == ("n37",) and not result.flaky
    assert work.programs < OPERATORS


class OfValues(Told):
    """Wrong for what the second sample has before one operator, whatever else is compared with it."""

    def write(self, model: onnx.ModelProto, inputs: Sequence[Sample], folder: Path) -> None:
        super().write(model, inputs, folder)
        guilty = [node for node in model.graph.node if node.name == "n37"]
        before = [sample.get("x", sample.get("/t/36")) for sample in inputs] if guilty else []
        known = [self.pieces.samples[1][name] for name in ("x", "/t/36")]
        shown = any(np.array_equal(mine, one) for mine in before if mine is not None for one in known)
        (folder / "shown").write_text(str(int(shown)))

    def tried(self, folders: Sequence[Path], *, fresh: bool) -> list[Outcome | None]:
        return [WRONG if (folder / "shown").read_text() == "1" else RIGHT for folder in folders]


def test_what_one_sample_shows_is_shown_by_the_values_that_a_script_gets(
    pieces: OnnxPieces, tmp_path: Path
) -> None:
    work = OfValues(pieces, tmp_path, lambda names: None)
    result = reduced(work, Condition.of("wrong"), 60, lambda line: None)
    assert result.piece.operators == ("n37",)
    (source,) = [source for name, source in pieces.sources(result.piece).items() if name == "/t/36"]
    np.testing.assert_array_equal(eval(source, {"np": np}), pieces.samples[1]["/t/36"])


def test_two_operators_are_kept_where_both_are_needed(pieces: OnnxPieces, tmp_path: Path) -> None:
    result, _ = found(pieces, tmp_path, lambda names: WRONG if {"n3", "n41"} <= names else RIGHT)
    assert result.piece.operators == ("n3", "n41")


def test_an_oracle_that_answers_differently_is_told_as_flaky(pieces: OnnxPieces, tmp_path: Path) -> None:
    answers = iter([WRONG, RIGHT, WRONG, *[WRONG] * 500])
    result, _ = found(pieces, tmp_path, lambda names: next(answers))
    assert result.flaky and any("flaky" in line for line in result.in_words(Condition.of("wrong")))


def test_what_is_no_program_is_passed_over(pieces: OnnxPieces, tmp_path: Path) -> None:
    """Here, whatever has not an operator and the one behind it."""

    def outcome(names: set[str]) -> Outcome | None:
        return (WRONG if "n8" in names else RIGHT) if {"n7", "n9"} <= names else None

    result, _ = found(pieces, tmp_path, outcome)
    assert result.piece.operators == ("n7", "n8", "n9")


def test_only_what_the_oracle_has_seen_failing_is_returned(pieces: OnnxPieces, tmp_path: Path) -> None:
    """Whatever it says: here, by chance."""
    for seed in range(5):
        generator = np.random.default_rng(seed)
        shown = list[frozenset[str]]()

        def outcome(
            names: set[str], generator: np.random.Generator = generator, shown: list[frozenset[str]] = shown
        ) -> Outcome:
            wrong = len(names) == OPERATORS or generator.random() < 0.3
            shown.extend([frozenset(names)] if wrong else [])
            return WRONG if wrong else RIGHT

        result, _ = found(pieces, tmp_path, outcome)
        assert frozenset(result.piece.operators) in shown


def test_a_piece_that_dies_of_something_else_does_not_show_it(pieces: OnnxPieces, tmp_path: Path) -> None:
    def outcome(names: set[str]) -> Outcome:
        if {"n5", "n6"} <= names:
            return Outcome(error="compile: IndexError: tuple index out of range (node n6)")
        return Outcome(error="compile: KeyError: 'n5'")

    result, _ = found(pieces, tmp_path, outcome, "dies")
    assert result.piece.operators == ("n5", "n6")


def test_a_model_that_does_not_show_it_is_an_error_that_says_what_it_does(
    pieces: OnnxPieces, tmp_path: Path
) -> None:
    with pytest.raises(CheckFailed, match=r"60\.0 dB"):
        found(pieces, tmp_path, lambda names: RIGHT)


def test_a_time_that_is_over_ends_with_the_smallest_piece_so_far(pieces: OnnxPieces, tmp_path: Path) -> None:
    work = Told(pieces, tmp_path, lambda names: WRONG)
    result = reduced(work, Condition.of("wrong"), -1, lambda line: None)
    assert result.late and result.piece == pieces.whole


def test_all_programs_together_take_no_longer_than_the_time_that_is_given(
    pieces: OnnxPieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole model and both repeats included."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def outcome(names: set[str]) -> Outcome:
        clock[0] += 60
        return WRONG if {"n40", "n41"} <= names else RIGHT

    work = Told(pieces, tmp_path, outcome)
    work.at_once = 1
    result = reduced(work, Condition.of("wrong"), 600, lambda line: None)
    assert result.late and 480 <= clock[0] <= 600
    assert len(result.piece.operators) < OPERATORS
    assert any("time was up" in line for line in result.in_words(Condition.of("wrong")))


def test_sizes_and_values_become_small_as_long_as_it_is_shown(pieces: OnnxPieces) -> None:
    """It needs the MatMul, with rows of 4 at least."""

    def oracle(asked: Sequence[Subgraph]) -> list[bool]:
        answers = []
        for piece in asked:
            try:
                model, (sample, *_) = pieces.built(piece)
            except NotAPiece:
                answers += [False]
                continue
            (array,) = sample.values()
            answers += [array.shape[-1] >= 4 and any(node.op_type == "MatMul" for node in model.graph.node)]
        return answers

    search, tried = PieceSearch(oracle), set[tuple[int, int]]()
    piece = search.simplest(Subgraph(("n4",)), lambda piece: pieces.smaller(piece, tried), "sizes")
    piece = search.simplest(piece, pieces.simpler, "values")
    model, (sample,) = pieces.built(piece)
    (array,) = sample.values()
    assert array.shape == (1, 4) and all(pieces.sources(piece).values())
    assert numpy_helper.to_array(model.graph.initializer[0]).shape == (4, 4)


def test_a_piece_computes_what_the_whole_model_computes(pieces: OnnxPieces, tmp_path: Path) -> None:
    from ci.lanes.onnx.provider import on_cpu

    model, inputs = pieces.built(Subgraph(("n3", "n8", "n9")))
    onnx.save(model, str(tmp_path / "piece.onnx"))
    for sample, whole in zip(on_cpu(tmp_path / "piece.onnx", inputs), pieces.samples, strict=True):
        for name, array in sample.items():
            np.testing.assert_allclose(array, whole[name], rtol=1e-5)
    assert {*sample} == {"/t/3", "/t/9"}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_a_script_makes_the_values_that_the_oracle_saw(form: str, dtype: str) -> None:
    array = (np.random.default_rng(1).normal(3, 1, (2, 3)) * 2).astype(dtype)
    made = simple([array], form)
    assert made.dtype == array.dtype and made.shape == array.shape
    np.testing.assert_array_equal(made, eval(source_of([array], form), {"np": np}))


def how(precision: str) -> HowCompiled:
    return HowCompiled(precision_named(precision), False, HTP | ids_of(soc_named("SM8650")), sized=True)


@pytest.mark.parametrize("when", ["wrong", "dies", "cpu", "ddr>1MB", "size > 20 kB"])
def test_a_reproducer_is_short_and_is_python(pieces: OnnxPieces, when: str) -> None:
    piece = Subgraph(("n3", "n4")).valued(["/t/2", "weight.4"], "linspace")
    model, _ = pieces.built(piece)
    script = reproducer("short", 'a "title"', "onnx", model, pieces.sources(piece), how("16a8w"))
    text = script.text(Condition.of(when), WRONG)
    assert len(text.splitlines()) <= MOST_LINES
    compile(text, "short.py", "exec")


def test_a_reproducer_of_many_operators_reads_the_model_beside_it(pieces: OnnxPieces) -> None:
    piece = pieces.whole.valued(["x"], "linspace")
    model, _ = pieces.built(piece)
    script = reproducer("long", "title", "onnx", model, pieces.sources(piece), how("fp16"))
    text = script.text(Condition.of("wrong"), WRONG)
    assert len(text.splitlines()) <= MOST_LINES and "long.onnx" in text


COMPILE = "the compiler crashes on aten.scatter_add.default at {}/net.py:{} `y.scatter_add(0, i, x)`"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (COMPILE.format("models", 7), COMPILE.format("/tmp/repaired", 12), True),
        (COMPILE.format("models", 7), COMPILE.format("models", 7).replace("scatter_add", "sort"), False),
        ("IndexError: list index (a_1)", "IndexError: list index (b_2)", True),
        ("compile: RuntimeError: no kernel for it", "run: RuntimeError: the file is not there", False),
        ("the worker ended with SIGSEGV", "the worker ended with SIGABRT", False),
        ("it dies", "", False),
    ],
)
def test_two_deaths_are_alike_by_what_they_die_of_and_not_by_paths(one: str, other: str, alike: bool) -> None:
    assert Outcome(error=one).same_kind_as(Outcome(error=other)) is alike


@pytest.mark.parametrize(("rule", "wrong"), [("reference-not-finite", False), ("not-finite", True)])
def test_where_the_model_itself_has_no_numbers_nothing_is_wrong(rule: str, wrong: bool) -> None:
    outcome = Outcome.not_compared(rule, "no numbers", costs={"size": 1.0})
    assert Condition.of("wrong").shown_by(outcome, outcome) is wrong


@pytest.mark.parametrize(
    ("when", "run", "word"),
    [
        ("wrong", ["print('SQNR', 3.0)"], "still"),
        ("wrong", ["print('SQNR', 50.0)"], "gone"),
        ("wrong", ["raise ValueError('of another kind')"], "changed"),
        ("dies", ["raise IndexError('tuple index out of range')"], "still"),
        ("dies", ["pass"], "gone"),
        ("dies", ["raise KeyError('other')"], "changed"),
        ("dies", ["raise RuntimeError('Cannot open QNN library libQnnHtp.so')"], "changed"),
        ("cpu", ["print('CPU', 'aten.erf.default')"], "still"),
        ("cpu", ["print('CPU', 'executorch_call_delegate')"], "gone"),
        ("ddr>1MB", ["print('read_total_bytes=2000000')"], "still"),
        ("ddr>1MB", ["print('read_total_bytes=2000')"], "gone"),
        ("size>1kB", ["print('SIZE', 2000)"], "still"),
    ],
)
def test_a_reproducer_says_whether_it_is_still_there(
    tmp_path: Path, when: str, run: list[str], word: str
) -> None:
    outcome = Outcome(
        error="compile: IndexError: tuple index out of range" * (when == "dies"),
        figures={"sqnr_db": 3.0},
        on_cpu=("aten.erf.default",),
    )
    text = Reproducer("it", "title", "Python", (), ["NOTHING = 0"], (), run).text(Condition.of(when), outcome)
    (tmp_path / "it.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "it.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert said(done.stdout).split()[0] == word
    assert done.returncode == {"gone": 0, "still": 1, "changed": 2}[word]


@pytest.mark.parametrize("text", ["often", "ddr", "ddr<1MB", "ddr>1 parsec"])
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Condition.of(text)
