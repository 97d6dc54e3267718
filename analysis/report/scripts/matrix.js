// The matrix browser. All values come from the frames; only differences to C[k,k] are computed here.

const matrices = report.matrices;
const chosen = { choice: 0, pairs: "", metric: "", block: null, t: 0, k: 0 };

function byId(id) {
  return document.getElementById(id);
}

// Three decimals as Python formats them: exact ties (odd sixteenths) are rounded to the even digit.
function decimals(value) {
  const sixteenths = value * 16;
  if (!Number.isInteger(sixteenths) || sixteenths % 2 === 0) return value.toFixed(3);
  const below = Math.floor(value * 1000);
  return ((below % 2 === 0 ? below : below + 1) / 1000).toFixed(3);
}

function shownNumber(value, isSigned) {
  if (value === null || value === undefined) return "–";
  const text = decimals(Math.abs(value));
  if (text === "0.000") return text; // 0 has no sign
  return value < 0 ? `-${text}` : isSigned ? `+${text}` : text;
}

function shownInterval(low, high, isSigned) {
  if (low === null || low === undefined) return "";
  return `[${shownNumber(low, isSigned)}, ${shownNumber(high, isSigned)}]`;
}

function findBlock(choice, pairs, metric) {
  const { blocks } = matrices;
  const place = blocks.choice.findIndex((c, i) => c === choice && blocks.pairs[i] === pairs && blocks.metric[i] === metric);
  return place < 0 ? null : { place, start: blocks.start[place], tasks: blocks.tasks[place], seeds: blocks.seeds[place] };
}

function cellOf(block, t, k) {
  const place = block.start + (t * (t - 1)) / 2 + k - 1;
  const own = matrices.cells.accuracy[block.start + (k * (k - 1)) / 2 + k - 1];
  const cell = { t, k, own };
  for (const [name, values] of Object.entries(matrices.cells)) cell[name] = values[place];
  cell.difference = cell.accuracy === null || own === null ? null : cell.accuracy - own;
  return cell;
}

function compatibleText(cell, seeds) {
  if (cell.compatible === null) return "–";
  if (seeds > 1) return `in ${Math.round(cell.compatible * seeds)} of ${seeds} seeds`;
  return cell.compatible === 1 ? "yes" : "no";
}

function cellNode(cell, block) {
  const node = element("td", { role: "gridcell", tabindex: "-1", "data-t": cell.t, "data-k": cell.k }, shownNumber(cell.accuracy));
  node.className = "cell";
  if (cell.t === cell.k) node.classList.add("self");
  if (cell.compatible === 1) node.classList.add("compatible");
  const amount = cell.t === cell.k ? 0 : Math.min(1, Math.abs(cell.difference || 0) / (matrices.scale[chosen.metric] || 1));
  node.style.setProperty("--tone", `var(--${cell.difference > 0 ? "plus" : "minus"})`);
  node.style.setProperty("--amount", amount.toFixed(3));
  const words = cell.t === cell.k ? "own gallery" : `compatible: ${compatibleText(cell, block.seeds)}`;
  node.setAttribute("aria-label", `t ${cell.t}, k ${cell.k}: ${shownNumber(cell.accuracy)}, ${words}`);
  return node;
}

function drawGrid(block) {
  const grid = byId("matrix-grid");
  grid.replaceChildren();
  const head = grid.createTHead().insertRow();
  head.append(element("th", { scope: "col" }, "t \\ k"));
  for (let k = 1; k <= block.tasks; k += 1) head.append(element("th", { scope: "col" }, `k=${k}`));
  const body = grid.createTBody();
  for (let t = 1; t <= block.tasks; t += 1) {
    const row = body.insertRow();
    row.append(element("th", { scope: "row" }, `t=${t}`));
    for (let k = 1; k <= t; k += 1) row.append(cellNode(cellOf(block, t, k), block));
    for (let k = t + 1; k <= block.tasks; k += 1) row.append(element("td", { role: "gridcell" }));
  }
  byId("matrix").querySelector(".matrix").classList.toggle("wide", block.tasks > 12);
}

function missingInterval(block) {
  return block.seeds > 1 ? "no spread" : "not recorded";
}

function detailLines(cell, block) {
  const lines = [
    ["queries by model t", String(cell.t)],
    ["gallery by model k", String(cell.k)],
    [block.metricName, shownNumber(cell.accuracy)],
    [block.seeds > 1 ? "95 % over seeds" : "95 % over pairs", shownInterval(cell.low, cell.high) || missingInterval(block)],
  ];
  if (cell.t === cell.k) return lines;
  lines.push(["C[k,k]", shownNumber(cell.own)], ["difference", shownNumber(cell.difference, true)]);
  lines.push(["compatible", compatibleText(cell, block.seeds)]);
  if (cell.p_compatible !== null) lines.push(["compatible in draws", `${(100 * cell.p_compatible).toFixed(1)} %`]);
  return lines;
}

function showDetail(t, k) {
  const block = chosen.block;
  const list = element("dl");
  for (const [word, value] of detailLines(cellOf(block, t, k), block)) {
    const line = list.appendChild(element("div"));
    line.append(element("dt", {}, word), element("dd", {}, value));
  }
  byId("matrix-detail").replaceChildren(list);
  for (const node of byId("matrix-grid").querySelectorAll("td.cell")) {
    const [row, column] = [Number(node.dataset.t), Number(node.dataset.k)];
    node.classList.toggle("shown", row === t && column === k);
    node.classList.toggle("reference", t !== k && row === k && column === k);
    node.tabIndex = row === t && column === k ? 0 : -1;
  }
  Object.assign(chosen, { t, k });
  noteSoon();
}

function gridCell(node) {
  const cell = node.closest ? node.closest("td.cell") : null;
  return cell ? [Number(cell.dataset.t), Number(cell.dataset.k)] : null;
}

function moveFocus(event) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const at = gridCell(event.target);
  const step = steps[event.key];
  if (!at || !step) return;
  event.preventDefault();
  const next = byId("matrix-grid").querySelector(`td.cell[data-t="${at[0] + step[0]}"][data-k="${at[1] + step[1]}"]`);
  if (next) next.focus();
}

function drawScores(block) {
  const parts = ["AC", "BC", "FC"].map((score) => {
    const [mean, low, high] = ["", "_low", "_high"].map((end) => matrices.scores[score + end][block.place]);
    const span = element("span", { "data-score": score }, `${score} `);
    span.append(element("b", {}, shownNumber(mean, score !== "AC")), ` ${shownInterval(low, high, score !== "AC")}`);
    return span;
  });
  parts.push(element("span", {}, block.seeds > 1 ? `95 % t-intervals over ${block.seeds} seeds` : "95 % bootstrap intervals over pairs"));
  byId("matrix-scores").replaceChildren(...parts);
}

function rampNode(scale) {
  const ramp = element("span", {}, `C[t,k] − C[k,k]: -${scale}`);
  ramp.append(element("span", { class: "ramp", "aria-hidden": "true" }), `+${scale} and beyond`);
  return ramp;
}

// With one task there is nothing to compare: no scale and no compatible cell.
function drawLegend() {
  const scale = matrices.scale[chosen.metric];
  const kinds = [["compatible", "compatible (mean: in every seed)"], ["self", "C[k,k]"]].slice(scale ? 0 : 1);
  const samples = kinds.map(([name, words]) => {
    const sample = element("span");
    sample.append(element("span", { class: `sample ${name}`, "aria-hidden": "true" }), words);
    return sample;
  });
  byId("matrix-legend").replaceChildren(...(scale ? [rampNode(shownNumber(scale))] : []), ...samples);
}

function fillSelect(select, options, value) {
  select.replaceChildren(...options.map(([key, words]) => element("option", { value: key }, words)));
  select.value = options.some(([key]) => String(key) === String(value)) ? String(value) : String(options[0][0]);
  select.closest("label").hidden = options.length < 2 && select.id !== "matrix-group";
}

function choicesOf(group) {
  const { choices } = matrices;
  return choices.name.map((name, place) => [place, name]).filter(([place]) => choices.group[place] === group);
}

function showChoice() {
  const { choices } = matrices;
  const [pairs, metric] = [byId("matrix-pairs").value, byId("matrix-metric").value];
  chosen.choice = Number(byId("matrix-run").value);
  Object.assign(chosen, { pairs, metric, block: findBlock(chosen.choice, pairs, metric) });
  const group = matrices.groups[choices.group[chosen.choice]];
  remember("matrix", { group, name: choices.name[chosen.choice], pairs, metric });
  drawLosses(choices, chosen.choice, group);
  byId("matrix-caption").textContent = `${group}, ${choices.name[chosen.choice]}: ${metric} on ${pairs} pairs`;
  for (const id of ["matrix-grid", "matrix-scores", "matrix-legend"]) byId(id).replaceChildren();
  if (!chosen.block) {
    byId("matrix-detail").textContent = "This run has no matrix on these pairs.";
    return;
  }
  chosen.block.metricName = metric;
  drawGrid(chosen.block);
  drawScores(chosen.block);
  drawLegend();
  const size = chosen.block.tasks;
  showDetail(Math.min(chosen.t || size, size), Math.min(chosen.k || 1, chosen.t || size, size));
}

// A new group is shown like the previous one: its mean, or the run with the same seed.
function showGroup() {
  const before = matrices.choices.name[chosen.choice];
  const options = choicesOf(Number(byId("matrix-group").value));
  const same = options.find(([, name]) => name === before || (name.startsWith("mean") && before.startsWith("mean")));
  fillSelect(byId("matrix-run"), options, (same || options[0])[0]);
  showChoice();
}

function setUpMatrix() {
  if (!matrices) return;
  const kept = recall("matrix") || {};
  [chosen.t, chosen.k] = recall("cell") || [0, 0];
  noted.cell = () => [chosen.t, chosen.k];
  const group = Math.max(0, matrices.groups.indexOf(kept.group));
  fillSelect(byId("matrix-group"), matrices.groups.map((name, place) => [place, name]), group);
  fillSelect(byId("matrix-pairs"), matrices.pairs.map((name) => [name, name]), kept.pairs || "report");
  fillSelect(byId("matrix-metric"), matrices.metrics.map((name) => [name, name]), kept.metric);
  const options = choicesOf(group);
  const same = options.find(([, name]) => name === kept.name) || options[0];
  fillSelect(byId("matrix-run"), options, same[0]);
  byId("matrix-group").addEventListener("change", showGroup);
  for (const id of ["matrix-run", "matrix-pairs", "matrix-metric"]) byId(id).addEventListener("change", showChoice);
  const grid = byId("matrix-grid");
  for (const kind of ["mouseover", "focusin", "click"]) {
    grid.addEventListener(kind, (event) => {
      const at = gridCell(event.target);
      if (at) showDetail(...at);
    });
  }
  grid.addEventListener("keydown", moveFocus);
  showChoice();
}
