"""The report: one HTML file with everything in it, for a screen, a dark room and a printer."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape

from .measure import PLAIN, Measurement
from .plots import COLOURS, STYLE, Bar, Series, bar_chart, line_chart
from .summary import EVERYTHING, Row, acceptance_by_depth, contender_names, rows, speed_over_time
from .tables import HEAD, called, cells, facts

_PAGE = """
:root { color-scheme: light dark; --ink: #24292f; --soft: #59636e; --ground: #ffffff; --line: #d4d9df;
  --raised: #f5f7f9; --accepted: #cfe8fa; --own: #fbe3cf; --extra: #d9f0e4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e6ea; --soft: #9aa4af; --ground: #171b21; --line: #333a44;
  --raised: #1f252d; --accepted: #1d4465; --own: #5c3a1b; --extra: #1d4a38; } }
body { margin: 0 auto; max-width: 1280px; padding: 2rem 1.5rem 4rem; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { max-width: 75ch; } .soft, figcaption { color: var(--soft); font-size: .87rem; max-width: 75ch; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; } td:nth-child(-n+3), th:nth-child(-n+3)
{ text-align: left; } tr.first td { border-top: 2px solid var(--line); } tr.plain td { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); gap: 1.4rem; }
figure { margin: 0; break-inside: avoid; } figure svg { width: 100%; } .plots .broad { grid-column: 1 / -1; }
.tokens { white-space: pre-wrap; font: 13px/1.75 ui-monospace, monospace; background: var(--raised);
  padding: 1rem; border-radius: 6px; overflow-wrap: anywhere; }
.tokens span, .key span { border-radius: 3px; padding: .08rem 0; border: 1px solid transparent; }
.accepted { background: var(--accepted); } .correction { background: var(--own); } .bonus { background: var(--extra); }
.plain-token { background: none; } .key { max-width: none; }
.key span { display: inline-block; padding: .1rem .5rem; margin: 0 .6rem .3rem 0; }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.2rem 0; }
.card { background: var(--raised); border-radius: 8px; padding: .8rem 1.2rem; min-width: 9rem; }
.card b { display: block; font-size: 1.55rem; font-weight: 650; } details pre { white-space: pre-wrap; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } .wide { overflow: visible; }
  table { font-size: 6pt; } th, td { padding: .12rem .22rem; } h2 { break-after: avoid; }
  .plots { grid-template-columns: 1fr 1fr; gap: .6rem; } h1 { font-size: 1.3rem; }
  .tokens span { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
_KEY = (
    ("accepted", "an accepted draft"),
    ("correction", "the target's own, where a draft was rejected"),
    ("bonus", "the target's own, after all drafts were accepted"),
    ("plain-token", "nothing was drafted"),
)


def html_report(measurement: Measurement) -> str:
    """The page, whole: no scripts, nothing loaded from elsewhere."""
    table = rows(measurement)
    names = [model["name"] for model in measurement.provenance["models"]]
    title = f"Outpace on {names[0]}" + (f" with {names[1]}" if len(names) > 1 else "")
    parts = [
        f"<h1>{escape(title)}</h1>",
        (
            f"<p class=soft>{escape(measurement.provenance['date'])}, {escape(str(measurement.provenance['cpu']))}, "
            f"threads: {measurement.provenance['threads']}. Speed is tokens a second after the first step; gains are "
            "ratios to our own plain decoding of the same prompt in the same run.</p>"
        ),
    ]
    if not measurement.complete:
        parts.append("<p><strong>Interrupted:</strong> this is what had been measured by then.</p>")
    parts += [_cards(table), "<h2>Pictures</h2><div class=plots>", *_figures(measurement, table), "</div>"]
    parts += _table(table)
    parts += _tokens(measurement)
    listed = escape("\n".join(facts(measurement)))
    parts.append(f"<h2>How this was measured</h2><details open><summary>Machine, versions, models, command</summary>"
                 f"<pre>{listed}</pre></details>")  # fmt: skip
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>"
            f'<meta name=viewport content="width=device-width, initial-scale=1"><style>{_PAGE}{STYLE}</style><body>'
            + "\n".join(parts) + "</body></html>\n")  # fmt: skip


def _cards(table: Sequence[Row]) -> str:
    """Of everything together: the best setting at each temperature."""
    found = []
    for temperature in dict.fromkeys(row.temperature for row in table):
        known = [r for r in table if r.temperature == temperature and r.category == EVERYTHING and r.gain]
        if known:
            best = max(known, key=lambda r: r.gain.median if r.gain else 0)
            assert best.gain is not None
            found.append(f"<div class=card><b>&times;{best.gain.median:.2f}</b>{escape(best.contender)}, temperature "
                         f"{temperature:g}<br><span class=soft>median of {best.gain.count} pairs, quartiles "
                         f"{best.gain.low:.2f} to {best.gain.high:.2f}</span></div>")  # fmt: skip
    return f"<div class=cards>{''.join(found)}</div>"


def _colours(measurement: Measurement) -> dict[str, str]:
    """One colour a setting, the same in every picture; plain decoding is grey."""
    names = [name for name in contender_names(measurement) if name != PLAIN]
    return {PLAIN: COLOURS[-1]} | {name: COLOURS[i % (len(COLOURS) - 1)] for i, name in enumerate(names)}


def _figures(measurement: Measurement, table: Sequence[Row]) -> list[str]:
    figures = []
    colours = _colours(measurement)
    for temperature in dict.fromkeys(row.temperature for row in table):
        groups: dict[str, dict[str, Bar]] = {}
        for row in table:
            if row.temperature == temperature and row.gain:
                bar = Bar(row.gain.median, row.gain.low, row.gain.high, row.gain.count)
                groups.setdefault(row.category, {})[row.contender] = bar
        if groups:
            chart = bar_chart(groups, title=f"Gain over plain decoding, temperature {temperature:g}",
                              y_label="times plain", size=(1080, 340), rule=1.0, colours=colours)  # fmt: skip
            caption = ("Median of the paired ratios; the whiskers are quartiles. A pale bar is of a single pair, so "
                       "nothing is known of its spread. 1 is plain decoding.")  # fmt: skip
            figures.append(_figure(chart, caption, broad=True))
    figures += [_depths(measurement), _costs(measurement), _times(measurement), _predictions(table)]
    return [figure for figure in figures if figure]


def _figure(chart: str, caption: str, broad: bool = False) -> str:
    return f"<figure{' class=broad' if broad else ''}>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _depths(measurement: Measurement) -> str:
    series = []
    for name in contender_names(measurement):
        counted = acceptance_by_depth(run for run in measurement.runs if run["contender"] == name)
        points = [(float(depth), accepted / tested) for depth, accepted, tested in counted if tested >= 5]
        notes = [f"{name}, depth {depth}: {accepted} of {tested}" for depth, accepted, tested in counted if tested >= 5]
        if points:
            series.append(Series(name, points, marks=True, notes=notes))
    if not series:
        return ""
    chart = line_chart(series, title="Acceptance by depth", x_label="place of the draft in its round",
                       y_label="acceptance rate", size=(520, 330), whole_x=True,
                       colours=_colours(measurement))  # fmt: skip
    return _figure(chart, "Of the drafts tested at a depth (those before it were accepted), how many were accepted. "
                   "Places tested fewer than 5 times are left out.")  # fmt: skip


def _costs(measurement: Measurement) -> str:
    series = [
        Series(called(measurement, part), [(float(n), seconds / costs[1]) for n, seconds in costs.items()], marks=True,
               notes=[f"{n} rows: {1e3 * seconds:.2f} ms" for n, seconds in costs.items()])
        for part, costs in measurement.costs.items()
    ]  # fmt: skip
    if not series:
        return ""
    chart = line_chart(series, title="What a pass over more rows costs", x_label="rows of a pass",
                       y_label="times a pass over one row", size=(520, 330), whole_x=True)  # fmt: skip
    return _figure(
        chart, "v(n). Speculation pays because this line is flat where memory, not arithmetic, is the limit."
    )


def _times(measurement: Measurement) -> str:
    lengths = [run["seconds"] - run["first_seconds"] for run in measurement.runs if len(run["steps"]) > 1]
    if not lengths:
        return ""
    longest = 1.5 * statistics.median(lengths)
    series = []
    for name in contender_names(measurement):
        points = speed_over_time((r for r in measurement.runs if r["contender"] == name), longest / 15)
        points = [point for point in points if point[0] <= longest]
        if len(points) > 1:
            series.append(Series(name, points))
    if not series:
        return ""
    chart = line_chart(series, title="Speed over time", x_label="seconds since the first step",
                       y_label="tokens a second", size=(520, 330), colours=_colours(measurement))  # fmt: skip
    return _figure(chart, "Mean over all answers that were still going on; towards the end few are.")


def _predictions(table: Sequence[Row]) -> str:
    known = [row for row in table if row.gain and row.paper and row.ours and row.category != EVERYTHING]
    if not known:
        return ""
    names = [f"{row.contender}, {row.category}, temperature {row.temperature:g}" for row in known]
    measured = [row.gain.median if row.gain else 0.0 for row in known]
    top = max([*measured, *(row.paper or 0 for row in known), *(row.ours or 0 for row in known)])
    chart = line_chart(
        [
            Series("the paper's formula", [(r.paper or 0, m) for r, m in zip(known, measured, strict=True)], line=False,
                   marks=True, notes=names),
            Series("with measured costs", [(r.ours or 0, m) for r, m in zip(known, measured, strict=True)], line=False,
                   marks=True, notes=names),
            Series("right", [(0.0, 0.0), (top, top)]),
        ],
        title="Predicted and measured gain", x_label="predicted", y_label="measured", size=(520, 330),
    )  # fmt: skip
    return _figure(chart, "The paper's prediction knows alpha, gamma and c, and takes more rows for free; ours also "
                   "knows what more rows and everything else cost.")  # fmt: skip


def _table(table: Sequence[Row]) -> list[str]:
    listed = [cells(row) for row in table]
    kept = [i for i in range(len(HEAD)) if i < 4 or any(row[i] != "-" for row in listed)]
    lines = ["<h2>Numbers</h2><div class=wide><table><thead><tr>"
             + "".join(f"<th>{escape(HEAD[i])}</th>" for i in kept) + "</tr></thead><tbody>"]  # fmt: skip
    before = None
    for row, texts in zip(table, listed, strict=True):
        classes = [c for c, on in (("first", before != (row.temperature, row.category)),
                                   ("plain", row.contender == PLAIN)) if on]  # fmt: skip
        before = (row.temperature, row.category)
        mark = f' class="{" ".join(classes)}"' if classes else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(texts[i])}</td>" for i in kept) + "</tr>")
    lines.append(
        "</tbody></table></div><p class=soft>tok/s: after the first step, median and quartiles; gain: median of "
        "the pairs, their quartiles and number; whole: tokens a second of the whole request, prefill included; "
        "prefill: seconds until the first step ended; same: answers equal to plain's, token for token; alpha: "
        "accepted / tested (accepted / drafted for other engines); block eff.: tokens a target pass; gamma: "
        "drafts a round, mean; c: a draft step / a one-row target pass; v(g+1): a pass over a round's rows / over"
        " one; paper, ours: predicted gains; d/t/s/o: share of the time that drafting, the target, sampling and "
        "the rest took; roofline: the time that reading the weights takes at the bandwidth measured in this run /"
        " the time taken (caches and keys and values are not counted).</p>"
    )
    return lines


def _tokens(measurement: Measurement) -> list[str]:
    sample = measurement.sample
    if not sample:
        return []
    key = "".join(f'<span class="{name}">{escape(text)}</span>' for name, text in _KEY)
    spans = []
    for piece, origin in zip(sample["pieces"], sample["origins"], strict=False):
        kind = {"correction": "correction", "bonus": "bonus", "plain": "plain-token"}.get(origin, "accepted")
        spans.append(f'<span class="{kind}" title="{escape(origin)}">{escape(piece)}</span>')
    about = f"{sample['prompt']}, {sample['contender']}, temperature {sample['temperature']:g}"
    return [(f"<h2>One answer, token by token</h2><p class=soft>{escape(about)}</p><p class=key>{key}</p>"
            f"<div class=tokens>{''.join(spans)}</div>")]  # fmt: skip
