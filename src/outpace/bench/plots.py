"""Plots as SVG text, by hand: no plotting library, the same in a report, a page and a file; dark mode by CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

# Told apart by people who see colours differently, and on light and dark ground alike (after Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#8b6fd6", "#7f7f7f")

STYLE = """
.plot { color: #24292f; background: #ffffff; font: 12px system-ui, sans-serif; max-width: 100%; height: auto; }
.plot text { fill: currentColor; } .plot .value { paint-order: stroke; stroke-width: 3px; stroke: var(--plot-ground); }
.plot { --plot-ground: #ffffff; } .plot .grid { stroke: currentColor; stroke-opacity: .14; }
.plot .axis { stroke: currentColor; stroke-opacity: .5; } .plot .ground { fill: #ffffff; }
.plot .title { font-weight: 600; font-size: 14px; } .plot .rule { stroke: currentColor; stroke-dasharray: 5 4; }
@media (prefers-color-scheme: dark) {
  .plot { color: #e2e6ea; background: #171b21; --plot-ground: #171b21; }
  .plot .ground { fill: #171b21; } }
@media print { .plot { color: #000000; background: #ffffff; --plot-ground: #ffffff; } .plot .ground { fill: #ffffff; } }
"""

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 34, 46
_LEGEND = 18  # height of one line of the legend


@dataclass(frozen=True)
class Series:
    """Points ``(x, y)`` under one name: joined by a line, or as ``marks``, or both."""

    name: str
    points: Sequence[tuple[float, float]]
    line: bool = True
    marks: bool = False
    notes: Sequence[str] = field(default_factory=tuple)  # shown when the pointer rests on a mark; one a point


@dataclass(frozen=True)
class Bar:
    """A value with the ends of its interval, or without; of ``count`` measurements. One of a single measurement has no
    interval, and is drawn pale."""

    value: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


def line_chart(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    size: tuple[int, int] = (640, 360),
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = True,
    rule: float | None = None,
    whole_x: bool = False,
    colours: Mapping[str, str] | None = None,
) -> str:
    """Lines and marks on two axes. ``rule``: a dashed horizontal line, such as a speed-up of 1. Points that are not
    finite (on a logarithmic axis: not positive) are left out. ``whole_x``: x counts something. ``colours``: by name."""
    kept = [
        (one, [p for p in one.points if _shown(p[0], log_x) and _shown(p[1], log_y)]) for one in series if one.points
    ]
    xs = [x for _, points in kept for x, _ in points]
    ys = [y for _, points in kept for _, y in points] + ([rule] if rule is not None else [])
    if not xs:
        return _canvas(size, title, ['<text x="50%" y="50%" text-anchor="middle">nothing was measured</text>'])
    width, height = size
    legend = _legend([one.name for one, _ in kept], width, colours)
    place_x, ticks_x = _axis(xs, _LEFT, width - _RIGHT, log_x, from_zero=False, whole=whole_x)
    place_y, ticks_y = _axis(ys, height - _BOTTOM, _TOP, log_y, from_zero)
    body = _frame(size, place_x, ticks_x, place_y, ticks_y, x_label, y_label)
    if rule is not None:
        body.append(f'<line class="rule" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{place_y(rule):.1f}" '
                    f'y2="{place_y(rule):.1f}"/>')  # fmt: skip
    for number, (one, points) in enumerate(kept):
        colour = _colour(one.name, number, colours)
        if one.line:
            path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
            body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>')
        for index, (x, y) in enumerate(points if one.marks else ()):
            note = one.notes[index] if index < len(one.notes) else f"{one.name}: {x:.4g}, {y:.4g}"
            body.append(f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="4" fill="{colour}">'
                        f"<title>{escape(note)}</title></circle>")  # fmt: skip
    return _canvas(size, title, body, legend)


def bar_chart(
    groups: Mapping[str, Mapping[str, Bar]],
    *,
    title: str,
    y_label: str,
    size: tuple[int, int] = (760, 360),
    rule: float | None = None,
    colours: Mapping[str, str] | None = None,
) -> str:
    """Bars side by side, one group an entry of ``groups``, one colour a name within; whiskers where there are ends."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    tops = [b.high if b.high is not None else b.value for bars in groups.values() for b in bars.values()]
    tops += [rule] if rule is not None else []
    if not names:
        return _canvas(size, title, ['<text x="50%" y="50%" text-anchor="middle">nothing was measured</text>'])
    width, height = size
    place_y, ticks_y = _axis(tops, height - _BOTTOM, _TOP, False, True)
    body = _frame(size, lambda x: x, [], place_y, ticks_y, "", y_label)
    if rule is not None:
        body.append(f'<line class="rule" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{place_y(rule):.1f}" '
                    f'y2="{place_y(rule):.1f}"/>')  # fmt: skip
    step = (width - _RIGHT - _LEFT) / len(groups)
    thick = min(46.0, 0.8 * step / len(names))
    for number, (group, bars) in enumerate(groups.items()):
        middle = _LEFT + (number + 0.5) * step
        lines = escape(group).split(" ")
        body += [f'<text x="{middle:.1f}" y="{height - _BOTTOM + 16 + 13 * i}" text-anchor="middle">{line}</text>'
                 for i, line in enumerate(lines)]  # fmt: skip
        for name, bar in bars.items():
            place = names.index(name)
            x = middle + (place - len(names) / 2) * thick
            y = place_y(max(0.0, bar.value))
            single = bar.count == 1
            pale = ' fill-opacity="0.4"' if single else ""
            told = "" if bar.count is None else f" (n = {bar.count})"
            body.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{thick - 2:.1f}" height="{place_y(0) - y:.1f}" '
                        f'fill="{_colour(name, place, colours)}"{pale}><title>{escape(group)}, {escape(name)}: '
                        f"{bar.value:.3g}{told}</title></rect>")  # fmt: skip
            if bar.low is not None and bar.high is not None and not single:
                at = x + (thick - 2) / 2
                body.append(f'<path class="axis" style="stroke-opacity:.85" d="M{at:.1f} {place_y(bar.low):.1f}'
                            f'V{place_y(bar.high):.1f}"/>')  # fmt: skip
            if thick >= 26:
                top = place_y(bar.high if bar.high is not None else bar.value)
                body.append(f'<text x="{x + thick / 2 - 1:.1f}" y="{top - 4:.1f}" text-anchor="middle" '
                            f'font-size="11">{bar.value:.3g}</text>')  # fmt: skip
    return _canvas(size, title, body, _legend(names, width, colours))


def standalone(svg: str) -> str:
    """A plot as a file of its own: with its style and name space."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "<g>", f"<style>{STYLE}</style>\n<g>", 1
    )


def _colour(name: str, number: int, colours: Mapping[str, str] | None) -> str:
    return (colours or {}).get(name, COLOURS[number % len(COLOURS)])


def _shown(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _axis(
    values: Sequence[float], start: float, end: float, log: bool, from_zero: bool, whole: bool = False
) -> tuple[Callable[[float], float], list[float]]:
    """Where a value lies between ``start`` and ``end``, and which values get a tick."""
    low, high = min(values), max(values)
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        few = last - first <= 2
        ticks = [m * 10.0**e for e in range(first, last + 1) for m in ((1, 2, 5) if few else (1,))]
        inside = [t for t in ticks if low / 1.0001 <= t <= high * 1.0001] or [low, high]
        a, b = math.log10(low), math.log10(high)
        if a == b:
            a, b = a - 0.5, b + 0.5
        return lambda v: start + (math.log10(v) - a) / (b - a) * (end - start), inside
    if from_zero:
        low = min(0.0, low)
    if low == high:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 6
    unit: float = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= rough)
    if whole:
        step = max(1, math.ceil(step))
    if from_zero:
        high = step * math.ceil(high / step - 1e-9)
    first_tick = math.ceil(low / step - 1e-9)
    ticks = [i * step for i in range(first_tick, math.floor(high / step + 1e-9) + 1)]
    return lambda v: start + (v - low) / (high - low) * (end - start), ticks


def _frame(
    size: tuple[int, int],
    place_x: Callable[[float], float],
    ticks_x: Sequence[float],
    place_y: Callable[[float], float],
    ticks_y: Sequence[float],
    x_label: str,
    y_label: str,
) -> list[str]:
    width, height = size
    bottom = height - _BOTTOM
    body = []
    for tick in ticks_y:
        y = place_y(tick)
        body.append(f'<line class="grid" x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for tick in ticks_x:
        x = place_x(tick)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        body.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>')
    body.append(f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{bottom}H{width - _RIGHT}"/>')
    body.append(f'<text x="{(_LEFT + width - _RIGHT) / 2}" y="{height - 10}" text-anchor="middle">'
                f"{escape(x_label)}</text>")  # fmt: skip
    middle = (_TOP + bottom) / 2
    body.append(f'<text transform="rotate(-90 14 {middle})" x="14" y="{middle}" text-anchor="middle">'
                f"{escape(y_label)}</text>")  # fmt: skip
    return body


def _number(value: float) -> str:
    return f"{value:.10g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.0e}"


def _legend(names: Sequence[str], width: int, colours: Mapping[str, str] | None) -> list[str]:
    """Lines of legend entries, wrapped at the width; empty for a single name."""
    if len(names) < 2:
        return []
    lines: list[list[str]] = [[]]
    x = float(_LEFT)
    for number, name in enumerate(names):
        long = 34 + 7.0 * len(name)
        if x + long > width - _RIGHT and lines[-1]:
            lines.append([])
            x = float(_LEFT)
        lines[-1].append(f'<rect x="{x:.0f}" y="-9" width="11" height="11" rx="2" '
                         f'fill="{_colour(name, number, colours)}"/><text x="{x + 16:.0f}" y="1">'
                         f"{escape(name)}</text>")  # fmt: skip
        x += long
    return ["".join(line) for line in lines]


def _canvas(size: tuple[int, int], title: str, body: Sequence[str], legend: Sequence[str] = ()) -> str:
    width, height = size
    full = height + _LEGEND * len(legend) + (6 if legend else 0)
    rows = "".join(f'<g transform="translate(0 {height + 8 + _LEGEND * i})">{row}</g>' for i, row in enumerate(legend))
    return (f'<svg class="plot" role="img" viewBox="0 0 {width} {full}" width="{width}" height="{full}">'
            f"<g><title>{escape(title)}</title>"
            f'<rect class="ground" width="{width}" height="{full}"/>'
            f'<text class="title" x="{_LEFT}" y="20">{escape(title)}</text>\n'
            + "\n".join(body) + rows + "</g></svg>")  # fmt: skip
