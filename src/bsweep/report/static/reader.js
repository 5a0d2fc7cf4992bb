// What the pages of a report and of a comparison share: elements, the link of a view, and the look.
// Each page has its own `DEFAULTS` of the state, `firstView` (the link of what is shown at first), `isUnderstood` and `render`.
const OF_READER = { theme: "auto" }, THEMES = { auto: "as the system", light: "light", dark: "dark" };
let state;

const byId = (id) => document.getElementById(id);
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true || value === false) made[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}
const fill = (id, ...children) => byId(id).replaceChildren(...children.flat().filter(Boolean));
const option = (value, text, chosen) => el("option", { value, selected: String(chosen) === String(value) }, text);
function menu(id, values, chosen) {
  fill(id, values.map(([value, text]) => option(value, text, chosen)));
}

const isOne = (...values) => (value) => values.includes(value);
const UNDERSTOOD_OF_READER = { theme: isOne(...Object.keys(THEMES)) };
function readLink() {
  const given = [...new URLSearchParams(location.hash.slice(1) || firstView())].filter(([, value]) => value !== "");
  const odd = given.filter(([name, value]) => !isUnderstood(name, value)).map(([name, value]) => `${name}=${value}`.slice(0, 80));
  state = { ...DEFAULTS, ...Object.fromEntries(given.filter((one) => isUnderstood(...one))) };
  byId("misread").hidden = !odd.length;
  byId("misread").textContent = odd.length ? `The page does not know these parts of its link, and shows the defaults: ${odd.join(", ")}` : "";
}
function link(changes = {}) {
  const all = { ...state, ...changes };
  const told = Object.entries(all).filter(([name, value]) => value !== "" && value !== DEFAULTS[name]);
  // The whole address: in a notebook's frame, one that begins with # would be of the notebook.
  return `${location.href.split("#")[0]}#${new URLSearchParams(told)}`;
}
function go(changes, isStep = false) {
  const next = link(changes);
  history[isStep ? "pushState" : "replaceState"](null, "", next);
  readLink();
  render();
}
function renderReader() {
  if (state.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = state.theme;
  menu("theme", Object.entries(THEMES), state.theme);
}
