"""Options of the provider, the session and the run: what would be ignored there is refused here."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.lanes.onnx.options import Value, files_of, parse_assignments, settings_of
from ci.plain import as_json
from provisioning.base.errors import UsageError
from provisioning.manifest import soc_named

SM8650 = soc_named("SM8650")


def test_options_go_to_where_they_belong() -> None:
    options: dict[str, Value] = {
        "htp_performance_mode": "burst",
        "extended_udma": True,
        "ep.context_node_name_prefix": "a_",
        "qnn.rpc_control_latency": 100,
        "ep.dynamic.workload_type": "Efficient",
    }
    assert as_json(settings_of(options, soc=SM8650, embed=False)) == {
        "provider": {"htp_performance_mode": "burst", "extended_udma": "1"},
        "session": {"ep.context_node_name_prefix": "a_"},
        "run": {"qnn.rpc_control_latency": "100"},
        "dynamic": {"ep.dynamic.workload_type": "Efficient"},
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"htp_perfomance_mode": "burst"}, "did you mean htp_performance_mode?"),
        *(({"vtcm_mb": value}, "vtcm_mb") for value in ("-3", "abc", "0", "1.5", "")),
        ({"vtcm_mb": 9}, "this chip has 8 MB"),
        (
            {"htp_share_resource_optimization": "1", "enable_vtcm_backup_buffer_sharing": 1},
            "contradicts",
        ),
        ({"htp_bf16_enable": 1}, "88 or more"),
        ({"op_packages": "Conv"}, "TYPE:PATH:SYMBOL"),
        *(({name: "/absent"}, "there is no file") for name in ("qnn.lora_config", "op_affinity")),
    ],
)
def test_what_has_no_effect_or_another_is_refused_with_what_to_write(
    options: dict[str, Value], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(options, soc=SM8650, embed=True)
    assert words in f"{caught.value.message} {caught.value.fix}"


@pytest.mark.parametrize("texts", [["vtcm_mb"], ["=4"], ["vtcm_mb="], ["vtcm_mb=4", "vtcm_mb=8"]])
def test_an_assignment_has_a_name_and_a_value_and_comes_once(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_assignments(texts)
    assert parse_assignments(["qnn.lora_config=a=b"]) == {"qnn.lora_config": "a=b"}


@pytest.mark.parametrize(
    "text", ["graph\n", "graph;absent.bin\n", ";adapter.bin\n", "", "good;adapter.bin\nbad\n"]
)
def test_a_list_of_adapters_has_a_graph_and_a_file_on_each_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter.bin").touch()
    lora = tmp_path / "lora.txt"
    lora.write_text(text)
    with pytest.raises(UsageError, match=r"lora\.txt"):
        settings_of({"qnn.lora_config": "lora.txt"}, soc=SM8650, embed=False)
    lora.write_text("graph;adapter.bin\n\n")
    assert settings_of({"qnn.lora_config": "lora.txt"}, soc=SM8650, embed=False).run
    assert files_of({"qnn.lora_config": "lora.txt", "vtcm_mb": 4}) == [Path("lora.txt"), Path("adapter.bin")]
