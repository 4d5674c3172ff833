// Settings, the theme, the rest of the keyboard; then the page starts.

function openPanel(open) {
  $("panel").classList.toggle("open", open);
  $("panel-button").setAttribute("aria-expanded", String(open));
}

function setTheme(chosen) {
  theme = chosen;
  document.documentElement.style.colorScheme = theme === "auto" ? "light dark" : theme;
  $("theme").textContent = { auto: "Auto", light: "Light", dark: "Dark" }[theme];
  $("theme").setAttribute("aria-label", `Theme: ${theme}`);
  store("outpace.theme", theme);
}

function applySettings() {
  $("temperature-value").textContent = Number($("temperature").value).toFixed(2);
  document.body.classList.toggle("bare", !$("colours").checked);
  for (const id of ["drafter", "gamma"]) $(id).disabled = !$("speculate").checked;
}

function saveSettings() {
  applySettings();
  const value = (field) => (field.type === "checkbox" ? field.checked : field.value);
  store(SETTINGS, Object.fromEntries(SAVED.map((id) => [id, value($(id))])));
}

function loadSettings() {
  for (const [id, value] of Object.entries(stored(SETTINGS) ?? {})) {
    if (SAVED.includes(id)) $(id)[typeof value === "boolean" ? "checked" : "value"] = value;
  }
  applySettings();
}

async function loadModel() {
  try {
    model = await fetchModel($("key").value);
  } catch (error) {
    return failed(error);
  }
  setError("");
  $("model").textContent = model.id;
  document.title = `Outpace: ${model.id}`;
  const chosen = stored(SETTINGS)?.drafter;
  $("drafter").replaceChildren($("drafter").options[0], ...model.outpace.drafters.map((name) => new Option(name, name)));
  if (model.outpace.drafters.includes(chosen)) $("drafter").value = chosen;
  if (!model.outpace.chat) setError("This model has no chat template: it continues texts, but takes no messages.");
}

$("settings").onsubmit = (event) => event.preventDefault();
$("settings").oninput = saveSettings;
$("colours").onchange = saveSettings;
$("key").onchange = meet;
$("theme").onclick = () => {
  const themes = ["auto", "light", "dark"];
  setTheme(themes[(themes.indexOf(theme) + 1) % 3]);
};
$("panel-button").onclick = () => openPanel(!$("panel").classList.contains("open"));
$("close").onclick = () => {
  openPanel(false);
  $("panel-button").focus();
};
$("new").onclick = () => open(newTalk());
$("clear").onclick = () => {
  talks = [];
  store(TALKS, talks);
  open(newTalk());
};
document.onkeydown = (event) => {
  if (event.key !== "Escape") return;
  if (running) running.abort();
  else if ($("panel").classList.contains("open")) $("close").click();
  else hideTip();
};

setTheme(theme);
loadSettings();
showHistory();
showSpeed(newRun(null));
loadModel();
