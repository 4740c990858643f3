"""Profiles of models: a bar for each operator, and a tree by module with the share of every operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from ci.report.elements import drawing, element
from ci.report.page import page_of
from ci.report.values import Row, entries, mapping, number, rows_of, word
from ci.suites.profile import PROCESSES, RUNS, Cost, Measured
from provisioning.base.findings import Report

STAGE = "profile"
NOTE = (
    f"Shares of the emulator's cycles, the least of {RUNS} runs in each of {PROCESSES} processes. They follow"
    " the time of the machine that measured them, not the chip's."
)


@dataclass
class Branch:
    """A module with what is below it."""

    share: float = 0.0
    branches: dict[str, Branch] = field(default_factory=dict)
    operators: list[Cost] = field(default_factory=list)


def tree_of(costs: Sequence[Cost]) -> Branch:
    """The tree by module; each branch has the sum of everything in it."""
    root = Branch()
    for cost in costs:
        branch = root
        branch.share += cost.share
        for name in _path(cost.module):
            branch = branch.branches.setdefault(name, Branch())
            branch.share += cost.share
        branch.operators.append(cost)
    return root


def profile_page(title: str, measured: Measured) -> str:
    """One profile as a page, for `profile --page`."""
    widest = max((cost.highest or cost.share for cost in measured.costs), default=1.0) or 1.0
    main = element("main", element("h1", f"Profile of {title}"), element("p", NOTE, class_="soft"))
    main.append(element("h2", "Operators, with their range over the processes as a thin line"))
    main.extend(_operator(cost, widest) for cost in measured.costs)
    main.extend([element("h2", "Modules"), _branch("the model", tree_of(measured.costs), open_=True)])
    if measured.cpu:
        lines = "\n".join(map(str, measured.cpu))
        main.extend([element("h2", "On the CPU"), element("pre", lines, class_="scroll")])
    return page_of(f"Profile of {title}", main)


def profiles_section(reports: Sequence[Report]) -> Element | None:
    """None if nothing was profiled."""
    profiles = {
        name: costs
        for report in reports
        if report.stage == STAGE
        for name, profile in rows_of(report, "profiles").items()
        if (costs := _costs(profile))
    }
    if not profiles:
        return None
    heads = element("h2", "Profiles"), element("p", NOTE, class_="soft")
    section = element("section", *heads, id="profiles")
    for name, costs in profiles.items():
        section.extend([element("h3", name), _branch("the model", tree_of(costs), open_=True)])
    return section


def _path(module: str) -> list[str]:
    return [module] if module.startswith("(") else [part for part in module.split(".") if part]


def _branch(name: str, branch: Branch, *, open_: bool = False) -> Element:
    summary = element("summary", _row(element("strong", name), branch.share))
    whole = element("details", summary, class_="tree", **({"open": "open"} if open_ else {}))
    for each, below in sorted(branch.branches.items(), key=lambda item: -item[1].share):
        whole.append(_branch(each, below))
    whole.extend(_operator(cost) for cost in branch.operators if cost.share)
    return whole


def _operator(cost: Cost, widest: float = 1.0) -> Element:
    title = element("span", cost.operator, element("span", f" {cost.line}", class_="soft"))
    return _row(title, cost.share, widest, (cost.lowest, cost.highest))


def _row(
    title: Element, share: float, widest: float = 1.0, between: tuple[float, float] = (0.0, 0.0)
) -> Element:
    picture = drawing("bar", f"{share:.1%}")
    picture.append(element("rect", width=f"{100 * share / widest:.2f}", height="20", class_="share"))
    low, high = (100 * each / widest for each in between)
    if high > low:
        picture.append(
            element("rect", x=f"{low:.2f}", y="9", width=f"{high - low:.2f}", height="2", class_="mark")
        )
    return element("span", title, picture, element("span", f"{share:.1%}", class_="figure"), class_="branch")


def _costs(profile: Row) -> list[Cost]:
    """Operators of another form than expected are left out."""
    costs = []
    for row in map(mapping, entries(profile.get("operators"))):
        share, name = number(row, "share"), row.get("operator")
        if share is not None and isinstance(name, str):
            line, module = word(row, "line"), word(row, "module")
            costs.append(Cost(name, 0, min(1.0, max(0.0, share)), line=line, module=module))
    return costs
