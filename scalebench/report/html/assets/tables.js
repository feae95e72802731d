// Tables: a click on the head of a column sorts by it, a second one in reverse.

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell.dataset.value ?? cell.textContent.trim();
}

function compareValues(a, b) {
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row, column), row]);
  const filled = rows.filter(([value]) => value !== "");
  filled.sort(([a], [b]) => direction * compareValues(a, b));
  const empty = rows.filter(([value]) => value === ""); // not measured: neither smallest nor largest
  body.append(...[...filled, ...empty].map(([, row]) => row));
}

function headClicked(table, head) {
  const up = head.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  sortTable(table, head.cellIndex, up ? 1 : -1);
}

function makeSortable(table) {
  for (const head of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = head.textContent.trim();
    head.replaceChildren(button);
    button.addEventListener("click", () => headClicked(table, head));
  }
}
