"""Declares the options of the commands for a PyTorch model. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ci.one_model.options import ModelOptions
from ci.suite.lane_head import COMPILE, DIVERGENCE, FROM_MODEL, QUANTIZE, REPAIR
from ci.suite.precision import scheme_named
from provisioning.base.option_fields import option


@dataclass(frozen=True)
class ExecutorchOptions(ModelOptions):
    backend: str | None = option(
        None,
        "--backend",
        "the processor [htp]",
        choices=("htp", "lpai"),
        verbs=(COMPILE, QUANTIZE, REPAIR),
        suite="run.backend",
    )
    keep_on_cpu: tuple[str, ...] = option(
        (),
        "--keep-on-cpu",
        "leave this node on the CPU; may be repeated",
        metavar="NODE",
        verbs=(COMPILE, DIVERGENCE, REPAIR),
        helps={DIVERGENCE: "leave this node on the CPU, as `compile` did; may be repeated"},
        suite="run.cpu_nodes",
    )
    fold_constants: bool = option(
        False,
        "--fold-constants",
        "compute once, before the export, what no input changes",
        verbs=(COMPILE, QUANTIZE, DIVERGENCE),
        suite="case.fold_constants",
    )
    variables: tuple[str, ...] = option(
        (),
        "--variable",
        "pass this environment variable to the model; may be repeated",
        metavar="NAME",
        verbs=FROM_MODEL,
    )

    @property
    def processor(self) -> str:
        return self.backend or "htp"

    def check_precisions(self) -> None:
        for precision in self.precisions:
            scheme_named(precision)

    def rewritten(self) -> ExecutorchOptions:
        return replace(self, keep_on_cpu=())

    def folding_constants(self) -> ExecutorchOptions | None:
        return None if self.fold_constants else replace(self, fold_constants=True)

    def keeping_on_cpu(self, nodes: Sequence[str]) -> ExecutorchOptions:
        return replace(self, keep_on_cpu=(*self.keep_on_cpu, *nodes))

    @property
    def traits(self) -> tuple[str, ...]:
        return (*super().traits, *([self.backend] if self.backend else []))


OPTIONS = ExecutorchOptions
