"""What people type who know other tools, and our word for the same."""

from __future__ import annotations

import re
from collections.abc import Collection

FLAGS = {
    **dict.fromkeys(("--chip", "--chipset", "--device", "--htp-soc", "--soc-model"), "--soc"),
    **dict.fromkeys(("--bits", "--dtype", "--quant", "--quantize", "--quantization"), "--precision"),
    **dict.fromkeys(("--calib", "--data", "--dataset", "--input-list", "--samples"), "--calibrate"),
    **dict.fromkeys(("--out", "--out-dir", "--output-dir"), "--output"),
    **dict.fromkeys(("--config", "--models"), "--suite"),
    **dict.fromkeys(("--qairt", "--qnn", "--sdk"), "--profile"),
    **dict.fromkeys(("-v", "--verbose"), "--debug"),
    **dict.fromkeys(("--batch", "--input-shape", "--shape", "--shapes"), "--dimension"),
}

FLAGS_OF_VERBS = {
    **dict.fromkeys(("--against", "--extract"), "inspect"),
    **dict.fromkeys(("--chat", "--compare", "--input"), "run"),
    **dict.fromkeys(("-k", "--list", "--shard", "--tag"), "test_lowering"),
    "--accept": "test_emulator",
    "--accept-licence": "provision",
    "--offline": "provision",
    "--phone": "forecast",
    "--suite": "gate",
    "--where": "quantize",
}
"""Flags of ours that are typed behind another verb, and a verb that has them."""

COMMANDS_OF_FLAGS = {
    flag: ("report", "--format", flag.removeprefix("--"), "-o", file)
    for flag, file in (("--html", "report.html"), ("--junit", "junit.xml"), ("--sarif", "report.sarif"))
}
"""Flags of other tools for what a command of ours writes afterwards."""

VERBS = {
    **dict.fromkeys(("bench", "benchmark", "estimate", "latency", "profile"), "forecast"),
    **dict.fromkeys(("convert", "export", "lower"), "compile"),
    **dict.fromkeys(("deploy", "device", "push"), "run_device"),
    **dict.fromkeys(("devices", "phones", "socs"), "chips"),
    **dict.fromkeys(("doctor", "status", "verify"), "validate"),
    **dict.fromkeys(("download", "fetch", "install", "setup"), "provision"),
    **dict.fromkeys(("dump", "info", "show", "visualize"), "inspect"),
    **dict.fromkeys(("execute", "infer", "predict"), "run"),
    **dict.fromkeys(("explain", "log", "logs"), "diagnose"),
    **dict.fromkeys(("cache", "clean", "gc", "prune"), "store"),
    "init": "example",
    "sign": "sign_lpai",
    "workflow": "adopt",
}

CHOICES = {
    **dict.fromkeys(("clean", "delete", "prune", "purge", "remove", "rm"), "gc"),
    **dict.fromkeys(("info", "read", "show"), "inspect"),
    "check": "verify",
    "fix": "repair",
    "ls": "list",
}
"""The words that some verbs take first, such as those of `store`."""

VALUES = (
    ("--soc", re.compile(r"(?i)(s[acmwx]r?|ssg|cq|qc[ms]|qrb)\d{3,4}[a-z]{0,2}")),
    ("--precision", re.compile(r"(?i)fp16|half|int(8|16)|(\d+a\d+|w\d+a|a\d+w)\w+|[us]\d+[us]\d+")),
    ("--profile", re.compile(r"wheels|qnn-\d\S*")),
    ("--suite", re.compile(r"\S+\.toml")),
    ("--reports", re.compile(r"(\S*/)?reports/?")),
    ("--floor", re.compile(r"\d+(\.\d+)?(dB)?")),
)
"""What a flag's values look like, where it is not typed before them."""


def flag_of(value: str, flags: Collection[str]) -> str:
    """The one of these flags that takes such a value; empty if none does."""
    return next((flag for flag, form in VALUES if flag in flags and form.fullmatch(value)), "")
