"""What is printed is what was tried: every command that we print parses back to the options it came from."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.__main__ import VERBS
from ci.one_model.model import CHECKPOINT, LANES, ModelLane, OneModel, one_model_of
from ci.one_model.options import COMPILE, FROM_MODEL, RUN, Floor, ModelOptions, floor
from provisioning.base.command_line import Parser, count, duration, module_of
from provisioning.base.option_fields import Option, declared_options
from provisioning.base.settings import Selection, profile_names

TYPED = {"PyTorch models": "net.py:make", "ONNX models": "net.onnx"}
# argparse drops a value of two dashes.
WORDS = st.text("-a=é'\" \n{", min_size=1, max_size=3).filter(lambda text: text != "--")
NUMBERS = st.integers(1, 1 << 40)
SECONDS = st.floats(0.001, 1e6)
VALUES = {
    count: NUMBERS,
    duration: SECONDS,
    float: st.floats(allow_nan=False, allow_infinity=False),
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


def options(kind: type[ModelOptions], verb: str) -> st.SearchStrategy[ModelOptions]:
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
)


@pytest.mark.parametrize("verb", [*FROM_MODEL, RUN])
@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.models)
@settings(max_examples=20)
@given(data=st.data())
def test_a_command_for_one_model_parses_back_to_the_options_it_came_from(
    verb: str, lane: ModelLane, checkpoint: Path, data: st.DataObject
) -> None:
    if lane == CHECKPOINT and verb not in (COMPILE, RUN):
        return
    tried = OneModel(
        data.draw(SELECTIONS),
        TYPED.get(lane.models, str(checkpoint)),
        lane,
        data.draw(options(lane.options, verb)),
    )
    rows = declared_options(lane.options)
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
    assert (again.selection.profile, again.selection.socs) == (tried.selection.profile, tried.selection.socs)
