"""Declares the options of the commands for a language model. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ci.lanes.llm.families import config_of
from ci.one_model.named_files import require_file
from ci.one_model.options import THROUGH, THROUGH_HELP, ModelOptions
from ci.suite.lane_head import COMPILE, RUN
from ci.suite.options import LANGUAGE_TIMEOUT, OF_MACHINE
from provisioning.base.flags import count, duration
from provisioning.base.option_fields import Options, option
from provisioning.base.settings import MANIFESTS

TOKENS = 32
"""`run` generates at most this many tokens if --tokens names no number."""
OF_RUN = "a program that is run by itself is not cached"


@dataclass(frozen=True)
class LlmOptions(ModelOptions):
    """Says how a language model is compiled and run."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "calibration",
            "inferences",
            "precision_file",
            "verify",
            "search",
            "suite",
            "jobs",
            "inputs",
            "outputs",
            "compare",
            "packages",
            "project",
            "takes_project",
        }
    )

    through: str = option(
        "genie",
        "--through",
        THROUGH_HELP,
        choices=THROUGH,
        verbs=(COMPILE,),
        suite="run.through",
    )
    context: int = option(
        128,
        "--context",
        "the longest context, in tokens [128]",
        metavar="N",
        parse=count,
        verbs=(COMPILE,),
    )
    prefill: int = option(
        32,
        "--prefill",
        "tokens that prefill reads at once [32]",
        metavar="N",
        parse=count,
        verbs=(COMPILE,),
    )
    parts: int | None = option(
        None,
        "--parts",
        "Genie's binaries [1 GB each at most]",
        metavar="N",
        parse=count,
        verbs=(COMPILE,),
        suite="run.parts",
    )
    chat: bool = option(
        False,
        "--chat",
        "put TEXT into the checkpoint's chat template",
        verbs=(RUN,),
        decides_nothing=OF_RUN,
    )
    system: str = option(
        "",
        "--system",
        "the system message of the template",
        metavar="TEXT",
        verbs=(RUN,),
        decides_nothing=OF_RUN,
    )
    tokens: int = option(
        TOKENS,
        "--tokens",
        f"at most [{TOKENS}]",
        metavar="N",
        parse=count,
        verbs=(RUN,),
        decides_nothing=OF_RUN,
    )

    def check_model(self, path: Path) -> None:
        """Require a checkpoint of a family that is built here."""
        config_of(path)

    def check_samples(self) -> None:
        """Require that --calibrate names a text file."""
        if self.calibrate:
            require_file(self.calibrate, "--calibrate", "name a text file")


OPTIONS = LlmOptions
"""The commands for one model read the lane's options by this name."""

CHECK = ("check",)
HELD_OUT = MANIFESTS / "texts" / "held-out.txt"
"""No model was trained on this text of ours when it was written."""
LIMITS = "limits, beside those of the precision"


@dataclass(frozen=True)
class CheckOptions(Options):
    """Says what `check` compares a compiled language model by."""

    text: Path = option(
        HELD_OUT,
        "--text",
        "a text that did not calibrate it [one of qnn-ci's own]",
        metavar="FILE",
        parse=Path,
        verbs=CHECK,
    )
    checkpoint: Path | None = option(
        None,
        "--checkpoint",
        "the float model [the one that was compiled]",
        metavar="FOLDER",
        parse=Path,
        verbs=CHECK,
    )
    tokens: int = option(
        1000, "--tokens", "tokens of the text to read [1000]", metavar="N", parse=count, verbs=CHECK
    )
    on: str = option(
        "both",
        "--on",
        "parts: judge each part by itself, and nothing else, and print them all",
        choices=("both", "parts"),
        verbs=CHECK,
    )
    top1: float | None = option(None, "--top1", "", metavar="X", parse=float, verbs=CHECK, group=LIMITS)
    perplexity_ratio: float | None = option(
        None, "--perplexity-ratio", "", metavar="X", parse=float, verbs=CHECK, group=LIMITS
    )
    divergence: float | None = option(
        None, "--divergence", "", metavar="X", parse=float, verbs=CHECK, group=LIMITS
    )
    divergence_99: float | None = option(
        None, "--divergence-99", "", metavar="X", parse=float, verbs=CHECK, group=LIMITS
    )
    timeout: float = option(
        LANGUAGE_TIMEOUT,
        "--timeout",
        f"end the run after S seconds [{LANGUAGE_TIMEOUT:g}]",
        metavar="S",
        parse=duration,
        verbs=CHECK,
        unprinted=OF_MACHINE,
        decides_nothing=OF_MACHINE,
    )

    @property
    def limits(self) -> dict[str, float]:
        """The user may set these limits for figures."""
        limits = {
            "top1": self.top1,
            "perplexity_ratio": self.perplexity_ratio,
            "divergence": self.divergence,
            "divergence_99": self.divergence_99,
        }
        return {name: limit for name, limit in limits.items() if limit is not None}
