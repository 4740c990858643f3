"""A profile as one self-contained page: a bar for each operator, and a tree by module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from ci.suites.profile import PROCESSES, RUNS, Cost, Measured

STYLE = """
:root { color-scheme: light dark; --bar: #3b74c4; --ground: #fff; --ink: #1d2229; --faint: #e8ebf0;
  --grey: #5c6672 }
@media (prefers-color-scheme: dark) {
  :root { --bar: #5d93df; --ground: #14171c; --ink: #e4e7ec; --faint: #262b33; --grey: #98a2af } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 1100px; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.25rem; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin-top: 1.6rem }
p, .line { color: var(--grey) }
.row { display: grid; grid-template-columns: minmax(0, 1fr) clamp(6rem, 36vw, 26rem) 4rem; gap: .6rem;
  align-items: center; padding: .15rem 0 }
.name { overflow-wrap: anywhere } .line { font-size: .85em; display: block }
.track { background: var(--faint); height: .8rem; border-radius: 2px; position: relative }
.bar { background: var(--bar); height: 100%; border-radius: 2px }
.range { position: absolute; top: 45%; height: 2px; background: var(--ink); opacity: .55 }
.share { text-align: right; font-variant-numeric: tabular-nums }
details > :not(summary) { margin-left: 1rem } details > .row { padding-right: .4rem }
summary { cursor: pointer } summary .row { display: inline-grid;
  width: calc(100% - 1.4rem); vertical-align: middle }
pre { overflow-x: auto }
@media (max-width: 600px) { .row { grid-template-columns: minmax(0, 1fr) 4rem } .track { grid-column: 1 / -1;
  grid-row: 2 } details > :not(summary) { margin-left: .4rem } }
"""


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


def page_of(title: str, measured: Measured) -> str:
    costs, cpu = measured.costs, [str(each) for each in measured.cpu]
    widest = max((cost.highest or cost.share for cost in costs), default=1.0) or 1.0
    bars = "".join(_row(cost, widest) for cost in costs)
    beside = f"<h2>On the CPU</h2><pre>{escape(chr(10).join(cpu))}</pre>" if cpu else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Profile of {escape(title)}</title><style>{STYLE}</style></head><body>
<h1>Profile of {escape(title)}</h1>
<p>Shares of the emulator's cycles: the least of {RUNS} runs in each of {PROCESSES} processes, with the
range over the processes as a thin line. Cycles follow the time of the machine that measured them,
not the chip's.</p>
<h2>Operators</h2>{bars}
<h2>Modules</h2>{_branch("the model", tree_of(costs), open_=True)}
{beside}</body></html>
"""


def _path(module: str) -> list[str]:
    return [module] if module.startswith("(") else [part for part in module.split(".") if part]


def _row(cost: Cost, widest: float) -> str:
    line = f'<span class="line">{escape(cost.line)}</span>' if cost.line else ""
    low, high = cost.lowest or cost.share, cost.highest or cost.share
    style = f"left:{100 * low / widest:.2f}%;width:{100 * (high - low) / widest:.2f}%"
    between = f'<div class="range" style="{style}"></div>'
    return _columns(f"{escape(cost.operator)}{line}", cost.share, cost.share / widest, between)


def _columns(name: str, share: float, width: float, inside: str = "") -> str:
    return (
        f'<div class="row"><span class="name">{name}</span><div class="track">'
        f'<div class="bar" style="width:{100 * width:.2f}%"></div>{inside}</div>'
        f'<span class="share">{share:.1%}</span></div>'
    )


def _branch(name: str, branch: Branch, *, open_: bool = False) -> str:
    below = sorted(branch.branches.items(), key=lambda item: -item[1].share)
    inside = "".join(_branch(each, sub) for each, sub in below)
    inside += "".join(
        _columns(escape(cost.operator), cost.share, cost.share) for cost in branch.operators if cost.share
    )
    head = _columns(f"<b>{escape(name)}</b>", branch.share, branch.share)
    return f"<details{' open' if open_ else ''}><summary>{head}</summary>{inside}</details>"
