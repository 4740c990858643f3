"""What people type who know other tools, and our word for the same."""

from __future__ import annotations

import re
from collections.abc import Collection

from provisioning.base.commands import Fix

FLAGS = {
    **dict.fromkeys(
        ("--arch", "--chip", "--chipset", "--device", "--htp-soc", "--phone", "--soc-model"), "--soc"
    ),
    **dict.fromkeys(("--bits", "--dtype", "--quant", "--quantize", "--quantization"), "--precision"),
    **dict.fromkeys(("--calib", "--data", "--dataset", "--input-list", "--samples"), "--calibrate"),
    **dict.fromkeys(("-o", "--out", "--out-dir", "--output-dir", "--output-file", "--save"), "--output"),
    **dict.fromkeys(("--config", "--models"), "--suite"),
    **dict.fromkeys(("--qairt", "--qnn", "--sdk"), "--profile"),
    **dict.fromkeys(("-v", "-vv", "--log-level", "--trace", "--verbose"), "--debug"),
    **dict.fromkeys(("--batch", "--batch-size", "--input-shape", "--shape", "--shapes"), "--dimension"),
    **dict.fromkeys(("-n", "--num-workers", "--parallel", "--threads", "--workers"), "--jobs"),
    **dict.fromkeys(("--fresh", "--rebuild", "--rerun"), "--no-cache"),
    **dict.fromkeys(("--cache", "--cache-dir"), "--store"),
    **dict.fromkeys(("--case", "--filter", "--match"), "-k"),
    **dict.fromkeys(("--abi", "--os", "--platform"), "--target"),
    **dict.fromkeys(("--bless", "--update", "--update-baseline"), "--accept"),
    **dict.fromkeys(("--baseline", "--diff"), "--against"),
    **dict.fromkeys(("--max-time", "--time-limit"), "--timeout"),
    **dict.fromkeys(("-W", "-Werror", "--werror"), "--strict"),
    **dict.fromkeys(("--requirement", "--requirements", "--package", "--pip"), "--with"),
    **dict.fromkeys(("--config-name", "--release"), "--build-type"),
    **dict.fromkeys(("--check-only", "--simulate"), "--dry-run"),
    **dict.fromkeys(("--threshold", "--min-sqnr"), "--floor"),
    **dict.fromkeys(("--exclude", "--ignore"), "--skip"),
    **dict.fromkeys(("--prompt", "--message"), "--chat"),
    **dict.fromkeys(("-i", "--inputs"), "--input"),
    **dict.fromkeys(("--max-new-tokens", "--max-tokens"), "--tokens"),
    **dict.fromkeys(("--seq-len", "--max-seq-len", "--context-length"), "--context"),
}
"""Flags of other tools, and ours for the same."""

VERBS_OF_FLAGS = {
    **dict.fromkeys(("--against", "--extract"), "inspect"),
    "--accept": "test_emulator",
    "--accept-licence": "provision",
    "--calibrate": "compile",
    "--input": "run",
    "--offline": "provision",
    "--output": "compile",
    "--precision": "compile",
    "--suite": "gate",
    "--with": "compile",
}
"""The verb that is meant by a flag, where another one is more like the verb that was typed."""

ADVICE = {
    ("--fix", "--autofix", "--auto-fix"): Fix(
        "each finding ends with what to type; nothing is changed unasked. {} rewrites a model, {} fetches"
        " what lacks, {} renews what was changed in the store",
        ("repair", "MODEL", "-o", "out"),
        ("provision",),
        ("store", "repair"),
    ),
    ("--open", "--browser", "--serve", "--show", "--view"): Fix(
        "{} writes reports/index.html; open it with a browser: xdg-open reports/index.html", ("report",)
    ),
    ("--op", "--operator", "--operators", "--ops", "--node", "--layer", "--layers"): Fix(
        "all operators are looked at. What was measured of one: {}; to try one alone, write a function"
        " that returns a model of it",
        ("diagnose", "gelu@8a8w"),
    ),
    ("-f", "-y", "--force", "--overwrite", "--yes"): Fix(
        "nothing asks; what an earlier command wrote of the same model is replaced, and of another one kept:"
        " then name another folder"
    ),
    ("-q", "--quiet", "--silent"): Fix(
        "the exit code says it: add > /dev/null, or {}", ("--json", "answer.json")
    ),
    ("-V", "--version"): Fix("type the word version alone, in place of the verb"),
    ("--color", "--colour", "--no-color", "--no-colour"): Fix(
        "colours are for a terminal; NO_COLOR=1 or FORCE_COLOR=1 before the command decides otherwise"
    ),
    ("--checkpoint", "--ckpt", "--state-dict", "--weights"): Fix(
        "load them in the function that returns the model: model.load_state_dict(torch.load(FILE))"
    ),
    ("--seed", "--random-seed"): Fix(
        "samples are drawn from the same numbers each time, by the torch.Generator that your function gets"
    ),
    ("--mirror", "--index", "--index-url", "--extra-index-url"): Fix(
        "it is a variable: PIP_INDEX_URL of packages, QNN_CI_MIRROR of vendors' archives"
    ),
    ("--limit", "--max-size", "--results-gb"): Fix("it is a variable: export QNN_CI_RESULTS_GB=20"),
    ("--qnn-sdk", "--qnn-sdk-root", "--sdk-root"): Fix("it is a variable: export QNN_SDK_ROOT=DIR"),
    ("--android-ndk", "--ndk", "--ndk-root"): Fix("it is a variable: export ANDROID_NDK_ROOT=DIR"),
    ("--executorch-root", "--source", "--src"): Fix("it is a variable: export EXECUTORCH_ROOT=DIR"),
    ("--compile-only", "--no-emulator", "--no-run", "--skip-run"): Fix(
        "of a suite {} compiles and runs nothing; of a model {} shows what compiles",
        ("test_lowering", "--suite", "SUITE.toml"),
        ("audit", "MODEL"),
    ),
    ("--opset", "--opset-version"): Fix(
        "export with it, torch.onnx.export(…, opset_version=N), and name the file: {}",
        ("compile", "net.onnx", "-o", "out"),
    ),
}
"""What to do for flags that no verb has."""

ANSWERS = {
    ("adopt", "--repo"): Fix(
        "it writes into the repository in which it is typed: cd FOLDER && {}", ("adopt",)
    ),
    ("chips", "--soc"): Fix("name the chip by itself: {}", ("chips", "SM8750")),
    ("test_upstream", "--suite"): Fix("name ExecuTorch's suite by itself: {}", ("test_upstream", "delegate")),
    ("example", "--output"): Fix("it writes where it is typed: mkdir -p DIR && cd DIR && {}", ("example",)),
}
"""The same of a flag of one verb alone."""

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


def advice_of(flag: str) -> Fix | None:
    """Return what to do for a flag that no verb has."""
    return next((fix for flags, fix in ADVICE.items() if flag in flags), None)
