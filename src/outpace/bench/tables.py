"""Figures as text: aligned in a terminal, or as a Markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .measure import Measurement
from .summary import PHASES, Row, Spread, rows

HEAD = ("T", "category", "setting", "tok/s", "quartiles", "gain", "quartiles (pairs)", "whole", "prefill s", "same",
        "alpha", "block eff.", "gamma", "c", "v(g+1)", "paper", "ours", "d/t/s/o %", "roofline")  # fmt: skip


def cells(row: Row) -> tuple[str, ...]:
    """One row's cells, in the order of HEAD."""
    phases = "/".join(f"{100 * row.phases[phase]:.0f}" for phase in PHASES) if row.phases else "-"
    return (
        f"{row.temperature:g}", row.category, row.contender,
        _middle(row.speed), _quartiles(row.speed, ".1f"),
        f"x{row.gain.median:.2f}" if row.gain else "-",
        f"{_quartiles(row.gain, '.2f')} ({row.gain.count})" if row.gain else "-", _middle(row.whole),
        f"{row.prefill.median:.2f}" if row.prefill else "-", f"{row.same[0]}/{row.same[1]}" if row.same else "-",
        _number(row.alpha), _number(row.block_efficiency), _number(row.depth, 1), _number(row.c),
        _number(row.rows_cost), f"x{row.paper:.2f}" if row.paper else "-", f"x{row.ours:.2f}" if row.ours else "-",
        phases, f"{100 * row.roofline:.0f}%" if row.roofline else "-",
    )  # fmt: skip


def _quartiles(spread: Spread | None, form: str) -> str:
    """Of a single value there are none."""
    return "-" if spread is None or spread.count < 2 else f"{spread.low:{form}}-{spread.high:{form}}"


def _middle(spread: Spread | None) -> str:
    return f"{spread.median:.1f}" if spread else "-"


def _number(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Columns of equal width; the first row is the heading."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def verdict(value: float, *, most: float | None = None, least: float | None = None, form: str = ".2f") -> str:
    """A bar and whether ``value`` is at most, or at least, that; "-" where there is no bar."""
    if most is not None:
        return f"{most:{form}} {'met' if value <= most else 'missed'}"
    return "-" if least is None else f"{least:{form}} {'met' if value >= least else 'missed'}"


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is the heading."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    return "\n".join([lines[0], "|" + "---|" * len(table[0]), *lines[1:]])


def summary_table(measurement: Measurement) -> list[tuple[str, ...]]:
    """The whole table, without columns that say nothing here."""
    table = [HEAD, *(cells(row) for row in rows(measurement))]
    kept = [i for i in range(len(HEAD)) if i < 4 or any(row[i] != "-" for row in table[1:])]
    return [tuple(row[i] for i in kept) for row in table]


def page(measurement: Measurement, title: str = "Measured with outpace bench") -> str:
    """The facts and the whole table as a Markdown page."""
    listed = "\n".join(f"- {line}" for line in facts(measurement))
    return f"# {title}\n\n{listed}\n\n{markdown(summary_table(measurement))}\n"


def called(measurement: Measurement, part: str) -> str:
    """The name of the model that is the "target" or the "draft" of a measurement."""
    names = [model["name"] for model in measurement.provenance["models"]]
    return dict(zip(("target", "draft"), names, strict=False)).get(part, part)


def facts(measurement: Measurement) -> list[str]:
    """Lines on the machine, the models and what the run can be blamed for."""
    about = measurement.provenance
    lines = [
        (f"{about['cpu']}, {about['cores']} cores, {about['memory_bytes'] / 2**30:.0f} GiB, {about['system']}, "
        f"kernels {about['kernels']}, threads: {about['threads']}"),
        f"outpace {about['outpace']}, torch {about['torch']}, Python {about['python']}, commit {about['commit']}"
        + (" with uncommitted changes" if about["uncommitted_changes"] else ""),
        *(f"{m['name']}: {m['weights']} weights, {m['backend']}, {m['bytes_in_memory'] / 1e9:.3f} GB in memory, "
          f"sha256 {m['sha256']}" for m in about["models"]),
        f"{about['date']}: {about['command']}",
    ]  # fmt: skip
    if measurement.bandwidth:
        low, high = min(measurement.bandwidth), max(measurement.bandwidth)
        lines.append(f"read bandwidth {statistics.median(measurement.bandwidth) / 1e9:.1f} GB/s "
                     f"({low / 1e9:.1f} to {high / 1e9:.1f} during the run), "
                     f"most memory held {measurement.peak_memory / 1e9:.2f} GB")  # fmt: skip
    for name, costs in measurement.costs.items():
        listed = ", ".join(f"{n}: {1e3 * s:.1f} (x{s / costs[1]:.2f})" for n, s in costs.items())
        lines.append(f"ms a pass of {called(measurement, name)} by rows: {listed}")
    for peer in dict.fromkeys(tried["peer"] for tried in measurement.tuning):
        of = [tried for tried in measurement.tuning if tried["peer"] == peer]
        count = len({tried["mode"] for tried in of})
        lines.append(f"{peer}: {of[0]['versions']}, weights {of[0]['numerics']}; its plain mode, and the fastest of "
                     f"{count} modes on each of 3 prompts that are not quoted")  # fmt: skip
    lines += [f"missing: {failure['what']}: {failure['why']}" for failure in measurement.failures]
    if not measurement.complete:
        lines.append("interrupted: what follows is what had been measured by then")
    return lines
