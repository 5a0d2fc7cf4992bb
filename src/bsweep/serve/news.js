// What the server tells of a study, for a page of `bsweep watch`, see `bsweep.serve.app`.
function duration(seconds) {
  const minutes = Math.floor(Math.round(seconds) / 60), hours = Math.floor(minutes / 60);
  if (hours) return words("hours_minutes", { hours, minutes: minutes % 60 });
  return minutes ? words("minutes", { minutes }) : words("whole_seconds", { seconds: Math.round(seconds) });
}
function newsWords(news) {
  if (news.problem) return news.problem;
  const counts = Object.entries(news.counts).map(([status, n]) => `${n} ${words("status_" + status)}`).join(", ");
  const left = (news.seconds_left ?? 0) / Math.max(1, news.sweeps.length);
  return [
    words("live_counts", { counts }),
    left > 0 ? words("live_left", { time: duration(left) }) : "",
    news.sweeps.length ? "" : words("live_no_sweep"),
  ].filter(Boolean).join(" ");
}
