"""What is printed is what was tried: every command that we print parses back to the options it came from."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.__main__ import VERBS
from ci.gate.options import GateFlags, GateOptions
from ci.gate.options import read_options as read_gate_options
from ci.lanes.executorch.suite import SUITES, ExecutorchCase, ExecutorchProgram, ExecutorchRun
from ci.lanes.onnx.model_options import OnnxOptions
from ci.lanes.onnx.options import parse_assignments
from ci.lanes.onnx.product import dimensions_of
from ci.lanes.onnx.suite import OnnxCase, OnnxRun, command_for_one
from ci.model_commands.typed_model import heads_of_models, kinds_of, one_model_of, options_of
from ci.one_model.model import OneModel
from ci.one_model.options import Floor, ModelOptions, decibels, floor
from ci.suite.lane_head import FROM_MODEL, RUN, LaneHead
from ci.suite.options import GATE, Choice
from provisioning.base.command_line import module_of
from provisioning.base.commands import Fix
from provisioning.base.flags import count, duration
from provisioning.base.option_fields import Option, SomeOptions, declared_options, read_options, suite_values
from provisioning.base.parser import Parser
from provisioning.base.selection import selection_of
from provisioning.base.settings import WHEEL, Selection, profile_names
from tests.conformance.examples import EXAMPLES

# argparse drops a value of two dashes.
WORDS = st.text("-a=é'\" \n{", min_size=1, max_size=3).filter(lambda text: text != "--")
NUMBERS = st.integers(1, 1 << 40)
SECONDS = st.floats(0.001, 1e6)
VALUES = {
    count: NUMBERS,
    duration: SECONDS,
    decibels: st.floats(0.001, 1e6),
    floor: st.builds(Floor, st.integers(0, 1 << 40).map(lambda number: number / 4), st.booleans()),
    Path: WORDS.map(Path),
    str: WORDS,
}
OUTPUT = ("-o", "out")


def values(row: Option) -> st.SearchStrategy[object]:
    """All that may be typed for an option."""
    if isinstance(row.default, bool):
        return st.booleans()
    one = st.sampled_from(row.choices) if row.choices else VALUES[row.parse]
    if isinstance(row.default, tuple):
        return st.lists(one, max_size=3).map(tuple)
    return st.just(row.default) | one


def options(kind: type[SomeOptions], verb: str) -> st.SearchStrategy[SomeOptions]:
    """What the verb takes, in any combination."""
    rows = declared_options(kind).items()
    return st.builds(kind, **{name: values(row) for name, row in rows if verb in row.verbs})


@cache
def parser_of(verb: str) -> Parser:
    parser = Parser(verb)
    module_of(VERBS[verb]).configure(parser)
    return parser


def wanted(tried: OneModel, verb: str) -> ModelOptions:
    """What the verb has of these options: all that a printed command repeats."""
    kind = type(tried.options)
    rows = declared_options(kind)
    kept = {name for name, row in rows.items() if verb in row.verbs and not row.unprinted}
    values = {name: getattr(tried.options, name) for name in kept}
    return replace(kind(), **values)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    (folder / "config.json").touch()
    return folder


SELECTIONS = st.builds(
    Selection,
    st.sampled_from(profile_names()),
    st.just("x86_64-linux"),
    st.sampled_from(["SM8650", "SM8750", "SA8295"]),
    st.just(Path("store")),
    st.just(Path("reports")),
    executorch=st.sampled_from(["", WHEEL]),
)


NAMES = st.sampled_from(["net", "my-net", "net-2", "a.net"])
CHIPS = st.lists(st.sampled_from(["SM8650", "SM8550", "SM8750"]), min_size=1, max_size=2, unique=True)
SUITE = Path("/suites/my models.toml")


@st.composite
def programs_of_suite(draw: st.DrawFn) -> list[ExecutorchProgram]:
    """Programs whose names may hold one another."""
    programs = []
    for case_name in draw(st.lists(NAMES, min_size=2, unique=True)):
        precisions = draw(st.lists(st.sampled_from(["8a8w", "16a8w"]), min_size=1, unique=True))
        fields = ({"precision": name, "socs": tuple(draw(CHIPS))} for name in precisions)
        runs = tuple(map(ExecutorchRun.model_validate, fields))
        case = ExecutorchCase(factory="net:make", run=runs)
        for run in runs:
            programs += [ExecutorchProgram(SUITE, case_name, case, run, soc) for soc in run.socs]
    return programs


@pytest.mark.parametrize("verb", ["test_lowering", "test_emulator", "divergence", "quantize"])
@settings(max_examples=10)
@given(programs=programs_of_suite(), data=st.data())
def test_a_command_for_a_suites_program_chooses_it_and_no_other(
    verb: str, programs: list[ExecutorchProgram], data: st.DataObject
) -> None:
    profile, every_chip = data.draw(st.sampled_from(profile_names())), data.draw(st.booleans())
    executorch = data.draw(st.sampled_from(["", WHEEL]))
    program = replace(data.draw(st.sampled_from(programs)), profile=profile, executorch=executorch)
    command = SUITES.repeat(program, verb, every_chip=every_chip).command
    args = parser_of(verb).parse_args(command[1:])
    choice, selection = read_options(Choice, args), selection_of(args)
    chosen = {row.name for row in SUITES.choose(programs, tags=choice.tags, words=choice.words)}
    of_run = {row.name for row in programs if row.run_name == program.run_name}
    assert choice.suites == (SUITE,) and selection.profile == profile and not selection.named_socs
    assert selection.executorch == executorch
    assert chosen == (of_run if every_chip else {program.name})


@settings(max_examples=10)
@given(data=st.data())
def test_a_command_for_a_suites_onnx_has_its_options(data: st.DataObject) -> None:
    tried = data.draw(
        st.builds(
            OnnxOptions,
            calibration=st.none() | NUMBERS,
            inferences=st.none() | NUMBERS,
            precisions=st.sampled_from(["fp16", "8a8w", "16a8w"]).map(lambda name: (name,)),
            per_channel=st.booleans(),
            dimensions=st.sampled_from([(), ("batch=1",), ("x=1,3,8", "n=2")]),
            settings=st.sampled_from([(), ("htp_performance_mode=burst",), ("vtcm_mb=4",)]),
        )
    )
    values = suite_values(tried, "run")
    values |= {"precision": tried.precisions[0], "options": parse_assignments(tried.settings)}
    run = OnnxRun.model_validate({**values, "socs": ("SM8650",)})
    values = suite_values(tried, "case") | {"dimensions": dimensions_of(tried.dimensions)}
    case = OnnxCase.model_validate({**values, "model": "net.onnx", "run": (run,)})
    command = command_for_one("divergence", case, run, "SM8650", Path("/models"))
    assert isinstance(command, Fix)
    again = one_model_of(parser_of("divergence").parse_args(command.command[1:]), "divergence")
    assert (again.typed, again.options) == ("/models/net.onnx", tried)


@settings(max_examples=20)
@given(choice=options(Choice, GATE), flags=options(GateFlags, GATE))
def test_the_gates_command_parses_back_to_the_options_it_came_from(choice: Choice, flags: GateFlags) -> None:
    choice, flags = replace(choice, suites=()), replace(flags, verbose=False)
    command = GateOptions(Selection("wheels", "", "", Path(), Path()), (), choice, flags).command
    again = read_gate_options(parser_of(GATE).parse_args(command.command[1:]))
    assert (again.choice, again.flags) == (choice, flags)


# Together they are some hundred commands in each run of the tests.
@pytest.mark.parametrize(
    ("lane", "verb"),
    [(lane, verb) for verb in (*FROM_MODEL, RUN) for lane in heads_of_models(verb)],
    ids=lambda value: getattr(value, "models", value),
)
@settings(max_examples=6)
@given(data=st.data())
def test_a_command_for_one_model_parses_back_to_the_options_it_came_from(
    verb: str, lane: LaneHead, checkpoint: Path, data: st.DataObject
) -> None:
    if lane.models not in kinds_of(verb):
        return
    tried = OneModel(
        data.draw(SELECTIONS),
        EXAMPLES[lane.name].typed or str(checkpoint),
        lane,
        data.draw(options(options_of(lane), verb)),
    )
    rows = declared_options(options_of(lane))
    single = {name: () for name, row in rows.items() if verb in row.once}
    several = {name: getattr(tried.options, name)[:1] for name in single}
    tried = tried.use(replace(tried.options, **several))
    if tried.options.precision_file:
        tried = tried.use_precision(None)
    more = OUTPUT if any(verb in row.required for row in rows.values()) else ()
    command = tried.command(verb, tried.selection.soc, *more).command
    again = one_model_of(parser_of(verb).parse_args(command[1:]), verb)
    expected = wanted(tried, verb)
    assert replace(again.options, output=None) == expected
    assert (again.typed, again.lane) == (tried.typed, lane)
    before, after = tried.selection, again.selection
    assert (after.profile, after.socs, after.executorch) == (before.profile, before.socs, before.executorch)
