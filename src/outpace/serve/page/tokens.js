// Tokens on the page: their colours, their origins, and their tooltips. Text enters the page as text only.

const OWN = {
  correction: ["correction", "chosen by the model after it rejected a proposed token"],
  bonus: ["bonus", "chosen by the model after it accepted all proposed tokens"],
  plain: ["plain", "chosen by the model in a pass without proposed tokens"],
};
const DRAFTERS = {
  draft_model: ["draft model", "proposed by the draft model, accepted by the model"],
  lookup: ["lookup", "copied from earlier text, accepted by the model"],
};
const others = []; // drafters without a colour of their own take the next free one, in order of appearance

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function isDraft(origin) {
  return !(origin in OWN);
}

function originWords(origin) {
  const name = origin.replaceAll("_", " ");
  return OWN[origin] ?? DRAFTERS[origin] ?? [name, `proposed by ${name}, accepted by the model`];
}

function originClass(origin) {
  if (origin in OWN || origin in DRAFTERS) return `o-${origin}`;
  if (!others.includes(origin)) others.push(origin);
  return `o-other${others.indexOf(origin) % 3}`;
}

function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(part of a character)";
}

function percent(probability) {
  const value = 100 * probability;
  return value >= 99.95 ? "100 %" : value < 0.1 ? "< 0.1 %" : `${value.toFixed(1)} %`;
}

// The tokens of one chunk, their probabilities and alternatives beside them.
function chunkTokens(choice) {
  const shown = choice.outpace?.tokens ?? [];
  const probable = choice.logprobs?.content ?? [];
  const pieces = cut(choice.delta.content ?? "", shown.map(({ text }) => text));
  return pieces.map((text, i) => ({
    text,
    origin: shown[i]?.origin ?? "plain",
    logprob: shown[i]?.logprob ?? null,
    top: (probable[i]?.top_logprobs ?? []).map((other) => [other.token, other.logprob]),
  }));
}

// Cuts a text at its tokens. One whose spelling is not in the text (a part of a character, an end token) gets nothing;
// what no token spells goes to the one before.
function cut(text, spellings) {
  const pieces = [];
  let at = 0;
  for (const spelling of spellings) {
    const found = spelling && !spelling.includes("\ufffd") ? text.indexOf(spelling, at) : -1;
    if (found < 0 || found > at + 8) {
      pieces.push("");
      continue;
    }
    if (found > at && pieces.length) pieces[pieces.length - 1] += text.slice(at, found);
    pieces.push(text.slice(pieces.length ? found : at, found + spelling.length));
    at = found + spelling.length;
  }
  if (at < text.length) pieces.push((pieces.pop() ?? "") + text.slice(at));
  return pieces;
}

// Shows an answer token by token. Lines of ``` open and close blocks of code.
function answerView(body) {
  let block = body.appendChild(make("div", "prose"));
  let code = false;
  let line = "";
  let spans = [];

  function endLine() {
    if (/^\s*```/.test(line)) {
      const fence = body.appendChild(make("div", "fence"));
      fence.append(...spans);
      code = !code;
      if (!block.hasChildNodes()) block.remove();
      block = body.appendChild(make(code ? "pre" : "div", code ? "" : "prose"));
    }
    line = "";
    spans = [];
  }

  return {
    add(token, index) {
      for (const part of token.text.split(/(?<=\n)/)) {
        const blank = part.trim() ? "" : " blank";
        const span = block.appendChild(make("span", `token ${originClass(token.origin)}${blank}`, part));
        span.dataset.index = index;
        span.tabIndex = -1;
        line += part;
        spans.push(span);
        if (part.endsWith("\n")) endLine();
      }
    },
    finish() {
      endLine();
      if (!block.hasChildNodes()) block.remove();
    },
  };
}

function fillTip(tip, token) {
  const [name, meaning] = originWords(token.origin);
  tip.replaceChildren(make("code", "", visible(token.text)));
  const origin = tip.appendChild(make("p", `origin ${originClass(token.origin)}`));
  origin.append(make("b", "", name), make("span", "", meaning));
  if (token.logprob === null) return;
  tip.append(make("p", "", `Probability ${percent(Math.exp(token.logprob))}`));
  const list = tip.appendChild(make("ul", originClass(token.origin)));
  for (const [text, logprob] of token.top) {
    const item = list.appendChild(make("li", text === token.text ? "chosen" : ""));
    const bar = make("i");
    bar.style.width = `${100 * Math.exp(logprob)}%`;
    item.append(make("code", "", visible(text)), make("span", "", percent(Math.exp(logprob))), bar);
  }
}

function placeTip(tip, span) {
  const around = span.getClientRects()[0] ?? span.getBoundingClientRect();
  tip.hidden = false;
  const above = around.top - tip.offsetHeight - 8;
  tip.style.top = `${above > 8 ? above : around.bottom + 8}px`;
  tip.style.left = `${Math.max(8, Math.min(around.left, innerWidth - tip.offsetWidth - 8))}px`;
}
