"""The options of the commands for a checkpoint of a language model. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ci.one_model.named_files import require_file
from ci.one_model.options import COMPILE, RUN, ModelOptions
from provisioning.base.command_line import count
from provisioning.base.option_fields import option

TOKENS = 32
"""So many a run adds at most, where --tokens names no number."""
OF_RUN = "a program that is run by itself is not cached"


@dataclass(frozen=True)
class LlmOptions(ModelOptions):
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
        }
    )

    through: str = option(
        "genie",
        "--through",
        "the runtime [genie]",
        choices=("genie", "executorch"),
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

    def check_samples(self) -> None:
        """They are a text."""
        if self.calibrate:
            require_file(self.calibrate, "--calibrate", "name a text file")


OPTIONS = LlmOptions
