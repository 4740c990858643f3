"""What a model is to do after prompts: call tools, abstain, write valid JSON, end. Float is judged by it too:
a quantized model may not lose what float does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ci.lanes.llm.genie import require_short
from ci.lanes.llm.prompts import chat_text, require_no_nul, tokens_of, without_beginning
from provisioning.base.documents import Model, load

FLOAT_FIX = "correct what is wanted in --behaviour, or the checkpoint's training"
BEGINS = re.compile(r'\{\s*"')


class ToolCall(Model):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class WantedAfter(Model):
    text: str
    chat: bool = False
    """Rendered by the checkpoint's template, with `system` and the file's tools."""
    system: str = ""
    calls: tuple[ToolCall, ...] | None = None
    """Exactly these, in this order; none: it abstains."""
    forbidden: tuple[str, ...] = ()
    """Names of tools that it may not call."""
    ends: bool = True
    """By the token that ends texts, within `tokens`."""


class BehaviourFile(Model):
    tokens: Annotated[int, Field(ge=1)] = 64
    """At most, of an answer."""
    tools: tuple[dict[str, Any], ...] = ()
    """As transformers' templates take them."""
    prompts: Annotated[tuple[WantedAfter, ...], Field(min_length=1, alias="prompt")]


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    prompt: WantedAfter
    text: str
    tokens: list[int]
    """Without the token that begins a text."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    tokens: int
    prompts: Sequence[AskedPrompt]

    def judged(
        self, answers: Mapping[str, Sequence[Mapping[str, Any]]], tokenizer: Any
    ) -> list[dict[str, Any]]:
        """A row for each prompt: by who answered, the text and what is wrong with it."""
        rows = []
        for number, asked in enumerate(self.prompts):
            said = {}
            for who, every in answers.items():
                text = str(tokenizer.decode(every[number]["tokens"], skip_special_tokens=False))
                wrong = list(problems(asked.prompt, text, every[number]["stopped"]))
                said[who] = {"text": text, "stopped": every[number]["stopped"], "problems": wrong}
            rows.append({"prompt": asked.text, "said": said})
        return rows


def read_behaviour(
    path: Path, folder: Path, tokenizer: Any, record: Mapping[str, Any], bos: int
) -> Behaviour:
    """The chat template is in the folder of what was compiled."""
    file, asked = load(path, BehaviourFile), []
    for prompt in file.prompts:
        require_no_nul(prompt.text + prompt.system, f"a prompt of {path}")
        text = prompt.text
        if prompt.chat:
            text = chat_text(folder, prompt.text, prompt.system, file.tools)
        tokens = without_beginning(tokens_of(tokenizer, text), bos)
        require_short(tokens, record)
        asked.append(AskedPrompt(prompt, text, tokens))
    return Behaviour(file.tokens, asked)


def calls_in(text: str) -> tuple[list[ToolCall], bool]:
    """The calls in a text, which are objects of JSON with a name, in whatever words or tokens around them;
    and whether some JSON in it is broken."""
    calls, broken, at = [], False, 0
    while (match := BEGINS.search(text, at)) is not None:
        try:
            found, at = json.JSONDecoder().raw_decode(text, match.start())
        except ValueError:
            broken, at = True, match.end()
            continue
        # Some templates put the call into an object of its own.
        found = found.get("function", found)
        if isinstance(found, dict) and isinstance(found.get("name"), str):
            calls.append(ToolCall(name=found["name"], arguments=_arguments(found)))
    return calls, broken


def _arguments(found: Mapping[str, Any]) -> dict[str, Any]:
    arguments = found.get("arguments", found.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return {"": arguments}
    return arguments if isinstance(arguments, dict) else {"": arguments}


def problems(prompt: WantedAfter, text: str, stopped: str) -> Iterator[str]:
    calls, broken = calls_in(text)
    if broken:
        yield "its JSON is not valid"
    if prompt.calls is not None and calls != list(prompt.calls):
        wanted, found = (", ".join(map(_shown, listed)) or "no call" for listed in (prompt.calls, calls))
        yield f"expected {wanted}{FOUND}{found}"
    for call in calls:
        if call.name in prompt.forbidden:
            yield f"it calls {call.name}, which is forbidden"
    if prompt.ends and stopped != "eos":
        yield f"it does not end{STOPPED}{stopped}"


def _shown(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


FOUND, STOPPED = ", found ", ": stopped by "
"""What follows them in a problem is what a model said."""
WHO = {"float": "float", "cpu": "the quantized model on the CPU", "htp": "the model on HTP"}


def kept_in_words(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for who in rows[0]["said"]:
        good = sum(not row["said"][who]["problems"] for row in rows)
        yield f"{WHO[who]} does as wanted after {good} of {len(rows)} prompts"


def lost(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What float does as wanted, and a compiled model does not. Where both miss a call, it is float's."""
    for row in rows:
        floats = set(map(_wanted, row["said"]["float"]["problems"]))
        for who, said in row["said"].items():
            if new := [problem for problem in said["problems"] if _wanted(problem) not in floats]:
                yield f"after {row['prompt'][-60:]!r} {WHO[who]}: {'; '.join(new)}: {said['text'][:80]!r}"


def _wanted(problem: str) -> str:
    return problem.partition(FOUND)[0].partition(STOPPED)[0]


def float_alone(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        if wrong := row["said"]["float"]["problems"]:
            yield f"after {row['prompt'][-60:]!r} float itself: {'; '.join(wrong)}"
