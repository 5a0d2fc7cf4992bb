// Keeps the interactive page of a study up to date, see `bsweep.serve.app`.
// The report's own script has `study`, `rows` and `update`.
{
  const said = document.createElement("p"), points = document.createElement("a");
  said.id = "live";
  said.setAttribute("role", "status");
  points.href = "points/";
  points.textContent = "Points";
  byId("summary").after(said, points);
  const ask = async () => update(await (await fetch("document.json")).json());
  const source = new EventSource("events?report");
  source.addEventListener("document", ask);
  source.addEventListener("news", (event) => {
    const news = JSON.parse(event.data);
    said.textContent = news.problem || news.said + (news.sweeps.length ? "" : "; no sweep is at work");
  });
  source.addEventListener("curves", (event) => {
    const curves = JSON.parse(event.data);
    const known = (rows || []).filter((row) => curves[row.run_id]);
    for (const row of known) study.curves[row.at] = curves[row.run_id];
    if (known.length) update(study);
  });
  source.onerror = () => { said.textContent = "The server does not answer; this page tries again."; };
}
