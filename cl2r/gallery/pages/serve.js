"use strict";

const at = (id) => document.getElementById(id);
const COUNTS = [6, 12, 24, 48, 100];
let limits = null;
let file = null;
let running = null;

function node(tag, kind, ...parts) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...parts);
  return made;
}

function phi(task) {
  const made = node("span", "", "φ", node("sub", "", String(task)));
  made.setAttribute("aria-label", `phi ${task}`);
  return made;
}

function show(id, text) {
  at(id).textContent = text;
  at(id).hidden = !text;
}

/* ---------------------------------------------------------------- the gallery */

function describe(facts) {
  const number = (count) => count.toLocaleString("en");
  const parts = [`${number(facts.items)} images, vectors by `];
  facts.versions.forEach((version, place) => {
    const share = facts.versions.length > 1 ? ` (${number(version.items)})` : "";
    parts.push(...(place ? [", "] : []), phi(version.task), share);
  });
  at("gallery").replaceChildren(...parts, " · queries by ", phi(facts.task), ` (${facts.model})`);
  show("warning", facts.warning || "");
}

function offer(top) {
  const counts = [...new Set([...COUNTS, top])].sort((a, b) => a - b);
  at("top").replaceChildren(...counts.map((count) => new Option(count, count, count === top, count === top)));
  at("file").disabled = false;
}

async function prepare() {
  try {
    const answer = await fetch("health");
    const facts = await read(answer);
    describe(facts);
    limits = facts;
    offer(facts.top);
    document.documentElement.dataset.ready = "";
  } catch (error) {
    at("gallery").textContent = `Not ready: ${error.message}`;
    setTimeout(prepare, 1500);
  }
}

/* ---------------------------------------------------------------- a search */

async function read(answer) {
  const text = await answer.text();
  let content = {};
  try {
    content = JSON.parse(text);
  } catch {
    content = { error: text.slice(0, 200) };
  }
  if (answer.ok) return content;
  const error = new Error(content.error || `status ${answer.status}`);
  error.refused = answer.status < 500;
  throw error;
}

function choose(chosen) {
  if (!chosen || !limits) return;
  file = chosen;
  URL.revokeObjectURL(at("preview").src);
  at("preview").src = URL.createObjectURL(file);
  at("name").textContent = file.name || "pasted image";
  at("query").hidden = false;
  search();
}

async function search() {
  if (running) running.abort();
  running = null;
  show("problem", "");
  at("again").hidden = true;
  if (file.size > limits.most_bytes) {
    fail(`the image is larger than ${limits.most_bytes / 1e6} MB; scale it down`, true);
    return;
  }
  const mine = new AbortController();
  running = mine;
  at("said").textContent = "Searching …";
  at("hits").className = "old";
  at("hits").setAttribute("aria-busy", "true");
  try {
    const body = { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" }, signal: mine.signal };
    const found = await read(await fetch(`search?top=${at("top").value}`, body));
    describe(found);
    list(found);
  } catch (error) {
    if (mine !== running) return;
    fail(error instanceof TypeError ? "the service does not answer" : error.message, error.refused);
  }
  if (mine === running) running = null;
}

/* Whoever was refused would be refused again. */
function fail(message, refused) {
  show("problem", message.charAt(0).toUpperCase() + message.slice(1));
  at("said").textContent = "Not searched.";
  at("again").hidden = Boolean(refused);
  settle();
}

function settle(...hits) {
  at("hits").replaceChildren(...hits);
  at("hits").className = "";
  at("hits").removeAttribute("aria-busy");
}

function list(found) {
  const count = found.hits.length;
  const time = found.seconds < 1 ? `${Math.ceil(1000 * found.seconds)} ms` : `${found.seconds.toFixed(1)} s`;
  at("said").textContent = `${count} ${count === 1 ? "hit" : "hits"} in ${time}`;
  settle(...found.hits.map(card));
}

function card(hit) {
  const by = node("span", "by", phi(hit.task));
  by.title = `its vector is by ${hit.model}`;
  const score = node("span", "score", hit.score.toFixed(3));
  score.title = "cosine of the query's vector and the image's";
  const made = node(
    "li",
    "",
    node("div", "picture", picture(hit.image, hit.id)),
    node("p", "line", node("span", "rank", `${hit.rank}.`), score),
    node("p", "line", node("span", "label", hit.label || "–"), by),
    node("p", "id", hit.id),
  );
  const known = Object.entries(hit.metadata).filter(([, value]) => value !== null);
  if (known.length) made.append(node("dl", "", ...known.map(([key, value]) => node("div", "", node("dt", "", key), node("dd", "", String(value))))));
  return made;
}

function picture(address, name) {
  const image = node("img", "");
  image.alt = name;
  image.loading = "lazy";
  image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth < 96));
  image.addEventListener("error", () => image.replaceWith("no image"));
  image.src = address;
  return image;
}

/* ---------------------------------------------------------------- what the user does */

at("file").addEventListener("change", () => {
  choose(at("file").files[0]);
  at("file").value = "";
});
at("top").addEventListener("change", () => file && search());
at("again").addEventListener("click", () => search());
for (const kind of ["load", "error"]) {
  at("preview").addEventListener(kind, () => {
    at("preview").hidden = kind === "error";
    at("unseen").hidden = kind === "load";
    at("preview").classList.toggle("small", at("preview").naturalWidth < 96);
  });
}
document.addEventListener("paste", (event) => choose(event.clipboardData.files[0]));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  at("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => event.relatedTarget || at("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  choose(event.dataTransfer.files[0]);
});
prepare();
