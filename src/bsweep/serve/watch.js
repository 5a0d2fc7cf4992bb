// Shows what the server sends of studies. All that comes from records is set as text, never as HTML.
"use strict";
const MOST_ROWS = 300;
const ORDER = ["running", "failed", "timeout", "out_of_memory", "diverged", "damaged", "interrupted", "new", "completed"];
const isIndex = document.body.dataset.kind === "index";
const points = new Map();
const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
let isDrawn = true;

function number(value) {
  return value === null || value === undefined ? "-" : numbers.format(value);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes >= 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return minutes ? `${minutes} min ${Math.round(seconds) % 60} s` : `${Math.round(seconds)} s`;
}

function row(point) {
  const line = document.createElement("tr");
  const isDone = point.status === "completed";
  const state = point.status.replaceAll("_", " ") + (point.message ? `: ${point.message}` : "");
  const epochs = point.epochs ? `${number(point.epochs_done)} of ${point.epochs}` : number(point.epochs_done);
  for (const text of [point.run_id, state, epochs, number(point.test_accuracy), number(point.test_loss),
    isDone ? "" : duration(point.seconds_left)]) {
    line.appendChild(document.createElement("td")).textContent = text;
  }
  return line;
}

function draw() {
  isDrawn = true;
  const rank = (point) => (ORDER.indexOf(point.status) + ORDER.length) % ORDER.length;
  const sorted = [...points.values()].sort((one, other) => rank(one) - rank(other));
  document.getElementById("points").replaceChildren(...sorted.slice(0, MOST_ROWS).map(row));
  document.getElementById("shown").textContent =
    sorted.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${sorted.length} points, those at work first.` : "";
}

function say(news) {
  return news.problem || news.said + (news.sweeps.length ? "" : "; no sweep is at work");
}

function update(news) {
  const said = document.getElementById("said");
  said.classList.toggle("stopped", news.problem !== "");
  if (isIndex) {
    said.textContent = "";
    for (const place of document.querySelectorAll("[data-study]")) {
      if (place.dataset.study === news.study) place.textContent = say(news);
    }
    return;
  }
  for (const point of news.points) points.set(point.run_id, point);
  for (const name of news.gone) points.delete(name);
  said.textContent = say(news);
  const progress = document.getElementById("done");
  progress.max = Math.max(1, points.size);
  progress.value = news.counts.completed || 0;
  if (isDrawn) {
    isDrawn = false;
    requestAnimationFrame(draw);
  }
}

const source = new EventSource(document.body.dataset.events);
source.addEventListener("news", (event) => update(JSON.parse(event.data)));
source.onerror = () => {
  const said = document.getElementById("said");
  said.classList.add("stopped");
  said.textContent = source.readyState === EventSource.CLOSED
    ? "The server was started again. Open the address that it has printed."
    : "The server does not answer. This page tries again.";
};
