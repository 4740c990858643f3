"""The suite of this lane says which language models run, through which runtime and precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from ci.lanes.llm.orders import EXECUTORCH, GENIE
from ci.suite.precision import written_name
from ci.suite.programs import NO_SUITE, Program, SuiteCase, SuiteRun, Suites
from provisioning.base.settings import MANIFESTS

SHIPPED = MANIFESTS / "suites" / "llm.toml"


FOUR_BITS = "16a4w"
PRECISIONS = {GENIE: ("fp16", "16a8w", FOUR_BITS), EXECUTORCH: ("fp16", "16a8w", "8a8w", FOUR_BITS)}
"""Each runtime supports these precisions."""


def _precision_of(value: object) -> object:
    return written_name(value) if isinstance(value, str) else value


class LlmRun(SuiteRun):
    precision: Annotated[
        Literal["fp16", "16a8w", "8a8w", "16a4w"], BeforeValidator(_precision_of), Field(examples=["16a8w"])
    ]
    through: Literal["genie", "executorch"] = "genie"
    parts: Annotated[int, Field(ge=1)] = 1
    """Into how many binaries Genie's layers are split."""

    @property
    def kind(self) -> str:
        parts: list[str] = [self.through, self.precision]
        if self.parts > 1:
            parts.append(f"{self.parts}-parts")
        return "-".join(parts)

    @property
    def is_measured(self) -> bool:
        return False

    @model_validator(mode="after")
    def _is_offered(self) -> LlmRun:
        choices = PRECISIONS[self.through]
        if self.precision not in choices:
            raise ValueError(f"precision: expected {', '.join(choices)} through {self.through}")
        if self.through == EXECUTORCH and self.parts > 1:
            raise ValueError("parts: a program is one, with all layers")
        return self


class LlmCase(SuiteCase):
    perplexity: Annotated[float, Field(gt=1, examples=[40.0])]
    """The float model must reach at most this perplexity on held-out text: one that has learned nothing hides
    mistakes."""
    runs: tuple[LlmRun, ...] = Field(min_length=1, alias="run")


@dataclass(frozen=True, slots=True)
class LlmProgram(Program):
    case: LlmCase
    run: LlmRun

    @property
    def model_without_suite(self) -> str:
        """Return the folder of a checkpoint that no suite has, because one of the same name elsewhere is
        another model; else empty."""
        return str(self.suite.parent) if self.suite.name == NO_SUITE else ""


SUITES = Suites(
    lane="llm",
    case=LlmCase,
    program=LlmProgram,
    stages=("test_llm",),
    shipped=SHIPPED,
    runs_user_code=False,
)
