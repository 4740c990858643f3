"""What a red finding offers to type next."""

from __future__ import annotations

import importlib
import shlex
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.diagnose.rules import rules
from ci.model_commands import audit, divergence
from ci.one_model.model import one_model_of
from ci.suite.offers import load_offers, offers_of, words_of
from tests.support.typed import parsed

MODEL = ["net.py:make", "--soc", "SM8650", "--precision", "16a8w", "--calibrate", "samples"]
BURST = "htp_performance_mode=burst"


def test_a_wrong_result_is_repaired_tuned_and_explained_by_one_command_each() -> None:
    found = offers_of(["compile-accuracy"], words_of(MODEL))
    assert list(found) == ["repairs", "tunes", "explains"]
    assert " repair" in found["repairs"] and "--precision 16a8w" in found["repairs"]
    assert "--precision 16a8w --precision fp16" in found["tunes"] and "--calibrate samples" in found["tunes"]
    assert " divergence" in found["explains"]


@pytest.mark.parametrize(
    "rules",
    [["compile-accuracy"], ["model-dies"], ["compile-crash"], ["onnx-cpu-node"], ["lowering-compile"]],
)
def test_of_a_model_with_a_precision_file_only_what_takes_one_is_offered(rules: list[str]) -> None:
    model = ["net.onnx", "--soc", "SM8650", "--precision-file", "net.precision.toml"]
    for command in offers_of(rules, words_of(model)).values():
        verb, _, flags = command.partition(" -- ")
        module = importlib.import_module(VERBS[verb.split()[-1]].module)
        assert parsed(module, *shlex.split(flags)).precision_file == Path(model[-1])
    assert "explains" in offers_of(["compile-accuracy"], words_of(model))


def test_settings_of_the_provider_are_in_each_command_that_is_offered() -> None:
    model = one_model_of(parsed(audit, "net.onnx", "--precision", "8a8w", "--option", BURST))
    offered = offers_of(["compile-accuracy"], words_of(model.words("SM8650")))
    assert {"repairs", "tunes", "explains"} == {*offered}
    for command in offered.values():
        verb, _, flags = command.partition(" -- ")
        module = importlib.import_module(VERBS[verb.split()[-1]].module)
        assert parsed(module, *shlex.split(flags)).option == [BURST]


@pytest.mark.parametrize(
    ("verb", "more", "settings"), [("divergence", [], [BURST]), ("quantize", ["--where"], [])]
)
def test_what_a_warning_says_to_type_takes_the_settings_of_the_model_or_leaves_them_out(
    verb: str, more: list[str], settings: list[str], tmp_path: Path
) -> None:
    """Weights and ranges do not depend on the provider, so `quantize` takes no settings of it."""
    model = one_model_of(parsed(divergence, "net.onnx", "--precision", "8a8w", "--option", BURST))
    command = model.command(verb, "SM8650", *more)
    flags = parsed(importlib.import_module(VERBS[verb].module), *shlex.split(command.partition(" -- ")[2]))
    assert (flags.model, flags.precision) == ("net.onnx", "8a8w")
    assert flags.option == settings


def test_what_was_just_done_and_what_cannot_be_typed_are_not_offered() -> None:
    assert "repairs" not in offers_of(["compile-accuracy"], words_of(MODEL), besides="repair")
    suite = {"stage": ["test_emulator"], "program": ["-k", "net/8a8w/SM8650"]}
    found = offers_of(["emulator-accuracy"], {**words_of([]), **suite})
    assert list(found) == ["explains", "silences"]
    assert "-k net/8a8w/SM8650 --accept" in found["silences"]
    assert not offers_of(["lowering-machine"], words_of(MODEL))


def test_each_rule_of_the_table_is_one_that_a_finding_can_have() -> None:
    known = [*rules(), "model-dies", "model-accuracy"]
    for offer in load_offers():
        for pattern in offer.rules:
            assert any(fnmatchcase(rule, pattern) or fnmatchcase(pattern, rule) for rule in known)
