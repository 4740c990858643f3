"""docs/findings.md: known faults, and what ExecuTorch's own tests do not pass here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ci.lanes.upstream.accepted import accepted_file, load_tests
from ci.lanes.upstream.suite import upstream_suites
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.components import QNN_SDK
from provisioning.known_faults import Fault, load_faults
from provisioning.manifest import load_profile

NAMES = {"qnn": "QNN", "executorch": "ExecuTorch", "onnxruntime-qnn": "onnxruntime-qnn"}
LANES = {"executorch": "ExecuTorch", "onnx": "ONNX Runtime", "any": "ExecuTorch and ONNX Runtime"}


OUTCOMES = {
    "dies": "the lowering ends with an error",
    "wrong": "the outputs on the emulator are wrong",
    "failed": "the test fails for another reason",
    "bad test": "a mistake in the test: it passes with wrong outputs, always or by chance,"
    " or does not test what its name says",
    "absent": "the test needs a Python module that is not installed",
    "not run": "ExecuTorch skips the test",
    "expected failure": "ExecuTorch marks the test as failing",
}
"""What becomes of upstream's tests that do not pass."""

BEFORE_THE_TABLE = """\
# Known faults

This page lists what QNN, ExecuTorch and ONNX Runtime's QNN provider get wrong, and what to write instead.
`compile` and `divergence` name the fault that can explain a wrong result. `diagnose`
prints what is known of it:

```console
$ qnn-ci diagnose exp-below-minus-88
```

We measured on Qualcomm's HTP emulator, not on devices. A chip can be right where the emulator is wrong.
Outputs are wrong without any message, unless an entry quotes one.

| in an entry | meaning |
| --- | --- |
| `16a8w` | 16-bit activations and 8-bit weights, [a precision](start.md#which-precision) |
| `16a4w_block` | 16-bit activations and 4-bit weights, with a scale for each block of weights |
| `fp16a8w` | fp16 activations and 8-bit weights |
| at 16 bits, at 8 bits | with 16-bit or 8-bit integer activations, at any size of the weights; so not fp16 |
| versions | those that have the fault, as far as we know |
| **Correct** | similar models, or other versions, without the fault |
| **SQNR …**, **Result …**, **Measured** | what the script printed of models with and without the fault |
| SQNR | [how exact the outputs are](accuracy.md#what-is-a-good-sqnr): 40 dB is an error of 1 % |
| **Fix** | what to write instead; a figure in dB is its SQNR in a separate run, measured as in the entry |
| **See it** | a command that shows the fault in these versions; `net.py:model`, `model.onnx`: your model |
| **Script** | a short program that shows the fault: [how to run it](#is-each-fault-still-there) |
"""

STILL_THERE = """\
## Is each fault still there

Most faults have a script in [manifests/faults](../manifests/faults). A script does not use qnn-ci: you can
run it with your own packages, or attach it to a bug report. In a clone, this command runs one with the pinned
versions:

```console
$ qnn-ci shell python manifests/faults/bias-used-twice.py
still - {figure}
```

The script runs models with the fault, and a similar model without it. Its last line is a word and the
figures:

| word | meaning | exit code |
| --- | --- | --- |
| `still` | your versions have the fault | 1 |
| `gone` | your versions do not have it | 0 |
| `changed` | the similar model is wrong too, or only some of the models with the fault are correct now | 2 |

In a clone, `nox -s lab -- faults` runs all scripts. It passes if each prints `still` and the figures of this
page. `--accept` writes new figures. If a fault is gone, `--close` excludes the version that does not have it:
`>=2.49.40` becomes `>=2.49.40,<2.51.0`. A fault of a single version is left for you to edit. The workflow
faults.yml runs the scripts with `--close` every night, on newer versions, and opens a pull request with these
changes.

This page is generated. To add a fault, write an entry in [known_faults.toml](../manifests/known_faults.toml)
and its fix, with the same id, in [fixes.toml](../manifests/fixes.toml), then run `nox -s generate`.
"""


def page() -> str:
    lines = [
        *BEFORE_THE_TABLE.splitlines(),
        "",
        "| fault | versions | seen through |",
        "| --- | --- | --- |",
        *(
            f"| [{fault.title}](#{fault.id}) | {_versions(fault)} | {LANES[fault.lane]} |"
            for fault in load_faults()
        ),
        "",
    ]
    lines += ["## Faults", "", *(line for fault in load_faults() for line in _fault(fault))]
    (shown,) = (fault for fault in load_faults() if fault.id == "bias-used-twice")
    lines += [*_upstream(), *_suites(), *STILL_THERE.format(figure=shown.figure).splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _versions(fault: Fault) -> str:
    return f"{NAMES[fault.product]} {fault.versions.removeprefix('==')}"


def _fault(fault: Fault) -> Iterator[str]:
    yield from (f"### {fault.title}", "", f'<a id="{fault.id}"></a>')
    reported = "" if fault.measured else "; others reported it, we did not measure it"
    yield from (f"*{_versions(fault)}, through {LANES[fault.lane]}{reported}*", "", fault.effect, "")
    if fault.correct:
        yield f"- **Correct:** {fault.correct}"
    if fault.figure:
        yield f"- **{fault.quantity or 'Measured'}:** {fault.figure}"
    yield f"- **Fix:** {fault.fix}"
    if fault.upstream:
        yield f"- **Upstream:** {fault.upstream}"
    if fault.source.startswith("https:"):
        yield f"- **Thread:** [{fault.source.removeprefix('https://github.com/')}]({fault.source})"
    # A device's fault is shown by no command here.
    if fault.show and fault.where == "emulator":
        yield f"- **See it:** `{fault.shown_by.installed}`"
    if fault.script:
        yield f"- **Script:** [{fault.script}](../{fault.script})"
    else:
        yield f"- **No script:** {fault.unshown}"
    yield ""


def _upstream() -> Iterator[str]:
    profile, accepted = load_profile(DEFAULT_PROFILE), load_tests("delegate", DEFAULT_PROFILE, DEFAULT_SOC)
    failing = sorted(test for test, row in accepted.tests.items() if row.outcome != "passed")
    if not failing:
        return
    executorch, qnn = profile.packages["executorch"], profile.components[QNN_SDK].version
    yield from ("## ExecuTorch's own tests", "")
    place = "../manifests/upstream/delegate/accepted-wheels.json"
    yield "ExecuTorch has tests of its QNN backend, the *delegate suite*. On the emulator, with ExecuTorch"
    yield f"{executorch} and QNN {qnn} for {DEFAULT_SOC}, these do not pass, or pass with wrong"
    yield f"outputs ([accepted results]({place})). `(i=0)` names a subtest:"
    yield from ("", "| test | outcome | cause |", "| --- | --- | --- |")
    for test in failing:
        yield f"| `{test}` | {accepted.of(test).outcome.replace('_', ' ')} | {accepted.cause(test)} |"
    yield from ("", "| outcome | it means |", "| --- | --- |")
    yield from (f"| {outcome} | {meaning} |" for outcome, meaning in OUTCOMES.items())
    command = session("test_delegate", "-k", failing[0].rpartition(".")[2]).installed
    yield from ("", f"`{command}` runs one of these tests.", "")


def _suites() -> Iterator[str]:
    """Hundreds of tests are accepted as they fail, so this has their numbers."""
    suites = "[these suites](building.md#executorchs-own-tests)"
    yield f"ExecuTorch has more test suites. This table counts the outcomes of {suites}, and of `zoo`,"
    yield "its tests of whole models such as torchvision's. The name of a suite links to its accepted"
    yield "results, with the cause of each:"
    yield from ("", "| suite | tests | of these, not passed, or passed wrongly |", "| --- | --- | --- |")
    for suite in (*upstream_suites(), "zoo"):
        if tests := load_tests(suite, DEFAULT_PROFILE, DEFAULT_SOC).tests:
            counts = Counter(row.outcome for row in tests.values() if row.outcome != "passed")
            words = ", ".join(
                f"{count} {name.replace('_', ' ')}"
                for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            )
            place = accepted_file(suite, DEFAULT_PROFILE).relative_to(ROOT)
            yield f"| [{suite}](../{place}) | {len(tests)} | {words or 'none'} |"
    yield from (
        "",
        "In a clone, `nox -s lab -- upstream_reports` prints these tests as issues for ExecuTorch.",
        "",
    )
