"""What is wrong with a model's texts, and the row of the report that shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ci.engine.work import Result
from ci.lanes.llm.behaviour import lost
from ci.lanes.llm.judge import EXCUSED, Figure, choice_misses, close, misses
from ci.lanes.llm.suite import SUITES, LlmProgram
from ci.pipeline.findings import errors_of
from provisioning.base.findings import Finding, Metric, Severity

SHOWN = ("bytes", "figures", "choices", "peak", "speed", "behaviour", "estimate")
READER_NAMES = {
    "prefill_htp": "prefill on HTP",
    "decode_htp": "decode on HTP",
    "prefill_cpu": "prefill on the CPU",
    "decode_cpu": "decode on the CPU",
    "prefill_htp_cpu": "prefill on HTP against the CPU",
    "decode_htp_cpu": "decode on HTP against the CPU",
    "prefill_genie": "Genie's prefill",
    "decode_genie": "Genie's decode",
}
"""Whose logits are compared with float's, or with those that `_cpu` names."""


def model_findings(case: str, most: float, result: Result) -> Iterator[Finding]:
    """Findings about the float model."""
    if failure := result.failure:
        rule = "llm-machine" if failure.blame == "machine" else "llm-training"
        yield Finding(rule, Severity.ERROR, case, failure.message, failure.fix)
    elif not result.facts["perplexity"] <= most:
        yield Finding(
            "llm-training",
            Severity.ERROR,
            case,
            f"perplexity on held-out text: expected at most {most:g}, found {result.facts['perplexity']:.2f};"
            " a model that has learned less hides mistakes",
            "train longer, or raise perplexity in the suite",
        )


def findings_of(program: LlmProgram, result: Result) -> Iterator[Finding]:
    again = SUITES.repeat(program)
    error = errors_of(program.name, again)
    if failure := result.failure:
        yield error(f"llm-{failure.rule}", failure.message, failure.fix)
        return
    limits, against_cpu = program.run.limits, program.run.htp_against_cpu
    if limits is None:
        yield from (error("llm-text", message) for message in text_problems(result.facts["texts"]))
        return
    by_genie = program.run.through == "genie"
    for name, words in READER_NAMES.items():
        chosen = against_cpu if name.endswith("_htp_cpu") else limits
        if chosen is None or (is_genies(name) and not by_genie):
            continue
        bounds = chosen.model_dump()
        figures = figures_from(result.facts["figures"][name])
        for miss in misses(figures, bounds, chance=is_genies(name)):
            yield error(
                "llm-accuracy", f"{words}: {miss}", "raise the precision, or calibrate with other text"
            )
        for near in [] if is_genies(name) else close(figures, bounds):
            yield Finding(
                "llm-limit-close",
                Severity.WARNING,
                program.name,
                f"{words}: {near}",
                "move the limit, or judge more text",
            )
    for words in lost(result.facts["behaviour"]):
        yield error("llm-behaviour", words, "raise the precision, or calibrate with text that has calls")
    if not by_genie:
        return
    for miss in choice_misses(result.facts["choices"], limits.first_choice):
        yield error("llm-accuracy", miss, "look for what Genie's configuration and the graphs do differently")


def is_genies(reader: str) -> bool:
    return reader.endswith("_genie")


def text_problems(texts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each text that differs from float's, and too many excused differences."""
    for text in texts:
        if difference := text["difference"]:
            yield (
                f"after {text['prompt_text'][-40:]!r} token {difference['place']} is"
                f" {_token(difference['found'])} ({difference['found_logit']:.3f}), and float says"
                f" {_token(difference['expected'])} ({difference['expected_logit']:.3f}):"
                f" {text['found_text'][:80]!r} for {text['expected_text'][:80]!r}"
            )
        elif text["found_stop"] != text["expected_stop"] and not text["excused"]:
            yield (
                f"after {text['prompt_text'][-40:]!r} it ended by {text['found_stop']},"
                f" and float by {text['expected_stop']}"
            )
    compared, excused = (sum(text["compared"] for text in texts), sum(len(text["excused"]) for text in texts))
    if excused > EXCUSED * compared:
        yield f"{excused} of {compared} tokens are excused as near ties, and at most {EXCUSED:.0%} may be"


def _token(number: int) -> str:
    return "its end" if number == -1 else str(number)


def figures_from(facts: Mapping[str, Mapping[str, float]]) -> dict[str, Figure]:
    return {name: Figure(**figure) for name, figure in facts.items()}


def row(program: LlmProgram, result: Result) -> dict[str, Metric]:
    """For the report: figures, and every text beside float's."""
    shown: dict[str, Metric] = {
        "cached": result.cached,
        "seconds": round(result.seconds, 1),
        "precision": program.run.precision,
        "through": program.run.through,
    }
    if result.failure:
        return shown
    facts = result.facts
    shown |= {name: facts[name] for name in SHOWN if name in facts}
    texts: list[Metric] = [
        {
            "prompt": text["prompt_text"],
            "said": {
                "float": {"text": text["expected_text"], "stopped": text["expected_stop"]},
                "htp": {
                    "text": text["found_text"],
                    "stopped": text["found_stop"],
                    "difference": text["difference"],
                    "excused": len(text["excused"]),
                },
            },
        }
        for text in facts["texts"]
    ]
    return {**shown, "texts": texts}
