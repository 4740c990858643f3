"""Declares the options of the commands for an .onnx. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ci.models.user_model import DOTTED
from ci.one_model.options import THROUGH, THROUGH_HELP, ModelOptions
from ci.suite.lane_head import AUDIT, COMPILE, DIVERGENCE, FORECAST, FROM_MODEL, REPAIR, RUN, TUNE
from ci.suite.precision import precision_named
from provisioning.base.option_fields import option

OPTION_HELP = (
    "a setting of the provider, the session or the run (docs/options.md lists them); may be repeated"
)


@dataclass(frozen=True)
class OnnxOptions(ModelOptions):
    ignored: ClassVar[frozenset[str]] = frozenset({"jobs"})

    through: str = option(
        "",
        "--through",
        THROUGH_HELP,
        choices=THROUGH,
        verbs=(COMPILE,),
        unprinted="the printed command names the .onnx that was exported",
        decides_nothing="what is exported decides",
    )
    per_channel: bool = option(
        False,
        "--per-channel",
        "one weight scale for each channel of a convolution",
        verbs=FROM_MODEL,
        suite="run.per_channel",
    )
    dimensions: tuple[str, ...] = option(
        (),
        "--dimension",
        "fix a named size, or all of an input: x=1,3,64,64; may be repeated",
        metavar="NAME=N",
        verbs=(*FROM_MODEL, RUN),
        suite="case.dimensions",
    )
    settings: tuple[str, ...] = option(
        (),
        "--option",
        OPTION_HELP,
        metavar="NAME=VALUE",
        verbs=(COMPILE, AUDIT, DIVERGENCE, REPAIR, TUNE, FORECAST, RUN),
        suite="run.options",
    )
    embed: bool = option(
        False,
        "--embed",
        "put the context into the .onnx",
        verbs=(COMPILE,),
    )
    as_it_is: bool = option(
        False,
        "--as-it-is",
        "run it even if another QNN build made it or it is for another chip",
        verbs=(RUN,),
        decides_nothing="a program that is run by itself is not cached",
    )

    def check_precisions(self) -> None:
        for precision in self.precisions:
            precision_named(precision)

    def check_samples(self) -> None:
        """Accept a function that gives samples; otherwise check the files."""
        if not DOTTED.fullmatch(self.calibrate or ""):
            super().check_samples()

    def rewritten(self) -> OnnxOptions:
        # One chip is enough for a trial.
        return replace(self, dimensions=(), embed=False)

    def remedies(self) -> Iterator[OnnxOptions]:
        if not self.per_channel:
            yield replace(self, per_channel=True)


OPTIONS = OnnxOptions
