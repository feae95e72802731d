// Links within the page, copying, and what starts when the page is loaded.

function goTo(place) {
  const target = place && document.getElementById(place);
  if (!target) {
    return;
  }
  const fold = target.querySelector(":scope > details.fold") || target.closest("details.fold");
  if (fold) {
    fold.open = true;
  }
  target.scrollIntoView();
  target.focus({ preventScroll: true });
}

// A link to a place keeps the filters, which are also in the address.
function placeClicked(event) {
  const place = event.currentTarget.hash.slice(1);
  event.preventDefault();
  writeAddress(place);
  goTo(place);
}

async function copyText(button) {
  const code = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code); // not allowed here: the selection can be copied by hand
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function foldOnNarrow() {
  if (innerWidth < 900) {
    document.querySelectorAll(".panel").forEach((panel) => { panel.open = false; });
  }
}

function start() {
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", toggleTheme);
  dark.addEventListener("change", followSystem);
  setTheme(theme());
  foldOnNarrow();
  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll("[data-copy]").forEach((copyButton) => {
    copyButton.hidden = false;
    copyButton.addEventListener("click", () => copyText(copyButton));
  });
  document.querySelectorAll("a[href^='#']").forEach((link) => link.addEventListener("click", placeClicked));
  watchFilters();
  const place = readAddress();
  watchCharts();
  applyFilters();
  goTo(place);
  addEventListener("hashchange", () => {
    goTo(readAddress());
    applyFilters();
  });
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
}

document.addEventListener("DOMContentLoaded", start);
