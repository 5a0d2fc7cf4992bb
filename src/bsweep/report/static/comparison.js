// The page of a comparison, whose text is there without this. What the reader chose is `state`, as on a report.
const DEFAULTS = OF_READER, firstView = () => "";
const isUnderstood = (name, value) => Object.hasOwn(UNDERSTOOD_OF_READER, name) && UNDERSTOOD_OF_READER[name](value);
function render() {
  renderReader();
  document.querySelector(".tools").hidden = false;
}
byId("theme").addEventListener("change", (event) => go({ theme: event.target.value }));
addEventListener("hashchange", () => { readLink(); render(); });
readLink();
render();
