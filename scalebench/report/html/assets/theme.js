// Light or dark: as the system has it, until the button says otherwise.

const dark = matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try {
    return localStorage.getItem("scalebench-theme");
  } catch {
    return null; // a browser may refuse it to files
  }
}

function remember(theme) {
  try {
    localStorage.setItem("scalebench-theme", theme);
  } catch {
    // then it holds for this view
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = theme === "dark" ? "Light colours" : "Dark colours";
  }
}

function theme() {
  return document.documentElement.dataset.theme;
}

function toggleTheme() {
  setTheme(theme() === "dark" ? "light" : "dark");
  remember(theme());
  refreshCharts();
}

function followSystem() {
  if (!remembered()) {
    setTheme(dark.matches ? "dark" : "light");
    refreshCharts();
  }
}

setTheme(remembered() || (dark.matches ? "dark" : "light")); // before anything is painted
