"""Programs for other processors than the HTP: checks before they are compiled, and reasons to refuse them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ci.lanes.executorch.records import BeforeCompile
from ci.lanes.executorch.suite import SUITES, ExecutorchProgram
from ci.suite.accuracy import missed
from ci.suite.findings import accuracy_message
from provisioning.base.commands import Fix
from provisioning.base.findings import Finding, Place, Severity
from provisioning.environment import HOST_LIBRARIES
from provisioning.manifest import load_socs, soc_named

LPAI_LIBRARY = "libQnnLpai.so"
LIBRARY_MISSING = "lpai-library"


def refusal(program: ExecutorchProgram, build_id: str) -> Finding | None:
    """Why this QNN build cannot compile such a program, whatever the model is."""

    def refused(rule: str, message: str, fix: str) -> Finding:
        return Finding(rule, Severity.ERROR, program.name, message, fix)

    if program.backend == "gpu":
        return refused(
            "gpu-host",
            "QNN's GPU backend compiles only on a device: on this machine it refuses with 10008, `TuningMode"
            " must be enabled on x86_64-linux-clang`",
            'backend = "htp", or compile it on a device with an Adreno GPU',
        )
    if program.backend != "lpai":
        return None
    from provisioning.symbol_versions import version_key
    from provisioning.validation import tables

    soc = soc_named(program.soc)
    table = tables.libraries().lpai
    if soc.lpai is None or str(soc.lpai) not in table:
        having = [name for name, soc in load_socs().items() if soc.lpai is not None]
        message = f"{program.soc} has no LPAI; {', '.join(having)} have one"
        return refused("lpai-soc", message, " or ".join(f"--soc {name}" for name in having))
    since = table[str(soc.lpai)].since
    version = build_id.removeprefix("v").split("_")[0]
    if version_key(".".join(version.split(".")[:2])) < version_key(since):
        message = f"the LPAI v{soc.lpai} of {program.soc} needs QNN {since} or later, and this is {build_id}"
        return refused("lpai-qnn", message, _other_profile(program))
    return None


def lpai_library(sdk: Path) -> Path:
    """The library that compiles for the LPAI on this machine; official SDKs have it, wheels do not."""
    return sdk / "lib" / HOST_LIBRARIES / LPAI_LIBRARY


def findings_before_compile(program: ExecutorchProgram, lpai: BeforeCompile) -> Iterator[Finding]:
    """For a quantized LPAI program: its accuracy in PyTorch, and operators that may split it."""
    figures = lpai.in_torch.figures
    if misses := missed(program.thresholds, figures):
        message = f"quantized for the LPAI, in PyTorch: {accuracy_message(misses, figures)}"
        again = SUITES.repeat(program, "test_lowering")
        yield Finding("lpai-accuracy", Severity.ERROR, program.name, message, again)
    for row in lpai.unannotated:
        source = f" at {row.source} `{row.code}`" if row.source else ""
        message = (
            f"LPAI's annotator has no rule for {row.operator}{source}: if the LPAI does not support it,"
            " the graph is cut, but an LPAI program must be one partition"
        )
        fix = "write it with operators that LPAI supports, or run this part on the CPU before or after"
        place = Place.read(row.source)
        yield Finding("lpai-annotation", Severity.WARNING, program.name, message, fix, place)
    if lpai.lacks:
        message = f"quantized, and not compiled: {lpai.lacks} is in no wheel; official SDKs have it"
        yield Finding(LIBRARY_MISSING, Severity.ERROR, program.name, message, _other_profile(program))


def only_library_missing(findings: Sequence[Finding]) -> bool:
    """Whether only the LPAI's library is missing, which needs another SDK."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    return bool(errors) and all(finding.rule == LIBRARY_MISSING for finding in errors)


def _other_profile(program: ExecutorchProgram) -> str:
    from provisioning.validation.libraries import profiles_with_lpai

    having = profiles_with_lpai(soc_named(program.soc).lpai)
    again = SUITES.repeat(program, "test_lowering").commands[0] if program.suite.is_file() else ()
    others = "".join(f" or --profile {name}" for name in having[1:])
    return Fix("{}{}; or QNN_SDK_ROOT to an official SDK", (*again, "--profile", having[0]), others)
