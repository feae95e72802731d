// Light or dark: as the system is set, until the button is used.

const dark = matchMedia("(prefers-color-scheme: dark)");

function storedTheme() {
  try {
    return localStorage.getItem("scalebench-theme");
  } catch {
    return null; // a browser may deny it to files
  }
}

function storeTheme(theme) {
  try {
    localStorage.setItem("scalebench-theme", theme);
  } catch {
    // then it lasts until the page is closed
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) {
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.ariaLabel = `${button.textContent} colours`;
  }
}

function theme() {
  return document.documentElement.dataset.theme;
}

function toggleTheme() {
  setTheme(theme() === "dark" ? "light" : "dark");
  storeTheme(theme());
  refreshCharts();
}

function followSystem() {
  if (!storedTheme()) {
    setTheme(dark.matches ? "dark" : "light");
    refreshCharts();
  }
}

setTheme(storedTheme() || (dark.matches ? "dark" : "light")); // before anything is painted
