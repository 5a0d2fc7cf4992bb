// The page of a comparison, whose English text is there without this. What the reader chose is `state`, as on a report.
const DEFAULTS = OF_READER, firstView = () => "";
const isUnderstood = (name, value) => Object.hasOwn(UNDERSTOOD_OF_READER, name) && UNDERSTOOD_OF_READER[name](value);
function render() {
  renderReader();
  for (const one of document.querySelectorAll("[data-said]")) one.textContent = sentence(JSON.parse(one.dataset.said));
  document.title = `${byId("title").textContent} - bsweep`;
  document.querySelector(".tools").hidden = false;
}
for (const id of ["lang", "theme"]) byId(id).addEventListener("change", (event) => go({ [id]: event.target.value }));
addEventListener("hashchange", () => { readLink(); render(); });
readLink();
render();
