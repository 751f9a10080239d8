"use strict";
// The gallery of a report: filters, sorting, pages, and one case in detail. All data is in the page; nothing is loaded.

const PAGE = 24; // cases on one page of the gallery
const SHEETS = 64; // decoded sprite sheets that are kept
const FAINT = 0.04; // changes below this share of the range are noise where thumbnails are lossy
const OUTCOMES = ["failures", "not failed", "seed not viable"];
const DARKER = [38, 132, 214], LIGHTER = [238, 122, 12]; // a pair that colour-blind eyes tell apart

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const suites = data.suites;
const titles = Object.fromEntries(data.columns.map((column) => [column.key, column]));

// Every case is a pair: its suite, and its place in the suite's columns and on its sheets.
const perSuite = suites.map((suite, s) => suite.columns.outcome.map((_, place) => ({ suite: s, place })));
const cases = perSuite.flat();
const value = (item, key) => {
  const column = suites[item.suite].columns[key];
  return column === undefined ? null : column[item.place];
};

// --- words --------------------------------------------------------------------------------------------------------

function percent(share) {
  if (share === 0 || share === 1) return 100 * share + "%";
  if (share < 0.0001) return "<0.01%";
  if (share > 0.999) return ">99.9%";
  return (100 * share).toFixed(share < 0.01 ? 2 : 1) + "%";
}

function say(key, x) {
  if (x === null) return "–";
  const { kind, unit } = titles[key];
  if (kind === "class") return data.classes[x] ?? String(x);
  if (kind === "yes") return x ? "yes" : "no";
  if (kind === "share") return percent(x);
  const text = Number.isInteger(x) ? x.toLocaleString("en") : x.toPrecision(3);
  return unit ? text + " " + (x === 1 ? unit.replace(/s$/, "") : unit) : text;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const name = (text) => element("bdi", { textContent: text });
const read = (item) => {
  const [from, to] = ["label", "predicted"].map((key) => name(data.names[value(item, key)] ?? "–"));
  return [from, " ", element("span", { className: "answer" }, "→\u00a0", to)];
};

function describe(item) {
  const where = suites.length > 1 ? ` of ${suites[item.suite].name}` : "";
  const [label, predicted] = [say("label", value(item, "label")), say("predicted", value(item, "predicted"))];
  return `Case ${value(item, "id")}${where}: ${label} read as ${predicted}, P_t ${say("p_true", value(item, "p_true"))}`;
}

// --- pictures -----------------------------------------------------------------------------------------------------

const decoded = new Map(); // sheet → promise of its bitmap, the least recently used first

function sheet(key) {
  const known = decoded.get(key) ?? decode($("sheet-" + key).textContent);
  decoded.delete(key);
  decoded.set(key, known);
  if (decoded.size > SHEETS) decoded.delete(decoded.keys().next().value);
  return known;
}

function decode(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type: "image/webp" }));
}

// Draws the wanted parts ("seed", "found", "difference") side by side; parts that the suite lacks are left out.
async function draw(canvas, item, wanted, gap = 1) {
  const how = suites[item.suite].sprites;
  const parts = how.tiles === 2 ? wanted : ["found"];
  const { width, height } = how;
  canvas.width = parts.length * width + (parts.length - 1) * gap;
  canvas.height = height;
  canvas.classList.toggle("pixels", Math.max(width, height) <= 64);
  const picture = await sheet(`${item.suite}-${Math.floor(item.place / how.perSheet)}`);
  const pen = canvas.getContext("2d", { willReadFrequently: parts.includes("difference") });
  const first = (item.place % how.perSheet) * how.tiles;
  const copy = (tile, x) => {
    const at = first + tile;
    const [column, row] = [at % how.columns, Math.floor(at / how.columns)];
    pen.drawImage(picture, column * width, row * height, width, height, x, 0, width, height);
    return pen.getImageData(x, 0, width, height);
  };
  parts.forEach((part, i) => {
    const x = i * (width + gap);
    if (part === "seed") copy(0, x);
    else if (part === "found") copy(how.tiles - 1, x);
    else pen.putImageData(difference(copy(0, x), copy(1, x), how.exact ? 0 : FAINT), x, 0);
  });
}

// Largest change of a pixel over its channels; its colour tells the direction, its opacity the square root of its size.
function difference(seed, found, faint) {
  const out = new ImageData(seed.width, seed.height);
  for (let i = 0; i < out.data.length; i += 4) {
    const d = [0, 1, 2].map((c) => (found.data[i + c] - seed.data[i + c]) / 255);
    const size = Math.max(...d.map(Math.abs));
    if (size <= faint) continue;
    out.data.set(d[0] + d[1] + d[2] < 0 ? DARKER : LIGHTER, i);
    out.data[i + 3] = 255 * Math.sqrt(size);
  }
  return out;
}

// --- filters and sorting ------------------------------------------------------------------------------------------

const form = $("filters");
const regions = suites.flatMap((suite, s) => suite.regions.map((region, r) => ({ ...region, suite: s, key: `${s}:${r}` })));
const facets = {
  suite: { all: "all", options: suites.map((suite, s) => [s, suite.name]), of: (item) => [item.suite] },
  outcome: { all: "all cases", options: OUTCOMES.map((text, i) => [i, text]), of: (item) => [value(item, "outcome")] },
  label: { all: "any", options: data.classes.map((text, k) => [k, text]), of: (item) => [value(item, "label")] },
  predicted: { all: "any", options: data.classes.map((text, k) => [k, text]), of: (item) => [value(item, "predicted")] },
  region: { all: "any", options: regions.map((region) => [region.key, title(region)]), of: regionsOf },
};
const inForm = Object.keys(facets).filter((key) => form.elements[key]);
let chosen = []; // cases that pass the filters, in order
let page = 0;

function title(region) {
  const where = suites.length > 1 ? `${suites[region.suite].name}: ` : "";
  return where + (region.scope === "all" ? `region ${region.number}` : `${data.classes[region.label]}, region ${region.number}`);
}

function regionsOf(item) {
  const [all, own, label] = ["cluster", "class_cluster", "label"].map((key) => value(item, key));
  const inside = (r) => (r.scope === "all" ? r.number === all : r.number === own && r.label === label);
  return regions.filter((r) => r.suite === item.suite && inside(r)).map((r) => r.key);
}

function setUp() {
  for (const key of inForm) {
    const options = [["", facets[key].all], ...facets[key].options];
    form.elements[key].append(...options.map(([v, text]) => element("option", { value: v, textContent: text })));
  }
  for (const item of cases) item.facets = Object.fromEntries(inForm.map((key) => [key, facets[key].of(item).map(String)]));
  const there = data.columns.filter(({ key }) => suites.some((suite) => suite.columns[key]));
  form.elements.sort.append(...there.map(({ key, title }) => element("option", { value: key, textContent: title })));
  reset();
}

function reset() {
  for (const key of inForm) form.elements[key].value = "";
  const failed = cases.some((item) => value(item, "outcome") === 0);
  Object.assign(form.elements.outcome, { value: failed ? "0" : "" });
  form.elements.sort.value = "p_true";
  form.elements.order.value = "up";
}

function apply() {
  const wanted = inForm.map((key) => [key, form.elements[key].value]).filter(([, v]) => v !== "");
  const passes = (item, except) => wanted.every(([key, v]) => key === except || item.facets[key].includes(v));
  chosen = cases.filter((item) => passes(item));
  for (const key of inForm) count(key, cases.filter((item) => passes(item, key)));
  sort(form.elements.sort.value, form.elements.order.value === "down");
  page = 0;
  return show();
}

// Says behind every choice how many cases it would leave.
function count(key, rest) {
  const found = new Map();
  for (const item of rest) for (const v of item.facets[key]) found.set(v, (found.get(v) ?? 0) + 1);
  const [all, ...options] = form.elements[key].options;
  all.textContent = `${facets[key].all} (${rest.length.toLocaleString("en")})`;
  options.forEach((option, i) => {
    const n = found.get(option.value) ?? 0;
    option.textContent = `${facets[key].options[i][1]} (${n.toLocaleString("en")})`;
    option.disabled = n === 0 && !option.selected;
  });
}

function sort(key, down) {
  const sign = down ? -1 : 1;
  const keyed = chosen.map((item) => [value(item, key), item]);
  keyed.sort(([a], [b]) => (a === null) - (b === null) || sign * (a - b)); // what has no value comes last
  chosen = keyed.map(([, item]) => item);
}

// --- gallery ------------------------------------------------------------------------------------------------------

async function show() {
  const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
  const shown = chosen.slice(page * PAGE, (page + 1) * PAGE);
  $("count").textContent = `${chosen.length.toLocaleString("en")} of ${cases.length.toLocaleString("en")} cases`;
  $("page").textContent = `Page ${(page + 1).toLocaleString("en")} of ${pages.toLocaleString("en")}`;
  $("previous").disabled = page === 0;
  $("next").disabled = page === pages - 1;
  const cards = shown.map(card);
  $("gallery").replaceChildren(...cards.map((made) => element("li", {}, made)));
  if (!shown.length) $("gallery").append(element("li", { className: "none", textContent: "No case passes these filters." }));
  await Promise.all(cards.map((made, i) => draw(made.firstChild, shown[i], ["seed", "found", "difference"])));
}

function card(item) {
  const key = ["id", "label", "predicted"].includes(form.elements.sort.value) ? "p_true" : form.elements.sort.value;
  const short = titles[key].title.split(",")[0];
  const made = element("button", { type: "button", className: "case" }, element("canvas"));
  made.append(element("span", { className: "read" }, ...read(item)));
  made.append(element("span", { className: "value", textContent: `${short} ${say(key, value(item, key))}` }));
  made.setAttribute("aria-label", describe(item));
  if (value(item, "outcome") === 0) made.classList.add("failed");
  made.addEventListener("click", () => open(item));
  return made;
}

function turn(by) {
  page += by;
  show();
  $("failures").scrollIntoView();
}

async function hydrate() {
  for (const thumb of document.querySelectorAll(".thumb")) {
    const item = perSuite[thumb.dataset.suite][thumb.dataset.place];
    thumb.setAttribute("aria-label", describe(item));
    thumb.title = describe(item);
    thumb.addEventListener("click", () => open(item));
    const parts = thumb.parentElement.classList.contains("showcase") ? ["seed", "found"] : ["found"];
    thumb.lastChild.replaceChildren(...read(item));
    await draw(thumb.firstChild, item, parts);
  }
}

// --- one case -----------------------------------------------------------------------------------------------------

const dialog = $("case");
let current = null;

function open(item) {
  current = item;
  const id = value(item, "id");
  $("case-title").replaceChildren(`Case ${id}: `, ...read(item));
  dialog.classList.toggle("failed", value(item, "outcome") === 0);
  dialog.querySelector(".triptych").replaceChildren(...pictures(item));
  const rows = data.columns.filter(({ key }) => value(item, key) !== null && key !== "id");
  const entries = rows.map(({ key, title }) => [title, say(key, value(item, key))]);
  if (suites.length > 1) entries.unshift(["Suite", suites[item.suite].name]);
  const inside = facets.region.of(item).map((key) => title(regions.find((region) => region.key === key)));
  if (inside.length) entries.push(["Failure region", inside.join("; ")]);
  $("case-values").replaceChildren(...entries.map(([term, text]) =>
    element("div", {}, element("dt", { textContent: term }), element("dd", {}, name(text)))));
  const commands = suites[item.suite].commands;
  $("case-command").textContent = `${commands.export} --ids ${id} --out case-${id}`;
  $("case-suite").textContent = commands.suite ?? "";
  $("case-again").hidden = !commands.suite;
  const at = chosen.indexOf(item);
  $("case-previous").disabled = at <= 0;
  $("case-next").disabled = at < 0 || at === chosen.length - 1;
  if (!dialog.open) dialog.showModal();
}

function pictures(item) {
  const answer = (key) => `read as ${say(key, value(item, key))}`;
  const words = {
    seed: `Seed, ${answer("seed_predicted")}, P_t ${say("seed_p_true", value(item, "seed_p_true"))}`,
    found: `Found, ${answer("predicted")}, P_t ${say("p_true", value(item, "p_true"))}`,
    difference: "Difference: blue darker, orange lighter",
  };
  const parts = suites[item.suite].sprites.tiles === 2 ? Object.keys(words) : ["found"];
  return parts.map((part) => {
    const canvas = element("canvas");
    draw(canvas, item, [part]);
    return element("figure", {}, canvas, element("figcaption", { textContent: words[part] }));
  });
}

function step(by) {
  const next = chosen[chosen.indexOf(current) + by];
  if (chosen.includes(current) && next) open(next);
}

// --- tables, buttons ----------------------------------------------------------------------------------------------

function sortTable(button) {
  const head = button.closest("th");
  const table = head.closest("table");
  const column = [...head.parentElement.children].indexOf(head);
  const down = head.ariaSort !== "descending";
  for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
  head.ariaSort = down ? "descending" : "ascending";
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => (down ? -1 : 1) * (a.cells[column].dataset.value - b.cells[column].dataset.value));
  table.tBodies[0].append(...rows);
}

function filter(wanted) {
  reset();
  for (const [key, v] of Object.entries(wanted)) if (form.elements[key]) form.elements[key].value = v;
  apply();
  $("failures").scrollIntoView();
  $("count").focus();
}

async function copy(button) {
  const code = button.previousElementSibling;
  getSelection().selectAllChildren(code); // where the clipboard is closed to pages, the text is at least selected
  await navigator.clipboard?.writeText(code.textContent).then(() => (button.textContent = "Copied"), () => {});
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function heatCells() {
  for (const cell of document.querySelectorAll('[id^="pair-"]')) {
    const [, suite, label, predicted] = cell.id.split("-");
    const tip = document.createElementNS("http://www.w3.org/2000/svg", "title");
    tip.textContent = `${data.classes[label]} read as ${data.classes[predicted]}: show these failures`;
    cell.append(tip);
    cell.addEventListener("click", () => filter({ suite, label, predicted, outcome: "0" }));
  }
}

function listen() {
  form.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => { event.preventDefault(); reset(); apply(); });
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("case-previous").addEventListener("click", () => step(-1));
  $("case-next").addEventListener("click", () => step(1));
  $("case-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("keydown", (event) => step({ ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  for (const button of document.querySelectorAll(".show")) {
    button.addEventListener("click", () => filter(JSON.parse(button.dataset.filter)));
  }
  for (const button of document.querySelectorAll(".sortable thead button")) button.addEventListener("click", () => sortTable(button));
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () => copy(button));
}

async function start() {
  listen();
  heatCells();
  setUp();
  await apply();
  document.documentElement.dataset.ready = performance.now(); // the gallery can be used; other pictures follow
  await hydrate();
  document.documentElement.dataset.drawn = "true";
}

start();
