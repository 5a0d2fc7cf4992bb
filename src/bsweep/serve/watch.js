// Shows what the server sends of a study. All that comes from records is set as text, never as HTML.
"use strict";
const MOST_ROWS = 300;
const ORDER = ["running", "failed", "timeout", "out_of_memory", "diverged", "damaged", "interrupted", "new", "completed"];
const points = new Map();  // by name
const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const byId = (id) => document.getElementById(id);
let news = null, isDrawn = true, trouble = CONNECTS;

function number(value) {
  return value === null || value === undefined ? "-" : numbers.format(value);
}

function row(point) {
  const line = document.createElement("tr");
  const isTimed = point.status !== "completed" && point.seconds_left !== null && point.seconds_left !== undefined;
  const status = statusWords(point.status) + (point.message ? `: ${point.message}` : "");
  const epochs = number(point.epochs_done);
  for (const text of [
    point.run_id, status, point.epochs ? `${epochs} of ${point.epochs}` : epochs,
    number(point.test_accuracy), number(point.test_loss), isTimed ? duration(point.seconds_left) : "",
  ]) line.appendChild(document.createElement("td")).textContent = text;
  return line;
}

function draw() {
  isDrawn = true;
  const rank = (point) => (ORDER.indexOf(point.status) + ORDER.length) % ORDER.length;
  const sorted = [...points.values()].sort((one, other) => rank(one) - rank(other));
  byId("points").replaceChildren(...sorted.slice(0, MOST_ROWS).map(row));
  byId("shown").textContent = sorted.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${sorted.length} points, those at work first.` : "";
}

function say() {
  const said = byId("said");
  said.classList.toggle("stopped", Boolean(trouble || news?.problem));
  said.textContent = trouble || newsWords(news);
}

function update(newer) {
  [news, trouble] = [newer, ""];
  say();
  for (const point of news.points) points.set(point.run_id, point);
  for (const name of news.gone) points.delete(name);
  byId("done").max = Math.max(1, points.size);
  byId("done").value = news.counts.completed || 0;
  if (isDrawn) {
    isDrawn = false;
    requestAnimationFrame(draw);
  }
}

say();
draw();
const source = new EventSource(document.body.dataset.events);
source.addEventListener("news", (event) => update(JSON.parse(event.data)));
source.onerror = () => {
  trouble = troubleWords(source);
  say();
};
