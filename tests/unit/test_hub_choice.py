"""Which device and which QNN of AI Hub a context runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.hub.choice import HubDevice, HubRuntime, choose_device, choose_runtime
from ci.suite.contexts import ContextJob
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError


def phone(name: str, *attributes: str, os: str = "15") -> HubDevice:
    return HubDevice(name, os, (*attributes, "framework:qnn"))


S25 = phone("Samsung Galaxy S25 (Family)", "hexagon:v79", "chipset:qualcomm-snapdragon-8-elite-for-galaxy")
ULTRA = phone("Samsung Galaxy S25 Ultra", "hexagon:v79", "chipset:qualcomm-snapdragon-8-elite-for-galaxy")
S24 = phone("Samsung Galaxy S24", "hexagon:v75", "chipset:qualcomm-snapdragon-8gen3")
DEVICES = [ULTRA, S25, S24]


def job(device: str, *, soc: str = "SM8750", build_id: str = "v2.49.40.260810104044") -> ContextJob:
    return ContextJob(
        program="net",
        context=Path("net.bin"),
        soc=soc,
        build_id=build_id,
        inputs=(),
        samples=(),
        outputs=(),
        device=device,
    )


@pytest.mark.parametrize("name", ["Galaxy S25", "samsung galaxy s25", "Samsung Galaxy S25 (Family)"])
def test_a_device_needs_neither_its_maker_nor_its_family(name: str) -> None:
    assert choose_device(job(name), DEVICES) == S25


def test_the_newest_system_of_a_device_is_taken() -> None:
    old = phone(S25.name, *S25.attributes, os="9")
    assert choose_device(job("Galaxy S25"), [S25, old]) == S25


def test_an_unknown_device_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(UsageError) as error:
        choose_device(job("Galaxy S52 Ultra"), DEVICES)
    assert ULTRA.name in error.value.fix


def test_another_hexagon_is_refused() -> None:
    with pytest.raises(CheckFailed):
        choose_device(job("Galaxy S24"), DEVICES)


def test_another_chip_of_the_same_hexagon_is_refused() -> None:
    board = phone("Board", "hexagon:v73", "chipset:qualcomm-snapdragon-8gen2")
    assert choose_device(job("Board", soc="SM8550"), [board]) == board
    with pytest.raises(CheckFailed):
        choose_device(job("Board", soc="SC8380XP"), [board])


def test_a_device_that_does_not_say_its_hexagon_is_refused() -> None:
    with pytest.raises(CheckFailed):
        choose_device(job("Board"), [phone("Board")])


def test_a_device_without_qnn_is_refused() -> None:
    with pytest.raises(CheckFailed):
        choose_device(job("Board"), [HubDevice("Board", "1", ("hexagon:v79",))])


def runtimes(*versions: str) -> list[HubRuntime]:
    return [HubRuntime("QAIRT", ".".join(text.split(".")[:2]), text) for text in versions]


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (["2.51.0", "2.50.0", "2.48.0"], "2.50.0"),
        (["2.49.40.260810104044", "2.50.0"], "2.49.40.260810104044"),
        (["2.49.0", "2.100.0"], "2.100.0"),
    ],
)
def test_the_oldest_runtime_that_is_not_older_than_the_context_runs_it(
    versions: list[str], chosen: str
) -> None:
    assert choose_runtime(job("Galaxy S25"), runtimes(*versions)).full_version == chosen


def test_a_context_newer_than_all_runtimes_is_refused_with_their_versions() -> None:
    with pytest.raises(EnvironmentLacking) as error:
        choose_runtime(job("Galaxy S25", build_id="v2.51.0.260929"), runtimes("2.48.0", "2.50.0"))
    assert "2.48.0, 2.50.0" in error.value.message
