from __future__ import annotations

import re
from pathlib import Path

import pytest

from ci.onnx.options import Value, described, files_of, options, parse_assignments, settings_of
from provisioning.base.errors import UsageError
from provisioning.manifest import soc_named

SM8650 = soc_named("SM8650")


def refused(given: dict[str, Value], *, embed: bool = False, soc: str = "SM8650") -> UsageError:
    with pytest.raises(UsageError) as caught:
        settings_of(given, soc=soc_named(soc), embed=embed)
    return caught.value


def test_options_go_to_where_they_belong() -> None:
    settings = settings_of(
        {
            "htp_performance_mode": "burst",
            "ep.context_node_name_prefix": "a_",
            "qnn.rpc_control_latency": 100,
            "ep.dynamic.workload_type": "Efficient",
        },
        soc=SM8650,
        embed=False,
    )
    assert settings.as_dict() == {
        "provider": {"htp_performance_mode": "burst"},
        "session": {"ep.context_node_name_prefix": "a_"},
        "run": {"qnn.rpc_control_latency": "100"},
        "dynamic": {"ep.dynamic.workload_type": "Efficient"},
    }


def test_a_flag_may_be_said_as_true() -> None:
    assert settings_of({"extended_udma": True}, soc=SM8650, embed=False).provider == {"extended_udma": "1"}


def test_an_unknown_name_gets_the_nearest() -> None:
    assert refused({"htp_perfomance_mode": "burst"}).remedy == "did you mean htp_performance_mode?"


def test_an_unknown_name_that_is_near_none_gets_them_all() -> None:
    assert refused({"q": 1}).remedy.startswith("use one of: ")


def test_an_unknown_value_gets_the_nearest() -> None:
    error = refused({"htp_performance_mode": "bursty"})
    assert error.remedy == "did you mean burst?"
    assert "'bursty'" in error.message


@pytest.mark.parametrize("value", ["-3", "abc", "0", "1.5", ""])
def test_a_size_must_be_a_whole_number_above_zero(value: str) -> None:
    assert "vtcm_mb" in refused({"vtcm_mb": value}).message


def test_more_vtcm_than_the_chip_has_is_refused() -> None:
    error = refused({"vtcm_mb": 9})
    assert error.message.endswith("this chip has 8 MB")
    assert error.remedy == "vtcm_mb=8"


def test_a_flag_takes_only_two_values() -> None:
    assert "expected 0 or 1, found '2'" in refused({"extended_udma": 2}).message


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("soc_model", "--soc"),
        ("enable_htp_fp16_precision", "--precision fp16"),
        ("profiling_level", "--profile"),
    ],
)
def test_what_the_toolkit_sets_is_refused_with_where_to_say_it(name: str, instead: str) -> None:
    assert instead in refused({name: "1"}).message


def test_an_option_without_effect_is_refused() -> None:
    assert refused({"json_qnn_graph_dir": "out"}).remedy == "add dump_json_qnn_graph=1"


def test_the_option_it_needs_makes_it_right() -> None:
    given: dict[str, Value] = {"json_qnn_graph_dir": "out", "dump_json_qnn_graph": 1}
    assert settings_of(given, soc=SM8650, embed=False).provider["json_qnn_graph_dir"] == "out"


def test_a_needed_option_that_is_off_does_not_count() -> None:
    assert "no effect" in refused({"json_qnn_graph_dir": "out", "dump_json_qnn_graph": 0}).message


def test_contradictions_are_refused() -> None:
    error = refused({"htp_share_resource_optimization": "1", "enable_vtcm_backup_buffer_sharing": 1})
    assert "contradicts" in error.message


def test_what_does_not_work_embedded_is_refused_there_only() -> None:
    given: dict[str, Value] = {"ep.share_ep_contexts": 1}
    assert "embedded" in refused(given, embed=True).message
    assert settings_of(given, soc=SM8650, embed=False).session == {"ep.share_ep_contexts": "1"}


def test_what_only_another_platform_heeds_is_refused() -> None:
    assert "Windows" in refused({"disable_file_mapped_weights": 1}).message


def test_bfloat16_is_for_newer_chips() -> None:
    assert "88 or more" in refused({"htp_bf16_enable": 1}).message
    assert settings_of({"htp_bf16_enable": 1}, soc=soc_named("SM8845"), embed=False).provider


def test_op_packages_have_a_form() -> None:
    assert "TYPE:PATH:SYMBOL" in refused({"op_packages": "Conv"}).message


@pytest.mark.parametrize(
    "given",
    [
        {"vtcm_mb": 1},
        {"vtcm_mb": 8},
        {"device_id": 0},
        {"op_packages": "Conv:/lib/libConv.so:provider"},
        {"htp_share_resource_optimization": "1"},
        {"htp_share_resource_optimization": "1", "enable_vtcm_backup_buffer_sharing": 0},
    ],
)
def test_what_is_right_at_its_bounds_is_taken(given: dict[str, Value]) -> None:
    settings = settings_of(given, soc=SM8650, embed="htp_share_resource_optimization" not in given)
    assert settings.provider == {name: str(value) for name, value in given.items()}


@pytest.mark.parametrize("name", ["htp_bf16_enable", "ep.share_ep_contexts"])
def test_a_flag_that_is_off_is_taken_wherever_it_has_no_effect(name: str) -> None:
    settings = settings_of({name: 0}, soc=SM8650, embed=True)
    assert {**settings.provider, **settings.session} == {name: "0"}


def test_every_option_that_another_names_is_in_the_table() -> None:
    named = {other for option in options().values() for other in (*option.needs, *option.conflicts)}
    assert named <= set(options())


def test_the_list_shows_every_option_that_can_be_given() -> None:
    text = described()
    assert all((f"  {name}=" in text) != bool(option.set_by) for name, option in options().items())


def test_the_list_says_by_scope_what_each_takes() -> None:
    words = re.split(r"^(\w+) options\n", described(), flags=re.MULTILINE)
    parts = dict(zip(words[1::2], words[2::2], strict=True))
    assert list(parts) == ["provider", "session", "run", "dynamic"]
    assert "\n  vtcm_mb=N>=1  " in parts["provider"] and "vtcm_mb" not in parts["session"]
    assert "ep.share_ep_contexts=0|1  " in parts["session"]
    assert "qnn.lora_config=FILE  " in parts["run"]
    assert "ep.dynamic.workload_type=Default|Efficient" in parts["dynamic"]
    assert "(only on Windows)" in parts["provider"]


@pytest.mark.parametrize("text", ["vtcm_mb", "=4", "vtcm_mb="])
def test_an_assignment_has_a_name_and_a_value(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        parse_assignments([text])


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        parse_assignments(["vtcm_mb=4", "vtcm_mb=8"])


def test_a_value_may_hold_an_equals_sign() -> None:
    assert parse_assignments(["qnn.lora_config=a=b"]) == {"qnn.lora_config": "a=b"}


@pytest.mark.parametrize("name", ["qnn.lora_config", "op_affinity", "qnn_saver_path"])
def test_a_file_must_be_there(name: str, tmp_path: Path) -> None:
    assert "there is no file" in refused({name: str(tmp_path / "absent")}).message


@pytest.mark.parametrize(
    "text", ["graph\n", "graph;absent.bin\n", ";adapter.bin\n", "", "good;adapter.bin\nbad\n"]
)
def test_a_list_of_adapters_has_a_graph_and_a_file_on_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter.bin").touch()
    (tmp_path / "lora.txt").write_text(text)
    assert "expected GRAPH;FILE" in refused({"qnn.lora_config": "lora.txt"}).message


def test_a_good_list_of_adapters_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter.bin").touch()
    (tmp_path / "lora.txt").write_text("graph;adapter.bin\n\n")
    assert settings_of({"qnn.lora_config": "lora.txt"}, soc=SM8650, embed=False).run
    assert files_of({"qnn.lora_config": "lora.txt", "vtcm_mb": 4}) == [Path("lora.txt"), Path("adapter.bin")]


def test_a_workload_type_is_written_as_the_provider_reads_it() -> None:
    assert refused({"ep.dynamic.workload_type": "efficient"}).remedy == "did you mean Efficient?"
