"""Read the file of a suite, which has cases and their runs in any lane. Each lane says which fields belong to
it. Also read a precision file, which `tune` writes: the precision of a model, and the operators that have
another one."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, StringConstraints, create_model

from ci.models.wheels import PinnedWheel
from provisioning.base.command_line import Parser
from provisioning.base.commands import session
from provisioning.base.documents import Document, Model, load, parse, read
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.settings import MANIFESTS
from provisioning.base.toml import Place

PRECISION_SUFFIX = ".precision.toml"


class PrecisionFile(Model):
    lane: Literal["executorch", "onnx"]
    """The lane whose names the operators have."""
    precision: str
    nodes: dict[str, tuple[str, ...]] = Field(default={})
    """Maps another precision to the operators that have it; `*` in a name matches anything."""


def read_precision(path: Path, lane: str) -> PrecisionFile:
    file = load(path, PrecisionFile)
    if file.lane != lane:
        fix = "tune the model in this lane: each lane names operators in its own way"
        owner = f"{lane!r}, whose program it is for"
        raise ManifestError(path, "lane", expected=owner, found=repr(file.lane), fix=fix)
    return file


def precision_file_of(path: Path | None, lane: str) -> PrecisionFile | None:
    """Read the precision file that a command line names."""
    return read_precision(Parser.user_folder() / path, lane) if path else None


def precision_text(lane: str, precision: str, nodes: Mapping[str, Sequence[str]], comment: str) -> str:
    lines = [f"# {comment}", f'lane = "{lane}"', f'precision = "{precision}"', "", "[nodes]"]
    for name, members in nodes.items():
        rows = "".join(f"    {json.dumps(member, ensure_ascii=False)},\n" for member in members)
        lines.append(f'"{name}" = [\n{rows}]')
    return "\n".join(lines) + "\n"


def resolve_precision_file(run: Mapping[str, object], folder: Path, lane: str) -> dict[str, object]:
    """Replace a run's precision file by its content: the content, not the name, decides what is compiled."""
    file = run.get("precision_file")
    if not isinstance(file, str):
        return dict(run)
    path = folder / file
    for field in ("precision", "nodes"):
        if field in run:
            raise ManifestError(
                path, field, expected="it in the precision file alone", found="it beside precision_file",
                fix=f"remove {field}, or precision_file",
            )  # fmt: skip
    return {**run, **read_precision(path, lane).model_dump(mode="json", exclude={"lane"})}


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


class _Run(BaseModel):
    model_config = ConfigDict(extra="allow")
    lane: str


class _Case(BaseModel):
    model_config = ConfigDict(extra="allow")
    runs: tuple[_Run, ...] = Field(min_length=1, alias="run")


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
    file = parse(document, _File, path)
    forms = lanes() if form is None else {**lanes(), form.lane: form.fields}
    raw: dict[str, dict[str, Document]] = {}
    places: dict[tuple[str, str], list[int]] = {}
    for name, case in document["case"].items():
        where = f"case.{name}"
        for number, run in enumerate(case["run"]):
            if run["lane"] not in forms:
                place, one_of = f"{where}.run.{number}.lane", f"one of {', '.join(forms)}"
                raise ManifestError(path, place, expected=one_of, found=repr(run["lane"]))
        own = {run["lane"]: forms[run["lane"]].case for run in case["run"]}
        # What no lane knows is refused with the other mistakes of the case.
        elsewhere = {field for fields in own.values() for field in fields}
        for number, run in enumerate(case["run"]):
            lane = run["lane"]
            fields = {
                key: value
                for key, value in case.items()
                if key != "run" and (key in own[lane] or key not in elsewhere)
            }
            own_case = raw.setdefault(lane, {}).setdefault(name, {**fields, "run": []})
            own_run = {key: value for key, value in run.items() if key != "lane"}
            own_case["run"].append(resolve_precision_file(own_run, path.parent, lane))
            places.setdefault((lane, name), []).append(number)
    cases = {}
    if form and form.lane in raw:
        cases = _cases(form, raw[form.lane], path, functools.partial(_place, places, form.lane))
    head = SuiteHead.model_validate({name: getattr(file, name) for name in SuiteHead.model_fields})
    names = [name for name, value in head if value]
    if names and form and [form.lane] == [*raw] and not form.runs_user_code:
        expected, found = "a lane that runs code of the user's", f"runs of lane {form.lane} alone"
        raise ManifestError(path, names[0], expected=expected, found=found, fix=f"remove {names[0]}")
    return SuiteFile(path, head, tuple(raw), cases)


def accepted_path(suite: Path, profile: str) -> Path:
    """The file of a suite's accepted results: in manifests/accepted/ for a shipped suite, else beside the
    suite."""
    if suite.parent == MANIFESTS / "suites":
        return MANIFESTS / "accepted" / f"{suite.stem}-{profile}.json"
    return suite.with_name(f"{suite.stem}.accepted-{profile}.json")


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


def _place(places: Mapping[tuple[str, str], list[int]], lane: str, place: Place) -> Place:
    """Translate a place among a lane's own cases into the place in the file, which counts the runs of all
    lanes."""
    if len(place) > 3 and place[2] == "run" and isinstance(place[3], int):
        return (*place[:3], places[lane, str(place[1])][place[3]], *place[4:])
    return place


def _cases(
    form: LaneForm, cases: Mapping[str, Document], path: Path, place: Callable[[Place], Place]
) -> dict[str, Any]:
    model = create_model("Cases", __base__=Model, case=(dict[str, form.case], ...))  # type: ignore[name-defined]
    return dict(dict(parse({"case": dict(cases)}, model, path, place))["case"])
