// Charts: drawn when they come near the window, and again when colours or filters change.

const NARROW = 560; // pixels
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const AHEAD = "600px"; // of the window, where drawing begins
const near = new Set();
const waiting = new Set();
const whenIdle = window.requestIdleCallback || ((task) => setTimeout(task, 1));
let plots = [];

function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return {
    ink: read("--ink"), grid: read("--line"), zero: read("--zero"), paper: read("--card"), ideal: read("--muted"),
    slots: [0, 1, 2, 3, 4, 5, 6, 7].map((number) => read(`--c${number}`)),
  };
}

function faded(colour, share) {
  return colour + Math.round(share * 255).toString(16).padStart(2, "0");
}

// Points that have tags of their own: without those that are filtered out.
function chosen(trace) {
  const { points } = trace.meta;
  if (!points) {
    return trace;
  }
  const kept = (values) => values.filter((_, number) => isShown(points[number]));
  for (const key of ["x", "y", "customdata"]) {
    trace[key] = kept(trace[key]);
  }
  if (trace.error_y) {
    Object.assign(trace.error_y, { array: kept(trace.error_y.array), arrayminus: kept(trace.error_y.arrayminus) });
  }
  return trace;
}

// Of an axis of words, those that a bar stands at.
function categories(figure) {
  const { categoryarray } = figure.layout.xaxis;
  if (!categoryarray || !figure.data.some((trace) => trace.meta.points)) {
    return {};
  }
  const there = new Set(figure.data.flatMap((trace) => trace.x));
  return { categoryarray: categoryarray.filter((name) => there.has(name)) };
}

function dressed(trace, look) {
  const { slot, role, tags } = trace.meta;
  const colour = slot === null ? look.ideal : look.slots[slot];
  trace.visible = isShown(tags);
  if (role === "band") {
    trace.fillcolor = faded(colour, 0.18);
    return trace;
  }
  trace.marker = { ...trace.marker, color: colour };
  if (role === "bar") {
    trace.marker.line = { color: look.paper, width: 1 };
    trace.marker.pattern = trace.marker.pattern && { ...trace.marker.pattern, fgcolor: look.paper };
  } else if (trace.line) {
    trace.line.color = colour;
  }
  if (trace.error_y) {
    trace.error_y.color = role === "bar" ? look.ink : colour;
  }
  return trace;
}

// Lines of the legend: plotly gives each entry the width of the longest.
function legendLines(data, width) {
  const names = data.filter((trace) => trace.visible && trace.showlegend !== false).map((trace) => trace.name.length);
  const across = Math.max(1, Math.floor((width - 30) / (Math.max(0, ...names) * 7 + 50)));
  return Math.ceil(names.length / across);
}

// Room for names below the bars, which plotly slants where they are too long to stand beside each other.
function slantedHeight(axis, width) {
  const names = (axis.categoryarray || []).map((name) => String(name).length);
  const longest = Math.max(0, ...names);
  return longest * 7 * names.length > width - 60 ? Math.min(5 * longest, 140) : 0;
}

function layoutOf(figure, look, width) {
  const axis = (given) => ({
    gridcolor: look.grid, linecolor: look.grid, zerolinecolor: look.zero, automargin: true, ...given,
    title: { ...given.title, font: { size: 13 }, standoff: 8 },
  });
  const below = 20 * legendLines(figure.data, width) + slantedHeight(figure.layout.xaxis, width);
  return {
    ...figure.layout,
    xaxis: axis({ showgrid: figure.layout.xaxis.type !== "category", ...figure.layout.xaxis }),
    yaxis: axis(figure.layout.yaxis),
    font: { family: "system-ui, sans-serif", size: 12, color: look.ink },
    paper_bgcolor: look.paper, plot_bgcolor: look.paper,
    margin: { l: 48, r: 12, t: 12, b: 40 },
    height: Math.min(330 + below, 900), width,
    showlegend: true,
    legend: { orientation: "h", xref: "container", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" },
    hoverlabel: { align: "left", bgcolor: look.paper, font: { color: look.ink, size: 12 }, bordercolor: look.zero },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger scrolls the page
    bargap: 0.25,
  };
}

function drawChart(plot) {
  const figure = JSON.parse(plot.nextElementSibling.textContent);
  const look = colours();
  figure.data.forEach((trace) => dressed(chosen(trace), look));
  Object.assign(figure.layout.xaxis, categories(figure));
  const width = plot.clientWidth;
  Plotly.react(plot, figure.data, layoutOf(figure, look, width), CONFIG);
  plot.dataset.drawn = "";
}

// Those out of sight are drawn anew when they come back.
function refreshCharts() {
  for (const plot of plots) {
    delete plot.dataset.drawn;
    if (near.has(plot)) {
      drawChart(plot);
    }
  }
}

// One at a time, between two frames, so that the page scrolls smoothly meanwhile.
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

function moved(entries) {
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
  const watcher = new IntersectionObserver(moved, { rootMargin: AHEAD });
  plots.forEach((plot) => watcher.observe(plot));
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      refreshCharts();
    }
  });
}

// Paper is white, and has all of them, also in sections that are folded.
function beforePrint() {
  document.querySelectorAll("details.fold").forEach((one) => { one.open = true; });
  document.documentElement.dataset.screen = theme();
  setTheme("light");
  plots.filter((plot) => plot.clientWidth > 0).forEach(drawChart);
}

function afterPrint() {
  setTheme(document.documentElement.dataset.screen);
  refreshCharts();
}
