"""Set up the tests of a suite for the emulator, and add to their reports more than passed and failed: what
they compared, and how near it was.

Each suite of manifests/upstream/ names its adapter. Nothing is replaced in ExecuTorch but what a
`Replacement` says."""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.upstream.suite import Part
from ci.operators.table import EXACT
from ci.suite.accuracy import Pair, Unusable, least_sqnr_db
from ci.suite.lost_parts import WRONG_DB
from provisioning.base.units import EXACT_DB, bound_in_decibels


@dataclass(slots=True)
class UpstreamComparison:
    """Holds what a test compared: the SQNR in dB, None if shapes or types differ, and what the test itself
    concluded."""

    figure: float | None
    agrees: bool = False


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replaces a function of ExecuTorch, if none of its options, fixtures or variables can do it."""

    where: str
    """Names the function, as MODULE:NAME below executorch.backends."""
    why: str
    by: Callable[[Any], Any]
    """Gets the original function and returns its replacement."""

    def apply(self) -> None:
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(f"executorch.backends.{module}")
        *names, last = path.split(".")
        for name in names:
            owner = getattr(owner, name)
        setattr(owner, last, self.by(getattr(owner, last)))


class DefaultAdapter:
    """Tests that need nothing, or set themselves up by environment variables."""

    arguments: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.comparisons: list[UpstreamComparison] = []
        """The current test has made these comparisons since the last report."""

    def replacements(self) -> Iterable[Replacement]:
        return ()

    def prepare(self) -> None:
        """Called once, after the suite's modules can be imported and before its tests are collected."""
        for replacement in self.replacements():
            replacement.apply()

    def enter(self, scratch: Path) -> None:
        """Called before each test, in its own folder."""

    def holds(self, item: pytest.Item) -> bool:
        return True

    def skip_reason(self, item: pytest.Item) -> str:
        """Return why this test does not test what it is named for, so that it is skipped; empty if it
        does."""
        return ""

    def parts(self, item: pytest.Item) -> list[Part]:
        """Return the result of each part of a test, read before the test is torn down; if there are none,
        pytest's reports decide."""
        return []

    def watching(self, where: str) -> Replacement:
        """Replace this function by one that also notes how near its second and third argument are."""
        why = "a test says whether its outputs are near enough, and not how near"
        return Replacement(where, why, self._watched)

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def watch_call(*args: Any, **keywords: Any) -> Any:
            computed, reference = [*args, *keywords.values()][1:3]
            compared = UpstreamComparison(least_db(computed, reference))
            self.comparisons.append(compared)
            result = original(*args, **keywords)
            compared.agrees = True
            return result

        return watch_call


class ComparingAdapter(DefaultAdapter):
    """Serves test_qnn_delegate_x86.py, which sets itself up."""

    def replacements(self) -> Iterable[Replacement]:
        return [self.watching("qualcomm.tests.utils:TestQNN._assert_outputs_equal")]


class DelegateAdapter(ComparingAdapter):
    """Serves the classes of test_qnn_delegate.py, which its own command line sets up."""

    def replacements(self) -> Iterable[Replacement]:
        target = "qualcomm.tests.utils:TestQNN.target"
        why = "its command line has only targets for devices"
        return [*super().replacements(), Replacement(target, why, lambda _: "x86_64-linux-clang")]

    def prepare(self) -> None:
        suite = importlib.import_module("executorch.backends.qualcomm.tests.test_qnn_delegate")
        folder = str(Path.cwd())
        words = ["--soc_model", os.environ["QNN_SOC_MODEL"], "--build_folder", os.environ["QNN_BUILD_FOLDER"]]
        words += ["--executorch_root", folder, "--artifact_dir", folder, "--enable_x86_64"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [sys.argv[0], *words])
            suite.setup_environment()
        super().prepare()


class Rework(DefaultAdapter):
    """Serves Qualcomm's newer tests, which look for the runner in a folder build-x86."""

    arguments = ("-k", "not gpu and not lpai")

    def replacements(self) -> Iterable[Replacement]:
        metrics = ("Tolerance", "Sqnr", "CosineSimilarity")
        return [
            *(self.watching(f"qualcomm.tests.rework.conftest:{name}.assert_close") for name in metrics),
            Replacement(
                "qualcomm.tests.rework.htp.conftest:with_htp_context",
                "a test is for the architecture that its file's folder is called by",
                _for_the_chosen_chip,
            ),
            Replacement(
                "qualcomm.export_utils:SimpleADB._adb",
                "five tests of `feature` run on a phone even with --enable_x86_64: they are not run",
                lambda _: lambda *args, **named: pytest.skip("needs a device over adb"),
            ),
        ]

    def enter(self, scratch: Path) -> None:
        runner = scratch / "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
        runner.parent.mkdir(parents=True)
        runner.symlink_to(os.environ["QNN_EXECUTOR_RUNNER"])
        (scratch / "build-x86/lib").symlink_to(Path(os.environ["QNN_BUILD_FOLDER"], "lib"))


def _for_the_chosen_chip(original: Any) -> Any:
    htp: Any = importlib.import_module("executorch.backends.qualcomm.tests.rework.htp.conftest")
    soc = os.environ["QNN_SOC_MODEL"]
    arch = next(int(arch) for arch, name in htp._get_htp_arch() if name == soc)

    def bind(func: Any, hw_arch: int) -> Any:
        bound = original(func, arch)

        # No lambda, which pytest does not collect. The dictionary, of which things are taken, is the test's.
        def test(request: Any, kwargs: Any) -> Any:
            return bound(request, dict(kwargs))

        return test

    return bind


class Feature(Rework):
    @property
    def arguments(self) -> tuple[str, ...]:  # type: ignore[override]
        soc = os.environ["QNN_SOC_MODEL"]
        return (*Rework.arguments, "--soc_model", soc, "--build_folder", "build-x86", "--enable_x86_64")


LOWERING = ("qnn_preprocess", "generate Qnn context binary", "to_edge_transform_and_lower", "to_backend")
"""An exception comes from one of these if lowering fails."""


def least_db(computed: Iterable[Any], reference: Iterable[Any]) -> float | None:
    """Return the lowest SQNR; NaN if one output has a NaN where the other has none; None if their shapes
    differ."""
    try:
        pairs = [
            Pair(str(i), e.detach().float(), c.detach().float())
            for i, (c, e) in enumerate(zip(computed, reference, strict=True))
        ]
        return min(least_sqnr_db(pairs), EXACT)
    except Unusable as error:
        return math.nan if error.rule == "not-finite" else None
    except (ValueError, AttributeError):
        return None


def least_of(figures: Iterable[float]) -> float | None:
    """Return the least figure; None if there is none; NaN if one is NaN, because min() would depend on their
    order."""
    values = list(figures)
    return math.nan if any(map(math.isnan, values)) else min(values, default=None)


def part(
    result: str, sqnr_db: float | None = None, cpu: Iterable[str] = (), error: str = "", name: str = ""
) -> Part:
    """Return a part whose figures and error are the same in every process: rounded, and without addresses of
    memory."""
    return Part(result, round_figure(sqnr_db), tuple(cpu), name, ADDRESS.sub("0x…", error))


def round_figure(figure: float | None) -> float | None:
    return None if figure is None or not math.isfinite(figure) else round(figure, 1)


def why_unheld(figure: float | None) -> str:
    """Return why a test that passed with outputs of this SQNR shows nothing about them; empty if it does show
    something."""
    if figure is None or figure >= WRONG_DB:
        return ""
    if not math.isfinite(figure) or figure <= -EXACT_DB:
        return f"any outputs pass: their SQNR is {figure:g}"
    return f"its outputs are below {bound_in_decibels(WRONG_DB)}, and its limits let them pass"


ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")
"""Matches an address of memory, which differs in each process."""


ORDER = (
    *("crash", "memory", "timeout", "dies", "wrong", "failed", "absent", "bad_test", "no_kernel", "not_run"),
    *("cpu", "part", "float", "whole", "passed"),
)
"""Orders a part's results from the worst to the best."""


def worst(parts: Iterable[Part]) -> str:
    return min((part.result for part in parts), key=ORDER.index, default="")
