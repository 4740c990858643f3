"""docs/commands.md: every command by its task, in the words of its own help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ci.__main__ import VERBS as CI
from ci.lanes.registry import lanes_with_suites, stages
from ci.model_commands.typed_model import kinds_of
from ci.suite.lane_head import COMPILE, FROM_MODEL, ONE_MODEL, RUN
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.errors import ManifestError
from provisioning.base.option_fields import Option, declared_options
from provisioning.base.settings import ROOT

PAGE = ROOT / "docs" / "commands.md"

SUITE_STAGES = {stage.name: stage.page for row in lanes_with_suites() for stage in row.head.stages}
OTHER_STAGES = {stage.name: stage.page for _, stage in stages() if stage.name not in SUITE_STAGES}
"""Each stage of a lane, with its page."""

TASKS = {
    "One model": {
        "example": "start.md",
        "compile": "model.md",
        "quantize": "accuracy.md#where-quantizing-loses",
        "run": "model.md",
        "inspect": "model.md",
        "wrap": "devices.md",
        "forecast": "model.md#milliseconds-on-a-phone",
        "check": "llm.md#check-it",
    },
    "Accuracy, and operators on the CPU": {
        "audit": "accuracy.md#audit",
        "divergence": "accuracy.md#divergence",
        "repair": "accuracy.md#repair",
        "tune": "accuracy.md#tune",
    },
    "Suites of models, and the gate": {
        "gate": "suites.md",
        **SUITE_STAGES,
        "report": "suites.md#reports",
        "matrix": "suites.md#split-a-suite-into-jobs",
        "adopt": "github.md",
        "github": "github.md",
    },
    "Failures": {"diagnose": "start.md#explain-a-failure", "validate": "checks.md"},
    "Devices": {
        "chips": "chips.md",
        "bundle": "devices.md",
        "run_device": "devices.md",
        "sign_lpai": "signing.md",
        "signing": "signing.md",
    },
    "The environment": {
        "provision": "environments.md",
        "store": "environments.md#folders",
        "env": "environments.md",
        "shell": "environments.md",
        "image": "environments.md",
    },
    "ExecuTorch from source": {
        "build_runner": "building.md",
        "build_x86": "building.md",
        "build_android": "building.md",
        "build_linux_arm64": "building.md",
        "buck_parity": "building.md",
        **OTHER_STAGES,
    },
}
"""The commands of each task, with the page of each."""

BEGINNING = """\
<!-- Generated from the commands' own help: `nox -s generate` renews it. -->

# All commands

What is there, by task? `qnn-ci VERB --help` explains a command, with examples. In a clone, type
`nox -s VERB -- …`; `github`, `image` and `lock` are for a clone only.
"""


def page() -> str:
    verbs = {**CI, **PROVISIONING}
    named = [name for names in TASKS.values() for name in names]
    if set(named) != set(verbs):
        raise ManifestError(PAGE, "TASKS", expected=", ".join(sorted(verbs)), found=", ".join(sorted(named)))
    lines = BEGINNING.splitlines()
    for task, names in TASKS.items():
        lines += ["", f"## {task}", "", "| command | what it does |", "| --- | --- |"]
        lines += [f"| [`{name}`]({place}) | {verbs[name].summary} |" for name, place in names.items()]
    return "\n".join([*lines, *_flags()]) + "\n"


FLAGS = """
## Flags of the commands for one model

What may be typed with a model, beside `--profile`, `--soc`, `--store` and `--reports`? `compile`, `quantize`,
`audit`, `divergence`, `repair`, `tune` and `forecast` take a model, `run` a program. In a suite the field of
the last column says the same.

| flag | what it does | commands | models | in a suite |
| --- | --- | --- | --- | --- |"""


def _flags() -> Iterator[str]:
    """The options of all lanes, each once."""
    yield FLAGS
    kinds = kinds_of(COMPILE)
    rows: dict[str, tuple[Option, list[str]]] = {}
    for models, kind in kinds.items():
        for name, row in declared_options(kind).items():
            if any(models in kinds_of(verb) for verb in row.verbs):
                rows.setdefault(name, (row, []))[1].append(models)
    for row, takers in sorted(rows.values(), key=lambda pair: pair[0].flag):
        flag = f"{row.flag} {'|'.join(row.choices) or row.metavar}".strip().replace("|", "\\|")
        taking = "all" if len(takers) == len(kinds) else ", ".join(takers)
        field = f"`{row.suite}`" if row.suite else ""
        yield f"| `{flag}` | {row.help} | {_verbs_in_words(row.verbs)} | {taking} | {field} |"


def _verbs_in_words(takers: Sequence[str]) -> str:
    # Stages share some of the flags.
    verbs = [verb for verb in takers if verb in ONE_MODEL]
    if {*FROM_MODEL} <= {*verbs}:
        return "all" if RUN in verbs else f"all but `{RUN}`"
    return ", ".join(f"`{verb}`" for verb in verbs)
