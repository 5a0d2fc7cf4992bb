// The interactive page of a study. The page holds one document, see `bsweep.report.document`; what a reader chose is
// `state`, which the fragment of the URL keeps. `render` draws what state and document say. `update(document)` takes a
// newer document while somebody reads. Names and values of a study reach the page as text only, never as HTML.
"use strict";

const MAX_CURVES = 100, MAX_POINTS = 60, PAGE_ROWS = 50, MAX_CHOICES = 14;
const OBJECTIVES = ["seconds", "worker_seconds", "money", "joules"];
const AMOUNTS = ["seconds", "steps", "epochs", "examples"];
const DEFAULTS = {
  ...OF_READER, part: "", target: "", objective: "seconds",
  price: "1", measured: "", x: "seconds", y: "", logx: "", logy: "", smooth: "0", color: "", cell: "", picked: "",
  only: "", sort: "", down: "", find: "", page: "1", hidden: "", shown: "", run: "",
};
const SAVED = ["map", "curves", "split_times", "split_memory"];
const FILTER = "filter.", RANGE = /^(.*)\.\.(.*)$/;
let study, rows, scale;

// Words for values of the state, and for what charts show.

const OBJECTIVE_LABELS = { seconds: "time (s)", worker_seconds: "worker-seconds", money: "money", joules: "energy (J)" };
const QUESTIONS = { seconds: "trains fastest", worker_seconds: "takes the fewest worker-seconds", money: "costs the least", joules: "takes the least energy" };
const TO_TARGET = {
  seconds: "time to target (s)", worker_seconds: "worker-seconds to target",
  money: "money to target", joules: "energy to target (J)",
};
const AMOUNT_LABELS = { seconds: "time (s)", steps: "steps", epochs: "epochs", examples: "examples" };
const CHART_LABELS = {
  map: "Each cell", curves: "Curves",
  split_times: "Training time by workers", split_memory: "Memory of each worker",
};
const spaced = (status) => status.replaceAll("_", " ");

// What a run needs to reach a target: the rule of docs/predict.md, as in `bsweep.analysis.study.targets`.

function smoothed(values) {
  return values.map((value, at) => [values[at - 1] ?? -Infinity, value, values[at + 1] ?? -Infinity]
    .sort((one, other) => one - other)[1]);
}

function toTarget(curve, metric, target) {
  const sign = metric === "test_accuracy" ? 1 : -1, wanted = sign * target;
  const known = curve ? curve[metric].map((value, at) => at).filter((at) => curve[metric][at] !== null) : [];
  const scores = smoothed(known.map((at) => sign * curve[metric][at]));
  const first = scores.findIndex((score) => score >= wanted);
  if (first < 0) return null;
  const found = { is_bound: first === 0 };
  for (const name of AMOUNTS) {
    const [before, after] = [curve[name][known[first - 1]], curve[name][known[first]]];
    const share = first === 0 ? 1 : (wanted - scores[first - 1]) / (scores[first] - scores[first - 1]);
    if (first === 0) found[name] = after;
    else found[name] = before === null || after === null ? null : before + share * (after - before);
  }
  return found;
}

// Numbers and elements

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
function number(value, digits = 4) {
  if (!isNumber(value)) return "–";
  if (Math.abs(value) >= 1e7) return value.toExponential(2);
  return Math.abs(value) >= 10 ** digits ? String(Math.round(value)) : String(Number(value.toPrecision(digits)));
}
function shownValue(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return isNumber(value) ? number(value) : String(value);
}
const atMost = (text, isBound) => isBound ? `≤ ${text}` : text;  // reached at the first evaluation
const median = (sorted) => {
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

// State and the link of a view

const isEach = (isKnown) => (value) => value.split("\n").every(isKnown);
const isWithin = (low, high) => (value) => value.trim() !== "" && Number(value) >= low && Number(value) <= high;
const isRun = (id) => rows.some((row) => row.run_id === id);
const isColumn = (name) => study.tableColumns.some((one) => one.name === name);
const UNDERSTOOD = {  // the values that a link may give
  ...UNDERSTOOD_OF_READER,
  part: (value) => value === "all" || /^\d+$/.test(value) && Number(value) < study.parts.length,
  target: isWithin(-1e300, 1e300), objective: isOne(...OBJECTIVES), price: isWithin(0, 1e300), measured: isOne("1"),
  x: isOne(...AMOUNTS), y: isOne("test_accuracy", "test_loss"), logx: isOne("1"), logy: isOne("1"), smooth: isWithin(0, 0.95),
  color: (value) => Object.hasOwn(study.values, value), cell: (value) => study.cellNames.has(value.split("@")[0]),
  picked: isEach(isRun), only: isOne("1"), sort: isColumn, down: isOne("1"), find: () => true, page: isWithin(1, 1e9),
  hidden: isEach(isColumn), shown: isEach(isColumn), run: isRun,
};
function isUnderstood(name, value) {
  if (!name.startsWith(FILTER)) return Object.hasOwn(UNDERSTOOD, name) && UNDERSTOOD[name](value);
  const range = value.match(RANGE), asked = column(name.slice(FILTER.length));
  return Boolean(asked) && (!range || !asked.is_number || range.slice(1).every((end) => end === "" || Number.isFinite(Number(end))));
}
// What a page in a notebook shows before a reader has chosen anything.
const firstView = () => study.chosen;
const list = (name) => state[name] ? state[name].split("\n") : [];
const column = (name) => study.columns.find((one) => one.name === name);
const title = (name) => {
  if (name === "to_target") return TO_TARGET[state.objective];
  return column(name)?.heading ?? name;
};

// What is chosen: target, runs, cells

// The part of the study: the one that the reader chose, else the one of the study's answer; `all` or, in a study of one
// part, the only one.
const place = () => (study.parts.length < 2 ? 0 : state.part === "" ? study.answer.part : state.part === "all" ? null : Number(state.part));
const part = () => study.parts[place() ?? -1];
// The study's own question is shown: the page then names the cell and the interval that a terminal names.
const isOwn = () => !state.measured && !isFiltered() && state.objective === "seconds" && place() === (study.answer.part ?? (study.parts.length < 2 ? 0 : null))
  && target() === (givenTarget()?.value ?? null);
const givenTarget = () => part()?.target ?? study.target;
const metric = () => givenTarget()?.metric ?? "test_accuracy";
const target = () => state.target !== "" ? Number(state.target) : givenTarget()?.value ?? null;
const scoreLabel = (name) => `${study.part} ${name === "test_accuracy" ? "accuracy" : "loss"}`;
const targetWords = (value = target()) => `a ${scoreLabel(metric())} of ${number(value)}`;
const isFiltered = () => Object.keys(state).some((name) => name.startsWith(FILTER));
const isPredicted = () => !state.measured && !isFiltered() && Boolean(part()?.cells) && target() === givenTarget().value;
const cellName = (row) => `${row.global_batch}x${row.num_workers}` + (place() === null ? `@${row.part}` : "");
function cellWords(row) {
  const said = `Global batch ${row.global_batch} on ${row.num_workers} worker${row.num_workers === 1 ? "" : "s"}`;
  const of = place() === null && study.parts[row.part] ? `, ${study.parts[row.part].name}` : "";
  const mark = row.is_simulated ? `, simulated` : "";
  return (row.local_batch ? `${said} (local batch ${number(row.local_batch)})` : said) + of + mark;
}
function cost(seconds, workers, of = {}) {
  if (!isNumber(seconds)) return null;
  if (state.objective === "worker_seconds") return seconds * workers;
  if (state.objective === "money") return (seconds * workers * Number(state.price)) / 3600;
  if (state.objective !== "joules") return seconds;
  if (isNumber(of.joules)) return (of.joules * seconds) / of.seconds;
  return isNumber(of.energy_joules) && of.train_seconds ? (of.energy_joules * seconds) / of.train_seconds : null;
}
const unit = () => ({ seconds: " s", worker_seconds: " worker-seconds", money: "", joules: " J" })[state.objective];
function amount(value) {
  const minutes = state.objective === "seconds" && value >= 600 ? ` (${number(value / (value >= 7200 ? 3600 : 60), 3)} ${value >= 7200 ? "h" : "min"})` : "";
  return number(value) + unit() + minutes;
}

function passes(row) {
  return Object.keys(state).filter((name) => name.startsWith(FILTER)).every((name) => {
    const value = row[name.slice(FILTER.length)], wanted = state[name];
    const range = wanted.match(RANGE);
    if (!range) return wanted.split("\n").includes(String(value ?? ""));
    return isNumber(value) && (range[1] === "" || value >= Number(range[1])) && (range[2] === "" || value <= Number(range[2]));
  });
}
function choose() {  // the runs that filters and the part of the study leave, with what each needs to reach the target
  const wanted = target(), here = place(), ids = new Set(list("picked")), asked = `${metric()} ${wanted}`;
  for (const row of rows) {
    const inPart = study.parts.length < 2 || here === null || row.part === here;
    row.isShown = inPart && passes(row);
    if (row.reachOf !== asked) row.reach = wanted === null ? null : toTarget(row.curve, metric(), wanted);
    row.reachOf = asked;
    row.to_target = row.reach ? cost(row.reach.seconds, row.num_workers, row) : null;
    row.isPicked = ids.has(row.run_id) || (state.cell !== "" && cellName(row) === state.cell && inPart);
  }
  return rows.filter((row) => row.isShown);
}
function predictedCells() {
  const cells = table(part().cells);
  for (const cell of cells) {
    const value = cost(cell.seconds, cell.num_workers, cell), factor = value / cell.seconds;
    Object.assign(cell, { seconds: value, seconds_low: factor * cell.seconds_low, seconds_high: factor * cell.seconds_high });
    if (value === null) cell.problem ||= "not known";
  }
  return state.objective === "seconds" ? cells : starred(cells);
}
function starred(cells) {  // the best cell by the objective has the star
  const allowed = cells.filter((cell) => cell.is_allowed && !cell.problem && isNumber(cell.seconds));
  const best = allowed.reduce((one, other) => (other.seconds < (one?.seconds ?? Infinity) ? other : one), null);
  return cells.map((cell) => ({ ...cell, is_recommended: cell === best, is_alternative: false }));
}
function measuredCells(shown) {
  const groups = new Map();
  for (const row of shown) {
    // It is not at its best learning rate, or it reached the target at a cost that is not known.
    if (!row.curve || (row.part === null && study.answer.part !== null) || (row.reach && row.to_target === null)) continue;
    const name = cellName(row);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  const cells = [...groups.values()].map((group) => {
    const found = group.map((row) => row.to_target ?? Infinity).sort((one, other) => one - other);
    const reached = found.filter(isNumber), middle = median(found);
    const isBound = group.some((row) => row.reach?.is_bound && row.to_target >= found[(found.length - 1) >> 1] && row.to_target <= found[found.length >> 1]);
    return {
      global_batch: group[0].global_batch, num_workers: group[0].num_workers, local_batch: group[0].local_batch,
      part: group[0].part, seconds: isNumber(middle) ? middle : null, seconds_low: reached.length > 1 ? reached[0] : null,
      seconds_high: reached.length > 1 ? reached.at(-1) : null, num_runs: group.length, num_reached: reached.length, is_bound: isBound,
      problem: isNumber(middle) ? "" : "not reached", is_allowed: true,
    };
  });
  return starred(cells);
}
function table(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, at) => Object.fromEntries(names.map((name) => [name, columns[name][at]])));
}

// Commands

const quoted = (text) => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
function command(row, changes = {}) {  // null if the run's own is not on record
  const given = study.commands.words[study.commands.of_run[row?.at]];
  if (!given) return null;
  const own = Object.fromEntries(study.columns.filter((one) => one.word).map((one) => [one.word, row[one.name]]));
  const all = { ...own, global_batch: null, ...changes, study: study.name };  // the local batch says it
  const kept = given.filter((word) => !(word.replace(/^\++/, "").split("=")[0] in all));
  const set = Object.entries(all).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return ["bsweep run", ...kept.map(quoted), ...set.map(([name, value]) => quoted(`${name}=${value}`))].join(" ");
}
function commandOfCell(cell, changes = {}) {
  const alike = rows.filter((row) => row.part === (place() ?? cell.part)), same = alike.filter((row) => cellName(row) === cellName(cell));
  const near = [...same, ...alike].find((row) => command(row)), seeds = same.map((row) => row.seed), wanted = target();
  const stop = wanted === null ? {} : { [metric() === "test_accuracy" ? "target_accuracy" : "target_loss"]: Number(wanted.toPrecision(12)) };
  return command(near, {
    num_workers: cell.num_workers, local_batch: cell.local_batch ?? cell.global_batch / cell.num_workers,
    seed: seeds.length ? Math.max(...seeds) + 1 : near?.seed, ...stop, ...changes,
  });
}
async function copy(text, button) {
  let said = "Copied";
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", { readonly: "" }, text);
    document.body.append(area);
    area.select();
    if (!document.execCommand("copy")) said = "Select the text and copy it.";
    area.remove();
  }
  byId("said").textContent = said;
  const before = button.textContent;
  button.textContent = said;
  setTimeout(() => { button.textContent = before; }, 1500);
}
const commandLine = (text) => text
  ? el("div", { class: "command" }, el("code", {}, text), el("button", { type: "button", onclick: (event) => copy(text, event.target) }, "Copy"))
  : el("p", { class: "note" }, "No command that leads here is on record.");
function download(name, content, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
function csv(names, found) {
  const cell = (value) => {
    let text = String(value ?? "");
    if (!isNumber(value) && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;  // no formula for a spreadsheet
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [names, ...found.map((row) => names.map((name) => row[name]))].map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

// Charts: one Vega view for each, which takes new rows without being built again

const charts = {};
function looks() {
  const style = getComputedStyle(document.documentElement), probe = el("span");
  document.body.append(probe);
  const color = (name) => { probe.style.color = style.getPropertyValue(name); return getComputedStyle(probe).color; };
  const [ink, pale, line, page] = ["--ink", "--pale", "--line", "--page"].map(color);
  probe.remove();
  const font = getComputedStyle(document.body).fontFamily;
  return {
    ink,
    config: {
      background: page, font, view: { stroke: null },
      axis: { labelColor: pale, titleColor: pale, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", gridOpacity: 0.6 },
      legend: { labelColor: ink, titleColor: pale, titleFontWeight: "normal", symbolStrokeColor: pale, symbolFillColor: pale },
      text: { color: ink }, point: { color: ink }, range: { category: study.colors },
    },
  };
}
async function draw(name, label, spec, data, signals, onPick) {
  const host = byId(name);
  host.hidden = !data.length;
  host.setAttribute("aria-label", label);
  if (!data.length) {  // nothing is left to save
    charts[name]?.view.finalize();
    delete charts[name];
    return;
  }
  const width = host.clientWidth || 600;  // a hidden page has no width
  const wanted = JSON.stringify([spec, width, scale.config]);
  let chart = charts[name];
  if (chart?.wanted !== wanted || chart.host !== host) {
    chart?.view.finalize();
    const compiled = vega.compile({ ...spec, width, autosize: { type: "fit-x", contains: "padding" } }, { config: scale.config }).spec;
    const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
      expr: vega.expressionInterpreter, renderer: "canvas", container: host, hover: false, logLevel: vega.Error,
    });
    chart = charts[name] = { view, wanted, host, name: spec.data.name, hasHover: JSON.stringify(spec.params ?? "").includes("hovered") };
    view.description(label);  // Vega gave the chart words of its own
    host.setAttribute("role", "img");
    host.removeAttribute("aria-roledescription");
    view.addEventListener("click", (event, item) => item?.datum && onPick?.(item.datum, event));
    view.addEventListener("mousemove", (event, item) => { tip(event, item?.datum); hover(namesOf(item?.datum)); });
    view.addEventListener("mouseout", () => { tip(); hover([]); });
  }
  chart.rows = data;
  for (const [signal, value] of Object.entries(signals ?? {})) chart.view.signal(signal, value);
  chart.view.change(chart.name, vega.changeset().remove(() => true).insert(data.map((row) => ({ ...row }))));
  await chart.view.runAsync();
}
// What the pointer is on, a run or a cell with its runs, stands out in all charts and in the table.
let hovered = [];
const namesOf = (datum) => !datum ? [] : datum.run ? namesOfRun(datum.run)
  : datum.name ? [datum.name, ...rows.filter((row) => row.isShown && cellName(row) === datum.name).map((row) => row.run_id)] : [];
const namesOfRun = (id) => [id, ...rows.filter((row) => row.run_id === id).map(cellName)];
function hover(names) {
  if (names.join("\n") === hovered.join("\n")) return;
  hovered = names;
  for (const chart of Object.values(charts)) if (chart.hasHover) chart.view.signal("hovered", names).runAsync();
  for (const line of document.querySelectorAll("[data-run]")) line.classList.toggle("hovered", names.includes(line.dataset.run));
}
function tip(event, datum) {
  const shown = byId("tip"), text = datum ? tipText(datum) : "";
  shown.hidden = !text;
  if (!text) return;
  shown.textContent = text;
  const [wide, high] = [shown.offsetWidth, shown.offsetHeight];
  shown.style.left = `${Math.min(event.clientX + 14, innerWidth - wide - 8)}px`;
  shown.style.top = `${event.clientY + 18 + high > innerHeight ? event.clientY - high - 10 : event.clientY + 18}px`;
}
function tipText(datum) {
  if (datum.tip) return datum.tip;
  if (datum.global_batch && "num_runs" in datum) return cellReading(datum).join("\n");
  if (datum.part && "seconds" in datum) return `${datum.part}: ${number(datum.seconds)} s`;
  if (!datum.run) return "";
  return `${datum.run}\n${AMOUNT_LABELS[state.x]}: ${number(datum.x)}\n${scoreLabel(yName())}: ${number(datum.y)}`;
}
function saveButtons(name, heading = CHART_LABELS[name] ?? name) {
  const file = `${state.run || study.name}_${name}`;
  const png = async () => {
    const canvas = await charts[name].view.toCanvas(2);
    canvas.toBlob((blob) => download(`${file}.png`, blob));
  };
  const svg = async () => download(`${file}.svg`, await charts[name].view.toSVG(), "image/svg+xml");
  const data = () => {
    const unnamed = name === "map" ? { seconds: state.objective, seconds_low: `${state.objective}_low`, seconds_high: `${state.objective}_high` }
      : name.endsWith("curves") ? { x: state.x, y: yName(), smooth: `smoothed_${yName()}` } : {};
    const named = charts[name].rows.map((row) => Object.fromEntries(Object.entries(row).map(([key, value]) => [unnamed[key] ?? key, value])));
    download(`${file}.csv`, csv(Object.keys(named[0] ?? {}), named), "text/csv");
  };
  return [["PNG", png], ["SVG", svg], ["CSV", data]].map(([format, onclick]) => el("button", {
    type: "button", onclick, "aria-label": `${format} of ${heading}`, title: `Save ${format}`,
  }, format));
}

// The first screen

function renderHeader() {
  renderReader();
  const look = [state.theme, matchMedia("(prefers-color-scheme: dark)").matches].join();
  if (scale?.look !== look) scale = { look, ...looks() };
  byId("summary").textContent = study.summary;
  byId("title").textContent = study.name;
  for (const name of SAVED) fill(`save-${name}`, saveButtons(name));
}
function renderControls() {
  const hasEnergy = rows.some((row) => isNumber(row.energy_joules)), wanted = target();
  byId("parts").hidden = study.parts.length < 2;
  menu("part", [["all", "all"], ...study.parts.map((one, at) => [at, one.name])], place() ?? "all");
  menu("objective", OBJECTIVES.filter((name) => name !== "joules" || hasEnergy).map((name) => [name, OBJECTIVE_LABELS[name]]), state.objective);
  byId("prices").hidden = state.objective !== "money";
  if (document.activeElement !== byId("price")) byId("price").value = state.price;
  byId("targets").hidden = wanted === null;
  if (wanted !== null && document.activeElement !== byId("target")) {
    const ends = [...study.ranges[metric()], givenTarget()?.value ?? wanted].map((end) => 100 * end);
    const [min, max] = [Math.floor(Math.min(...ends)) / 100, Math.ceil(Math.max(...ends)) / 100];
    Object.assign(byId("target"), { min, max, step: 10 ** Math.floor(Math.log10((max - min || 1) / 100)) });
    byId("target").value = wanted;
  }
  byId("target-value").textContent = wanted === null ? "" : `${scoreLabel(metric())} ${number(wanted)}`;
  byId("measured").checked = !isPredicted();
  byId("measured").disabled = !part()?.cells || isFiltered() || wanted !== givenTarget()?.value;
}
function cellReading(cell) {
  const lines = [cellWords(cell)];
  const ends = { value: atMost(amount(cell.seconds), cell.is_bound), low: number(cell.seconds_low), high: number(cell.seconds_high), n: cell.num_runs, reached: cell.num_reached };
  if (isNumber(cell.seconds) && isPredicted()) lines.push(`${ends.value}, ${study.level} interval ${ends.low} to ${ends.high}`);
  else if (isNumber(cell.seconds)) lines.push(cell.num_runs > 1 ? `${ends.value} (median of ${ends.n} runs, ${ends.reached} reached it; ${ends.low} to ${ends.high})` : `${ends.value} (one run)`);
  if (cell.problem) lines.push(cell.problem);
  return lines;
}
function renderAnswer(cells) {
  const wanted = target(), best = cells.find((cell) => cell.is_recommended), found = part();
  const of = place() !== null && study.parts.length > 1 ? `${found.name}: ` : "";
  const own = isOwn(), isSaid = own && !isPredicted() && study.answer.lines.length > 0, [line, ...more] = study.answer.lines;
  byId("question").textContent = of + (wanted === null || isSaid ? "Which batch size, on how many workers?" : `Which batch size, on how many workers, ${QUESTIONS[state.objective]} to ${targetWords()}?`);
  const none = rows.some((row) => row.isShown && row.reach) ? `In no cell did most of the shown runs reach ${targetWords()} at a known cost.` : `None of the shown runs reached ${targetWords()}.`;
  const [name, value] = isSaid ? [line] : best ? cellReading(best) : [wanted === null ? "There is no recommended cell yet." : none];
  byId("best").className = isSaid ? "said" : "";
  byId("best").textContent = name + (value ? ":" : "");
  byId("amount").textContent = value ?? "";
  const notes = isSaid ? more : [];
  if (best && isPredicted()) {
    if (state.objective === "seconds") notes.push(found.sure);
    else notes.push(best.is_simulated ? "Simulated: no step was timed on so many workers." : "", "It has the lowest predicted median. Probabilities are known for the fastest cell only.", best.num_reached ? "" : "No run of this cell reached the target: run it before you rely on it.");
  } else if (best && !isSaid) notes.push("This is what the runs show, without a prediction.");
  if (!own && line) notes.push(`The page computed this for what you chose. The study's own answer: ${line}`);
  byId("sure").textContent = notes.filter(String).join(" ");
  renderNext(found, isSaid);
  renderWarnings();
}
const OBJECTIVE_WORDS = { seconds: "", worker_seconds: " --objective cheapest", joules: " --objective joules" };
function renderNext(found, isSaid) {
  if (found?.cells && (target() !== givenTarget().value || state.objective !== "seconds")) {
    const option = metric() === "test_accuracy" ? "--target-accuracy" : "--target-loss";
    const asks = `bsweep predict ${quoted(study.folder)} ${option} ${number(target(), 6)}`
      + (OBJECTIVE_WORDS[state.objective] ?? ` --objective cheapest --price-per-worker-hour ${state.price}`)
      + study.larger.replace(state.objective === "money" ? / --price-per-worker-hour \S+/ : /$^/, "");
    fill("next", el("p", { class: "note" }, "To have the prediction made for what you chose:"), commandLine(asks));
  } else if (found?.next) {
    const cell = found.next, every = found.evaluate_every_examples, changes = every ? { evaluate_every_examples: every } : {};
    const said = every ? `${cellWords(cell)} again, with more evaluations, to measure its time to the target.` : !found.is_check ? `${cellWords(cell)}. Its result may change the recommendation, which is expected to save ${(100 * cell.gain).toFixed(1)} % of the time to the target.` : "The recommended cell itself, until it reaches the target. This shows whether the prediction holds.";
    fill("next", el("h3", {}, "Run next"), el("p", { class: "note" }, said), commandLine(commandOfCell(cell, changes)));
  } else if (found?.cells) fill("next", el("h3", {}, "Run next"), el("p", { class: "note" }, `Nothing. No further run is expected to save ${study.least_gain} or more of the time to the target.`));
  else fill("next", isSaid ? [] : (found?.sentences ?? study.missing.slice(0, 1)).map((line) => el("p", { class: "note" }, line)));
}
function renderWarnings() {  // of each its first sentence, which opens
  const all = study.warnings, shown = all.slice(0, 3), rest = all.slice(3);
  const one = (text) => {
    const [, first, more] = String(text).match(/^(.*?[.:])\s+(?=[A-Z])(.*)$/s) ?? [null, text, ""];
    return el("details", {}, el("summary", {}, el("span", {}, first)), el("p", {}, more));
  };
  byId("warnings").hidden = !all.length;
  if (byId("warnings").dataset.told !== all.join("\n")) {
    byId("warnings").dataset.told = all.join("\n");
    fill("warnings", el("h2", {}, "Warnings"), shown.map(one),
      rest.length ? el("details", {}, el("summary", {}, `${rest.length} more`), rest.map(one)) : null);
  }
  const said = [...document.querySelectorAll("#sure, #next")].map((one) => one.textContent).join(" ");
  const why = [...study.why, ...study.missing].filter((line) => !said.includes(line));
  byId("why").hidden = !why.length;
  fill("why-lines", why.map((line) => el("p", { class: "note" }, line)));
}
async function renderMap(cells) {
  const spec = structuredClone(study.charts.map), size = new Set(cells.map((cell) => cell.global_batch)).size;
  byId("map-title").textContent = `Each cell: ${OBJECTIVE_LABELS[state.objective]} to ${targetWords()}`;
  const isAll = place() === null, many = new Set(cells.map((cell) => cell.num_workers)).size > 1;
  const rowOf = (cell) => (study.parts[cell.part]?.name ?? "–") + (many ? `, Workers ${cell.num_workers}` : "");
  const order = [...new Set([...cells].sort((one, other) => compare(one.seconds, other.seconds)).map(rowOf))];
  if (isAll) spec.encoding.y = { field: "row", type: "ordinal", title: null, sort: order, axis: { labelLimit: 260 } };
  for (const id of ["times", "map", "cells"]) byId(id).hidden = !cells.length;  // the map has a width only if it is shown
  const numRows = new Set(cells.map(isAll ? rowOf : (cell) => cell.num_workers)).size;
  const rowHeight = innerWidth < 600 ? Math.min(44, Math.max(30, 200 / numRows)) : Math.min(64, Math.max(36, 300 / numRows));
  const wide = Math.floor((byId("map").clientWidth - (isAll ? 200 : 40)) / Math.max(1, size));
  const room = rowHeight < 34 ? Math.min(61, wide) : wide;  // a low row has no second line
  if (room < 30) {  // fewer labels than columns
    const sizes = [...new Set(cells.map((cell) => cell.global_batch))].sort(compare), every = Math.ceil(50 / Math.max(1, room));
    spec.encoding.x.axis = { values: sizes.filter((_, at) => at % every === 0) };
  }
  spec.height = numRows * rowHeight;
  byId("map-says").textContent = (isPredicted()
    ? `Predicted medians, with the ${study.level} interval of one more run. A frame marks cells with runs. ★ is recommended; each ☆ is better with a probability of ${study.tells_apart} or more. Darker is better.`
    : "Median of each cell's runs, and their range. ★ is the lowest. Darker is better. ≤: a run was already there at its first evaluation.")
    + (cells.some((cell) => cell.is_simulated) ? ` A dashed frame marks cells whose steps are simulated, not measured.` : "");
  const chosen = cells.find((cell) => cellName(cell) === state.cell);
  menu("cell", [["", "none"], ...cells.map((cell) => [cellName(cell), cellWords(cell)])], state.cell);
  fill("reading", chosen ? [
    el("p", {}, cellReading(chosen).join(": ")), commandLine(commandOfCell(chosen)),
  ] : []);
  const label = `Each cell. ${cells.map((cell) => cellReading(cell).join(": ")).slice(0, 60).join(". ")}`;
  const picked = [state.cell, ...rows.filter((row) => row.isShown && row.isPicked).map(cellName)];
  const data = cells.map((cell) => ({ ...cell, name: cellName(cell), row: isAll ? rowOf(cell) : "" }));
  await draw("map", label, spec, data, { ink: scale.ink, dark: study.dark, room, picked }, (cell) => go({ cell: cellName(cell) === state.cell ? "" : cellName(cell) }));
}

function renderLarger() {
  const lines = part()?.networks ?? [];
  byId("larger").hidden = !lines.length;
  fill("networks", lines.map((line) => el("p", { class: "note" }, line)));
  // The figure stands here, and among the figures for papers where another part is shown.
  if (byId("larger_clusters")) (lines.length ? byId("larger") : document.querySelector(".paper")).append(byId("larger_clusters"));
}

// Filters

function filterColumns() {
  return study.columns.filter((one) => one.name !== "run_id" && !one.is_result && new Set(rows.map((row) => row[one.name])).size > 1);
}
function renderFilters() {
  const menus = study.filters.map(({ name, is_number: isNumeric }) => {
    const values = study.values[name], key = FILTER + name, chosen = state[key];
    const isRange = isNumeric && values.length > MAX_CHOICES, some = chosen === undefined ? null : chosen.split("\n");
    const box = (value) => el("label", {}, el("input", {
      type: "checkbox", value, checked: some === null || some.includes(value), "data-filter": name,
      onchange: () => {
        const boxes = [...document.querySelectorAll(`input[data-filter]`)].filter((one) => one.dataset.filter === name);
        const kept = boxes.filter((one) => one.checked).map((one) => one.value);
        go({ [key]: kept.length === boxes.length ? "" : kept.join("\n") || "\0", page: "1" });
      },
    }), name === "status" ? spaced(value) : value === "" ? "–" : value);
    const ends = (chosen ?? "..").split("..");
    const end = (at, label) => el("label", {}, label, el("input", {
      type: "number", value: ends[at], "data-filter": name,
      onchange: (event) => { ends[at] = event.target.value; go({ [key]: ends.join("") ? ends.join("..") : "", page: "1" }); },
    }));
    const inside = isRange ? [end(0, "from"), end(1, "to")] : values.slice(0, 60).map(box);
    const opened = document.querySelector(`details[data-menu="${name}"]`)?.open;
    return el("details", { "data-menu": name, class: chosen === undefined ? "" : "on", open: Boolean(opened), name: "filter" },
      el("summary", {}, title(name)), el("div", { class: "menu" }, inside));
  });
  const focused = document.activeElement?.dataset?.filter && [document.activeElement.dataset.filter, document.activeElement.value];
  byId("bar").hidden = !menus.length;  // of one run
  fill("filters", menus);
  if (focused) [...byId("filters").querySelectorAll("input")].find((one) => one.dataset.filter === focused[0] && one.value === focused[1])?.focus();
  const shown = rows.filter((row) => row.isShown).length;
  byId("count").textContent = `Runs shown: ${shown} of ${rows.length}`;
  const clear = Object.fromEntries(Object.keys(state).filter((name) => name.startsWith(FILTER)).map((name) => [name, ""]));
  byId("clear").hidden = !isFiltered();
  byId("clear").onclick = () => go(clear);
}

// Curves

const yName = () => state.y || metric();
const colorName = () => state.color || (study.filters.find((one) => !["status", "seed", "num_workers", "local_batch"].includes(one.name))?.name ?? "num_workers");
const dashName = () => ["num_workers", "strategy", "seed"].find((name) => name !== colorName() && study.values[name].length > 1) ?? "status";
function nearest(shown, most) {  // selected runs, then runs that are evenly spaced
  const picked = shown.filter((row) => row.isPicked), others = shown.filter((row) => !row.isPicked);
  const room = Math.max(0, most - picked.length), every = Math.max(1, others.length / Math.max(1, room));
  const spaced = room ? Array.from({ length: Math.min(room, others.length) }, (_, at) => others[Math.floor(at * every)]) : [];
  return [...picked.slice(0, most), ...spaced];
}
function group(value, values) {  // a text for a legend; many numbers are binned
  if (values.length <= 8) return shownValue(value);
  const at = values.indexOf(String(value ?? "")), bin = Math.floor((at * 8) / values.length);
  const from = Math.ceil((bin * values.length) / 8), to = Math.ceil(((bin + 1) * values.length) / 8) - 1;
  return from === to ? values[from] : `${values[from]}–${values[to]}`;
}
function pointsOf(row) {
  const xs = row.curve[state.x], ys = row.curve[yName()], keep = [];
  const every = Math.ceil(ys.length / MAX_POINTS), factor = Number(state.smooth);
  let mean = null;
  for (let at = 0; at < ys.length; at++) {
    if (ys[at] === null || xs[at] === null) continue;
    mean = mean === null ? ys[at] : factor * mean + (1 - factor) * ys[at];
    const isTaken = (ys.length - 1 - at) % every === 0;
    if (isTaken && !(state.logx && xs[at] <= 0) && !(state.logy && (ys[at] <= 0 || mean <= 0))) keep.push({ x: xs[at], y: ys[at], smooth: mean });
  }
  const [color, dash] = [colorName(), dashName()];
  const shared = { run: row.run_id, color: group(row[color], study.values[color]), dash: group(row[dash], study.values[dash]) };
  return keep.map((point, at) => ({ ...shared, ...point, is_last: at === keep.length - 1 }));
}
function curveSpec() {
  const spec = structuredClone(study.charts.curves);
  spec.encoding.x.title = AMOUNT_LABELS[state.x];
  spec.encoding.y.title = scoreLabel(yName());
  if (state.logx) spec.encoding.x.scale = { type: "log", nice: false };
  if (state.logy) spec.encoding.y.scale = { type: "log", nice: false };
  spec.encoding.color.title = title(colorName());
  spec.layer[2].encoding.shape.title = title(dashName());
  if (innerWidth < 700) {
    spec.height = 260;
    for (const one of [spec.encoding.color, spec.layer[2].encoding.shape]) Object.assign(one.legend, { orient: "bottom", columns: 4 });
  }
  return spec;
}
async function renderCurves(shown) {
  menu("x", AMOUNTS.map((name) => [name, AMOUNT_LABELS[name]]), state.x);
  menu("y", ["test_accuracy", "test_loss"].map((name) => [name, scoreLabel(name)]), yName());
  byId("colors").hidden = !study.filters.length;
  menu("color", study.filters.map(({ name }) => [name, title(name)]), colorName());
  byId("logx").checked = Boolean(state.logx);
  byId("logy").checked = Boolean(state.logy);
  byId("smooth").value = state.smooth;
  const known = shown.filter((row) => row.curve), drawn = nearest(known, MAX_CURVES);
  const first = drawn.length < known.length ? ` To see other runs, filter the runs or select some.` : ` Click a curve to select its run.`;
  byId("curves-say").textContent = known.length ? `Runs with a curve here: ${drawn.length} of ${known.length}.` + first : "None of the shown runs was evaluated.";
  const points = drawn.sort((one, other) => one.at - other.at).flatMap(pointsOf);
  const picked = drawn.filter((row) => row.isPicked).map((row) => row.run_id);
  await draw("curves", `Curves. ${byId("curves-say").textContent}`, curveSpec(), points, { smoothing: Number(state.smooth), picked }, (point) => toggle(point.run));
}
function toggle(id) {
  const ids = new Set(list("picked"));
  if (!ids.delete(id)) ids.add(id);
  go({ picked: [...ids].join("\n") });
}

// The table of runs

function shownColumns() {
  const hidden = new Set(list("hidden")), also = new Set(list("shown"));
  const usual = (one) => study.values[one.name] === undefined || study.values[one.name].length > 1 || ["run_id", "status"].includes(one.name);
  return study.tableColumns.filter((one) => also.has(one.name) || (one.isUsual && usual(one) && !hidden.has(one.name)));
}
function compare(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined || one === "") return 1;
  if (other === null || other === undefined || other === "") return -1;
  return isNumber(one) && isNumber(other) ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}
function tableRows(shown) {
  const asked = state.find.trim().toLowerCase();
  let found = state.only ? shown.filter((row) => row.isPicked) : shown;
  if (asked) found = found.filter((row) => asked.split(/\s+/).every((word) => row.text.includes(word)));
  const name = state.sort || "to_target", sign = state.down ? -1 : 1;
  const isEmpty = (value) => value === null || value === undefined || value === "";
  return [...found].sort((one, other) => (isEmpty(one[name]) || isEmpty(other[name]) ? 1 : sign) * compare(one[name], other[name]) || one.at - other.at);
}
function renderTable(shown) {
  const found = tableRows(shown), columns = shownColumns(), pages = Math.max(1, Math.ceil(found.length / PAGE_ROWS));
  const page = Math.min(Math.max(1, Number(state.page) || 1), pages), name = state.sort || "to_target";
  const direction = state.down ? "descending" : "ascending";
  const head = el("tr", {}, el("th", { scope: "col" }, "Select"), columns.map((one) => el("th", {
    scope: "col", "data-title": title(one.name), class: one.is_number ? "" : "text", "aria-sort": one.name === name ? (state.down ? "descending" : "ascending") : null,
  }, el("button", {
    type: "button", "data-sort": one.name,
    onclick: () => go({ sort: one.name, down: name === one.name && !state.down ? "1" : "", page: "1" }),
  }, title(one.name) + (one.name === name ? (state.down ? " ↓" : " ↑") : "")))));
  const body = found.slice((page - 1) * PAGE_ROWS, page * PAGE_ROWS).map((row) => el("tr", {
    class: row.isPicked ? "picked" : "", "data-run": row.run_id, onmouseenter: () => hover(namesOfRun(row.run_id)), onmouseleave: () => hover([]),
  },
    el("td", {}, el("input", {
      type: "checkbox", checked: list("picked").includes(row.run_id), "aria-label": `Select ${row.run_id}`,
      "data-pick": row.run_id, onchange: () => toggle(row.run_id),
    })),
    columns.map((one) => tableCell(row, one))));
  const caption = `Runs, sorted by ${title(name)}, ${direction}`;
  const sorted = document.activeElement?.dataset?.sort, pick = document.activeElement?.dataset?.pick;
  fill("table", el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, body)));
  if (sorted) [...document.querySelectorAll("[data-sort]")].find((one) => one.dataset.sort === sorted)?.focus();
  if (pick) [...document.querySelectorAll("[data-pick]")].find((one) => one.dataset.pick === pick)?.focus();
  byId("page").textContent = `Page ${page} of ${pages}`;
  byId("previous").disabled = page <= 1;
  byId("following").disabled = page >= pages;
  byId("previous").onclick = () => go({ page: String(page - 1) });
  byId("following").onclick = () => go({ page: String(page + 1) });
  byId("only").checked = Boolean(state.only);
  if (document.activeElement !== byId("find")) byId("find").value = state.find;
  byId("csv").onclick = () => download(`${study.name}_runs.csv`, csv(study.tableColumns.map((one) => one.name), found), "text/csv");
  const opened = byId("columns").querySelector("details")?.open;
  const isOn = new Set(columns.map((one) => one.name)), focused = document.activeElement?.dataset?.column;
  fill("columns", el("details", { open: Boolean(opened) }, el("summary", {}, "Columns"), el("div", { class: "menu" },
    study.tableColumns.map((one) => el("label", {}, el("input", {
      type: "checkbox", checked: isOn.has(one.name), "data-column": one.name, onchange: (event) => chooseColumn(one.name, event.target.checked),
    }), title(one.name))))));
  if (focused) [...document.querySelectorAll("[data-column]")].find((one) => one.dataset.column === focused)?.focus();
}
function tableCell(row, one) {
  if (one.name === "run_id") return el("td", { class: "text" }, el("a", { href: link({ run: row.run_id }) }, row.run_id));
  const value = row[one.name], isTime = one.name === "to_target" && row.curve;
  const text = one.name === "status" ? spaced(value) : one.name === "message" ? shownValue(value)
    : isTime && !row.reach ? "not reached" : isTime ? atMost(shownValue(value), row.reach.is_bound) : shownValue(value);
  return el("td", { class: one.is_number ? "" : "text", title: text.length > 40 ? text : null }, text);
}
function chooseColumn(name, isOn) {
  const without = (values) => values.filter((one) => one !== name);
  const [hidden, also] = [without(list("hidden")), without(list("shown"))];
  go({ hidden: (isOn ? hidden : [...hidden, name]).join("\n"), shown: (isOn ? [...also, name] : also).join("\n") });
}

// Ways of splitting a model: the cells of the runs that are shown

async function renderSplits(shown) {
  const { splits } = study;
  byId("splits").hidden = !splits.cell_of_run;
  if (!splits.cell_of_run) return;
  const cells = new Set(shown.map((row) => splits.cell_of_run[row.at])), isNarrow = innerWidth < 700;
  const of = (name) => table(splits[name]).filter((row) => cells.has(row.cell));
  await draw("split_times", CHART_LABELS.split_times, study.charts.split_times, of("ways").map((row) => ({ ...row, tip: `${row.cell}\ntraining time (s): ${number(row.seconds)}` })));
  const memory = structuredClone(study.charts.split_memory), { axis } = memory.encoding.y, held = of("memory");
  if (isNarrow) Object.assign(axis, { labelLimit: 160, labelFontSize: 10, labelExpr: "split(datum.label, ', ')" });
  const bars = Math.max(1, ...splits.memory.row.map((row) => row + 1)), names = [...new Set(held.map((row) => row.cell))];
  const lines = isNarrow ? Math.max(...names.map((name) => name.split(", ").length)) : 0;
  memory.height = names.length * Math.max(8 + 6 * bars, 8 + 12 * lines);
  memory.encoding.yOffset.scale = { domain: [...Array(bars).keys()] };
  if (isNarrow) memory.encoding.color.legend.columns = 2;
  await draw("split_memory", CHART_LABELS.split_memory, memory, held.map((row) => ({
    ...row, tip: `${row.cell}\nworker ${row.worker + 1}, ${row.part}: ${number(row.megabytes)} MB\nactivations: ${number(row.activation)} MB\npeak: ${number(row.peak)} MB`,
  })));
}
// The page of one run

function pairs(caption, head, lines) {
  return lines.length ? el("table", { class: "text" }, el("caption", {}, caption),
    el("thead", {}, el("tr", {}, head.map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, lines.map(([name, ...values]) => el("tr", {}, el("th", { scope: "row" }, name), values.map((value) => el("td", {}, value)))))) : "";
}
async function renderRun() {
  const row = rows.find((one) => one.run_id === state.run), host = byId("run");
  const back = el("p", {}, el("a", { href: link({ run: "" }) }, `← All runs`));
  const { details } = study, settings = study.columns.filter((one) => one.name !== "run_id" && !one.is_result);
  const differing = settings.filter((one) => study.values[one.name]?.length > 1);
  const other = (one) => study.values[one.name].filter((value) => value !== String(row[one.name] ?? "")).slice(0, 6).map((value) => value || "–").join(", ");
  const results = study.columns.filter((one) => one.is_result && one.name !== "message" && row[one.name] !== null && row[one.name] !== "");
  const reached = target() === null ? [] : [[`${title("to_target")} (${targetWords()})`, row.reach ? atMost(amount(row.to_target), row.reach.is_bound) : "not reached"]];
  const events = details.events[row.run_id] ?? [], logs = details.logs[row.run_id];
  const provenance = [...Object.entries(details.provenance).map(([name, values]) => [name, values[row.at]]), ...Object.entries(details.shared_provenance)];
  const has = { "run-curves": row.curve, step: details.steps[row.at] };
  const chart = (name, heading) => has[name] ? el("section", {}, el("div", { class: "controls" }, el("h3", {}, heading), el("span", { class: "end" }, saveButtons(name, heading))), el("div", { id: name, class: "chart", role: "img" })) : "";
  host.replaceChildren(...[
    back, el("h2", {}, `Run ${row.run_id}`), el("p", { class: "note" }, spaced(row.status)),
    row.message ? el("section", {}, el("h3", {}, "Message"), el("pre", { tabindex: "0" }, row.message)) : "",
    commandLine(command(row)),
    el("div", { class: "two" },
      el("div", {}, chart("run-curves", "Curves"), chart("step", "Seconds of a step, by epoch")),
      el("div", {},
        pairs("Settings that differ between runs", ["Setting", "Value", "Values of other runs"], differing.map((one) => [one.heading, shownValue(row[one.name]), other(one)])),
        pairs("Results", ["Setting", "Value"], [...reached, ...results.map((one) => [one.heading, shownValue(row[one.name])])]))),
    events.length ? el("div", { class: "wide", tabindex: "0" }, pairs("Warnings and events", ["After (s)", "Event", "Message"],
      events.map(([seconds, ...words]) => [number(seconds), ...words]))) : "",
    logs ? el("section", {}, el("h3", {}, "Last lines of its logs"), Object.entries(logs).map(([name, text]) => el("div", {}, el("h3", {}, name), el("pre", { tabindex: "0" }, text)))) : "",
    el("details", {}, el("summary", {}, "Settings that are the same in all runs"), pairs("Configuration", ["Setting", "Value"], Object.entries(study.shared))),
    el("details", {}, el("summary", {}, "Code, versions and machine"), pairs("Code, versions and machine", ["Setting", "Value"], provenance.map(([name, value]) => [name, value ?? "–"]))),
  ].filter(Boolean));
  if (has["run-curves"]) {
    const alike = rows.filter((one) => one !== row && one.curve && cellName(one) === cellName(row) && one.part === row.part);
    const signals = { smoothing: Number(state.smooth), picked: [row.run_id], pale: 0.8 };
    await draw("run-curves", "Curves", curveSpec(), [...alike.slice(0, 20), row].flatMap(pointsOf), signals, (point) => go({ run: point.run }, true));
  }
  if (has.step) await drawStep(details.steps[row.at]);
}
async function drawStep(steps) {
  const spec = structuredClone(study.charts.step), parts = [], { step_unit: unit, step_parts: names } = study.details;
  spec.encoding.y.title = unit === "step" ? "seconds of a step" : `seconds of ${unit}`;
  for (const one of table(steps)) {
    for (const [name, part] of Object.entries(names)) {
      if (one[name] > 0) parts.push({ epoch: one.epoch, part, seconds: one[name] });
    }
  }
  await draw("step", "Seconds of a step, by epoch", spec, parts);
}

// The whole

let drawing = 0;
async function render() {
  const mine = ++drawing;
  delete document.body.dataset.answered;
  delete document.body.dataset.drawn;
  renderHeader();
  const shown = choose(), isRun = state.run !== "";
  byId("overview").hidden = isRun;
  byId("run").hidden = !isRun;
  tip();
  if (isRun) await renderRun();
  else {
    const cells = isPredicted() ? predictedCells() : target() === null ? [] : measuredCells(shown);
    renderControls();
    renderAnswer(cells);
    renderLarger();
    renderFilters();
    renderTable(shown);
    await renderMap(cells);
    document.body.dataset.answered = "yes";
    for (const draw of [renderCurves, renderSplits]) {  // the browser shows what is there, and takes what is typed
      await new Promise((resolve) => setTimeout(resolve));
      if (mine === drawing) await draw(shown);
    }
  }
  if (mine !== drawing) return;
  for (const name of SAVED) byId(`save-${name}`).hidden = byId(name).hidden;
  document.body.dataset.drawn = "yes";
}
function update(told) {
  study = { ...told };
  rows = table(study.runs).map((row, at) => ({
    ...row, at, curve: study.curves[at], part: study.part_of_run[at],
    text: Object.values(row).map((value) => String(value ?? "")).join(" ").toLowerCase(),
  }));
  study.values = Object.fromEntries(study.columns.map(({ name }) => [name, [...new Set(rows.map((row) => row[name]))].sort(compare).map((value) => String(value ?? ""))]));
  study.filters = filterColumns();
  study.tableColumns = [
    ...study.columns.filter((one) => !one.is_result).map((one) => ({ ...one, isUsual: true })),
    { name: "to_target", is_number: true, isUsual: true },
    ...study.columns.filter((one) => one.is_result).map((one) => ({ ...one, isUsual: ["test_accuracy", "test_loss", "train_seconds", "message"].includes(one.name) && rows.some((row) => row[one.name] !== null && row[one.name] !== "") })),
  ];
  study.cellNames = new Set([...rows, ...study.parts.flatMap((one) => (one.cells ? table(one.cells) : []))]
    .map((row) => `${row.global_batch}x${row.num_workers}`));
  readLink();
  return render();
}
function listen() {
  const on = (id, kind, changes) => byId(id).addEventListener(kind, (event) => go(changes(event.target)));
  for (const id of ["theme", "objective", "x", "y", "color", "cell"]) on(id, "change", (one) => ({ [id]: one.value }));
  on("part", "change", (one) => ({ part: one.value, target: "", cell: "" }));
  for (const id of ["logx", "logy", "only", "measured"]) on(id, "change", (one) => ({ [id]: one.checked ? "1" : "" }));
  on("target", "input", (one) => ({ target: Number(one.value) === givenTarget().value ? "" : one.value }));
  on("price", "input", (one) => ({ price: one.value || "1" }));
  on("smooth", "input", (one) => ({ smooth: one.value }));
  on("find", "input", (one) => ({ find: one.value, page: "1" }));
  byId("reset").addEventListener("click", () => { history.replaceState(null, "", link({ ...Object.fromEntries(Object.keys(state).map((name) => [name, ""])), theme: state.theme })); readLink(); render(); });
  addEventListener("hashchange", () => { readLink(); render(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", render);
  let folded = [];  // paper shows what is folded away, but no list of a menu and none of a figure's runs
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("#why, #warnings details, #run details, main > section > details")].filter((one) => !one.open);
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(render, 150); });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") for (const one of document.querySelectorAll(".menus details[open]")) one.open = false;
  });
  addEventListener("click", (event) => {
    for (const one of document.querySelectorAll(".menus details[open]")) if (!one.contains(event.target) && event.target.isConnected) one.open = false;
  });
}
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text());
}
async function start() {
  listen();
  await update(await unpacked(byId("study").textContent));
}
const started = start();
