"""docs/findings.md: known faults, and what ExecuTorch's own tests do not pass here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ci.lanes.registry import lane_named
from ci.lanes.upstream.accepted import accepted_file, load_tests
from ci.lanes.upstream.suite import upstream_suites
from ci.model_commands.typed_model import heads_of_models
from ci.suite.lane_head import DIVERGENCE
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.components import QNN_SDK
from provisioning.known_faults import Fault, load_faults
from provisioning.manifest import load_profile

NAMES = {"qnn": "QNN", "executorch": "ExecuTorch", "onnxruntime-qnn": "onnxruntime-qnn"}


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
`compile` and `divergence` name the fault that can explain a wrong result. `diagnose` prints the entry of
one fault:

```console
$ qnn-ci diagnose exp-below-minus-88
```

We measured on Qualcomm's emulator of the HTP (the NPU), not on devices. A chip can be right where the
emulator is wrong. If outputs are wrong, QNN and the runtime print no message about it.

| in an entry | meaning |
| --- | --- |
| `16a8w` | a [precision](start.md#which-precision): 16-bit activations and 8-bit weights |
| `16a4w_block` | `16a4w` whose weights are cut into blocks, each with its own scale |
| at 16 bits, at 8 bits | with 16-bit or 8-bit integer activations; so not at fp16 |
| lowering | the translation of your model into a program for the NPU |
| *versions, through …* | the versions known to have the fault, and the runtime with which we saw it |
| **Correct** | similar models, or other versions, without the fault |
| **SQNR …**, **Result …**, **Measured** | the script's output: first models with the fault, then without |
| SQNR | [how exact](accuracy.md#what-is-a-good-sqnr) outputs are: 40 dB is an error of 1 %, 20 dB of 10 % |
| **Fix** | what to write instead; a figure in dB is the SQNR that we measured with this fix |
| **See it** | shows the fault if your versions have it; `net.py:model` and `model.onnx` are your model |
| **Script** | a short program that shows the fault: [how to run it](#is-each-fault-still-there) |
"""

STILL_THERE = """\
## Is each fault still there

Most faults have a script in [manifests/faults](../manifests/faults). A script does not use qnn-ci: you can
run it with your own packages, or attach it to a bug report. In a clone, this command runs one with the
versions that qnn-ci installs:

```console
$ qnn-ci shell python manifests/faults/bias-used-twice.py
still - {figure}
```

The last line of its output is a word and the figures:

| word | meaning | exit code |
| --- | --- | --- |
| `still` | your versions have the fault | 1 |
| `gone` | your versions do not have it | 0 |
| `changed` | neither: only some of the wrong models are correct now, or a correct model is wrong now | 2 |

In a clone, `nox -s lab -- faults` runs all scripts. It passes if each prints `still` and the figures of this
page. With `--accept`, it writes new figures. With `--close`, it ends the version range of a fault that is
gone: `>=2.49.40` becomes `>=2.49.40,<2.51.0`. If the entry has only one version, you edit it yourself. Every
night, the workflow faults.yml runs the scripts on newer versions with `--close`, and opens a pull request
with the changes.

This page is generated. To add a fault, write an entry in [known_faults.toml](../manifests/known_faults.toml)
and its fix, with the same id, in [fixes.toml](../manifests/fixes.toml), then run `nox -s generate`.
"""


def page() -> str:
    lines = [
        *BEFORE_THE_TABLE.splitlines(),
        "",
        "| fault | versions | through |",
        "| --- | --- | --- |",
        *(
            f"| [{fault.title}](#{fault.id}) | {_versions(fault)} | {_runtimes(fault)} |"
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


def _runtimes(fault: Fault) -> str:
    """Name the runtime of the fault's lane, or of all lanes whose models are searched for faults."""
    heads = heads_of_models(DIVERGENCE) if fault.lane == "any" else [lane_named(fault.lane).head]
    return " and ".join(head.runtime for head in heads)


def _fault(fault: Fault) -> Iterator[str]:
    yield from (f"### {fault.title}", "", f'<a id="{fault.id}"></a>')
    reported = "" if fault.measured else "; others reported it, we did not measure it"
    yield from (f"*{_versions(fault)}, through {_runtimes(fault)}{reported}*", "", fault.effect, "")
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
    yield f"{executorch} and QNN {qnn} for {DEFAULT_SOC}, these tests do not pass, or pass with wrong"
    yield f"outputs ([accepted results]({place})). A cause can name a fault of this page; `(i=0)` is a"
    yield "subtest:"
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
    yield f"ExecuTorch has more test suites. This table counts the tests of {suites}, and of `zoo`, its"
    yield "tests of whole models such as torchvision's. The name of a suite links to its accepted results,"
    yield "which have the cause of each outcome:"
    yield from ("", "| suite | tests | not passed, or passed with wrong outputs |", "| --- | --- | --- |")
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
