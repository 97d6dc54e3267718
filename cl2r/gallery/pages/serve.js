"use strict";

const at = (id) => document.getElementById(id);
const COUNTS = [6, 12, 24, 48, 100];
const PAUSE = 1500;
let limits = null;
let query = null; // { file } or { id, label, image }
let running = null;
let waiting = 0; // the timer of the next question about the upgrade
let repeating = 0; // the timer of a search that was not answered

function node(tag, kind, ...parts) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...parts);
  return made;
}

function phi(task) {
  const made = node("span", "", "φ", node("sub", "", String(task)));
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", `phi ${task}`);
  return made;
}

function show(id, text) {
  at(id).textContent = text;
  at(id).hidden = !text;
}

const number = (count) => count.toLocaleString("en");
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/* ---------------------------------------------------------------- the gallery */

function describe(facts) {
  const parts = [`${number(facts.items)} images, vectors by `];
  facts.versions.forEach((version, place) => {
    const share = facts.versions.length > 1 ? ` (${number(version.items)})` : "";
    parts.push(...(place ? [", "] : []), phi(version.task), share);
  });
  at("gallery").replaceChildren(...parts, " · queries by ", phi(facts.task), ` (${facts.model})`);
  show("warning", facts.warning || "");
  show("why", facts.old.why ? `No old model beside it: ${facts.old.why}.` : "");
}

function offer(top) {
  const counts = [...new Set([...COUNTS, top])].sort((a, b) => a - b);
  at("top").replaceChildren(...counts.map((count) => new Option(count, count, count === top, count === top)));
  at("file").disabled = false;
}

async function prepare() {
  try {
    const facts = await get("health");
    describe(facts);
    limits = facts;
    offer(facts.top);
    document.documentElement.dataset.ready = "";
  } catch (error) {
    at("gallery").textContent = `Not ready: ${error.message}; trying again …`;
    setTimeout(prepare, PAUSE);
    return;
  }
  suggest();
  judge();
}

async function suggest() {
  let examples = [];
  try {
    ({ examples } = await get("examples"));
  } catch (error) {
    if (error.away) setTimeout(suggest, PAUSE);
    else show("problem", `No images to try: ${error.message}`);
    return;
  }
  at("examples").replaceChildren(...examples.map(example));
  at("try").hidden = examples.length === 0;
}

function example(item) {
  const label = item.label || item.id.split("/").pop();
  const button = node("button", "", node("span", "picture", picture(item.image, "")), node("span", "label", label));
  button.type = "button";
  button.title = item.id;
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => ask(item, button));
  return button;
}

/* ---------------------------------------------------------------- the upgrade */

async function judge() {
  let found = {};
  try {
    found = await get("upgrade");
  } catch (error) {
    found = { status: "unknown", why: error.away ? `${error.message}; trying again …` : error.message, away: error.away };
  }
  if (found.commit < limits.commit) found = { status: "measuring" }; // another replica, which is behind
  const old = limits.old.task || 0;
  at("upgrade").hidden = found.status === "unknown" && !old; // one line below the hits says why
  at("upgrade").dataset.verdict = found.verdict || "";
  const from = found.old_model ? Number(found.old_model.split("@").pop()) : old;
  const verdict = found.verdict || (found.status === "measuring" ? "…" : "not known");
  at("verdict").replaceChildren("Upgrade from ", phi(from), " to ", phi(limits.task), ": ", node("strong", "", verdict));
  const text = found.sentence || (found.why ? sentence(found.why) + (found.away ? "" : ".") : "It is being measured on images of this gallery.");
  if (at("sentence").textContent !== text) at("sentence").textContent = text; // a screen reader may read it again otherwise
  clearTimeout(waiting);
  if (found.status === "measuring" || found.away) waiting = setTimeout(judge, PAUSE);
  at("numbers").hidden = found.status !== "known";
  show("pairs", "");
  if (found.status !== "known") return;
  const rows = [
    ["Old model on its own vectors", found.old],
    ["New model on the same vectors", found.cross],
    ["New model, all indexed again", found.new],
  ];
  at("numbers").replaceChildren(...rows.map(([name, value]) => node("div", "", node("dt", "", name), node("dd", "", value.toFixed(3)))));
  const pairs = `Accuracy on ${number(found.pairs)} pairs of images`;
  show("pairs", found.saved
    ? `${pairs}, with 95\u00a0% intervals: a saved check, which was not measured on this gallery by the service.`
    : `${pairs} of this gallery, with 95\u00a0% intervals.`);
}

/* ---------------------------------------------------------------- a search */

/* Return the answer to a request. An error has `away` if nobody answered, and `refused` if retrying is pointless. */
async function get(address, options) {
  let answer = null;
  let text = "";
  try {
    answer = await fetch(address, options);
    text = await answer.text();
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // it was stopped by this page
    if (options?.body) await check(options.body);
    throw Object.assign(new Error("the service does not answer"), { away: true });
  }
  let content = {};
  try {
    content = JSON.parse(text);
  } catch {
    content = { error: text.slice(0, 200) };
  }
  if (answer.ok) return content;
  const error = new Error(content.error || `status ${answer.status}`);
  error.refused = answer.status < 500 && answer.status !== 408; // 408: the upload was too slow
  throw error;
}

/* Throw an error if a file has changed or gone since the user chose it: the browser then sends nothing. */
async function check(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
  } catch {
    throw Object.assign(new Error("the file cannot be read any more; choose it again"), { refused: true });
  }
}

function ask(asked, button) {
  query = asked;
  for (const other of at("examples").children) other.setAttribute("aria-pressed", String(other === button));
  URL.revokeObjectURL(at("preview").src);
  at("preview").src = query.file ? URL.createObjectURL(query.file) : query.image;
  at("name").textContent = query.file ? query.file.name || "pasted image" : query.label || query.id;
  at("size").textContent = query.file ? bytes(query.file.size) : `of the gallery: ${query.id}`;
  at("query").hidden = false;
  search();
}

/* Take the first file of a list that a drop, a paste or the file chooser gave. */
function choose(files, otherwise) {
  if (!limits) return;
  if (files.length) ask({ file: files[0] });
  else show("problem", otherwise);
}

function bytes(size) {
  if (size < 1000) return `${size} bytes`;
  return size < 1e6 ? `${Math.round(size / 1000)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/* Search; if the service does not answer, say so and search `again` until it does, without another message. */
async function search(again = false) {
  clearTimeout(repeating);
  if (running) running.abort();
  running = null;
  if (!again) {
    show("problem", "");
    at("again").hidden = true;
  }
  if (query.file && query.file.size > limits.most_bytes) {
    fail(`the image is larger than ${limits.most_bytes / 1e6} MB; scale it down`, true);
    return;
  }
  const mine = new AbortController();
  running = mine;
  if (!again) {
    at("said").textContent = "Searching …";
    for (const id of ["hits", "old-hits"]) {
      at(id).classList.add("stale");
      at(id).setAttribute("aria-busy", "true");
    }
  }
  try {
    const found = await get(...request(mine.signal));
    show("problem", "");
    at("again").hidden = true;
    describe(found);
    list(found);
    if (found.commit !== limits.commit) {
      Object.assign(limits, { commit: found.commit, old: found.old });
      judge();
    }
  } catch (error) {
    if (mine !== running) return;
    if (!error.away) fail(error.message, error.refused);
    else if (!again) fail(`${error.message}; trying again …`, false);
    if (error.away) repeating = setTimeout(search, PAUSE, true);
  }
  if (mine === running) running = null;
}

function request(signal) {
  const address = `search?top=${at("top").value}&old=1`;
  if (!query.file) return [`${address}&id=${encodeURIComponent(query.id)}`, { signal }];
  return [address, { method: "POST", body: query.file, headers: { "Content-Type": "application/octet-stream" }, signal }];
}

/* Scroll to an element unless it and a little below it can be seen. */
function reveal(id) {
  const place = at(id).getBoundingClientRect();
  if (place.top < 0 || place.bottom > 0.7 * innerHeight) at(id).scrollIntoView();
}

/* Whoever was refused would be refused again. */
function fail(message, refused) {
  show("problem", sentence(message));
  at("said").textContent = "Not searched.";
  at("again").hidden = Boolean(refused);
  at("columns").hidden = true;
  show("legend", "");
  fill("hits", []);
  fill("old-hits", []);
  reveal("problem");
}

function fill(id, hits) {
  at(id).replaceChildren(...hits);
  at(id).classList.remove("stale");
  at(id).removeAttribute("aria-busy");
}

function list(found) {
  const label = found.query ? found.query.label : "";
  const old = found.old.hits;
  const hits = (count) => `${count} ${count === 1 ? "hit" : "hits"}`;
  const time = found.seconds < 1 ? `${Math.ceil(1000 * found.seconds)} ms` : `${found.seconds.toFixed(1)} s`;
  at("said").textContent = `${hits(found.hits.length)}${old ? ` by the new model, ${old.length} by the old one,` : ""} in ${time}`;
  head("new", old ? "New model " : "Hits by ", found, " searches all images, whichever model indexed them.", found.hits, label);
  fill("hits", found.hits.map((hit) => card(hit, label)));
  at("columns").hidden = false;
  at("by-old").hidden = !old;
  const apart = old ? " Numbers of two models cannot be compared." : "";
  show("legend", `The number at a hit is the cosine of its vector and the query's.${apart}`);
  if (old) {
    const those = ` searches the ${number(found.old.items)} images that it or a model before it indexed, as before the upgrade.`;
    head("old", "Old model ", found.old, those, old, label);
  }
  fill("old-hits", (old || []).map((hit) => card(hit, label)));
  reveal("query");
}

/* Write the title of a column, and how many of its hits have the label of the query. */
function head(id, title, model, text, hits, label) {
  at(`${id}-title`).replaceChildren(title, phi(model.task));
  const same = hits.filter((hit) => hit.label === label).length;
  const share = label ? [node("span", "share", `${same} of ${hits.length} are “${label}”.`), " "] : [];
  at(`${id}-text`).replaceChildren(...share, phi(model.task), text);
}

function card(hit, label) {
  const by = node("span", "by", phi(hit.task));
  by.title = `its vector is by ${hit.model}`;
  const score = node("span", "score", hit.score.toFixed(3));
  score.title = "cosine of the query's vector and the image's";
  const same = label && hit.label === label;
  const made = node(
    "li",
    label ? (same ? "same" : "other") : "",
    node("div", "picture", picture(hit.image, hit.id)),
    node("p", "line", node("span", "rank", `${hit.rank}.`), score),
    node("p", "line", node("span", "label", hit.label || "–"), by),
  );
  if (label) made.append(node("p", "mark", same ? "same label" : "other label"));
  const own = hit.label && hit.id.startsWith(`${hit.label}/`);
  made.append(node("p", "id", own ? hit.id.slice(hit.label.length + 1) : hit.id));
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

function dragging(over) {
  at("drop").classList.toggle("over", over);
  at("veil").hidden = !over;
}

at("file").addEventListener("change", () => {
  choose(at("file").files, "");
  at("file").value = "";
});
at("top").addEventListener("change", () => query && search());
at("again").addEventListener("click", () => search());
for (const kind of ["load", "error"]) {
  at("preview").addEventListener(kind, () => {
    const { naturalWidth: width, naturalHeight: height } = at("preview");
    at("preview").hidden = kind === "error";
    at("unseen").hidden = kind === "load";
    at("preview").classList.toggle("small", width < 96);
    if (kind === "load" && query.file) at("size").textContent = `${width} × ${height} pixels, ${bytes(query.file.size)}`;
  });
}
document.addEventListener("paste", (event) => choose(event.clipboardData.files, "There is no image in the clipboard."));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  dragging(true);
});
document.addEventListener("dragleave", (event) => event.relatedTarget || dragging(false));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  dragging(false);
  const { items, files } = event.dataTransfer;
  const folder = items.length > 0 && items[0].webkitGetAsEntry && items[0].webkitGetAsEntry()?.isDirectory;
  choose(folder ? [] : files, folder ? "That is a folder. Drop one image." : "That is no file. Drop an image file.");
});
prepare();
