// The live figures: tokens a second against the plain estimate, the acceptance rate, the tokens of each pass.

const WINDOW = 1000; // milliseconds over which the curve's rate is taken
const PASSES = 56; // columns shown

function newRun(plain) {
  return {
    asked: performance.now(), first: null, tokens: 0, rates: [], seen: [], passes: [[]],
    live: { plain_tokens_per_second: plain },
  };
}

// ``live``: what the server says of the answer so far.
function countTokens(run, tokens, live) {
  const now = performance.now();
  run.first ??= now;
  run.live = live ?? run.live;
  run.tokens += tokens.length;
  for (const { origin } of tokens) {
    run.passes.at(-1).push(origin);
    if (!isDraft(origin)) run.passes.push([]);
  }
  run.seen.push([now, run.tokens]);
  const [then, before] = run.seen.findLast(([time]) => time <= now - WINDOW) ?? run.seen[0];
  if (now > then + 20) run.rates.push([now - run.first, (1000 * (run.tokens - before)) / (now - then)]);
}

function number(value, digits) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

function showSpeed(run) {
  const at = (id) => document.getElementById(id);
  const { tokens_per_second: rate, plain_tokens_per_second: plain, alpha, rows_per_pass: rows } = run.live;
  const gain = rate && plain ? rate / plain : null;
  at("rate").textContent = number(rate, 1);
  at("gain").textContent = gain ? `${gain.toFixed(2)}× plain` : "";
  at("gain").className = gain < 1 ? "slower" : "";
  at("alpha").textContent = number(alpha, 2);
  at("block").textContent = number(run.live.block_efficiency, 2);
  at("rows").textContent = number(rows, 2);
  at("first").textContent = run.first === null ? "–" : `${((run.first - run.asked) / 1000).toFixed(2)} s`;
  for (const id of ["curve", "passes"]) at(id).hidden = !run.tokens;
  const parts = [];
  if (rate) parts.push(`${rate.toFixed(1)} tokens/s`);
  if (gain) parts.push(`${gain.toFixed(2)}× plain`);
  if (alpha) parts.push(`α ${alpha.toFixed(2)}`);
  if (rows) parts.push(`${rows.toFixed(1)} rows per pass`);
  at("strip").textContent = parts.join("  ·  ");
  drawChart(run, rate, plain);
  drawPasses(run.passes);
}

function drawChart(run, rate, plain) {
  const at = (id) => document.getElementById(id);
  const [width, height] = [240, 56];
  const highest = Math.max(0, ...run.rates.map(([, value]) => value));
  const most = 1.08 * Math.max(highest, plain ?? 0) || 1;
  const span = run.rates.at(-1)?.[0] ?? 1;
  const y = (value) => (height - (value / most) * (height - 2)).toFixed(1);
  const points = run.rates.map(([time, value]) => `${((time / span) * width).toFixed(1)},${y(value)}`);
  const left = points.length ? points[0].split(",")[0] : 0;
  at("line").setAttribute("points", points.join(" "));
  at("area").setAttribute("points", points.length ? `${left},${height} ${points.join(" ")} ${width},${height}` : "");
  at("plain-line").toggleAttribute("hidden", !plain);
  for (const end of ["y1", "y2"]) at("plain-line").setAttribute(end, plain ? y(plain) : 0);
  at("plain-label").textContent = plain ? `plain, estimated: ${plain.toFixed(1)}` : "";
  at("top-label").textContent = run.rates.length ? `highest ${highest.toFixed(0)}` : "";
  at("chart").setAttribute("aria-label", `Tokens per second: ${number(rate, 1)}; plain: ${number(plain, 1)}`);
}

function drawPasses(passes) {
  const columns = passes.filter((pass) => pass.length).slice(-PASSES);
  document.getElementById("passes").replaceChildren(...columns.map((pass) => {
    const column = make("div");
    column.append(...pass.map((origin) => make("i", originClass(origin))));
    return column;
  }));
}

function showLegend(tokens) {
  const counts = new Map();
  for (const { origin } of tokens) counts.set(origin, (counts.get(origin) ?? 0) + 1);
  const order = (origin) => (isDraft(origin) ? 0 : 1 + Object.keys(OWN).indexOf(origin));
  const rows = [...counts].sort((a, b) => order(a[0]) - order(b[0]) || b[1] - a[1]);
  document.getElementById("legend").replaceChildren(...rows.map(([origin, count]) => {
    const [name, meaning] = originWords(origin);
    const item = make("li", originClass(origin));
    item.append(make("i"), make("b", "", name), make("span", "", meaning), make("em", "", String(count)));
    return item;
  }));
}
