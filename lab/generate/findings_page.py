"""docs/findings.md: known faults, and what ExecuTorch's own tests do not pass here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ci.lanes.upstream.accepted import accepted_file, load_tests
from ci.lanes.upstream.suite import upstream_suites
from provisioning.accepted_file import load_accepted
from provisioning.base.commands import session
from provisioning.base.settings import DEFAULT_PROFILE, DEFAULT_SOC, ROOT
from provisioning.components import QNN_SDK
from provisioning.known_faults import FIGURE, FIGURES, Fault, load_faults
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

NOTHING_ON_DEVICES = """\
**Nothing was run on a device here.** `on the emulator` means Qualcomm's HTP emulator. It can be wrong
where a chip is right, and right where a chip is wrong.
"""

IN_AN_ENTRY = {
    "`16a8w`, `16a4w_block`, …": "the [precision](start.md#which-precision): 16-bit activations and"
    " 8-bit weights; `_block`: a scale for each block of a channel's weights",
    "at 16 bits, at 8 bits": "with activations of 16 or 8 bits; fp16 is named as such",
    "versions": "those that have the fault, as far as we know",
    "*Measured*": "what [the fault's script](#is-each-fault-still-there) printed:"
    " models with the fault first, then similar models without it",
    "SQNR": "how exact the outputs on the emulator are, [in dB](accuracy.md#what-is-a-good-sqnr):"
    " 40 dB is an error of 1 %, 0 dB an error of 100 %",
    "*Fix*": "what to write instead; a figure in dB is the SQNR with this fix",
    "*See it*": "a command that shows the fault, if your versions have it;"
    " `net.py:model` stands for your model",
}
"""How to read the entry of a fault."""

STILL_THERE = """\
## Is each fault still there

Most faults have a script in `manifests/faults`; the others say why they have none. A script contains no code
of qnn-ci: you can run it with your own packages, and send it to those who can repair the fault. Most scripts
try two models with the fault and a similar one without it. With the versions that qnn-ci pins:

```console
$ qnn-ci shell python manifests/faults/bias-used-twice.py
still - {figure}
```

The last line that it prints begins with one of these words. After it come the figures that this page shows as
*Measured*:

| word | meaning | exit code |
| --- | --- | --- |
| `still` | your versions have the fault | 1 |
| `gone` | your versions do not have it | 0 |
| `changed` | the similar model is wrong too, or only some of the models with the fault are correct now | 2 |

In a clone, `nox -s lab -- faults` runs all scripts, and compares them with this page:

| word | `nox -s lab -- faults` |
| --- | --- |
| `still`, with the figures of this page | passes |
| `still`, with other figures | fails; `--accept` writes the new figures |
| `gone` | fails; `--close` ends the range of versions in known_faults.toml |
| `changed` | fails |

The workflow faults.yml does this every night with newer versions. It opens a pull request for faults that are
gone.
"""


def page() -> str:
    lines = [
        "# Known faults",
        "",
        "What do QNN, ExecuTorch and ONNX Runtime's QNN provider get wrong, in which versions, and what do",
        "you write instead? `compile` and `divergence` name the fault that can explain a wrong result.",
        "This page is generated from [known_faults.toml](../manifests/known_faults.toml): add a fault there",
        "and run `nox -s generate`. Commands that name a file of `manifests/` work in a clone.",
        "",
        *NOTHING_ON_DEVICES.splitlines(),
        "",
        "| in an entry | it says |",
        "| --- | --- |",
        *(f"| {words} | {meaning} |" for words, meaning in IN_AN_ENTRY.items()),
        "",
        "| fault | versions | seen through |",
        "| --- | --- | --- |",
        *(
            f"| [{fault.title}](#{fault.id}) | {_versions(fault)} | {LANES[fault.lane]} |"
            for fault in load_faults()
        ),
        "",
    ]
    for title, measured in (("Faults that we measured", True), ("Faults that others reported", False)):
        if faults := [fault for fault in load_faults() if fault.measured is measured]:
            lines += [f"## {title}", "", *(line for fault in faults for line in _fault(fault))]
    lines += [*_upstream(), *_suites(), *STILL_THERE.replace(FIGURE, _figure("bias-used-twice")).splitlines()]
    return "\n".join(lines).rstrip("\n") + "\n"


def _figure(name: str) -> str:
    """What the script of a fault printed last; empty if it has none."""
    return str(load_accepted(FIGURES).of(name).get("figure", ""))


def _versions(fault: Fault) -> str:
    return f"{NAMES[fault.product]} {fault.versions.removeprefix('==')}"


def _fault(fault: Fault) -> Iterator[str]:
    place = "the emulator" if fault.where == "emulator" else "devices"
    source = fault.source.removeprefix("docs/")
    effect, measured = _effect(fault)
    yield from (f"### {fault.title}", "", f'<a id="{fault.id}"></a>')
    yield from (f"*{_versions(fault)}, on {place}, through {LANES[fault.lane]}*", "", effect, "")
    if measured:
        yield f"- **Measured:** {measured}"
    yield f"- **Fix:** {fault.fix}"
    if fault.upstream:
        yield f"- **Upstream:** {fault.upstream}"
    script = f", [its script](../{fault.script})" if fault.script else ""
    yield f"- **More:** `qnn-ci diagnose {fault.id}`, [{source}]({source}){script}"
    if fault.unshown:
        yield f"- **It has no script:** {fault.unshown}"
    yield "- **See it:**"
    yield from ("", "```console", f"$ {fault.shown_by.installed}".replace(f"{ROOT}/", ""), "```", "")


def _effect(fault: Fault) -> tuple[str, str]:
    """What happens, and the sentence with the figures that its script printed."""
    figure = _figure(fault.id)
    before, found, after = fault.effect.partition(f": {figure}.")
    if not figure or not found:
        return fault.effect, ""
    text, _, words = before.rpartition(". ")
    measured = figure if words == "Measured" else f"{words}: {figure}"
    return f"{text}.{after}" if text else after.strip(), measured


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
    yield from ("", "To run one test, name it:", "", "```console", f"$ {command}", "```", "")


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
