"""The look of a page: its HTML around a body, and lists of lines."""

from __future__ import annotations

import html
from collections.abc import Sequence
from string import Template

_MAX_LINES = 4  # in a list; the others are folded away


def as_list(title: str, lines: Sequence[str], kind: str) -> str:
    """Return an HTML section with a title and a list of lines; an empty text if there are no lines.

    The lines after the fourth are folded away.
    """
    items = [f"<li>{html.escape(line)}</li>" for line in lines]
    shown, rest = "".join(items[:_MAX_LINES]), "".join(items[_MAX_LINES:])
    more = (
        f"<details><summary>{len(lines) - _MAX_LINES} more</summary><ul>{rest}</ul></details>"
        if rest
        else ""
    )
    return (
        f"<section class={kind}><h2>{title}</h2><ul>{shown}</ul>{more}</section>" if lines else ""
    )


PAGE = Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title - bsweep comparison</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --accent: #0072b2; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.headline { font-size: 1.15rem; border-left: 4px solid var(--accent); padding-left: .8rem;
  margin: .8rem 0; }
.warnings { background: #e69f0022; border-left: 4px solid #e69f00; padding: .2rem 1rem;
  margin-top: 1.5rem; }
.warnings h2 { margin-top: .4rem; border: 0; font-size: 1.1rem; }
figure { margin: 1.5rem 0; break-inside: avoid; }
img { display: block; max-width: 100%; margin: auto; background: #fff; padding: .5rem;
  border-radius: .4rem; }
figcaption, caption, details { font-size: .9rem; } figcaption a { margin-left: .4rem; }
details { overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1.5rem 0; } caption { text-align: left; padding-bottom: .4rem; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .45rem; text-align: right; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { border-bottom-width: 2px; } tr:nth-child(even) td { background: var(--soft); }
.numbers td { white-space: nowrap; } .word, .text :is(th, td) { text-align: left;
  white-space: pre-line; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .85rem; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; } body { font-size: 11px; max-width: none; margin: 0; padding: 0; }
  .wide { overflow: visible; } table { font-size: 8px; } th, td { padding: .1rem .3rem; }
  .numbers td { white-space: normal; } details { display: none; }
}
</style></head><body>
<h1>$title</h1><p>$summary</p>
$body
</body></html>
""")
