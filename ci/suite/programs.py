"""A case is one model; a run of it is one way to compute it; a program is one run for one chip."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import BaseModel, Field, StringConstraints, field_validator, model_validator

from ci.models.own_packages import NONE, Needs, needs_of
from ci.suite.accepted import Recorded, accepted_thresholds, load_baseline
from ci.suite.options import COMMANDS, STAGE, Choice, matcher
from ci.suite.suite_file import LaneFields, LaneForm, SuiteFile, Thresholds, missing_lane, parse_suite
from ci.work.request import irrelevant
from provisioning.base.command_line import Parser
from provisioning.base.commands import Fix, session
from provisioning.base.documents import Model, read
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.findings import Metric
from provisioning.base.option_fields import option_words
from provisioning.base.settings import DEFAULT_PROFILE, profile_flags
from provisioning.manifest import soc_named

Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
Dotted = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
Factory = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][\w.]*:[A-Za-z_]\w*|[^:]+\.pt2)$")]
"""A function that returns a model, or a file of torch.export.save, relative to the suite."""


Scalar = bool | int | float | str


class TaskMetric(Model):
    """What the model is for, as a number that is better the larger it is."""

    name: str
    """For people: "characters right"."""
    function: Dotted
    """It gets the program's outputs and the float model's, of both a list for each inference."""


HELD = ("sqnr_db", "agreement", "metric")
HELD_QUANTIZED = (*HELD, "reference_sqnr_db", "reference_agreement")

MAX_SUGGESTIONS = 8

NO_SUITE = "no-suite.toml"
"""The name in place of a suite's for a model of a command line. There is no such file."""


class SuiteRun(Model):
    judged_later: ClassVar[frozenset[str]] = frozenset({"label", "socs", "tags", "thresholds"})
    """Fields that the work does not get, so no result depends on them."""
    of_model: ClassVar[frozenset[str]] = frozenset()
    """Fields that say which model and which samples there are: an export gives these by their bytes. All
    others decide the result."""

    label: Word | None = None
    """Tells this run from others of the same kind; [the kind]."""
    socs: tuple[str, ...] = Field(min_length=1)
    tags: tuple[Word, ...] = ("pr", "nightly")
    """When the run takes place; without tags always."""
    thresholds: Thresholds | None = None
    """What its author demands. It wins over what was accepted."""

    @property
    def is_measured(self) -> bool:
        """Whether its outputs are compared, and held to thresholds."""
        return True

    @property
    def required_figures(self) -> tuple[str, ...]:
        """Figures that get a threshold even if the suite does not name them, of programs that have them."""
        return HELD

    @property
    @abstractmethod
    def kind(self) -> str:
        """Its name without a label."""

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
                raise ValueError(f"a SoC of manifests/socs.toml: {error.message} ({error.fix})") from None
        return value


class SuiteCase(Model):
    judged_later: ClassVar[frozenset[str]] = frozenset({"runs"})
    of_model: ClassVar[frozenset[str]] = frozenset()
    """Both as of a run."""

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
    """In place of precision and nodes: a file that `tune` has written, relative to the suite."""
    nodes: dict[str, tuple[str, ...]] = Field(default={})
    """By precision, the operators that have it; `*` in a name matches anything."""

    @property
    def name(self) -> str:
        return self.label or (f"{self.kind}-mixed" if self.nodes else self.kind)


Fields = Mapping[str, Metric]
"""Those of a case or of a run, by name."""


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """A program for the processes that work on it."""

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
    """Those of its run that --accept wrote."""
    recorded: Recorded | None = None
    """What it cost, and how accurate it was, when somebody last agreed to it."""

    @property
    def demanded(self) -> dict[str, float]:
        """The thresholds that its suite names, by figure."""
        return self.run.thresholds.model_dump(exclude_none=True) if self.run.thresholds else {}

    @property
    def thresholds(self) -> Thresholds | None:
        """What it is held to; None if it is not measured."""
        return self.accepted.model_copy(update=self.demanded) if self.run.is_measured else None

    @property
    def run_name(self) -> str:
        """Without the chip."""
        return f"{self.case_name}/{self.run.name}"

    @property
    def name(self) -> str:
        return f"{self.run_name}/{self.soc}"

    @property
    def search_path(self) -> Path:
        """Where a factory's module is searched first, and where relative file names begin."""
        return self.suite.parent

    @property
    def model_without_suite(self) -> str:
        """Which model it is, where no suite has it; else empty."""
        alone = self.suite.name == NO_SUITE
        return self.case.model_dump_json(include={"factory", "model"}) if alone else ""

    @property
    def working_folder(self) -> Path:
        """Where relative paths in the user's code begin: the suite's folder, or for a model that no suite has
        the user's."""
        return Parser.user_folder() if self.suite.name == NO_SUITE else self.suite.parent

    @property
    def order(self) -> ProgramOrder:
        case, case_of_model = _parted(self.case, self.case.judged_later, self.case.of_model)
        run, run_of_model = _parted(self.run, self.run.judged_later, self.run.of_model)
        places = str(self.search_path), str(self.working_folder)
        return ProgramOrder(case, run, self.soc, case_of_model, run_of_model, *places)


def _parted(model: Model, judged_later: Collection[str], of_model: Collection[str]) -> tuple[Fields, Fields]:
    """The fields that decide a result, and those that say which model it is of."""
    fields = model.model_dump(mode="json", exclude={*judged_later})
    deciding = {name: value for name, value in fields.items() if name not in of_model}
    return deciding, {name: value for name, value in fields.items() if name in of_model}


P = TypeVar("P", bound=Program)


def with_accepted(programs: Sequence[P]) -> list[P]:
    """Programs of one suite and lane, with what is accepted of them now."""
    if not programs:
        return []
    suite, profile, lane = programs[0].suite, programs[0].profile, programs[0].lane
    thresholds, baseline = accepted_thresholds(suite, profile, lane), load_baseline(suite, profile, lane)
    return [
        replace(program, accepted=thresholds[program.run_name], recorded=baseline.of(program.name))
        for program in programs
    ]


def _named(programs: Sequence[Program], word: str) -> set[str]:
    """The program of this name, or those of this run, as we print them: another name may hold it."""
    return {program.name for program in programs if word in (program.name, f"{program.run_name}/")}


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
        """Programs that are this lane's, as its own type has them."""
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
            self.program(path, name, case, run, soc, profile, needs, self.lane)
            for name, case in file.cases.items()
            for run in case.runs
            for soc in socs or run.socs
        ]
        return with_accepted(programs)

    def needs_of(self, file: SuiteFile) -> Needs:
        """What its models need beside our packages."""
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
        """All programs of the named suites, or of the shipped one; no two may have the same name."""
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
        of_tags = {tag: {program.name for program in programs if tag in program.run.tags} for tag in tags}
        of_words = {word: _named(programs, word) or set(filter(matcher([word]), names)) for word in words}
        for flag, matches, choices, kind in (
            ("--tag", of_tags, known_tags, "tags"),
            ("-k", of_words, names, "programs"),
        ):
            for value, hits in matches.items():
                if not hits:
                    raise self._nothing(f"{flag} {value} matches no program", kind, choices, value)
        result = [
            program
            for program in programs
            if all(
                not matches or any(program.name in hits for hits in matches.values())
                for matches in (of_tags, of_words)
            )
        ]
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
        return session(verb, *chosen, *soc, *profile_flags(program.profile))
