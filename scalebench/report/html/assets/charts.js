// Charts: drawn when they come near the window, and again when colours or filters change.

const NARROW = 560; // pixels
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const SLOTS = 19; // colours: of strategies, and of parts of a step
const BAR_HEIGHT = 30; // of a lying bar
const MAX_BESIDE = 0.35; // of the width, which the names beside lying bars may take: longer ones stand above
const ABOVE_HEIGHT = 36; // of a lying bar and its name above
const NAME_ABOVE = { xref: "paper", x: 0, xanchor: "left", yref: "y", yanchor: "middle", yshift: 15, showarrow: false };
const AHEAD = "600px"; // distance from the window at which drawing begins
const near = new Set();
const waiting = new Set();
const whenIdle = window.requestIdleCallback || ((task) => setTimeout(task, 1));
const PAPER = { half: 325, full: 660 }; // pixels: widths of charts
const ACROSS = ".wide, :last-child:nth-child(odd)"; // charts of the full width, as page.css has it
let plots = [];
let folds = []; // what printing opened
let screenTheme = "light";

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"), grid: read("--line"), zero: read("--zero"), paper: read("--card"), ideal: read("--muted"),
    slots: [...Array(SLOTS).keys()].map((number) => read(`--c${number}`)),
  };
}

function faded(colour, share) {
  return colour + Math.round(share * 255).toString(16).padStart(2, "0");
}

// Removes the points that are filtered out, if points have tags of their own.
function removeHiddenPoints(trace) {
  const { points } = trace.meta;
  if (!points) {
    return trace;
  }
  const kept = (values) => values.filter((_, number) => isShown(points[number]));
  for (const key of ["x", "y", "customdata", "text"]) {
    if (Array.isArray(trace[key])) trace[key] = kept(trace[key]);
  }
  if (trace.error_y) {
    Object.assign(trace.error_y, { array: kept(trace.error_y.array), arrayminus: kept(trace.error_y.arrayminus) });
  }
  return trace;
}

// Leaves the categories of a text axis that have a bar.
function removeEmptyCategories(figure) {
  const letter = figure.layout.yaxis.categoryarray ? "y" : "x";
  const axis = figure.layout[`${letter}axis`];
  if (axis.categoryarray && figure.data.some((trace) => trace.meta.points)) {
    const present = new Set(figure.data.flatMap((trace) => trace[letter]));
    axis.categoryarray = axis.categoryarray.filter((name) => present.has(name));
  }
}

function setColours(trace, palette) {
  const { slot, role, tags } = trace.meta;
  const colour = slot === null ? palette.ideal : palette.slots[slot];
  trace.visible = isShown(tags);
  if (role === "band") {
    trace.fillcolor = faded(colour, 0.18);
    return trace;
  }
  const isOnBar = role === "repeat" && trace.offsetgroup !== undefined;
  trace.marker = { ...trace.marker, color: isOnBar ? palette.ink : colour };
  if (role === "bar") {
    trace.marker.line = { color: palette.paper, width: 1 };
    trace.marker.pattern = trace.marker.pattern && { ...trace.marker.pattern, fgcolor: palette.paper };
  } else if (trace.line) {
    trace.line.color = colour;
  }
  if (trace.error_y) {
    trace.error_y.color = role === "bar" ? palette.ink : colour;
  }
  return trace;
}

// The number of lines of the legend: plotly gives each entry the width of the longest, but of groups its own.
function legendLines(data, width, grouped) {
  const names = data.filter((trace) => trace.visible && trace.showlegend !== false).map((trace) => trace.name.length);
  const longest = Math.max(0, ...names);
  let [lines, used] = [names.length ? 1 : 0, 0];
  for (const length of names) {
    const needed = (grouped ? length : longest) * 7 + 50;
    if (used && used + needed > width - 30) [lines, used] = [lines + 1, 0];
    used += needed;
  }
  return lines;
}

// Room for the names below the bars, which plotly slants if they are too long.
function slantedHeight(axis, width) {
  const names = (axis.categoryarray || []).map((name) => String(name).length);
  const longest = Math.max(0, ...names);
  return longest * 7 * names.length > width - 60 ? Math.min(5 * longest, 140) : 0;
}

function layoutOf(figure, palette, width) {
  const axis = (options) => ({
    gridcolor: palette.grid, linecolor: palette.grid, zerolinecolor: palette.zero, automargin: true, ...options,
    title: { ...options.title, font: { size: width < 300 ? 11 : 13 }, standoff: 8 },
  });
  const names = figure.layout.yaxis.categoryarray || []; // of lying bars, beside which the legend has no room
  const bars = names.length;
  const beside = 6.5 * Math.max(0, ...names.map((name) => String(name).length));
  const above = beside > MAX_BESIDE * width; // names stand above their bars, which are too short otherwise
  const below = 20 * legendLines(figure.data, width - (above ? 0 : beside), bars) + slantedHeight(figure.layout.xaxis, width);
  return {
    ...figure.layout,
    xaxis: axis({ showgrid: figure.layout.xaxis.type !== "category", ...figure.layout.xaxis, ...(bars ? { nticks: 4, tickangle: 0 } : {}) }),
    yaxis: axis({ showgrid: !bars, ...figure.layout.yaxis, showticklabels: !above }),
    annotations: above ? names.map((name) => ({ ...NAME_ABOVE, y: name, text: name })) : [],
    font: { family: "system-ui, sans-serif", size: 12, color: palette.ink },
    paper_bgcolor: palette.paper, plot_bgcolor: palette.paper,
    margin: { l: above ? 12 : 48, r: 12, t: 12, b: 40 },
    height: above ? 64 + ABOVE_HEIGHT * bars + below : bars ? 90 + BAR_HEIGHT * bars + below : Math.min(330 + below, 900), width,
    showlegend: true,
    legend: { orientation: "h", xref: "container", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", maxheight: 1, tracegroupgap: 0 },
    hoverlabel: { align: "left", bgcolor: palette.paper, font: { color: palette.ink, size: 12 }, bordercolor: palette.zero },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    bargap: above ? 0.6 : 0.25,
  };
}

function drawChart(plot, width = plot.clientWidth, less = 0) {
  const figure = JSON.parse(plot.nextElementSibling.textContent);
  const palette = readColours();
  figure.data.forEach((trace) => setColours(removeHiddenPoints(trace), palette));
  removeEmptyCategories(figure);
  const layout = layoutOf(figure, palette, width);
  const bars = (layout.yaxis.categoryarray || []).length;
  if (plot.closest("#answer") && !layout.annotations.length) {
    layout.height -= bars ? 10 * bars : less + 80; // the answer is to be seen without scrolling
  }
  plot.style.minHeight = `${layout.height}px`;
  Plotly.react(plot, figure.data, layout, CONFIG);
  plot.dataset.drawn = "";
}

// Charts outside the window are drawn again when they come back.
function refreshCharts() {
  for (const plot of plots) {
    delete plot.dataset.drawn;
    if (near.has(plot)) {
      drawChart(plot);
    }
  }
}

// Draws one chart at a time, between two frames, so that the page scrolls smoothly.
function drawNext() {
  const [plot] = waiting;
  if (!plot) {
    return;
  }
  waiting.delete(plot);
  if (near.has(plot) && !("drawn" in plot.dataset)) {
    drawChart(plot);
  }
  whenIdle(drawNext, { timeout: 200 });
}

function visibilityChanged(entries) {
  const idle = waiting.size === 0;
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) {
      near.add(target);
      waiting.add(target);
    } else {
      near.delete(target);
    }
  }
  if (idle) {
    whenIdle(drawNext, { timeout: 200 });
  }
}

function watchCharts() {
  plots = [...document.querySelectorAll(".plot")];
  const watcher = new IntersectionObserver(visibilityChanged, { rootMargin: AHEAD });
  plots.forEach((plot) => watcher.observe(plot));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      refreshCharts();
    }
  });
}

// Paper is white, and shows all charts, two beside each other: a page of A4 or Letter is 700 pixels wide.
function beforePrint() {
  folds = [...document.querySelectorAll("details:is(.fold, .about):not([open])")];
  folds.forEach((fold) => { fold.open = true; });
  screenTheme = theme();
  setTheme("light");
  plots.forEach((plot) => drawChart(plot, plot.closest(".chart").matches(ACROSS) ? PAPER.full : PAPER.half, 55));
}

function afterPrint() {
  folds.forEach((fold) => { fold.open = false; });
  setTheme(screenTheme);
  refreshCharts();
}
