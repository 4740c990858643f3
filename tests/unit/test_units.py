"""Sizes, times, decibels and rows as people read them; expected values are written by hand."""

from __future__ import annotations

import math

import numpy
import pefile
import pytest
from elftools.elf.enums import ENUM_E_MACHINE, ENUM_P_TYPE_BASE

from ci.explain.cuts import FEW_STEPS, HALF_ROUNDS, HALF_STEP, LEAST_HALF
from ci.lanes.llm.decoder import LARGEST_HALF
from ci.signing.elf_headers import EM_HEXAGON, PT_LOAD, PT_NULL
from ci.suite.accuracy import HALF_MOST
from provisioning.base.units import EXACT_DB, decibels, format_decibels, roughly, seconds, size
from provisioning.qnn_libraries import WINDOWS_MACHINES


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (4_230_000, "4.23 MB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (2_500_000_000, "2.5 GB"),
        (999_600_000_000, "1,000 GB"),
    ],
)
def test_a_size_has_three_digits_and_its_unit(count: float, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.25, "0.25 s"),
        (9.994, "9.99 s"),
        (9.995, "10 s"),
        (119.4, "119 s"),
        (119.5, "2 min 00 s"),
        (185, "3 min 05 s"),
        (7199, "119 min 59 s"),
        (7200, "2 h 00 min"),
        (7620, "2 h 07 min"),
        (math.nan, "? s"),
    ],
)
def test_a_time_has_the_units_of_its_length(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_an_estimated_time_has_seconds_below_a_hundred_and_whole_minutes_above() -> None:
    assert [roughly(value) for value in (0, 99.4, 99.5, 121)] == ["1 s", "99 s", "2 min", "3 min"]


@pytest.mark.parametrize(
    ("signal", "noise", "expected"),
    [
        (100.0, 1.0, 20.0),
        (1.0, 1000.0, -30.0),
        (0.0, 0.0, 999.0),
        (0.0, 1.0, -999.0),
        (math.inf, 1.0, -999.0),
    ],
)
def test_decibels_are_finite(signal: float, noise: float, expected: float) -> None:
    assert decibels(signal, noise) == pytest.approx(expected)


def test_only_equal_outputs_are_bit_equal() -> None:
    assert EXACT_DB == 999.0
    assert (format_decibels(998.9), format_decibels(999.0), format_decibels(-3.14)) == (
        "998.9 dB",
        "bit-equal",
        "-3.1 dB",
    )


def test_the_numbers_of_formats_are_those_of_others() -> None:
    half = numpy.finfo(numpy.float16)
    step = float(half.smallest_subnormal)
    assert {HALF_MOST, LARGEST_HALF} == {float(half.max)} and float(half.tiny) == LEAST_HALF
    assert (float(half.eps) / 2, step / 2, 16 * step) == (HALF_ROUNDS, HALF_STEP, FEW_STEPS)
    segments = (ENUM_P_TYPE_BASE["PT_NULL"], ENUM_P_TYPE_BASE["PT_LOAD"])
    assert (segments, ENUM_E_MACHINE["EM_QDSP6"]) == ((PT_NULL, PT_LOAD), EM_HEXAGON)
    machines = [pefile.MACHINE_TYPE[f"IMAGE_FILE_MACHINE_{name}"] for name in ("ARM64", "AMD64", "I386")]
    assert machines == [*WINDOWS_MACHINES][:3]
