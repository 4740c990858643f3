"""The suite: which language models run, through which runtime and precision, and the limits they must
keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from ci.suite.precision import written_name
from ci.suite.programs import NO_SUITE, AnyCase, AnyProgram, AnyRun, NotNegative, Share, Suites
from ci.suite.suite_file import LaneForm
from provisioning.base.documents import Model
from provisioning.base.settings import MANIFESTS

SHIPPED = MANIFESTS / "suites" / "llm.toml"


class Limits(Model):
    """What a quantized model must reach on held-out text, compared with another one."""

    first_choice: Share
    """The share of tokens at which both choose the same; equally good ones are not."""
    perplexity_ratio: Annotated[float, Field(ge=1)]
    divergence: NotNegative
    """Kullback-Leibler, the mean, in nats."""
    divergence_99: NotNegative
    """Not exceeded by 99 % of the tokens."""


FOUR_BITS = "16a4w"
PRECISIONS = {"genie": ("fp16", "u16u8", FOUR_BITS), "executorch": ("fp16", "16a8w", "8a8w", FOUR_BITS)}
"""By what the model speaks through."""


class LlmRun(AnyRun):
    judged_later: ClassVar = AnyRun.judged_later | {"limits", "htp_against_cpu"}

    precision: Annotated[Literal["fp16", "16a8w", "8a8w", "16a4w"], BeforeValidator(written_name)]
    through: Literal["genie", "executorch"] = "genie"
    cache: Literal["uint8", "uint16"] = "uint8"
    """Of keys and values, where Genie's activations are integers."""
    parts: Annotated[int, Field(ge=1)] = 1
    """Into how many binaries Genie's layers are split."""
    limits: Limits | None = None
    htp_against_cpu: Limits | None = None
    """Of the quantized model on HTP, compared with the same on the CPU."""
    prompts: Annotated[int, Field(ge=1)] = 2
    """Texts for each length of prompt."""

    @property
    def kind(self) -> str:
        parts: list[str] = [self.through, self.precision]
        if self.through == "genie" and self.quantized and self.cache != "uint8":
            parts.append(self.cache)
        if self.parts > 1:
            parts.append(f"{self.parts}-parts")
        return "-".join(parts)

    @property
    def quantized(self) -> bool:
        return self.precision != "fp16"

    @property
    def is_measured(self) -> bool:
        return False

    @model_validator(mode="after")
    def _can_fail(self) -> LlmRun:
        known = [str(written_name(name)) for name in PRECISIONS[self.through]]
        if self.precision not in known:
            raise ValueError(f"precision: expected {', '.join(known)} through {self.through}")
        if self.through == "executorch" and self.parts > 1:
            raise ValueError("parts: a program is one, with all layers")
        if self.quantized and self.limits is None:
            raise ValueError("limits, or a quantized model could say anything")
        if (self.limits or self.htp_against_cpu) and not self.quantized:
            raise ValueError("no limits: fp16 must say what float says")
        return self


class LlmCase(AnyCase):
    perplexity: Annotated[float, Field(gt=1)]
    """The highest perplexity of the float model on held-out text: one that has learned nothing hides
    mistakes."""
    runs: tuple[LlmRun, ...] = Field(min_length=1, alias="run")


@dataclass(frozen=True, slots=True)
class LlmProgram(AnyProgram[LlmCase, LlmRun]):
    @property
    def model_without_suite(self) -> str:
        """A checkpoint of the same name elsewhere is another one."""
        return str(self.suite.parent) if self.suite.name == NO_SUITE else ""


FORM = LaneForm("llm", LlmCase, ("test_llm",), runs_user_code=False)
SUITES = Suites("test_llm", SHIPPED, LlmProgram, FORM)
