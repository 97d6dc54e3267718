// Figures. The style sheet sets the colours of text and grid, so that dark mode and print need no redrawing.

// Only these buttons: others of Plotly's send data to a server.
const PLOT_SETTINGS = {
  displaylogo: false,
  responsive: true,
  plotlyServerURL: "",
  showSendToCloud: false,
  showEditInChartStudio: false,
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
};
const NARROW = 700;
const PAPER_WIDTH = 660;

function completeLayout(layout, traces) {
  const narrow = window.innerWidth <= NARROW;
  const names = traces.filter((trace) => trace.showlegend !== false && trace.name).length;
  const full = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12 },
    margin: { l: 62, r: 16, t: 16, b: 52 },
    hovermode: "closest",
    height: 400,
    ...layout,
  };
  if (narrow && names > 1) {
    full.legend = { orientation: "h", y: -0.25, yanchor: "top", ...layout.legend };
    full.height = layout.height || 380 + 21 * Math.min(names, 14);
  }
  for (const key of Object.keys(full)) {
    if (/^[xy]axis\d*$/.test(key)) full[key] = { automargin: true, ...full[key] };
  }
  return full;
}

function drawView(node, view) {
  return Plotly.react(node, view.data, completeLayout(view.layout, view.data), PLOT_SETTINGS);
}

function setUpView(node) {
  const id = node.dataset.figure;
  const select = document.querySelector(`[data-view-of="${id}"]`);
  const views = report.figures[id];
  if (select) {
    const kept = recall(`view ${id}`);
    if (views[kept]) select.value = String(kept);
    select.addEventListener("change", () => {
      remember(`view ${id}`, Number(select.value));
      drawView(node, views[Number(select.value)]);
    });
  }
  return drawView(node, views[select ? Number(select.value) : 0]);
}

// Show names literally: Plotly would interpret tags and %{…} templates.
function plainText(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/%\{/g, "%&#123;");
}

function lossTraces(run, schedule) {
  const steps = schedule.epoch.map((_, place) => place + 1);
  const where = schedule.epoch.map((epoch, place) => `task ${schedule.task[place]}, ${schedule.stage[place]}, epoch ${epoch}`);
  return Object.entries(run.terms).map(([term, values], place) => ({
    type: "scatter",
    mode: "lines",
    name: plainText(term),
    x: steps,
    y: values,
    customdata: where,
    line: { color: report.colours[place % report.colours.length], width: 1.6 },
    hovertemplate: `${plainText(term)} %{y:.4g}<br>%{customdata}<extra></extra>`,
  }));
}

// Draw a tick and a line at the start of each task.
function lossLayout(schedule) {
  const begins = schedule.task.map((task, place) => [task, place]).filter(([task, place]) => place === 0 || schedule.task[place - 1] !== task);
  const line = ([, place]) => ({ type: "line", xref: "x", yref: "paper", x0: place + 0.5, x1: place + 0.5, y0: 0, y1: 1, line: { width: 1, dash: "dot" }, layer: "below" });
  return {
    xaxis: { tickvals: begins.map(([, place]) => place + 1), ticktext: begins.map(([task]) => `task ${task}`), showgrid: false },
    yaxis: { title: { text: "loss" }, rangemode: "tozero" },
    shapes: begins.slice(1).map(line),
    showlegend: true,
  };
}

// For a mean over seeds, draw the losses of its first run: curves of several runs would hide each other.
function drawLosses(choices, choice, group) {
  const node = document.querySelector("[data-losses]");
  if (!node || typeof Plotly === "undefined") return;
  const place = choices.run[choice] ? choice : choice + 1;
  const run = report.losses.runs[choices.run[place]];
  document.getElementById("loss-caption").textContent = run
    ? `${group}, ${choices.name[place]}: all epochs of the chain in order. Choose another run above, at the matrices.`
    : `No losses were recorded for ${group}.`;
  if (!run) {
    Plotly.purge(node);
    return;
  }
  const schedule = report.losses.schedules[run.schedule];
  drawView(node, { data: lossTraces(run, schedule), layout: lossLayout(schedule) });
}

async function setUpFigures() {
  for (const node of document.querySelectorAll("[data-figure]")) {
    await setUpView(node);
    await new Promise((resolve) => setTimeout(resolve)); // let the browser scroll in between
  }
}

function resizeFigures(width) {
  for (const node of document.querySelectorAll(".js-plotly-plot")) {
    Plotly.relayout(node, width ? { width, autosize: false } : { width: null, autosize: true });
  }
}

// When printing, open all lists and fit figures to the paper.
function setUpPrinting() {
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((node) => node.setAttribute("open", ""));
    resizeFigures(PAPER_WIDTH);
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((node) => node.removeAttribute("open"));
    resizeFigures(null);
  });
}
