"""Draw the figures of Leviathan, Kalman and Matias (arXiv 2211.17192) from its formulas, with our points on top.

Figure 1: tokens a round against alpha. Figure 2: gain and operations against alpha. Figure 3: the best gamma against
alpha. Figure 4: gain against gamma, with v(n) as it was measured here beside the paper's v = 1. Table 1: gain and
operations for some alpha and gamma at c = 0.
"""

import argparse
from pathlib import Path

from outpace.bench.measure import Measurement
from outpace.bench.plots import Series, line_chart, standalone
from outpace.bench.simulate import best_gamma, operations, speedup
from outpace.bench.summary import EVERYTHING, rows
from outpace.bench.tables import markdown
from outpace.control.pass_costs import PassCosts
from outpace.core.report import expected_tokens

ALPHAS = [i / 100 for i in range(100)]
TABLE = ((0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10))  # the rows of the paper's table 1


def measured(files: list[Path]) -> tuple[list, dict[int, float]]:
    """Rows that drafted about the same number of tokens in every round, and seconds of a pass by its rows."""
    found, costs = [], {}
    for file in files:
        measurement = Measurement.from_json(file.read_text(encoding="utf-8"))
        costs = measurement.costs.get("target", costs)
        known = [row for row in rows(measurement) if row.category != EVERYTHING]
        found += [row for row in known if row.alpha is not None and (row.depth or 0) >= 0.5 and row.gain]
    return found, costs


def main() -> None:
    """Write the figures and the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="what `outpace bench --json` wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    args = parser.parse_args()
    files = args.files or sorted(args.out.parent.glob("bench-*.json"))
    points, costs = measured(files)
    notes = [f"{row.contender}, {row.category}, temperature {row.temperature:g}" for row in points]
    figures = {
        "tokens": line_chart(
            [
                *(Series(f"gamma {g}", [(a, expected_tokens(a, g)) for a in ALPHAS]) for g in (1, 3, 5, 7, 10)),
                Series(
                    "measured", [(r.alpha, r.block_efficiency) for r in points], line=False, marks=True, notes=notes
                ),
            ],
            title="Figure 1: expected tokens a round",
            x_label="alpha: acceptance rate",
            y_label="tokens a target pass",
        ),
        "gain": line_chart(
            [
                *(
                    Series(f"gamma {g}, c {c:g}", [(a, speedup(a, g, c)) for a in ALPHAS])
                    for g, c in ((3, 0.02), (3, 0.2), (7, 0.02), (7, 0.2))
                ),
                Series("measured", [(r.alpha, r.gain.median) for r in points], line=False, marks=True, notes=notes),
            ],
            title="Figure 2: gain against alpha, as theorem 3.8 has it",
            x_label="alpha: acceptance rate",
            y_label="times plain decoding",
            rule=1.0,
        ),
        "operations": line_chart(
            [Series(f"gamma {g}", [(a, operations(a, g, 0.0)) for a in ALPHAS]) for g in (1, 3, 5, 7, 10)],
            title="Figure 2: operations against alpha (theorem 3.11, c = 0)",
            x_label="alpha: acceptance rate",
            y_label="times plain decoding's operations",
            rule=1.0,
        ),
        "best-gamma": line_chart(
            [Series(f"c {c:g}", [(a, float(best_gamma(a, c))) for a in ALPHAS]) for c in (0.02, 0.05, 0.1, 0.2)],
            title="Figure 3: the best gamma",
            x_label="alpha: acceptance rate",
            y_label="drafts a round",
        ),
    }
    if costs:
        curve = PassCosts.of_points(costs)
        figures["gamma"] = line_chart(
            [
                Series(f"alpha {a:g}, {name}", [(float(g), speedup(a, g, 0.27, v)) for g in range(13)])
                for a in (0.7, 0.9)
                for name, v in (
                    ("every pass costs the same", lambda n: 1.0),
                    ("passes as measured", curve.relative),
                )
            ],
            title="Gain against gamma, c = 0.27: the paper's cost model and ours",
            x_label="gamma: drafts a round",
            y_label="times plain decoding",
            rule=1.0,
            whole_x=True,
        )
    args.out.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        (args.out / f"{name}.svg").write_text(standalone(figure), encoding="utf-8")
    table = [("alpha", "gamma", "operations", "gain")]
    table += [(f"{a:g}", f"{g}", f"x{operations(a, g, 0.0):.2f}", f"x{speedup(a, g, 0.0):.2f}") for a, g in TABLE]
    own = [("setting", "category", "T", "alpha", "gamma", "c", "v(gamma+1)", "paper", "ours", "measured")]
    own += [
        (r.contender, r.category, f"{r.temperature:g}", f"{r.alpha:.2f}", f"{r.depth:.1f}", f"{r.c:.2f}",
         f"{r.rows_cost:.2f}", f"x{r.paper:.2f}", f"x{r.ours:.2f}", f"x{r.gain.median:.2f}")
        for r in points
    ]  # fmt: skip
    pictures = "\n\n".join(f"![{name}](paper/{name}.svg)" for name in figures)
    text = (
        "# The paper's figures, with our points\n\nWritten by `runs/paper_figures.py` from the formulas of Leviathan, "
        "Kalman and Matias (arXiv 2211.17192) and from what `outpace bench --json` wrote"
        + (f" ({', '.join(f'`{file.name}`' for file in files)})" if files else "")
        + ".\n\n## Table 1\n\nA draft that costs nothing (c = 0).\n\n" + markdown(table)
        + ("\n\n## Predicted and measured\n\n" + markdown(own) if points else "")
        + "\n\n## Figures\n\n" + pictures + "\n"
    )  # fmt: skip
    (args.out.parent / "paper.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
