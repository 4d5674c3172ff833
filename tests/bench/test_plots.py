"""Plots are well-formed and put values where they belong."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from outpace.bench.plots import Bar, Series, bar_chart, line_chart, standalone


def circles(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)]


def chart(*points: tuple[float, float], **options: object) -> str:
    series = [Series("a & <b>", list(points), line=False, marks=True)]
    return line_chart(series, title="t", x_label="x", y_label="y", **options)  # type: ignore[arg-type]


def test_marks_lie_in_proportion() -> None:
    (x0, y0), (x1, y1), (x2, y2) = circles(chart((0.0, 0.0), (1.0, 5.0), (2.0, 10.0)))
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert x0 < x2 and y0 > y2  # up is more


def test_logarithmic_marks_lie_in_proportion_and_what_cannot_be_shown_is_left_out() -> None:
    points = circles(chart((1.0, 1.0), (10.0, 10.0), (100.0, 100.0), (-1.0, 5.0), log_x=True, log_y=True))
    assert len(points) == 3
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.2)
    assert len(circles(chart((1.0, math.nan), (2.0, 1.0), (math.inf, 1.0)))) == 1


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(3.0, 0.0), (3.0, 0.0)], [(1.0, 1e-9), (2.0, 1e9)]])
def test_every_chart_is_a_file_of_its_own(points: list[tuple[float, float]]) -> None:
    ET.fromstring(standalone(chart(*points)))


def test_counted_axes_have_whole_ticks() -> None:
    svg = chart((1.0, 1.0), (3.0, 2.0), whole_x=True)
    ticks = re.findall(r'y="330" text-anchor="middle">([^<]+)<', svg)
    assert ticks == ["1", "2", "3"]


def test_bars_have_heights_in_proportion_and_whiskers() -> None:
    groups = {"code": {"plain": Bar(1.0), "draft": Bar(2.0, 1.5, 2.5)}, "chat & co": {"draft": Bar(0.5)}}
    svg = bar_chart(groups, title="t", y_label="y", rule=1.0)
    ET.fromstring(standalone(svg))
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" fill', svg)]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.3) and heights[2] == pytest.approx(heights[0] / 2, abs=0.3)
    assert svg.count('stroke-opacity:.85"') == 1 and svg.count('class="rule"') == 1
    ET.fromstring(standalone(bar_chart({}, title="t", y_label="y")))


def test_a_name_keeps_its_colour() -> None:
    svg = bar_chart({"g": {"b": Bar(1.0)}}, title="t", y_label="y", colours={"b": "#123456"})
    assert "#123456" in svg


def test_a_bar_of_one_measurement_is_pale_and_has_no_interval() -> None:
    groups = {"g": {"one": Bar(1.5, 1.5, 1.5, 1), "many": Bar(1.5, 1.4, 1.6, 6)}}
    svg = bar_chart(groups, title="t", y_label="y")
    assert svg.count('fill-opacity="0.4"') == 1 and svg.count("stroke-opacity:.85") == 1
    assert "one: 1.5 (n = 1)" in svg and "many: 1.5 (n = 6)" in svg
