// Keeps the interactive page of a study up to date, see `bsweep.serve.app`.
// The report's own script has `study`, `rows` and `update`.
function beAlive() {
  const said = document.createElement("p"), points = document.createElement("a");
  said.id = "live";
  said.setAttribute("role", "status");
  byId("summary").after(said, points);
  let news = null, trouble = CONNECTS, problem = "";
  const say = () => {
    points.textContent = "States of all points";
    points.href = "points/";
    const stale = problem && !news?.problem ? `The report below cannot be renewed: ${problem}` : "";
    said.textContent = trouble || [newsWords(news), stale].filter(Boolean).join(" ");
  };
  // What is made anew by `update` is found again by its place within what has an id.
  const NEW = "details, pre, input[data-filter]";
  const places = () => new Map([...document.querySelectorAll("[id]")].flatMap((host) =>
    [...host.querySelectorAll(NEW)].filter((one) => one.parentElement.closest("[id]") === host)
      .map((one, at) => [`${host.id} ${at} ${one.tagName}`, one])));
  let last = Promise.resolve();
  const show = (told) => {  // the newer data, while what the reader opened, typed and scrolled to stays
    last = last.then(async () => {
      const before = [...places()].map(([place, one]) => ({
        place, isOpen: one.open, left: one.scrollLeft, top: one.scrollTop,
        typed: one === document.activeElement && one.type === "number" ? one.value : null,
      }));
      const [x, y] = [scrollX, scrollY];
      document.body.style.minHeight = `${document.body.scrollHeight}px`;
      await update(told());
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
    });
    return last;
  };
  const source = new EventSource(`events?report=${study.version}`);
  source.addEventListener("document", async (event) => {
    const told = JSON.parse(event.data);
    problem = told.problem;
    if (news) say();
    if (told.version === study.version) return;
    const answer = await fetch("document.json").catch(() => null);  // no answer: `onerror` says so
    if (answer?.ok) {
      const newer = await answer.json();
      await show(() => newer);
    }
  });
  source.addEventListener("news", (event) => {
    [news, trouble] = [JSON.parse(event.data), ""];
    say();
  });
  source.addEventListener("curves", (event) => {
    const curves = JSON.parse(event.data);
    if (rows.some((row) => curves[row.run_id])) {
      show(() => ({ ...study, curves: study.curves.map((curve, at) => curves[study.runs.run_id[at]] ?? curve) }));
    }
  });
  source.onerror = () => {
    trouble = troubleWords(source);
    say();
  };
  say();
}
(function wait() {
  if (study) beAlive();
  else setTimeout(wait, 20);
})();
