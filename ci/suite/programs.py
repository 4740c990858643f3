"""The programs of a suite. A case is one model; a run of it is one way to compute it; a program is one run
for one chip.

A lane declares its own cases, runs and programs as subclasses, and a `Suites` reads them from suite files,
with accepted results, and chooses among them by tags and words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, Field, StringConstraints, field_validator, model_validator

from ci.models.package_needs import NONE, Needs, needs_of
from ci.suite.accepted import Recorded, accepted_thresholds, load_baseline
from ci.suite.lane_head import STAGE
from ci.suite.options import COMMANDS, Choice, matcher
from ci.suite.suite_file import LaneFields, LaneForm, SuiteFile, Thresholds, missing_lane, parse_suite
from ci.work import irrelevant
from provisioning.base.commands import Fix, session
from provisioning.base.documents import Model, read
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.findings import Metric
from provisioning.base.option_fields import option_words
from provisioning.base.parser import Parser
from provisioning.base.settings import DEFAULT_PROFILE, profile_flags
from provisioning.manifest import soc_named

Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
Dotted = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Factory = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*|[^:]+\.pt2)$")]
"""Names a function that returns a model, or a file that torch.export.save wrote, relative to the suite."""


Scalar = bool | int | float | str


class TaskMetric(Model):
    """Measures what the model is for, as a number that is better the larger it is."""

    name: str
    """The name that people read, such as "characters right"."""
    function: Dotted
    """Receives the program's outputs and the float model's: each is a list with an entry for each
    inference."""


HELD = ("sqnr_db", "agreement", "metric")
HELD_QUANTIZED = (*HELD, "reference_sqnr_db", "reference_agreement")

MAX_SUGGESTIONS = 8

NO_SUITE = "no-suite.toml"
"""Stands for the suite's name if the model comes from a command line. There is no such file."""


class SuiteRun(Model):
    judged_later: ClassVar[frozenset[str]] = frozenset({"label", "socs", "tags", "thresholds"})
    """The work does not receive these fields, so no result depends on them."""
    of_model: ClassVar[frozenset[str]] = frozenset()
    """These fields choose the model and its samples: an export describes both by their bytes. All other
    fields decide the result."""

    label: Word | None = None
    """Tells this run from others of the same kind; [the kind]."""
    socs: tuple[str, ...] = Field(min_length=1, examples=[["SM8750"]])
    tags: tuple[Word, ...] = ("pr", "nightly")
    """When the run takes place; without tags always."""
    thresholds: Thresholds | None = None
    """The thresholds that the author demands. They override the accepted ones."""

    @property
    def is_measured(self) -> bool:
        """Whether its outputs are compared, and held to thresholds."""
        return True

    @property
    def required_figures(self) -> tuple[str, ...]:
        """These figures get a threshold even if the suite does not name them, if the program has them."""
        return HELD

    @property
    @abstractmethod
    def kind(self) -> str:
        """The run's name without a label."""

    @property
    def name(self) -> str:
        return self.label or self.kind

    @field_validator("socs")
    @classmethod
    def _are_known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for soc in value:
            try:
                soc_named(soc)
            except UsageError as error:
                flags = error.fix.flags if isinstance(error.fix, Fix) else ()
                fix = f'socs = ["{flags[1]}"]' if flags[:1] == ("--soc",) else error.fix
                raise ValueError(f"a SoC of manifests/socs.toml: {error.message} ({fix})") from None
        return value


class SuiteCase(Model):
    judged_later: ClassVar[frozenset[str]] = frozenset({"runs"})
    of_model: ClassVar[frozenset[str]] = frozenset()
    """Both sets mean the same as those of a run."""

    non_finite: bool = False
    """The model gives NaN or infinity; the emulator's outputs must have them at the same places."""
    runs: tuple[SuiteRun, ...] = Field(min_length=1, alias="run")

    @model_validator(mode="after")
    def _names_are_unique(self) -> SuiteCase:
        names = [run.name for run in self.runs]
        if again := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"a label for the second run named {again[0]}")
        return self


class MixedRun(SuiteRun):
    """A run of a lane that can give operators another precision than the model's."""

    judged_later: ClassVar[frozenset[str]] = SuiteRun.judged_later | {"precision_file"}

    precision_file: str = ""
    """A file that `tune` has written, relative to the suite. It replaces precision and nodes."""
    nodes: dict[str, tuple[str, ...]] = Field(default={})
    """Maps a precision to the operators that have it; `*` in a name matches anything."""

    @property
    def name(self) -> str:
        return self.label or (f"{self.kind}-mixed" if self.nodes else self.kind)


Fields = Mapping[str, Metric]
"""The fields of a case or of a run, by name."""


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """A program, as the processes that work on it receive it."""

    case: Fields
    run: Fields
    soc: str
    case_of_model: Fields = field(metadata=irrelevant("an export gives model and samples by their bytes"))
    run_of_model: Fields = field(metadata=irrelevant("an export gives model and samples by their bytes"))
    search_path: str = field(metadata=irrelevant("where the suite lies"))
    working_folder: str = field(metadata=irrelevant("where relative paths in the user's code begin"))

    @property
    def whole_case(self) -> Fields:
        return {**self.case, **self.case_of_model}

    @property
    def whole_run(self) -> Fields:
        return {**self.run, **self.run_of_model}


@dataclass(frozen=True, slots=True)
class Program:
    """One model, computed in one way, for one chip."""

    suite: Path
    case_name: str
    case: Any
    run: Any
    soc: str
    profile: str = DEFAULT_PROFILE
    needs: Needs = NONE
    lane: str = ""
    accepted: Thresholds = field(default_factory=Thresholds)
    """The thresholds of its run that --accept wrote."""
    recorded: Recorded | None = None
    """The costs and figures of the program that were accepted last."""
    executorch: str = ""
    """WHEEL where the user says so; a command that runs the program again says it too."""
    upload: bool = False
    """Whether its suite agrees that it is uploaded to a hosted device."""

    @property
    def demanded(self) -> dict[str, float]:
        """The thresholds that its suite names, by figure."""
        return self.run.thresholds.model_dump(exclude_none=True) if self.run.thresholds else {}

    @property
    def thresholds(self) -> Thresholds | None:
        """The thresholds that decide its verdict; None if it is not measured."""
        return self.accepted.model_copy(update=self.demanded) if self.run.is_measured else None

    @property
    def run_name(self) -> str:
        """The program's name without the chip."""
        return f"{self.case_name}/{self.run.name}"

    @property
    def name(self) -> str:
        return f"{self.run_name}/{self.soc}"

    @property
    def search_path(self) -> Path:
        """The folder where a factory's module is searched first, and where relative file names begin."""
        return self.suite.parent

    @property
    def model_without_suite(self) -> str:
        """The text that identifies a model that belongs to no suite; empty for a model of a suite."""
        alone = self.suite.name == NO_SUITE
        return self.case.model_dump_json(include={"factory", "model"}) if alone else ""

    @property
    def working_folder(self) -> Path:
        """The folder where relative paths in the user's code begin: the suite's folder, or the user's current
        one for a model that belongs to no suite."""
        return Parser.user_folder() if self.suite.name == NO_SUITE else self.suite.parent

    @property
    def order(self) -> ProgramOrder:
        case, case_of_model = _part_fields(self.case, self.case.judged_later, self.case.of_model)
        run, run_of_model = _part_fields(self.run, self.run.judged_later, self.run.of_model)
        places = str(self.search_path), str(self.working_folder)
        return ProgramOrder(case, run, self.soc, case_of_model, run_of_model, *places)


def _part_fields(
    model: Model, judged_later: Collection[str], of_model: Collection[str]
) -> tuple[Fields, Fields]:
    """Split the fields into those that decide a result and those that identify its model."""
    fields = model.model_dump(mode="json", exclude={*judged_later})
    deciding = {name: value for name, value in fields.items() if name not in of_model}
    return deciding, {name: value for name, value in fields.items() if name in of_model}


P = TypeVar("P", bound=Program)


def add_accepted(programs: Sequence[P]) -> list[P]:
    """Return these programs of one suite and lane with the results that are accepted now."""
    if not programs:
        return []
    suite, profile, lane = programs[0].suite, programs[0].profile, programs[0].lane
    thresholds, baseline = accepted_thresholds(suite, profile, lane), load_baseline(suite, profile, lane)
    return [
        replace(program, accepted=thresholds[program.run_name], recorded=baseline.of(program.name))
        for program in programs
    ]


def _names_matching(programs: Sequence[Program], word: str) -> set[str]:
    """The program of this name, or those of this run, as messages print them: another name may contain the
    word."""
    return {program.name for program in programs if word in (program.name, f"{program.run_name}/")}


def _names_with_tag(programs: Sequence[Program], tag: str) -> set[str]:
    return {program.name for program in programs if tag in program.run.tags}


class AnySuites(Protocol):
    """The suites of a lane, whatever its programs are."""

    @property
    def lane(self) -> str: ...

    @property
    def case(self) -> type[SuiteCase]: ...

    @property
    def run(self) -> type[BaseModel]: ...

    @property
    def fields(self) -> LaneFields: ...

    def program_names(
        self, paths: Sequence[Path], socs: Sequence[str], profile: str, tags: Collection[str]
    ) -> list[str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Suites(LaneForm, Generic[P]):
    """The suites of a lane."""

    shipped: Path
    program: type[P]

    def own(self, programs: Iterable[Program]) -> list[P]:
        """Return these programs as the lane's own type, if they belong to this lane."""
        own = []
        for program in programs:
            assert isinstance(program, self.program)
            own.append(program)
        return own

    def programs_of(self, path: Path, socs: Sequence[str] = (), *, profile: str = DEFAULT_PROFILE) -> list[P]:
        """Every program of a suite; with `socs`, every run for these chips instead of its own."""
        path = path.absolute()
        file = parse_suite(read(path), path, self)
        if not file.cases:
            raise missing_lane(file, self, self.stages[0])
        needs = self.needs_of(file)
        programs = [
            self.program(path, name, case, run, soc, profile, needs, self.lane, upload=file.head.upload)
            for name, case in file.cases.items()
            for run in case.runs
            for soc in socs or run.socs
        ]
        return add_accepted(programs)

    def needs_of(self, file: SuiteFile) -> Needs:
        """The packages that the suite's models need beside ours."""
        head = file.head
        if not self.runs_user_code or file.path == self.shipped:
            return NONE
        return needs_of(
            file.path,
            head.requirements,
            head.project,
            variables=head.variables,
            secrets=head.secrets,
            wheels=head.wheels,
        )

    def all_programs(
        self, paths: Sequence[Path], socs: Sequence[str] = (), *, profile: str = DEFAULT_PROFILE
    ) -> list[P]:
        """All programs of the named suites, or of the shipped one; two programs with the same name are
        refused."""
        programs = [
            program
            for path in paths or [self.shipped]
            for program in self.programs_of(path, socs, profile=profile)
        ]
        by_name: dict[str, P] = {}
        for program in programs:
            if namesake := by_name.get(program.name):
                raise ManifestError(
                    program.suite,
                    f"case.{program.case_name}",
                    expected="a name that no other suite has",
                    found=f"the one of {namesake.suite}",
                )
            by_name[program.name] = program
        return programs

    def program_names(
        self, paths: Sequence[Path], socs: Sequence[str], profile: str, tags: Collection[str]
    ) -> list[str]:
        """The names of the programs that these flags choose."""
        programs = self.choose(self.all_programs(paths, socs, profile=profile), tags=tags)
        return [program.name for program in programs]

    def choose(
        self, programs: Sequence[P], *, tags: Collection[str] = (), words: Sequence[str] = ()
    ) -> list[P]:
        """The programs with one of the tags, and with a name that one of the words matches, which may be
        expressions.

        Every value must match a program: a misspelt one must not pass."""
        names = {program.name for program in programs}
        known_tags = {tag for program in programs for tag in program.run.tags}
        of_tags = {tag: _names_with_tag(programs, tag) for tag in tags}
        of_words = {
            word: _names_matching(programs, word) or set(filter(matcher([word]), names)) for word in words
        }
        for flag, matches, choices, kind in (
            ("--tag", of_tags, known_tags, "tags"),
            ("-k", of_words, names, "programs"),
        ):
            for value, hits in matches.items():
                if not hits:
                    raise self._nothing(f"{flag} {value} matches no program", kind, choices, value)
        for matches in (of_tags, of_words):
            if matches:
                names &= set().union(*matches.values())
        result = [program for program in programs if program.name in names]
        if not result:
            flags = " ".join([*(f"--tag {tag}" for tag in tags), *(f"-k {word}" for word in words)])
            raise self._nothing(f"no program is left by {flags}", "tags", known_tags)
        return result

    def _nothing(self, message: str, kind: str, choices: Collection[str], value: str = "") -> UsageError:
        from difflib import get_close_matches

        near = get_close_matches(value, choices)
        suggestions = list(dict.fromkeys([*near, *sorted(choices)]))[:MAX_SUGGESTIONS]
        more = f" and {len(choices) - len(suggestions)} more" if len(choices) > len(suggestions) else ""
        return UsageError(
            f"{message}; {kind} are {', '.join(suggestions) or 'on no run'}{more}",
            fix=session(self.stages[0], "--list"),
        )

    def repeat(self, program: Program, stage: str = "", *, every_chip: bool = False) -> Fix:
        """The command that runs this program again; with `every_chip`, its run for each chip of the suite."""
        name = f"{program.run_name}/" if every_chip else program.name
        soc = [] if every_chip or program.soc in program.run.socs else ["--soc", program.soc]
        choice = Choice(() if program.suite == self.shipped else (program.suite,), words=(name,))
        verb = stage or self.stages[0]
        chosen = option_words(choice, verb if verb in COMMANDS else STAGE)
        executorch = ["--executorch", program.executorch] if program.executorch else []
        return session(verb, *chosen, *soc, *profile_flags(program.profile), *executorch)
