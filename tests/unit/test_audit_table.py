"""The table of `audit`: operators by precision."""

from __future__ import annotations

from typing import Any

from ci.suites.audit_table import as_text

LEFT = {
    "operator": "aten.erf.default",
    "node": "aten_erf_default",
    "reason": "No node visitor, unsupported",
    "source": "net.py:7",
    "code": "torch.erf(x)",
    "kernel": True,
    "suggestion": "call gelu",
}
ROW: dict[str, Any] = {
    "delegated": {"aten.add.Tensor": 2, "aten.erf.default": 1},
    "cpu": [LEFT],
    "usable": True,
    "delegates": 2,
    "ddr": {"read": 1000, "written": 24},
    "kept_on_cpu": None,
}


def test_a_precision_that_does_not_compile_is_never_shown_as_delegated() -> None:
    lines = list(
        as_text({"fp16": ROW, "8a8w": {"error": "the compiler dies of it", "remedy": "write it so"}})
    )
    head, first, *_ = lines
    assert head.split() == ["operator", "fp16", "8a8w"]
    assert first.split(maxsplit=1) == ["aten.erf.default", "1 htp, 1 cpu  does not compile"]
    assert any("net.py:7" in line and "(fp16)" in line for line in lines)
    assert "8a8w: the compiler dies of it" in lines
