// Filters: what is unchecked is hidden in tables, paragraphs and charts. The address keeps it, so a link shares the view.

const DIMENSIONS = ["model", "strategy", "hardware"];
const hidden = Object.fromEntries(DIMENSIONS.map((name) => [name, new Set()]));

// Without a tag, something is always shown.
function isShown(tags) {
  return DIMENSIONS.every((name) => !tags[name] || !hidden[name].has(tags[name]));
}

function boxes(name) {
  return [...document.querySelectorAll(`#filters fieldset[data-filter="${name}"] input`)];
}

// "#scaling&hide.strategy=ddp_gloo": the place in the page, and the hidden values of each dimension.
function readAddress() {
  const [place, ...rest] = location.hash.slice(1).split("&");
  const options = new URLSearchParams(rest.join("&"));
  for (const name of DIMENSIONS) {
    const values = new Set(options.getAll(`hide.${name}`));
    boxes(name).forEach((box) => { box.checked = !values.has(box.value); });
  }
  return place;
}

function writeAddress(place) {
  const kept = new URLSearchParams();
  for (const name of DIMENSIONS) {
    boxes(name).filter((box) => !box.checked).forEach((box) => kept.append(`hide.${name}`, box.value));
  }
  const state = [...kept].length ? `&${kept}` : "";
  history.replaceState(null, "", `#${place}${state}`);
}

function currentPlace() {
  return location.hash.slice(1).split("&")[0];
}

function applyFilters() {
  for (const name of DIMENSIONS) {
    hidden[name] = new Set(boxes(name).filter((box) => !box.checked).map((box) => box.value));
  }
  document.querySelectorAll("[data-tagged]").forEach((block) => { block.hidden = !isShown(block.dataset); });
  for (const table of document.querySelectorAll(".table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    table.querySelector(".empty").hidden = rows.length === 0 || rows.some((row) => !row.hidden);
  }
  refreshCharts();
  countShown();
}

function countShown() {
  const line = document.getElementById("shown");
  if (!line) {
    return;
  }
  const rows = [...document.querySelectorAll(".table tbody tr")];
  const curves = [...document.querySelectorAll(".figures tbody")];
  const count = (all) => `${all.filter((row) => !row.hidden).length} of ${all.length}`;
  const parts = [];
  if (rows.length) parts.push(`${count(rows)} rows shown`);
  if (curves.length) parts.push(`${count(curves)} curves and bars`);
  line.textContent = parts.join(", ");
}

function filtersChanged() {
  writeAddress(currentPlace());
  applyFilters();
}

function checkAll(name, checked) {
  boxes(name).forEach((box) => { box.checked = checked; });
  filtersChanged();
}

function watchFilters() {
  const panel = document.getElementById("filters");
  if (!panel) {
    return;
  }
  panel.hidden = false;
  panel.addEventListener("change", filtersChanged);
  panel.addEventListener("submit", (event) => event.preventDefault());
  panel.querySelectorAll("[data-all]").forEach((button) => button.addEventListener("click", () => checkAll(button.dataset.all, true)));
  panel.querySelectorAll("[data-none]").forEach((button) => button.addEventListener("click", () => checkAll(button.dataset.none, false)));
}
