// Keeps a page of `bsweep watch` up to date, see `bsweep.serve.app`: the interactive page of a study, whose script has
// `study`, `rows` and `update`, or the page of its points. All that comes from records is set as text, never as HTML.
const isReport = Boolean(byId("study")), ROOT = location.pathname.replace(/points\/$/, ""), MOST_ROWS = 300;
let news = null, trouble = "Connecting to the server ...", problem = "";  // `problem`: why the report is not renewed
function say() {
  const stale = problem && !news?.problem ? `The report below cannot be renewed: ${problem}` : "";
  byId("live").textContent = trouble || [news?.words, stale].filter(Boolean).join(" ");
}

// The page of the points

const ORDER = ["running", "failed", "timeout", "out_of_memory", "diverged", "damaged", "interrupted", "new", "completed"];
const points = new Map();  // by name
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const short = (value) => value === null || value === undefined ? "-" : digits.format(value);
function duration(seconds) {
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.round(seconds)} s`;
}
function pointRow(point) {
  const status = point.status === "new" ? "not started" : point.status.replaceAll("_", " ");
  const epochs = short(point.epochs_done) + (point.epochs ? ` of ${point.epochs}` : "");
  return el("tr", {}, [
    point.run_id, status + (point.message ? `: ${point.message}` : ""), epochs, short(point.test_accuracy),
    short(point.test_loss), point.seconds_left ? duration(point.seconds_left) : "",
  ].map((text, at) => el("td", { class: at < 2 ? "text" : "" }, text)));
}
function drawPoints() {
  for (const point of news.points) points.set(point.run_id, point);
  for (const name of news.gone) points.delete(name);
  Object.assign(byId("done"), { max: Math.max(1, points.size), value: news.counts.completed || 0 });
  const rank = (point) => (ORDER.indexOf(point.status) + ORDER.length) % ORDER.length;
  const sorted = [...points.values()].sort((one, other) => rank(one) - rank(other));
  fill("points", sorted.slice(0, MOST_ROWS).map(pointRow));
  byId("shown").textContent = sorted.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${sorted.length} points, those at work first.` : "";
}

// The interactive page: newer data, while what the reader opened, typed and scrolled to stays

// What is made anew by `update` is found again by its place within what has an id.
const places = () => new Map([...document.querySelectorAll("[id]")].flatMap((host) =>
  [...host.querySelectorAll("details, pre, input[data-filter]")].filter((one) => one.parentElement.closest("[id]") === host)
    .map((one, at) => [`${host.id} ${at} ${one.tagName}`, one])));
async function show(document_) {
  const before = [...places()].map(([place, one]) => ({
    place, isOpen: one.open, left: one.scrollLeft, top: one.scrollTop,
    typed: one === document.activeElement && one.type === "number" ? one.value : null,
  }));
  const [x, y] = [scrollX, scrollY];
  document.body.style.minHeight = `${document.body.scrollHeight}px`;
  await update(document_);
  const now = places();
  for (const { place, isOpen, left, top, typed } of before) {
    const one = now.get(place);
    if (!one) continue;
    if (isOpen) one.open = true;
    [one.scrollLeft, one.scrollTop] = [left, top];
    if (typed !== null) {
      one.value = typed;
      one.focus({ preventScroll: true });
    }
  }
  document.body.style.minHeight = "";
  scrollTo(x, y);
}
let last = Promise.resolve();
const showNext = (data) => { last = last.then(() => show(data())); };  // one after the other

function follow() {
  const source = new EventSource(`${ROOT}events${isReport ? `?report=${study.version}` : ""}`);
  const on = (kind, take) => source.addEventListener(kind, (event) => take(JSON.parse(event.data)));
  on("news", (newer) => {
    [news, trouble] = [newer, ""];
    say();
    if (!isReport) drawPoints();
  });
  on("document", async (state) => {
    problem = state.problem;
    say();
    if (state.version === study.version) return;
    const answer = await fetch(`${ROOT}document.json`).catch(() => null);  // no answer: `onerror` says so
    if (!answer?.ok) return;
    const newer = await answer.json();
    showNext(() => newer);
  });
  on("curves", (curves) => {
    if (rows.some((row) => curves[row.run_id])) {
      showNext(() => ({ ...study, curves: study.curves.map((curve, at) => curves[study.runs.run_id[at]] ?? curve) }));
    }
  });
  source.onerror = () => {
    trouble = source.readyState === EventSource.CLOSED
      ? "The server was started again. Open the address that it has printed." : "The server does not answer. This page tries again.";
    say();
  };
  say();
}
if (isReport) started.then(follow);
else follow();
