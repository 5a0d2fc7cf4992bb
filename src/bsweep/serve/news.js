// What the server tells of a study, for a page of `bsweep watch`, see `bsweep.serve.app`.
const CONNECTS = "Connecting to the server ...";
const troubleWords = (source) => (source.readyState === EventSource.CLOSED
  ? "The server was started again. Open the address that it has printed." : "The server does not answer. This page tries again.");
const statusWords = (status) => (status === "new" ? "not started" : status.replaceAll("_", " "));
function duration(seconds) {
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.round(seconds)} s`;
}
function newsWords(news) {
  if (news.problem) return news.problem;
  const counts = Object.entries(news.counts).map(([status, n]) => `${n} ${statusWords(status)}`).join(", ");
  const left = (news.seconds_left ?? 0) / Math.max(1, news.sweeps.length);
  return [
    `Points: ${counts}.`,
    left > 0 ? `About ${duration(left)} left.` : "",
    news.sweeps.length ? "" : "No sweep is at work.",
  ].filter(Boolean).join(" ");
}
