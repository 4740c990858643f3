"""Faults of the build that a profile pins are named, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ci.operators import Traits
from ci.operators.faults import faults_in
from ci.suite.findings import known_faults
from ci.work.plain import read
from provisioning.base.findings import Finding, Severity
from provisioning.known_faults import Lane, Product, faults_of, faults_of_build, load_faults, load_fixes

FAULTY, GOOD = "v2.50.40.260831140417", "v2.51.0.260929181845"


@pytest.mark.parametrize(("version", "named"), [("2.47.0", False), ("2.49.40", True), ("2.51.0", False)])
def test_a_fault_is_named_for_its_versions_alone(version: str, named: bool) -> None:
    assert ("llama-decode-u16u8" in {fault.id for fault in faults_of("qnn", version)}) is named
    assert not faults_of("qnn", "1.0")
    assert [fault.id for fault in faults_of("onnxruntime-qnn", "2.5.0")] == ["attention-23"]
    assert {fault.id for fault in faults_of("onnxruntime-qnn", "2.7.0")} == {
        "matmul-of-activations",
        "reciprocal-below-one",
        "trace-of-a-quantized-gru",
    }


def test_each_fault_and_each_fix_stands_once_and_has_a_rewrite_or_the_reason_for_none() -> None:
    faults, fixes = [fault.id for fault in load_faults()], [fix.rule for fix in load_fixes()]
    assert (len(faults), len(fixes)) == (len({*faults}), len({*fixes}))
    assert [fix.rule for fix in load_fixes() if bool(fix.rewrite) == bool(fix.none)] == []
    assert all(re.compile(pattern) for fix in load_fixes() for pattern in (fix.code, fix.reason, fix.find))


def test_a_program_has_the_faults_of_its_build_and_lane() -> None:
    onnx, executorch = (
        {fault.id for fault in faults_of_build(FAULTY, lane)} for lane in ("onnx", "executorch")
    )
    assert "llama-decode-u16u8" in onnx - executorch
    assert "per-channel-input-channels" in executorch - onnx
    assert "fp16-on-v68" in onnx & executorch
    assert not faults_of_build("unknown", "any")


ALONG_ROWS = {"input": [1, 4, 8], "output": [1, 4, 8], "arguments": {"dim": 1}}
VERSIONS: dict[Product, str] = {"executorch": "1.5.1", "qnn": "2.49.40"}


@pytest.mark.parametrize(
    ("operator", "more", "scheme", "soc", "named"),
    [
        ("aten.cumsum.default", ALONG_ROWS, "16a8w", "SM8650", set()),
        ("aten.softmax.int", {}, "fp16", "SM8650", set()),
        ("aten.softmax.int", {}, "fp16", "SM8850", {"minus-infinity-on-v81"}),
        (
            "aten.full.default",
            {"shapes": [[1, 2, 3, 7, 5]]},
            "fp16",
            "SM8650",
            {"constant-of-five-dimensions"},
        ),
        ("aten.full.default", {"shapes": [[1, 3, 7, 5]]}, "fp16", "SM8650", set()),
        ("aten.max.dim", {"output": [2, 8]}, "fp16", "SM8650", {"max-of-two"}),
        ("aten.max.dim", {"output": [1, 2]}, "fp16", "SM8650", set()),
        ("aten.pow.Scalar", {"of_number": True}, "8a8w", "SM8650", {"power-of-a-number"}),
        ("aten.pow.Tensor_Tensor", {"of_number": True}, "8a8w", "SM8650", {"power-of-a-number"}),
        ("aten.pow.Tensor_Tensor", {}, "8a8w", "SM8650", set()),
        ("aten.pow.Tensor_Scalar", {}, "8a8w", "SM8650", set()),
        ("_native_batch_norm_legit.no_stats", {}, "fp16", "SM8650", {"batch-norm-without-statistics"}),
        (
            "aten._native_batch_norm_legit_no_training.default",
            {"arguments": {"eps": 1e-3, "running_var": {"shape": [8], "least": 0.01, "largest": 2.0}}},
            "fp16",
            "SM8650",
            {"batch-norm-epsilon"},
        ),
        # It gives no program.
        ("aten.matmul.default", {}, "16a8w", "SM8650", set()),
        (
            "aten.linear.default",
            {"again": True, "arguments": {"bias": {}}},
            "8a8w",
            "SM8650",
            {"bias-used-twice"},
        ),
        ("aten.linear.default", {"again": True}, "8a8w", "SM8650", set()),
        ("aten.linear.default", {}, "8a8w", "SM8650", set()),
        (
            "dim_order_ops._to_dim_order_copy.default",
            {"kinds": ["bool"]},
            "8a8w",
            "SM8650",
            {"comparison-as-float"},
        ),
        ("dim_order_ops._to_dim_order_copy.default", {"kinds": ["int64"]}, "8a8w", "SM8650", set()),
        # A cast that lowering added.
        ("aten._to_copy.default", {"added": True}, "8a8w", "SM8650", set()),
        # No program of ours has a float64.
        ("aten.mean.dim", {}, "fp16", "SM8650", set()),
    ],
)
def test_an_operator_has_the_faults_of_its_scheme_and_chip(
    operator: str, more: dict[str, Any], scheme: str, soc: str, named: set[str]
) -> None:
    nodes = {"node": read(Traits, {"operator": operator, "line": "net.py:7", **more})}
    found = faults_in(nodes, scheme, soc, VERSIONS)
    assert {met.fault.id for met in found} == named and all("net.py:7" in str(met) for met in found)
    assert not faults_in(nodes, scheme, soc, {"executorch": "9"})


def pad(*pads: int, readers: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    node = {"operator": "aten.constant_pad_nd.default", "arguments": {"pad": [*pads]}, "readers": [*readers]}
    return {**node, **more}


MAX, AVERAGE = "max_pool2d_with_indices", "avg_pool2d"


def pool(operator: str, size: int, to: int, *window: list[int], **more: Any) -> dict[str, Any]:
    """`window`: its size, stride and padding."""
    shapes = {"input": [1, 8, size, size], "output": [1, 8, to, to]}
    arguments = dict(zip(("kernel_size", "stride", "padding"), window, strict=False)) | more
    return {"operator": f"aten.{operator}.default", **shapes, "arguments": arguments}


def norm(eps: float, least: float | None = None) -> dict[str, Any]:
    arguments = {"eps": eps, "running_var": {} if least is None else {"least": least, "largest": 9.0}}
    return {"operator": "aten.batch_norm.default", "arguments": arguments}


def seen(operator: str, low: float | None = None, high: float = 1.0) -> dict[str, Any]:
    return {"operator": operator, "range": None if low is None else [low, high]}


def resized(size: int, to: int, kind: str = "nearest2d", **arguments: Any) -> dict[str, Any]:
    shapes = {"input": [1, 4, size, size], "output": [1, 4, to, to]}
    return {"operator": f"aten.upsample_{kind}.vec", **shapes, "arguments": arguments}


def concatenated(*last: Any) -> dict[str, Any]:
    return {"operator": "aten.cat.default", "arguments": {"tensors": [{}, *last]}}


def parameters(count: int, maker: str = "add.Tensor") -> dict[str, Any]:
    arguments = {"weight": {"shape": [count], "least": 0.1, "largest": 0.5}}
    return {"operator": "aten.prelu.default", "maker": maker, "arguments": arguments}


def called(operator: str, **arguments: Any) -> dict[str, Any]:
    return {"operator": operator, "arguments": arguments, "kinds": ["float32"]}


def biased(least: float, largest: float) -> dict[str, Any]:
    return called("aten.batch_norm.default", bias={"shape": [8], "least": least, "largest": largest})


def adaptive(size: int, to: int) -> dict[str, Any]:
    shapes = {"input": [1, 4, size, size, size], "output": [1, 4, to, to, to]}
    return {"operator": "aten.adaptive_max_pool3d.default", **shapes}


CONVOLVED = ("aten.convolution.default",)
TRANSPOSED = "aten.conv_transpose{}d.default"
SAME = ([3, 3], [1, 1], [1, 1])
WIDE: dict[str, Any] = {"range": [-2.0, 2.0]}


def rms_norm(*shape: int) -> dict[str, Any]:
    return {"operator": "aten.rms_norm.default", "input": [*shape], "output": [*shape]}


def power(exponent: dict[str, Any]) -> dict[str, Any]:
    return called("aten.pow.Tensor_Tensor", exponent=exponent)


SUSPECTED: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]]]] = {
    # By fault: schemes, the nodes that have it, and those that have not.
    "rms-norm-of-small-rows": (
        "fp16 8a8w",
        [rms_norm(1, 16, 4, 32), rms_norm(16, 1, 16), rms_norm(1, 4, 16, 32)],
        [rms_norm(64, 32), rms_norm(1, 16, 32), rms_norm(1, 8, 8, 32), rms_norm(1, 16, 4, 48)],
    ),
    "square-of-minus-zero": (
        "fp16",
        [called("aten.pow.Tensor_Scalar", exponent=2), power({"shape": [], "least": 2.0, "largest": 2.0})],
        [called("aten.pow.Tensor_Scalar", exponent=3), power({"shape": [], "least": 3.0, "largest": 3.0})],
    ),
    "negative-pad": (
        "16a8w fp16",
        # The first is RWKV's token shift.
        [pad(0, 0, 1, -1), pad(0, 0, -1, 0)],
        [pad(0, 0, 0, -1), pad(1, 1, 1, 1)],
    ),
    "pad-at-the-ends": (
        "fp16",
        [pad(0, 1, 0, 1), pad(0, 1, 0, 1, readers=(*CONVOLVED, "aten.add.Tensor"))],
        [
            pad(0, 1, 0, 1, readers=CONVOLVED),
            # EfficientDet's BiFPN.
            pad(0, 1, 0, 1, readers=("max_pool2d.default",)),
            pad(1, 1, 1, 1),
            pad(0, 1),
        ],
    ),
    "pad-beyond-range": (
        "8a8w",
        [pad(1, 1, arguments={"value": 5.0}, **WIDE)],
        [*(pad(1, 1, arguments={"value": value}, **WIDE) for value in (-2.0, 2.0)), pad(1, 1, **WIDE)],
    ),
    "nearest-to-no-multiple": ("fp16", [resized(8, 13), resized(8, 4)], [resized(4, 8)]),
    "bicubic-aligned-16-bit": (
        "16a8w",
        [resized(4, 8, "bicubic2d", align_corners=True)],
        [resized(4, 12, "bicubic2d", align_corners=True), resized(4, 8, "bicubic2d", align_corners=False)],
    ),
    "max-pool-padded-fp16": (
        "fp16",
        [pool(MAX, 8, 5, [2, 2], [2, 2], [1, 1])],
        [pool(MAX, 8, 4, [3, 3], [2, 2], [1, 1]), pool(MAX, 8, 4, [2, 2], [2, 2])],
    ),
    "avg-pool-over-the-edge": (
        "fp16",
        [
            pool(AVERAGE, 8, 5, [2], [2], [1]),
            pool(AVERAGE, 10, 5, [3], [2], ceil_mode=True),
            pool(AVERAGE, 8, 8, *SAME, count_include_pad=False),
        ],
        [
            pool(AVERAGE, 9, 4, [3], [2], ceil_mode=True),
            pool(AVERAGE, 8, 4, [2, 2]),
            pool(AVERAGE, 8, 8, *SAME),
        ],
    ),
    "avg-pool-by-four": ("8a8w", [pool(AVERAGE, 8, 2, [4, 4])], [pool(AVERAGE, 8, 4, [2, 2])]),
    "batch-norm-epsilon": (
        "fp16",
        [norm(1e-3, 0.01), norm(1e-5, 1e-5), norm(1e-4)],
        [norm(1e-3, 1.0), norm(1e-5, 0.01), norm(9e-5)],
    ),
    "small-values-16-bit": (
        "16a8w",
        [seen("aten.elu.default", -0.099, 0.08)],
        [seen("aten.elu.default", -0.05, 0.1), seen("aten.elu.default")],
    ),
    "exp-below-minus-88": ("fp16", [seen("aten.exp.default", -88.1)], [seen("aten.exp.default", -88.0)]),
    "softplus-above-eleven": (
        "fp16",
        [seen("aten.softplus.default", 0.0, 11.1), seen("aten.softplus.default", -80.1)],
        [seen("aten.softplus.default", -80.0, 11.0)],
    ),
    "ceil-16-bit": (
        "16a8w",
        [seen("aten.ceil.default", -0.1, 0.29)],
        [seen("aten.ceil.default", -0.1, 0.3)],
    ),
    "arcsine-of-minus-one": (
        "16a8w",
        [seen("aten.asin.default", -0.999)],
        [seen("aten.asin.default", -0.998)],
    ),
    "concat-of-a-constant": (
        "8a8w",
        [concatenated({"shape": [1], "least": 1.0, "largest": 1.0})],
        [concatenated({"shape": [2], "least": 0.0, "largest": 1.0}), concatenated({})],
    ),
    "prelu-by-channel": (
        "fp16",
        [parameters(4)],
        [parameters(1), parameters(4, "aten.convolution.default")],
    ),
    "blocks-of-a-wide-kernel": (
        "16a4w_block",
        [called("aten.conv2d.default", weight={"shape": [8, 8, 1, 3]})],
        [called("aten.conv2d.default", weight={"shape": [8, 8, 1, 1]})],
    ),
    "dilated-transposed-conv": (
        "16a8w",
        [called(TRANSPOSED.format(1), dilation=[2])],
        [called(TRANSPOSED.format(1), dilation=[1])],
    ),
    "grouped-transposed-convolution": (
        "8a8w",
        [called(TRANSPOSED.format(2), groups=2)],
        [called(TRANSPOSED.format(2), groups=1)],
    ),
    "float-to-int-rounds": (
        "fp16",
        [called("aten.to.dtype", dtype="torch.int64")],
        [called("aten.to.dtype", dtype="torch.float16")],
    ),
    # Its kernel is of 4, the output's size, which is right of 16 alone.
    "adaptive-max-pool3d": ("fp16", [adaptive(8, 4)], [adaptive(16, 4)]),
    "batch-norm-largest-bias": ("8a8w", [biased(-0.5, 0.51)], [biased(-0.5, 0.5)]),
    "linear-blocks-bias": (
        "16a4w_block",
        [called("aten.linear.default", bias={})],
        [called("aten.linear.default")],
    ),
    "cumsum-8-bit": (
        "8a8w",
        [{"operator": "aten.cumsum.default", **ALONG_ROWS}],
        [{"operator": "aten.cumsum.default", **ALONG_ROWS, "arguments": {"dim": 2}}],
    ),
    "bias-beyond-32-bits": (
        "16a16w",
        [called("aten.linear.default", bias={})],
        [called("aten.linear.default")],
    ),
    "floor-divide-16-bit": (
        "16a8w",
        [seen("aten.floor_divide.default", -1.0)],
        [seen("aten.floor_divide.default", -1.01)],
    ),
}


@pytest.mark.parametrize(
    ("fault", "scheme", "node", "named"),
    [
        (fault, scheme, node, named)
        for fault, (schemes, *nodes) in SUSPECTED.items()
        for scheme in schemes.split()
        for named, those in zip((True, False), nodes, strict=True)
        for node in those
    ],
)
def test_a_fault_is_suspected_of_a_node_that_has_its_arguments_shapes_and_values(
    fault: str, scheme: str, node: dict[str, Any], named: bool
) -> None:
    found = faults_in({"node": read(Traits, {"line": "net.py:7", **node})}, scheme, "SM8650", VERSIONS)
    assert (fault in {met.fault.id for met in found}) is named


def test_each_condition_of_the_manifest_is_that_of_a_fault_above() -> None:
    of_operators = {"bias-used-twice", "power-of-a-number", "max-of-two"}
    tested = SUSPECTED.keys() | of_operators | {"constant-of-five-dimensions"}
    conditions = {fault.when for fault in load_faults() if fault.when}
    assert conditions == {fault.when for fault in load_faults() if fault.when and fault.id in tested}


def test_of_two_suspicions_the_one_that_loses_as_much_as_is_seen_comes_first() -> None:
    nodes = {
        "norm": read(Traits, norm(1e-3, 0.01)),
        "pool": read(Traits, pool(AVERAGE, 8, 5, [2], [2], [1])),
    }
    for near, first in ((25.0, "batch-norm-epsilon"), (1.0, "avg-pool-over-the-edge")):
        found = faults_in(nodes, "fp16", "SM8650", VERSIONS, seen_db=near)
        assert len(found) == 2 and found[0].fault.id == first


@pytest.mark.parametrize(("least", "named"), [(-3e38, True), (-7e4, True), (-65536.0, False), (0.0, False)])
def test_a_fault_of_values_is_suspected_where_an_input_has_them(least: float, named: bool) -> None:
    nodes = {name: Traits(name) for name in ("aten._safe_softmax.default", "aten.exp.default")}
    found = faults_in(nodes, "fp16", "SM8850", VERSIONS, least=least)
    assert [met.fault.id for met in found] == ["minus-infinity-on-v81"] * named


def test_a_fault_without_a_command_of_its_own_is_shown_by_its_script_wherever_one_stands() -> None:
    shown = [fault.shown_by.command for fault in load_faults() if not fault.show]
    assert shown and {words[:2] for words in shown} == {("shell", "python")}
    assert [words for words in shown if not (Path(words[2]).is_absolute() and Path(words[2]).is_file())] == []


@pytest.mark.parametrize("lane", ["executorch", "onnx"])
def test_faults_of_the_emulator_are_named_only_where_a_program_is_not_accurate(
    lane: Lane,
) -> None:
    rules = ("onnx-accuracy", "onnx-cost")
    inaccurate, slow = (Finding(rule, Severity.ERROR, "net", "", "") for rule in rules)
    assert {finding.rule for finding in known_faults([slow, inaccurate], FAULTY, lane)} == {"known-fault"}
    assert [*known_faults([slow], FAULTY, lane)] == []
