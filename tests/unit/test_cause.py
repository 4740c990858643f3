"""The cause of outputs that are not healthy, and the fixes that were tried on this program and help."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.explain.cause import Cause, add_suspects, cause_of, divergence_cause, scores_cause
from ci.explain.divergence import DivergenceResult
from ci.explain.explanation import explain_outcome, explain_products
from ci.explain.graph import FLOAT_MODEL
from ci.explain.losses import GroupScore, Scores
from ci.explain.operator_script import OperatorScript
from ci.explain.replay import BrokenStep, ReplayRequest, ReplayResult
from ci.explain.rewriting import Rewritten
from ci.explain.trials import MOST, Proofs, helps, try_fixes
from ci.explain.upstream_report import ReportRequest
from ci.lanes.executorch.model_options import ExecutorchOptions
from ci.models.compiler_errors import CompilerStep
from ci.one_model.model import OneModel
from ci.one_model.options import ModelOptions
from ci.one_model.product import CompilerDied, History, NoGraph, Outcome
from ci.suite.findings import is_of_chip
from ci.work import to_json
from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError
from provisioning.base.findings import Place
from provisioning.known_faults import NO_FIX, SuspectedFault
from tests.support.stand_in_lane import AT, DIFFERS, HELPS, POWER, RED, WRONG, StandInLane, green

SUSPECT = SuspectedFault("pad by less than nothing at net.py:7", "cut it", "negative-pad")


@pytest.mark.parametrize(
    ("kind", "figures", "of_chip"),
    [
        ("8a8w", {"sqnr_db": 3.0, "reference_sqnr_db": 3.1}, True),
        ("8a8w", {"sqnr_db": 3.0, "reference_sqnr_db": 60.0}, False),
        ("fp16", {"sqnr_db": 3.0}, True),
        # Of floats that is a warning.
        ("fp16", {"sqnr_db": 37.0}, True),
        ("fp16", {"sqnr_db": 39.0}, None),
        # No floor is missed, and the chip computes something else all the same.
        ("8a8w", {"sqnr_db": 15.0, "reference_sqnr_db": 15.1}, True),
        ("16a8w", {"sqnr_db": 26.8, "reference_sqnr_db": 26.8}, True),
        ("16a8w", {"sqnr_db": 33.0, "reference_sqnr_db": 34.0}, True),
        ("16a8w", {"sqnr_db": 15.7, "reference_sqnr_db": 42.4}, None),
        ("8a8w", {"sqnr_db": 40.0, "reference_sqnr_db": 60.0}, None),
        ("8a8w", {"sqnr_db": 40.0, "reference_sqnr_db": 60.0, "slice_sqnr_db": 3.0}, None),
        ("fp16", {"agreement": 0.5}, None),
        ("fp16", {}, None),
    ],
)
def test_what_is_searched_follows_the_figures(
    kind: str, figures: dict[str, float], of_chip: bool | None
) -> None:
    assert is_of_chip(figures, kind) is of_chip


def cuts(share: float, between: Sequence[str] = (), **more: Any) -> DivergenceResult:
    return replace(DIFFERS, first=replace(POWER, share=share, **more), between=tuple(between))


BETWEEN = ["relu", "linear_3"]


@pytest.mark.parametrize(
    ("result", "cause", "said", "goes_on"),
    [
        (cuts(0.9), True, ["aten.pow.Scalar at net.py:7", "90%"], False),
        # Others can have its fault.
        (cuts(0.2, alike=3), True, ["aten.pow.Scalar", "3 other places"], False),
        # It only rounds: nothing is wrong, if all of the model was searched.
        (cuts(0.6, sqnr_db=89.8, rounds=True), False, ["no operator is wrong", "60%"], False),
        (cuts(0.4, BETWEEN, rounds=True), False, ["40%"], True),
        # It is as exact as fp16 can be.
        (cuts(0.6, sqnr_db=66.0), False, ["no operator is wrong", "66.0 dB", "60%"], False),
        # All add a little.
        (cuts(0.1), False, [], False),
        (replace(cuts(0.9, BETWEEN), first=None), False, ["relu and linear_3"], True),
    ],
)
def test_the_cause_is_an_operator_whose_own_error_stands_out_and_is_no_rounding(
    result: DivergenceResult, cause: bool, said: list[str], goes_on: bool
) -> None:
    found = divergence_cause(result, "divergence net.py")
    assert ("the cause is" in found.words, bool(found.nodes), bool(found.place)) == (cause,) * 3
    assert all(words in found.words for words in said)
    assert ("no operator is wrong" in found.words) == ("no operator is wrong" in said)
    assert found.goes_on == ("divergence net.py" if goes_on else "")


def test_what_is_suspected_of_the_cause_is_said_behind_it() -> None:
    fault = SuspectedFault("pow is wrong", "exp", "power-of-a-number")
    found = divergence_cause(cuts(0.9, known=(fault,)), "divergence")
    assert found.describe().endswith("suspected: pow is wrong") and [*found.nodes] == ["pow_1"]


@pytest.mark.parametrize("between", [[], ["relu", "linear_3"]])
@pytest.mark.parametrize("share", [0.9, 0.1])
@pytest.mark.parametrize(
    ("reference", "faint", "said"),
    [(FLOAT_MODEL, 1e-8, True), (FLOAT_MODEL, None, False), ("the quantized model on the CPU", 1e-8, False)],
)
def test_what_is_too_small_for_fp16_is_said_of_an_operator_that_is_named(
    reference: str, faint: float | None, said: bool, share: float, between: list[str]
) -> None:
    found, other = (
        divergence_cause(replace(cuts(share, between, faint=value), reference=reference), "divergence")
        for value in (faint, None)
    )
    is_named = share > 0.5 or not between
    assert (found.words != other.words) is (said and is_named)


@pytest.mark.parametrize(("noise", "named"), [(0.08, True), (0.01, False)])
def test_quantizing_an_operator_is_the_cause_where_it_alone_loses_as_much(noise: float, named: bool) -> None:
    units = (
        GroupScore(**asdict(AT), nodes=(node,), size=1, reads={}, noise=(adds,))
        for node, adds in (("pow_1", noise), ("mul", 0.005))
    )
    found = scores_cause(Scores(tuple(units), (0.1,), 0))
    assert ("cause is quantizing aten.pow.Scalar" in found.words) is named is bool(found.nodes)
    assert not named or ("11.0 dB" in found.words and "10.0 dB" in found.words)


class Dies(StandInLane):
    def scores_of(self, *_: object) -> object:
        raise CheckFailed("the compiler dies", fix="")


def test_a_search_that_fails_is_no_cause_and_no_failure(tmp_path: Any) -> None:
    outcome = Outcome(figures={"sqnr_db": 3.0, "reference_sqnr_db": 60.0}, wrong=WRONG, of_chip=False)
    dying = Dies(tmp_path)
    program: Any = SimpleNamespace(run=SimpleNamespace(kind="8a8w"))
    assert cause_of(dying.lane, dying.model, program, replace(outcome, wrong=())) is None
    found = cause_of(dying.lane, dying.model, program, outcome)
    assert found and "not found: the compiler dies" in found.words and not found.nodes


@pytest.mark.parametrize(("between", "named"), [(["relu", "linear_3"], True), ([], False)])
def test_what_the_nodes_meet_is_suspected_where_the_time_ended_the_search(
    between: list[str], named: bool
) -> None:
    searched = divergence_cause(replace(cuts(0.9, between), first=None), "divergence net.py")
    found = add_suspects(searched, [SUSPECT])
    assert ("net.py:7" in found.describe()) is named and not found.nodes


def test_an_operator_that_was_found_needs_no_suspicion_of_others() -> None:
    found = add_suspects(divergence_cause(cuts(0.9), "divergence net.py"), [SUSPECT])
    assert found.nodes and not found.suspected


CAUSE = Cause("the cause is pow", ["pow_1"], Place.read(HELPS.source))


def proved(
    folder: Path,
    gives: Any,
    before: Outcome = RED,
    kind: type[StandInLane] = StandInLane,
    **more: Any,
) -> tuple[Proofs, StandInLane]:
    lane = kind(folder, gives=gives)
    model = lane.model.use_precision(more.get("precision", "16a8w"))
    return try_fixes(
        lane.lane, model, "SM8650", before, more.get("cause", CAUSE), more.get("seconds", 60.0)
    ), lane


def test_a_fix_has_the_figure_that_it_gave_and_is_of_the_place_that_was_found(tmp_path: Path) -> None:
    found, lane = proved(tmp_path, lambda model: green(44.4) if model.typed.endswith("/helps.pt2") else RED)
    assert len(found.helping) == 1 and "44.4 dB" in found.fix and "--only helps" in found.fix
    assert lane.asked == [None, ("helps",)] and len(found.helping) + len(found.failures) <= MOST


@pytest.mark.parametrize(
    ("compile_seconds", "most"), [(0.5, 5.0), (40.0, 240.0), (9000.0, 300.0)], ids=["small", "large", "huge"]
)
def test_a_trial_has_the_time_that_the_program_itself_took(
    tmp_path: Path, compile_seconds: float, most: float
) -> None:
    ends = list[float]()

    def gives(model: OneModel) -> Outcome:
        ends.append(model.work.until - time.monotonic())
        return RED

    before = replace(RED, costs={"cpu_seconds": compile_seconds})
    proved(tmp_path, gives, before, seconds=5.0)
    assert all(most - 3 < end <= most for end in ends) and ends


@pytest.mark.parametrize(("late", "tries"), [(0.0, True), (205.0, True), (215.0, False)])
def test_all_programs_of_a_command_together_have_the_longest_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: float, tries: bool
) -> None:
    """Else each chip of a large model would add five minutes to a search of 90 to 300 s."""
    ends = list[float]()

    def gives(model: OneModel) -> Outcome:
        ends.append(model.work.until - time.monotonic())
        return RED

    lane = StandInLane(tmp_path, gives=gives)
    monkeypatch.setattr("ci.explain.explanation.cause_of", lambda *_: CAUSE)
    large = replace(RED, costs={"cpu_seconds": 9000.0})
    program: Any = SimpleNamespace(soc="SM8650")
    explain_outcome(lane.lane, lane.model, program, large, (), time.monotonic() - late)
    assert bool(ends) is tries and all(end <= 210 - late for end in ends)


def test_a_rewrite_that_answers_the_suspected_fault_is_tried_though_it_begins_at_another_line(
    tmp_path: Path,
) -> None:
    fault, place = SuspectedFault("it is too small", "", "harms"), Place("net.py", 8)
    cause = Cause("the cause is rsqrt", ["rsqrt"], place, suspected=[fault])
    _, lane = proved(tmp_path, lambda model: RED, cause=cause)
    assert lane.asked == [None, ("harms",)]


FAULT = SuspectedFault("the norm is too small", "", "harms")


@pytest.mark.parametrize(
    "product",
    [
        Cause("the cause is matmul", ["matmul"], Place("net.py", 8)),
        Cause("matmul was not searched", suspected=[FAULT], goes_on="divergence"),
    ],
    ids=["named", "time ended the search"],
)
@pytest.mark.parametrize("restores", [True, False])
def test_an_operator_that_is_named_gives_way_to_a_known_fault_whose_rewrite_restores_the_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: Cause, restores: bool
) -> None:
    """What reads half of a value may seem to err by itself."""

    def gives(model: OneModel) -> Outcome:
        return green(60.0) if restores and "harms" in Path(model.typed).name else RED

    lane = StandInLane(tmp_path, gives=gives)
    monkeypatch.setattr("ci.explain.explanation.cause_of", lambda *_: product)
    program: Any = SimpleNamespace(soc="SM8650")
    until = time.monotonic() + 60
    outcome, cause = explain_outcome(lane.lane, lane.model, program, RED, (FAULT,), until)
    (wrong,) = outcome.wrong
    assert cause and ("matmul" in wrong.message) is not restores
    assert ("since the outputs are right without it" in wrong.message) is restores
    assert ("--only harms" in wrong.fix and "60.0 dB" in wrong.fix) is restores


def test_without_a_place_the_rewrites_of_what_is_suspected_are_tried_alone(tmp_path: Path) -> None:
    fault = SuspectedFault("it is too small", "", "harms")
    cause = Cause("the time is up", suspected=[fault], goes_on="divergence")
    _, lane = proved(tmp_path, lambda model: RED, cause=cause)
    assert lane.asked == [None, ("harms",)]


WRITTEN = 'def make():\n    return torch.einsum("ij,kj->ik", x, y)\n'


@pytest.mark.parametrize(("helped", "tried"), [(True, ["edit"]), (False, ["edit", "rewrite"])])
def test_an_edit_is_tried_as_it_will_be_typed_and_a_rewrite_of_the_graph_proves_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helped: bool, tried: list[str]
) -> None:
    (tmp_path / "net.py").write_text(WRITTEN)
    (tmp_path / "weights.txt").write_text("3")
    monkeypatch.chdir(tmp_path)
    code, asked = WRITTEN.splitlines()[1].strip(), list[str]()
    change = replace(HELPS, rules=("einsum-of-matrices",), source="net.py:2", code=code)

    class OfOneLine(StandInLane):
        def rewritten(self, model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
            return Rewritten([change], tmp_path / "r.pt2")

    def gives(model: OneModel) -> Outcome:
        if model.typed.endswith(".pt2"):
            asked.append("rewrite")
        elif model.precision == "16a8w":
            asked.append("edit")
            copy = Path(model.typed.rpartition(":")[0])
            assert "torch.matmul(x, y.T)" in copy.read_text() and "einsum" not in copy.read_text()
            assert (copy.parent / "weights.txt").read_text() == "3"
            return green(44.4) if helped else RED
        return RED

    found, _ = proved(
        tmp_path,
        gives,
        kind=OfOneLine,
        cause=Cause("the cause", ["einsum"], Place("net.py", 2)),
    )
    assert asked == tried and (tmp_path / "net.py").read_text() == WRITTEN
    assert (found.edit is not None) is helped and bool(found.helping) is helped


def test_the_figure_of_a_repair_is_that_of_the_fewest_rewrites_that_help_as_the_command_finds_them(
    tmp_path: Path,
) -> None:
    figures = {"helps-harms.pt2": 18.1, "helps.pt2": 42.6}
    found, _ = proved(tmp_path, lambda model: green(figures.get(Path(model.typed).name, 2.0)), cause=None)
    (first, *_) = found.helping
    assert "42.6 dB" in first and "--only helps --only harms" in first


def test_a_trial_gets_the_time_that_is_left_and_one_that_did_not_end_is_no_fix(tmp_path: Path) -> None:
    def gives(model: OneModel) -> Outcome:
        until = model.work.until
        assert until < time.monotonic() + 0.3
        time.sleep(max(until - time.monotonic(), 0) + 0.05)
        raise CheckFailed("no result after 0.2 s", fix="")

    found, _ = proved(tmp_path, gives, seconds=0.2)
    assert not (found.helping or found.failures) and not isinstance(found.fix, Fix)
    assert found.fix.startswith(NO_FIX) and "--only helps" in found.fix


def test_rewrites_that_help_together_are_a_fix_although_time_ends_the_search_for_fewer(
    tmp_path: Path,
) -> None:
    def gives(model: OneModel) -> Outcome:
        if Path(model.typed).name == "helps-harms.pt2":
            return green(42.6)
        raise CheckFailed("no result after 0.2 s", fix="")

    found, _ = proved(tmp_path, gives, cause=None)
    (first, *_) = found.helping
    assert "42.6 dB" in first and "--only helps --only harms" in first


@pytest.mark.parametrize(
    ("after", "before", "helping"),
    [
        (green(40), RED, True),
        (Outcome(figures={"sqnr_db": 5.0}, wrong=RED.wrong), RED, False),
        (Outcome(figures={"sqnr_db": 9.5}, wrong=RED.wrong), RED, True),
        (RED, Outcome("dies of aten.sort"), True),
        (Outcome("dies of aten.roll"), Outcome("dies of aten.sort"), False),
        (Outcome("/b/net.py: aten.sort dies"), Outcome("/a/net.py: aten.sort dies"), False),
    ],
)
def test_what_repairs_it_or_comes_clearly_nearer_helps(
    after: Outcome, before: Outcome, helping: bool
) -> None:
    assert helps(after, before) is helping


def test_a_trial_that_this_machine_cannot_do_is_said_and_the_next_one_is_tried(tmp_path: Path) -> None:
    def gives(model: OneModel) -> Outcome:
        if model.typed.endswith(".pt2"):
            raise EnvironmentLacking("the disk is full", fix="")
        return green(44.4) if model.precision == "16a8w" else RED

    found, _ = proved(tmp_path, gives, precision="8a8w")
    assert "the disk is full" in found.failures[0] and "44.4 dB" in found.fix


class DoesNotExport(StandInLane):
    def rewritten(self, *_: object, **__: object) -> Any:
        raise CheckFailed("the factory fails", fix="")


def test_of_a_model_that_does_not_export_nothing_is_tried_and_without_time_neither(tmp_path: Path) -> None:
    assert proved(tmp_path, lambda model: green(50), kind=DoesNotExport)[0].fix == NO_FIX
    assert proved(tmp_path, lambda model: green(50), seconds=-1.0)[0].fix == NO_FIX


@pytest.mark.parametrize("error", [NoGraph("raises", fix="x"), CheckFailed("dies", fix="x")])
def test_of_a_model_without_a_graph_no_fix_is_tried(error: ToolkitError, tmp_path: Path) -> None:
    lane = StandInLane(tmp_path, gives=lambda model: green(50))
    model, program = (
        lane.model.use(ModelOptions(precisions=("16a8w",))),
        SimpleNamespace(name="net", soc="SM8650"),
    )
    with pytest.raises(type(error)):
        explain_products(lane.lane, model, [program], [error], History())  # type: ignore[list-item]
    assert bool(lane.asked) == (not isinstance(error, NoGraph))


RAISED = BrokenStep("aten.pow.Scalar", "", "net.py:7", "", "pow", "raises", CompilerStep("Fold", "fold.py:3"))


class Searches(StandInLane):
    def __init__(self, folder: Path, gives: Callable[[OneModel], Outcome]) -> None:
        super().__init__(folder, gives=gives)
        self.replays, self.reports = 0, list[ReportRequest]()

    def replay(self, model: OneModel, program: Any, request: ReplayRequest) -> ReplayResult:
        self.replays += 1
        return super().replay(model, program, request)

    def report_of(self, model: OneModel, program: Any, request: ReportRequest) -> OperatorScript:
        self.reports.append(request)
        return OperatorScript("a script", "still there: KeyError")


def died(
    folder: Path, gives: Callable[[OneModel], Outcome], report: str | None = None
) -> tuple[CompilerDied, Searches]:
    lane = Searches(folder, gives)
    path = folder / report if report else None
    options = ModelOptions(precisions=("16a8w",), report_upstream=path)
    error = CompilerDied("KeyError", fix=NO_FIX)
    error.step = to_json(RAISED)
    program: Any = SimpleNamespace(name="net", soc="SM8650", run=SimpleNamespace(kind="16a8w"))
    with pytest.raises(CompilerDied) as raised:
        explain_products(lane.lane, lane.model.use(options), [program], [error], History())
    return raised.value, lane


def test_where_a_step_raised_a_fix_there_is_tried_before_the_steps_are_replayed(tmp_path: Path) -> None:
    error, lane = died(tmp_path, lambda model: green(50) if model.typed.endswith("helps.pt2") else RED)
    assert lane.replays == 0 and "helps" in error.fix and "50.0 dB" in error.fix
    error, lane = died(tmp_path, lambda _: Outcome("KeyError"))
    assert lane.replays == 1


def test_a_report_for_upstream_is_written_if_it_is_wanted(tmp_path: Path) -> None:
    _, lane = died(tmp_path, lambda _: green(50))
    assert lane.reports == []
    _, lane = died(tmp_path, lambda _: green(50), "fault.py")
    (request,) = lane.reports
    assert request.dies and request.lines[0] == "net.py:7" and request.shows == 'fold.py", line 3,'
    assert (tmp_path / "fault.py").read_text() == "a script"


class Folds(StandInLane):
    def rewritten(self, model: OneModel, rules: tuple[str, ...] | None = None) -> Rewritten:
        made = super().rewritten(model, rules)
        places = [replace(change, rewrite="constants-folded") for change in made.places]
        return replace(made, changes=places)


def test_a_constant_that_is_computed_is_folded_by_compile_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def gives(model: OneModel) -> Outcome:
        options = model.options
        return green(71) if isinstance(options, ExecutorchOptions) and options.fold_constants else RED

    lane = Folds(tmp_path, gives=gives)
    model = lane.model.use(ExecutorchOptions(precisions=("fp16",)))
    found = try_fixes(lane.lane, model, "SM8650", RED, None)
    assert "--fold-constants" in found.fix and "71.0 dB" in found.fix
    folding = lane.model.use(ExecutorchOptions(precisions=("fp16",), fold_constants=True))
    capsys.readouterr()
    try_fixes(lane.lane, folding, "SM8650", RED, None)
    # What was just typed is not tried again.
    assert "--precision fp16 --fold-constants" not in capsys.readouterr().err


def test_a_fix_may_begin_at_a_line_beside_a_cause_that_has_none(tmp_path: Path) -> None:
    lane = StandInLane(tmp_path, gives=lambda model: green(50) if model.typed.endswith(".pt2") else RED)
    beside = Cause("a step", ("dequantize",), lines=["net.py:7"], in_compiler=True)
    assert "--only helps" in try_fixes(lane.lane, lane.model, "SM8650", RED, beside).fix
    elsewhere = replace(beside, lines=["net.py:8"])
    assert try_fixes(lane.lane, lane.model, "SM8650", RED, elsewhere).fix == NO_FIX
