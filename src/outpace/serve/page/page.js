// The page itself: conversations, one answer at a time, the message box, tips.

const $ = (id) => document.getElementById(id);
const TALKS = "outpace.conversations";
const SETTINGS = "outpace.settings";
const REDRAW = 250; // milliseconds between two drawings of the figures: the model may need this machine's cores
const KEPT = 30; // conversations that this browser remembers
const SAVED = ["system", "temperature", "seed", "max-tokens", "drafter", "gamma", "speculate", "colours"];
const EXAMPLES = [
  "Write a Python function that merges two sorted lists.",
  "Explain to a child how a bicycle stays upright.",
  "Make a table of the planets and their sizes.",
];

let talks = stored(TALKS) ?? []; // newest first
let talk = newTalk();
let model = null; // what the server says of its model
let running = null; // the AbortController of the answer that is coming
let theme = stored("outpace.theme") ?? "auto";
let tipped = null; // the token whose tip is open

function stored(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // private browsing, or no space left: it is remembered until the page closes
  }
}

function addButton(parent, name, action, className = "quiet") {
  const button = parent.appendChild(make("button", className, name));
  button.type = "button";
  button.onclick = action;
  return button;
}

// ---- conversations

function newTalk() {
  return { id: Date.now(), messages: [] };
}

function remember(one) {
  talks = [one, ...talks.filter(({ id }) => id !== one.id)].filter(({ messages }) => messages.length).slice(0, KEPT);
  const slim = (message) => ({ ...message, tokens: message.tokens?.map((token) => ({ ...token, top: [] })) });
  store(TALKS, talks.map((each) => ({ ...each, messages: each.messages.map(slim) })));
  showHistory();
}

function showHistory() {
  $("history").replaceChildren(...talks.map((one) => {
    const item = make("li");
    const button = addButton(item, one.messages[0].content.slice(0, 80), () => open(one));
    if (one.id === talk.id) button.setAttribute("aria-current", "true");
    return item;
  }));
  $("earlier").hidden = !talks.length;
}

function open(one) {
  running?.abort();
  talk = one;
  setError("");
  showTalk();
  showHistory();
  openPanel(false);
  $("prompt").focus();
}

// Shows the conversation; gives the view of its last message, which stays open when it is `coming`.
function showTalk(coming) {
  hideTip();
  $("log").replaceChildren();
  const views = talk.messages.map((message, number) => showMessage(message, number, message === coming));
  $("welcome").hidden = talk.messages.length > 0;
  countLegend(talk);
  toBottom();
  return views.at(-1);
}

function countLegend({ messages }) {
  showLegend(messages.flatMap(({ tokens }) => tokens ?? []));
}

function showMessage(message, number, coming) {
  const article = $("log").appendChild(make("article", message.role));
  article.dataset.number = number;
  article.append(make("h3", "hidden", message.role === "user" ? "You" : "The model"));
  const body = article.appendChild(make("div", "body"));
  const actions = article.appendChild(make("div", "actions"));
  if (message.role === "user") {
    body.textContent = message.content;
    addButton(actions, "Edit", () => edit(article, number));
    return null;
  }
  body.tabIndex = 0; // one stop for the whole answer; arrows go from token to token
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", "Answer. Arrow keys go from token to token.");
  addButton(actions, "Copy", () => navigator.clipboard.writeText(message.content).then(() => say("Copied")));
  addButton(actions, "Regenerate", () => ask(number));
  const note = actions.appendChild(make("span", "note", message.note));
  const view = answerView(body);
  message.tokens.forEach((token, i) => view.add(token, i));
  if (!coming) view.finish();
  return { note, ...view };
}

function edit(article, number) {
  const before = [...article.childNodes];
  const box = make("textarea", "edit");
  box.value = talk.messages[number].content;
  box.setAttribute("aria-label", "Edit the message");
  const send = () => box.value.trim() && ask(number, box.value.trim());
  const cancel = () => {
    article.replaceChildren(...before);
    $("prompt").focus();
  };
  box.onkeydown = (event) => {
    if (sends(event)) send();
    else if (event.key === "Escape") cancel();
    else return;
    event.stopPropagation();
    event.preventDefault();
  };
  box.oninput = () => grow(box);
  const actions = make("div", "actions open");
  addButton(actions, "Send", send, "primary");
  addButton(actions, "Cancel", cancel);
  article.replaceChildren(box, actions);
  grow(box);
  box.focus();
}

// ---- one answer

function wish(messages) {
  const value = (id) => $(id).value.trim();
  const whole = (id, name, least) => {
    if (!value(id)) return undefined;
    const found = Number(value(id));
    if (Number.isSafeInteger(found) && found >= least) return found;
    throw new TalkError(`${name} must be a whole number of at least ${least}.`);
  };
  const drafting = { drafter: value("drafter") || undefined, gamma: whole("gamma", "Gamma", 0) };
  const system = value("system");
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    temperature: Number(value("temperature")),
    seed: whole("seed", "Seed", 0),
    max_tokens: whole("max-tokens", "Maximum tokens", 1),
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    top_logprobs: 5,
    outpace: { show: true, ...($("speculate").checked ? drafting : { off: true }) },
  };
}

// Keeps the first `number` messages, adds `text` as the user's next, and answers. When there is no answer, all is as before.
async function ask(number, text) {
  const mine = talk;
  const before = mine.messages;
  const messages = before.slice(0, number);
  if (text) messages.push({ role: "user", content: text });
  const message = { role: "assistant", content: "", tokens: [], note: "" };
  let view = null;
  const controller = new AbortController();
  const run = newRun(model?.outpace.plain_tokens_per_second ?? null);
  let drawing = 0;
  const draw = () => {
    drawing = 0;
    showSpeed(run);
    countLegend(mine);
  };
  setError("");
  try {
    const body = wish(messages.map(({ role, content }) => ({ role, content })));
    mine.messages = [...messages, message];
    setRunning(controller);
    view = showTalk(message);
    say("Answering");
    await streamChat(body, $("key").value, controller.signal, (chunk) => {
      if (chunk.outpace) run.live = chunk.outpace;
      const choice = chunk.choices[0];
      if (!choice) return;
      const low = atBottom();
      const tokens = chunkTokens(choice);
      countTokens(run, tokens, choice.outpace?.live);
      message.content += choice.delta.content ?? "";
      if (choice.finish_reason === "length") message.note = "Cut at the maximum number of tokens.";
      for (const token of tokens) {
        message.tokens.push(token);
        if (talk === mine) view.add(token, message.tokens.length - 1);
      }
      if (low) toBottom();
      drawing ||= setTimeout(draw, REDRAW);
    });
  } catch (error) {
    if (error.name === "AbortError") message.note = "Stopped.";
    else failed(error);
  }
  clearTimeout(drawing);
  setRunning(null);
  if (message.tokens.length) {
    view.finish();
    view.note.textContent = message.note;
    remember(mine);
    if (talk === mine) draw();
    say(message.note || `Answer finished, ${message.tokens.length} tokens.`);
  } else {
    mine.messages = before;
    if (text && !$("prompt").value) setPrompt(text);
    if (talk === mine) showTalk();
  }
}

function failed(error) {
  setError(error.message);
  say("");
  if (error.status !== 401) return;
  openPanel(true);
  $("key").focus();
}

function setRunning(controller) {
  running = controller;
  document.body.classList.toggle("busy", running !== null);
  $("log").setAttribute("aria-busy", String(running !== null)); // read out once, when it is whole
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

function setError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

function say(text) {
  $("status").textContent = text;
}

function atBottom() {
  const box = $("scroll");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function toBottom() {
  $("scroll").scrollTop = $("scroll").scrollHeight;
}

// ---- the message box

function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function grow(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function setPrompt(text) {
  $("prompt").value = text;
  grow($("prompt"));
}

$("composer").onsubmit = (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || running) return;
  setPrompt("");
  ask(talk.messages.length, text);
};
$("prompt").oninput = () => grow($("prompt"));
$("prompt").onkeydown = (event) => {
  if (!sends(event)) return;
  event.preventDefault();
  $("composer").requestSubmit();
};
$("stop").onclick = () => {
  running?.abort();
  $("prompt").focus();
};
for (const text of EXAMPLES) addButton($("examples"), text, () => ask(0, text));

// ---- tips

function showTip(span) {
  const message = talk.messages[span.closest("article").dataset.number];
  tipped = span;
  fillTip($("tip"), message.tokens[span.dataset.index]);
  placeTip($("tip"), span);
  span.setAttribute("aria-describedby", "tip");
}

function hideTip() {
  tipped?.removeAttribute("aria-describedby");
  tipped = null;
  $("tip").hidden = true;
}

const log = $("log");
log.onpointerover = ({ target }) => (target.matches(".token") ? showTip(target) : hideTip());
log.onpointerleave = hideTip;
log.onclick = ({ target }) => target.matches(".token") && showTip(target);
$("scroll").onscroll = hideTip;
log.addEventListener("focusin", ({ target }) => (target.matches(".token") ? showTip(target) : hideTip()));
log.addEventListener("focusout", hideTip);
log.onkeydown = (event) => {
  const body = event.target.closest("article.assistant .body");
  if (!body) return;
  const spans = [...body.querySelectorAll(".token")];
  const at = spans.indexOf(event.target);
  const next = { ArrowRight: at + 1, ArrowLeft: Math.max(0, at - 1), Home: 0, End: spans.length - 1 }[event.key];
  if (next === undefined || !spans[next]) return;
  event.preventDefault();
  spans[next].focus();
};
