// Tables: sorting by buttons in the headings, a filter, and copies as text.

function sortKey(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  return /^(–|failed)?$/.test(cell.textContent) ? null : cell.textContent;
}

// Cells without a value stay at the end in both directions.
function compareKeys(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "number" && typeof other === "number") return sign * (one - other);
  return sign * String(one).localeCompare(String(other), "en", { numeric: true });
}

// Rows below a heading row belong to it, so they are sorted among themselves; so are reference rows, which stay last.
function rowBlocks(rows) {
  const blocks = [];
  const kind = (row) => row.classList.contains("reference");
  for (const row of rows) {
    const turn = blocks.length > 0 && kind(row) !== kind(blocks[blocks.length - 1][0]);
    if (blocks.length === 0 || turn || row.cells[0].classList.contains("heading")) blocks.push([]);
    blocks[blocks.length - 1].push(row);
  }
  return blocks;
}

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const sign = direction === "ascending" ? 1 : -1;
  for (const block of rowBlocks([...body.rows])) {
    const head = block[0].cells[0].classList.contains("heading") ? block.splice(0, 1) : [];
    const keyed = block.map((row) => [sortKey(row, column), row]);
    keyed.sort((one, other) => compareKeys(one[0], other[0], sign));
    body.append(...head, ...keyed.map((entry) => entry[1]));
  }
  for (const head of table.tHead.rows[0].cells) head.setAttribute("aria-sort", "none");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", direction);
}

function makeSortable(table) {
  const id = table.closest(".table").id;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.setAttribute("aria-sort", "none");
    const button = element("button", { type: "button", id: `sort-${id}-${column}`, title: "sort by this column" });
    button.append(...head.childNodes);
    head.append(button);
    head.addEventListener("click", () => {
      // The first click sorts numbers from high to low and text from A to Z.
      const turned = { ascending: "descending", descending: "ascending" }[head.getAttribute("aria-sort")];
      const direction = turned || (head.classList.contains("num") ? "descending" : "ascending");
      sortTable(table, column, direction);
      remember(`sort ${id}`, [column, direction]);
    });
  });
  const kept = recall(`sort ${id}`);
  if (kept && kept[0] < table.tHead.rows[0].cells.length) sortTable(table, kept[0], kept[1]);
}

// A row is shown if it contains every word.
function makeFilter(input) {
  const rows = [...document.querySelectorAll(`#${input.dataset.filter} tbody tr`)];
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  const count = document.querySelector(`[data-count="${input.dataset.filter}"]`);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${rows.length} runs`;
    remember("filter", input.value);
  };
  input.value = recall("filter") || "";
  input.addEventListener("input", apply);
  apply();
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission, or no clipboard for files: the caller shows the text instead
  }
}

function selectText(tools, text) {
  const area = tools.querySelector("textarea") || tools.appendChild(element("textarea", { readonly: "", "aria-label": "text to copy" }));
  area.value = text;
  area.focus();
  area.select();
  return document.execCommand("copy");
}

function makeCopyButton(button) {
  button.addEventListener("click", async () => {
    const text = report.texts[button.dataset.table][button.dataset.copy];
    const done = (await copyText(text)) || selectText(button.parentElement, text);
    button.parentElement.querySelector(".copied").textContent = done ? "copied" : "press Ctrl+C to copy the selected text";
  });
}

function setUpTables() {
  document.querySelectorAll(".table table").forEach(makeSortable);
  document.querySelectorAll("[data-filter]").forEach(makeFilter);
  document.querySelectorAll("[data-copy]").forEach(makeCopyButton);
}
