"""What flags and variables select."""

from __future__ import annotations

import argparse

import pytest

from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.errors import UsageError
from provisioning.base.selection import add_selection, selection_of
from provisioning.base.settings import TARGETS, Selection


def selected(*flags: str, **environ: str) -> Selection:
    parser = argparse.ArgumentParser()
    add_selection(parser)
    return selection_of(parser.parse_args(flags), environ)


def test_a_flag_goes_before_a_variable_and_a_variable_before_the_default() -> None:
    assert (selected().profile, selected(QNN_CI_PROFILE="a").profile) == ("wheels", "a")
    assert selected("--profile", "b", QNN_CI_PROFILE="a").profile == "b"
    assert selected("--soc", "SM8750", QNN_CI_SOC="SM8550").socs == ("SM8750",)


def test_what_is_selected_is_never_empty_and_what_was_named_may_be() -> None:
    default = selected(QNN_CI_SOC="")
    assert (default.socs, default.targets) == (("SM8650",), ("x86_64-linux",))
    assert (default.named_socs, default.named_targets) == ((), ())
    assert selected("--soc", "SM8550,SM8750", "--soc", "SM8550").named_socs == ("SM8550", "SM8750")
    assert selected("--soc", "8gen3,SM8650", "--soc", "Galaxy S25").named_socs == ("SM8650", "SM8750")
    assert selected("--target", "all").named_targets == TARGETS


def test_chips_are_listed_with_the_names_that_people_use(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*name: str) -> dict[str, str]:
        assert main("qnn-ci", "", VERBS, ["chips", *name]) == 0
        return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])

    galaxy = shown("Galaxy S25")
    assert list(galaxy) == ["SM8750"] and "8 Elite" in galaxy["SM8750"]
    assert len(shown()) > 20


@pytest.mark.parametrize("flags", [("--soc", ""), ("--soc", "SM8650,"), ("--profile", "")])
def test_an_empty_name_is_an_error_and_not_the_default(flags: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=flags[0]):
        selected(*flags, QNN_CI_SOC="SM8550")
