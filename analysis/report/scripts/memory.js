// The reader's choices survive a reload. They are kept in the history entry, which also works for local files, where
// storage may be forbidden; a jump inside the page creates a new entry, which receives a copy.

const report = JSON.parse(document.getElementById("report-data").textContent);
const memory = { ...(history.state || {}) };

function remember(key, value) {
  memory[key] = value;
  keepMemory();
}

function keepMemory() {
  history.replaceState(memory, "");
}

function recall(key) {
  return memory[key];
}

// State that changes too often to be saved at every change: how to read it, by key.
const noted = { scroll: scrollPlace, open: openLists, focus: focusPlace, boxes: innerScroll };
let waiting = 0;

function note() {
  for (const [key, find] of Object.entries(noted)) memory[key] = find();
  keepMemory();
}

function noteSoon() {
  clearTimeout(waiting);
  waiting = setTimeout(note, 250);
}

function openLists() {
  return [...document.querySelectorAll("details[open]")].map((node) => node.id);
}

function restoreLists() {
  for (const id of recall("open") || []) document.getElementById(id)?.setAttribute("open", "");
}

function focusPlace() {
  const { id, dataset } = document.activeElement;
  return id ? `#${CSS.escape(id)}` : dataset.t ? `td[data-t="${dataset.t}"][data-k="${dataset.k}"]` : "";
}

function restoreFocus() {
  const node = recall("focus") ? document.querySelector(recall("focus")) : null;
  if (node) node.focus({ preventScroll: true });
}

function innerScroll() {
  return [...document.querySelectorAll(".table .scroll")].map((box) => [box.parentElement.id, box.scrollLeft, box.scrollTop]);
}

function restoreInnerScroll() {
  for (const [id, left, top] of recall("boxes") || []) document.getElementById(id)?.querySelector(".scroll").scrollTo(left, top);
}

// A section and the offset into it, not pixels from the top: a later report may be longer above it.
function scrollPlace() {
  const sections = [...document.querySelectorAll("section")];
  const here = sections.filter((section) => section.getBoundingClientRect().top <= 1).pop();
  return here ? { id: here.id, offset: -here.getBoundingClientRect().top } : { id: "", offset: window.scrollY };
}

function restoreScroll() {
  const place = recall("scroll");
  if (!place) return;
  const section = place.id ? document.getElementById(place.id) : null;
  const top = section ? section.getBoundingClientRect().top + window.scrollY : 0;
  window.scrollTo({ top: top + place.offset, behavior: "instant" });
}

function watchPlaces() {
  for (const kind of ["scroll", "toggle", "focusin", "focusout"]) document.addEventListener(kind, noteSoon, { capture: true });
  window.addEventListener("hashchange", keepMemory);
}

// Wait this many milliseconds after the last click, key or scroll before reloading.
const AT_EASE = 4000;

function keepReloading(seconds) {
  const [opened, button] = [Date.now(), document.getElementById("pause")];
  let touched = 0;
  for (const kind of ["pointerdown", "keydown", "wheel"]) {
    window.addEventListener(kind, () => { touched = Date.now(); }, { passive: true, capture: true });
  }
  const show = (paused) => {
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "resume" : "pause";
  };
  show(Boolean(recall("paused")));
  button.addEventListener("click", () => {
    remember("paused", !recall("paused"));
    show(recall("paused"));
  });
  setInterval(() => {
    const early = Date.now() - opened < seconds * 1000 || Date.now() - touched < AT_EASE;
    if (early || recall("paused") || document.hidden) return;
    note();
    location.reload();
  }, 500);
}

function element(tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.textContent = text;
  return node;
}
