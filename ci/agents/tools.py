"""The table of tools: what an agent may call, and the command that each is. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provisioning.base.errors import UsageError
from provisioning.base.settings import DEFAULT_SOC


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    about: str
    flag: str = ""
    """Empty for a word of its own."""
    required: bool = False
    many: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        text = {"type": "string"}
        return {"description": self.about, **({"type": "array", "items": text} if self.many else text)}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    verb: str
    when: str
    """What an agent asks it."""
    evidence: str
    """The fields of its answer, besides those that all answers have."""
    parameters: tuple[Parameter, ...]
    example: str

    @property
    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.required],
            "additionalProperties": False,
        }

    def words(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Its command's words. A value can be no flag."""
        known = {parameter.name for parameter in self.parameters}
        if unknown := sorted(set(arguments) - known):
            raise UsageError(f"{self.name} has no {', '.join(unknown)}", fix=f"it has {', '.join(known)}")
        words: list[str] = []
        for parameter in self.parameters:
            values = _values(self, parameter, arguments.get(parameter.name))
            if parameter.required and not values:
                raise UsageError(
                    f"{self.name} needs {parameter.name}", fix=f"{parameter.name}: {parameter.about}"
                )
            if parameter.flag:
                yield from (f"{parameter.flag}={value}" for value in values)
            else:
                words += values
        if words:
            yield from ("--", *words)


def _values(tool: Tool, parameter: Parameter, given: Any) -> Sequence[str]:
    values = [] if given is None else given if parameter.many and isinstance(given, list) else [given]
    if not all(isinstance(value, str) and value for value in values):
        raise UsageError(
            f"{tool.name}: expected text for {parameter.name}, found {given!r}", fix=parameter.about
        )
    return values


MODEL = Parameter("model", "a .pt2, file.py:function, module:function or model.onnx", required=True)
PRECISION = Parameter("precision", "fp16, 8a8w, 16a8w, 16a4w … [fp16]", "--precision")
SOC = Parameter("soc", f"the chip, such as {DEFAULT_SOC} or SM8750", "--soc")
CALIBRATE = Parameter(
    "calibrate", "a folder with a file for each sample: .npy, .npz, .pt [drawn]", "--calibrate"
)

OUTPUT = Parameter("output", "the folder to write to", "--output", required=True)

TOOLS = (
    Tool(
        "compile",
        "compile",
        "Compile one model for a chip, run it on the HTP emulator and compare it with float.",
        "programs: accuracy (sqnr_db), delegates, on_cpu, costs, files",
        (
            MODEL,
            PRECISION,
            SOC,
            CALIBRATE,
            Parameter("python", "a Python with the model's packages, which exports it", "--python"),
            Parameter("output", "the folder for the program and its record", "--output", required=True),
        ),
        "qnn-ci compile net.py:model --precision 8a8w --soc SM8750 --output out",
    ),
    Tool(
        "audit",
        "audit",
        "Show which operators run on the NPU at each precision, and why the others fall back to the CPU.",
        "precisions: delegated, cpu (operator, source, code, reason, suggestion), delegates, ddr",
        (
            MODEL,
            Parameter("precisions", "which [fp16, 8a8w, 16a8w, 16a4w]", "--precision", many=True),
            SOC,
            CALIBRATE,
        ),
        "qnn-ci audit net.py:model --precision 8a8w --precision 16a8w",
    ),
    Tool(
        "divergence",
        "divergence",
        "Find the operator at which the HTP emulator first differs from the quantized model.",
        "sqnr_db, first (operator, module, source, code, operands), cuts, verdict (of the script)",
        (
            MODEL,
            PRECISION,
            SOC,
            CALIBRATE,
            Parameter("script", "a Python file, for that operator alone with its inputs", "--write"),
        ),
        "qnn-ci divergence net.py:model --precision 16a8w",
    ),
    Tool(
        "repair",
        "repair",
        "Rewrite the parts of a model that known faults break, prove the result equal, and compile it.",
        "changes (rewrite, rules, words, source, code), refused, before, after, files",
        (MODEL, OUTPUT, PRECISION, SOC, CALIBRATE),
        "qnn-ci repair net.py:model --precision 8a8w --output out",
    ),
    Tool(
        "tune",
        "tune",
        "Find the operators that need the more exact of two precisions to reach the required accuracy.",
        "frontier (accuracy, costs, chosen), steps, files (the precision file)",
        (
            MODEL,
            Parameter("floor", "the least SQNR against float: 35dB", "--floor"),
            Parameter("top1", "the least share of rows whose largest value is where float has it", "--top1"),
            Parameter("budget", "ddr=4MB, bytes=9MB or ms=2", "--budget", many=True),
            Parameter("precisions", "two, the cheap one first [8a8w and 16a8w]", "--precision", many=True),
            SOC,
            CALIBRATE,
            Parameter("output", "the folder for the precision file [here]", "--output"),
        ),
        "qnn-ci tune net.py:model --floor 35dB --output out",
    ),
    Tool(
        "diagnose",
        "diagnose",
        "Explain a log, an error code or the rule of a finding.",
        "inputs: explanations (id, cause, fix, line), codes, data_types",
        (Parameter("inputs", "logs, folders of logs, codes, rules of findings", required=True, many=True),),
        "qnn-ci diagnose reports/logs/ 14001 emulator-accuracy",
    ),
    Tool(
        "operators",
        "diagnose",
        "Look up what was measured of operators at a precision, before you write a model with them.",
        "inputs: operators (the measurements of each)",
        (Parameter("operators", "OPERATOR@SCHEME: log@16a4w, conv2d@8a8w", required=True, many=True),),
        "qnn-ci diagnose log@16a4w conv2d@8a8w",
    ),
    Tool(
        "chips",
        "chips",
        "Find the chip of a device, and QNN's name for a chip that people call 8 Gen 3 or X Elite.",
        "chips (hexagon, vtcm_mb, names: each with the chips that it may mean)",
        (Parameter("name", "a chip or a device, such as 8-elite or Galaxy S25 [all]"),),
        "qnn-ci chips 'Galaxy S25'",
    ),
    Tool(
        "parity",
        "buck_parity",
        "Check that ExecuTorch's Buck and CMake files build the same.",
        "only findings",
        (Parameter("executorch", "the checkout of ExecuTorch", "--executorch", required=True),),
        "qnn-ci buck_parity --executorch ~/executorch",
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}

READING = (
    ("outcome", "pass, fail (what was checked is bad), usage, lacking, upstream, internal, interrupted"),
    ("findings", "rule, severity, subject, message, fix; errors come first, notes need no action"),
    ("findings[].place", "file, line and column in the user's repository, if they are known"),
    ("findings[].edit", "a change of one line: in `file` at `line`, write `new` for `old`"),
    ("findings[].fix", "what to type or write next, in words, where there is no `edit`"),
    ("offers", "for a failing model: commands that repair, tune, explain or silence it"),
    ("next", "the command to type now, after the edit if there is one; empty if nothing is left to do"),
)
"""The fields of an answer that an agent follows."""
