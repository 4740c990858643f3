"""Is a compiled language model taken for float's only where it is, and is the layer named where it is not?"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.lanes.llm import worker as llm_worker
from ci.lanes.llm.orders import MeasuredProgram, PartDistances, Rounded, Trained, TrainOrder, Window
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.lanes.llm.verdicts import (
    FIXES,
    READER_NAMES,
    WINDOWS,
    Bounds,
    Figure,
    Judgement,
    PartRow,
    cause_of,
    culprit,
    figure_problems,
    figures_of,
    findings_of,
    misses,
    model_findings,
    part_row,
    window_of,
)
from ci.work import Failure, InTrouble, Result
from ci.work.child import reporting
from ci.work.plain import read, to_json
from provisioning.base.settings import ROOT

PERFECT = {"top1": 1.0, "perplexity_ratio": 1.0, "divergence": 0.0, "divergence_99": 0.0}
DIVERGENCES = ("divergence", "divergence_99")
PLACES = 127
"""Of a window that fills a context of 128."""


def reading(divergence: float = 0.0, share: float = 1.0, loss: float = 1.0) -> list[Window]:
    """Windows as a worker hands them over: all places alike, but for a share of top-1. Float loses `loss`."""
    same = [place < round(share * PLACES) for place in range(PLACES)]
    return [Window([loss] * PLACES, [loss] * PLACES, [divergence] * PLACES, same)] * 8


def part(number: int, kind: str, htp: float, cpu: float | None = None) -> PartDistances:
    on_cpu = None if cpu is None else {"hidden_1": cpu}
    return PartDistances(number, kind, (number, number), {"hidden_1": htp}, on_cpu)


def measured(
    found: Mapping[str, Sequence[Window]],
    rounding: Sequence[Window],
    kept: Sequence[float] = (24.0, 24.0),
    parts: Sequence[PartDistances] = (),
) -> MeasuredProgram:
    """Of a program of two parts: what its readers found, and what rounding alone costs each and leaves."""
    noise = {name: list(rounding) for name in (WINDOWS, "prefill_genie", "decode_genie")}
    rounded = Rounded(noise, [{"hidden_1": db} for db in kept])
    return MeasuredProgram(10, {name: list(row) for name, row in found.items()}, rounded, list(parts))


class TestFigures:
    def test_they_are_what_the_formulas_say(self) -> None:
        """Of two words: float finds both equal, and ours has probabilities of 1/4 and 3/4."""
        window = window_of(np.log([[0.25, 0.75]]), np.log([[0.5, 0.5]]), [0])
        kl = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
        assert [*window.ours, *window.theirs, *window.divergence] == pytest.approx(
            [math.log(4), math.log(2), kl]
        )
        found = {name: figure.value for name, figure in figures_of([window] * 2).items()}
        expected = {"top1": 1.0, "perplexity_ratio": 2.0, "divergence": kl, "divergence_99": kl}
        assert found == pytest.approx(expected)

    def test_neither_the_level_of_logits_nor_the_order_of_words_changes_them(self) -> None:
        generator = np.random.default_rng(2)
        reference = generator.standard_normal((40, 16)) * 3
        logits, order = reference + generator.standard_normal((40, 16)), generator.permutation(16)
        following = generator.integers(0, 16, 40)
        window = window_of(logits, reference, following.tolist())
        moved = window_of(logits[:, order] + 50, reference[:, order] - 9, order.argsort()[following].tolist())
        assert moved.same == window.same and not all(window.same)
        for name in ("ours", "theirs", "divergence"):
            assert getattr(moved, name) == pytest.approx(getattr(window, name))

    def test_an_error_is_that_of_the_mean_of_windows(self) -> None:
        """s / sqrt(n), which bootstrapping estimates."""
        levels = np.random.default_rng(3).uniform(0, 1, 64)
        windows = [
            replace(window, divergence=[level] * PLACES)
            for window, level in zip(reading() * 8, levels, strict=True)
        ]
        figure = figures_of(windows)["divergence"]
        assert figure.value == pytest.approx(levels.mean())
        assert figure.error == pytest.approx(levels.std() / 8, rel=0.2)

    def test_the_quantile_is_that_of_all_places(self) -> None:
        window = replace(reading()[0], divergence=[float(place) for place in range(PLACES)])
        assert figures_of([window] * 2)["divergence_99"].value == pytest.approx(0.99 * (PLACES - 1), abs=1)

    def test_what_is_not_a_number_misses_every_limit(self) -> None:
        reference = np.random.default_rng(2).standard_normal((40, 16))
        # argmax gives the first place of what is no number.
        reference[:, 0] = 9.0
        broken = window_of(np.full((40, 16), np.nan), reference, [0] * 40)
        limits = {"top1": 0.1, "perplexity_ratio": 9.0, "divergence": 9.0, "divergence_99": 9.0}
        assert len(misses(figures_of([broken, broken]), limits)) == 4

    def test_a_choice_as_good_as_floats_own_is_another_one_unless_float_finds_both_equal(self) -> None:
        reference = np.tile(np.array([3.0, 2.9, 0.0]), (40, 1))
        found = reference.copy()
        found[:10] = [2.9, 3.0, 0.0]
        assert figures_of([window_of(found, reference, [0] * 40)] * 2)["top1"].value == 0.75
        reference[:, 1] = 3.0
        assert figures_of([window_of(found, reference, [0] * 40)] * 2)["top1"].value == 1


@pytest.mark.parametrize("reader", READER_NAMES)
@pytest.mark.parametrize(
    ("precision", "figure", "cost", "limit"),
    [
        ("fp16", "top1", (1.0, 0.0), 0.98),
        ("fp16", "top1", (0.99, 0.001), 0.957),
        ("fp16", "perplexity_ratio", (1.1, 0.1), 1.005),
        ("fp16", "divergence", (1e-5, 0.0), 1e-4),
        ("fp16", "divergence", (1e-6, 1.0), 1.6e-5),
        ("fp16", "divergence_99", (1e-4, 0.0), 1e-3),
        ("fp16", "divergence_99", (1e-5, 1.0), 1.6e-4),
        ("16a8w", "top1", (1.0, 0.0), 0.9),
        ("16a8w", "top1", (0.9, 0.01), 0.845),
        ("16a8w", "perplexity_ratio", (1.1, 0.1), 1.05),
        ("16a8w", "divergence", (0.01, 0.001), 0.0155),
        ("16a8w", "divergence", (0.0, 0.0), 0.001),
        ("16a8w", "divergence", (0.2, 0.0), 0.05),
        ("16a8w", "divergence_99", (0.2, 0.01), 0.28),
        ("16a8w", "divergence_99", (0.0, 0.0), 0.005),
        ("16a8w", "divergence_99", (1.0, 0.0), 0.5),
        *[
            (precision, figure, (cost, 0.0), limit)
            for precision in ("16a4w", "8a8w")
            for figure, cost, limit in (
                ("top1", 1.0, 0.75),
                ("perplexity_ratio", 1.0, 1.2),
                ("divergence", 1.0, 0.15),
                ("divergence_99", 2.0, 1.5),
            )
        ],
    ],
)
def test_a_figure_fails_just_beyond_its_limit(
    reader: str, precision: str, figure: str, cost: tuple[float, float], limit: float
) -> None:
    """By docs/llm.md: the precision's limit, or what rounding alone costs the places that this reader reads;
    three standard errors beyond it are allowed, but no divergence above twice its limit, unless windows are
    single places."""
    perfect = {name: Figure(value, 0.0) for name, value in PERFECT.items()}
    own = reader if reader.endswith("_genie") else WINDOWS
    costs = dict.fromkeys((WINDOWS, "prefill_genie", "decode_genie"), perfect)
    bounds = Bounds(precision, {**costs, own: {**perfect, figure: Figure(*cost)}}, [], {})
    worse = -1 if figure == "top1" else 1

    def fails(times: float, error: float = 0.0) -> bool:
        found = {**perfect, figure: Figure(limit + worse * times * limit, error)}
        return bool(list(figure_problems({reader: found}, bounds)))

    assert not fails(-0.001) and fails(0.001)
    assert not fails(0.298, error=limit / 10) and fails(0.302, error=limit / 10)
    twice = figure in DIVERGENCES and reader != "prefill_genie"
    assert not fails(0.99, error=limit) and fails(1.01, error=limit) == twice


@pytest.mark.parametrize("figure", PERFECT)
def test_the_users_own_limit_is_in_place_of_ours_and_is_itself_allowed(figure: str) -> None:
    perfect = {name: Figure(value, 0.0) for name, value in PERFECT.items()}
    bounds = Bounds("fp16", dict.fromkeys((WINDOWS,), perfect), [], {figure: 0.4})
    for direction, wrong in ((0.0, figure == "top1"), (0.4, False), (1.0, figure != "top1")):
        found = {**perfect, figure: Figure(float(np.nextafter(0.4, direction)), 0.0)}
        assert bool(bounds.missed("decode_htp", found)) is wrong


@pytest.mark.parametrize(
    ("precision", "kept", "cpu", "least", "cause"),
    [
        ("fp16", 52.0, None, 40.0, "halves"),
        ("fp16", 60.0, None, 45.0, "halves"),
        ("16a8w", 30.0, 31.0, 26.0, "lowering"),
        ("16a8w", 30.0, 40.0, 34.0, "lowering"),
        ("16a8w", 30.0, 26.0, 26.0, "lowering"),
        ("16a8w", 30.0, 25.9, 26.0, "graph"),
        ("16a4w", 5.0, 5.0, 1.0, "lowering"),
        ("8a8w", 5.0, 0.9, 1.0, "graph"),
    ],
)
def test_a_part_is_wrong_just_below_what_rounding_and_the_cpu_leave(
    precision: str, kept: float, cpu: float | None, least: float, cause: str
) -> None:
    """12 dB less than rounding in fp16, where 45 are enough; else 4 dB less than rounding, 6 than the CPU."""
    bounds = Bounds(precision, {}, [{"hidden_1": 99.0}, {"hidden_1": kept}], {})

    def row(htp: float) -> PartRow:
        return part_row(part(1, "decode", htp, cpu), bounds)

    assert (row(least).cause, row(least - 0.01).cause) == ("", cause)
    assert row(least).least_db == pytest.approx(least) and not culprit([row(least)])
    assert "decode_1, layers 1 to 1: hidden_1" in culprit([row(least), row(least - 0.01), row(-99.0)])


def test_of_a_part_the_output_nearest_to_its_limit_is_named() -> None:
    bounds = Bounds("fp16", {}, [{"hidden_2": 50.0, "past_key_1_out": 30.0}], {})
    row = part_row(PartDistances(0, "prefill", (0, 1), {"hidden_2": 40.0, "past_key_1_out": 19.0}), bounds)
    assert (row.output, row.db, row.least_db) == ("past_key_1_out", 19.0, 18.0)


@pytest.mark.parametrize(
    ("cause", "precision", "found"),
    [
        ("graph", "16a8w", {"parts": [part(1, "prefill", 5.0, 5.0)], "rounding": reading(1.0)}),
        ("lowering", "16a8w", {"parts": [part(1, "prefill", 19.0, 40.0)]}),
        ("halves", "fp16", {"parts": [part(1, "prefill", 26.0)], "kept": (40.0, 40.0)}),
        ("halves", "fp16", {"read": {"decode_htp": reading(0.08)}}),
        ("rounding", "16a8w", {"read": {"decode_htp": reading(0.08), "decode_genie": reading(0.2)}}),
        ("genie", "16a8w", {"read": {"decode_htp": reading(), "decode_genie": reading(0.2)}}),
    ],
)
def test_what_to_do_follows_from_what_is_wrong(cause: str, precision: str, found: dict[str, Any]) -> None:
    """Other text to calibrate by repairs no graph, and a graph that is right on the CPU is right."""
    program = measured(**{"found": found.pop("read", {}), "rounding": reading(0.06), **found})
    judgement = Judgement.of(precision, program, {})
    assert judgement.problems and judgement.fix == FIXES[cause]


@pytest.mark.parametrize(("share", "warned"), [(0.89, True), (0.91, False)])
def test_what_rounding_alone_changes_is_warned_of(share: float, warned: bool) -> None:
    judgement = Judgement.of("16a8w", measured({}, reading(0.1, share)), {})
    assert bool(judgement.bounds.warning) is warned and not judgement.problems


DRAWN = [
    json.loads(line)
    for line in Path(__file__).with_name("drawn_checkpoints.jsonl").read_text(encoding="utf-8").splitlines()
]
"""What was measured of checkpoints that were drawn by chance, each compiled right and with a fault planted:
limits are tried without another run."""


class TestDrawnCheckpoints:
    def judged(self, line: Mapping[str, Any]) -> tuple[str, list[str], str]:
        """The layers that today's limits name, all that they say, and the reason."""

        def figures(readers: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Figure]]:
            return {name: {key: Figure(*row[key]) for key in PERFECT} for name, row in readers.items()}

        bounds = Bounds(line["precision"], figures(line["rounding"]), line["rounded_parts"], {})
        rows = [part_row(read(PartDistances, distances), bounds) for distances in line["parts"]]
        found = figures(line["read"])
        named = culprit(rows)
        return named, [*filter(None, [named]), *figure_problems(found, bounds)], cause_of(rows, found, bounds)

    @pytest.mark.parametrize(
        ("chose_limits", "expected"),
        [(True, "0 of 8 | 1 of 5 | 4 of 4"), (False, "0 of 10 | 1 of 10 | 9 of 9")],
    )
    def test_they_are_judged_right_as_often_as_the_page_says(self, chose_limits: bool, expected: str) -> None:
        """The page has those by which no limit was chosen."""
        lines = [line for line in DRAWN if line["chose_limits"] is chose_limits]
        healthy = [self.judged(line) for line in lines if not line["wrong_layers"]]
        faulty = [(line, *self.judged(line)) for line in lines if line["wrong_layers"]]
        red = sum(bool(messages) for _, messages, _ in healthy)
        found = [row for row in faulty if row[2]]
        right = 0
        for line, named, _, cause in found:
            assert cause in ("graph", "halves")
            first, last = map(int, re.findall(r"layers (\d+) to (\d+)", named)[0])
            right += any(first <= layer <= last for layer in line["wrong_layers"])
        missed = len(faulty) - len(found)
        counts = f"{red} of {len(healthy)} | {missed} of {len(faulty)} | {right} of {len(found)}"
        assert counts == expected
        assert chose_limits or f"| {counts} |" in (ROOT / "docs" / "llm.md").read_text(encoding="utf-8")


def fill_the_disk(order: TrainOrder) -> Trained:
    Path("/dev/full").write_text(f"what is trained in {order.into}")
    raise AssertionError


class TestSuite:
    """The verdicts of `test_llm`."""

    @pytest.fixture
    def rules(self) -> Callable[[str, Result], list[str]]:
        def rules(word: str, result: Result) -> list[str]:
            program: LlmProgram
            [program] = SUITES.choose(SUITES.all_programs([]), words=[f"tiny/{word}/"])
            return [finding.rule for finding in findings_of(program, result)]

        return rules

    def test_a_program_is_held_to_its_limits(self, rules: Callable[[str, Result], list[str]]) -> None:
        for divergence, expected in ((0.0005, []), (0.01, ["llm-accuracy"])):
            facts = to_json(measured({"decode_htp": reading(divergence)}, reading(0.001)))
            assert rules("genie-16a8w", Result({**facts, "peak": 5})) == expected

    def test_a_full_disk_is_the_machines_in_training_and_in_a_program(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rules: Callable[[str, Result], list[str]]
    ) -> None:
        monkeypatch.setitem(llm_worker.ORDERS, "train", (__name__, "fill_the_disk"))
        with pytest.raises(InTrouble) as caught:
            answer = reporting(llm_worker.facts_of, llm_worker.error_of)
            answer({"do": "train", "into": "", "log": str(tmp_path / "log")})
        failed = Result(failure=Failure.of(caught.value.trouble))
        assert rules("genie-fp16", failed) == ["llm-machine"]
        assert [finding.rule for finding in model_findings("tiny", 18, failed)] == ["llm-machine"]

    def test_a_program_that_failed_and_a_model_that_learned_nothing_are_errors(
        self, rules: Callable[[str, Result], list[str]]
    ) -> None:
        failed = Result(failure=Failure("crash", "ended by SIGSEGV"))
        assert rules("genie-fp16", failed) == ["llm-crash"]
        assert list(model_findings("tiny", 18, failed))
        for perplexity, wrong in ((18.01, True), (float("nan"), True), (18.0, False)):
            trained = Result(to_json(Trained(perplexity, "digest")))
            assert bool(list(model_findings("tiny", 18, trained))) == wrong
