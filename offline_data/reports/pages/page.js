"use strict";
// Draws the charts of a page from the JSON in it, sorts and filters tables, and loads parts of a page
// that its server sends apart.

const LEFT = 50, RIGHT = 10, TOP = 8, BOTTOM = 34, LETTER = 6.4, LEAST = 13;

function shape(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

// A number as `document.values.number` formats it.
function brief(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (size === Infinity) return value > 0 ? "inf" : "-inf";
  if (size < 1e6 && (size >= 1000 || Number.isInteger(value))) return (value === 0 ? 0 : value).toLocaleString("en", { maximumFractionDigits: 0, roundingMode: "halfEven" });
  if (size >= 1e6 || size < 1e-4) return value.toExponential(3).replace(/\.?0*e/, "e").replace(/e([+-])(\d)$/, "e$10$2");
  return String(Number(value.toPrecision(4)));
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const tick = value => Math.abs(value) >= 1e4 && Math.abs(value) < 1e12 ? compact.format(value) : brief(value);

function ticks(low, high, most) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => power * factor >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
    found.push(Number((at * step).toPrecision(12)));
  return found.length > 1 || most > 5 ? found : ticks(low, high, most + 1); // one has no scale
}

// Texts of ticks, with as many digits as tell them apart.
function tickTexts(values, write) {
  for (let digits = 0; digits < 17; digits++) {
    const texts = values.map(value => digits < 4 ? write(value) : String(Number(value.toPrecision(digits))));
    if (new Set(texts).size === texts.length || digits === 16) return texts;
  }
}

// Names cut to a number of letters: at the end or, where that makes two alike, at the beginning.
function cutNames(names, most) {
  for (const cut of [name => `${name.slice(0, most - 1)}…`, name => `…${name.slice(1 - most)}`]) {
    const found = names.map(name => name.length > most ? cut(name) : name);
    if (new Set(found).size === found.length) return found;
  }
  return names.map((_, i) => `${i}`);
}

function extent(values, least, greatest) {
  let low = least ?? Infinity, high = greatest ?? -Infinity;
  for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(low <= high)) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * .5, high + (Math.abs(high) || 1) * .5];
  return [low, high];
}

// Cividis: its colours grow in brightness, also for people who do not see red or green.
const HEAT = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];

class Chart {
  constructor(plot) {
    this.plot = plot;
    this.data = JSON.parse(plot.querySelector("script").textContent);
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    plot.append(this.tip);
    new ResizeObserver(() => this.draw()).observe(plot);
  }

  draw() {
    if (this.data.kind === "heat") this.plot.style.height = `${Math.min(460, Math.max(130, this.data.labels.length * 12 + TOP + BOTTOM))}px`;
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (!width || width === this.width) return;
    this.width = width;
    this.height = height;
    this.svg?.remove();
    this.svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "img", "aria-label": this.data.title });
    this.plot.prepend(this.svg);
    this.places = [];
    this[this.data.kind]();
    this.cursor = shape("line", { y1: TOP, y2: height - BOTTOM, class: "cursor", visibility: "hidden" }, this.svg);
    this.svg.addEventListener("pointermove", event => {
      const box = this.svg.getBoundingClientRect();
      this.height_at = event.clientY - box.top;
      this.point(this.nearest(event.clientX - box.left));
    });
    this.svg.addEventListener("pointerleave", () => this.point(-1));
    this.svg.addEventListener("blur", () => this.point(-1));
    this.svg.addEventListener("keydown", event => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way) return;
      event.preventDefault();
      event.stopPropagation();
      this.point(Math.min(this.places.length - 1, Math.max(0, (this.shown ?? -1) + way)));
    });
  }

  // Scales from data to pixels, axes with ticks and their labels.
  frame(xs, ys, { labels, whole, left = LEFT, after = RIGHT } = {}) {
    const right = this.width - after, floor = this.height - BOTTOM;
    this.x = value => left + (value - xs[0]) / (xs[1] - xs[0] || 1) * (right - left);
    this.y = value => floor - (value - ys[0]) / (ys[1] - ys[0] || 1) * (floor - TOP);
    shape("line", { x1: left, x2: right, y1: floor, y2: floor, class: "axis" }, this.svg);
    const rows = this.data.kind === "heat" ? [] : ticks(ys[0], ys[1], this.height > 170 ? 5 : 3);
    const kept = rows.filter(value => !whole || Number.isInteger(value));
    const texts = this.data.share ? kept.map(value => `${brief(value * 100)}%`) : tickTexts(kept, tick);
    kept.forEach((value, i) => {
      shape("line", { x1: left, x2: right, y1: this.y(value), y2: this.y(value), class: "axis" }, this.svg);
      this.label(left - 5, this.y(value) + 4, texts[i], "end");
    });
    const room = Math.max(2, Math.floor((right - left) / 62));
    if (labels) {
      const every = Math.ceil(labels.length / room), cut = cutNames(labels, Math.max(9, Math.floor((right - left) / labels.length / LETTER) - 1));
      cut.forEach((name, i) => { if (i % every === 0) this.label(this.x(i + .5), floor + 14, name); });
    } else {
      const found = ticks(xs[0], xs[1], room).filter(value => this.data.x !== "step" || Number.isInteger(value));
      tickTexts(found, tick).forEach((name, i) => this.label(this.x(found[i]), floor + 14, name));
    }
    this.label((left + right) / 2, floor + 29, this.data.x || "");
    if (this.data.y && this.height > 170) {
      const middle = (TOP + floor) / 2, at = { x: 0, y: 0, "text-anchor": "middle", transform: `translate(9 ${middle}) rotate(-90)` };
      shape("text", at, this.svg).textContent = this.data.y;
    }
  }

  label(x, y, content, anchor = "middle") {
    const made = shape("text", { x, y, "text-anchor": anchor }, this.svg);
    made.textContent = content;
    const over = anchor === "middle" ? x + made.getComputedTextLength() / 2 - this.width : 0;
    if (over > 0) made.setAttribute("x", x - over);
  }

  bars() {
    const { series, labels, share } = this.data;
    const edges = this.data.edges || labels.map((_, i) => i).concat(labels.length);
    const [, high] = extent(series.flatMap(one => one.values), 0);
    this.frame([edges[0], edges[edges.length - 1]], [0, high || 1], { labels, whole: !share });
    const count = edges.length - 1, several = series.length > 1, zero = this.y(0);
    series.forEach((one, n) => {
      let path = several ? `M${this.x(edges[0])},${zero}` : "";
      one.values.forEach((value, i) => {
        const gap = labels ? Math.min(6, (this.x(edges[i + 1]) - this.x(edges[i])) * .12) : several ? 0 : .5;
        const from = this.x(edges[i]) + gap, to = Math.max(from + 1, this.x(edges[i + 1]) - gap);
        const top = value > 0 ? Math.min(this.y(value), zero - 1) : zero;
        if (!several && !(value > 0)) return;
        path += several ? `L${from},${top}L${to},${top}` : `M${from},${zero}V${top}H${to}V${zero}Z`;
      });
      if (several) path += `L${this.x(edges[count])},${zero}Z`;
      const colour = several ? `overlay f${n % 6 + 1} l${n % 6 + 1}` : "f1";
      shape("path", { d: path, class: colour }, this.svg);
    });
    const totals = series.map(one => one.values.reduce((sum, value) => sum + value, 0) || 1);
    for (let i = 0; i < count; i++) {
      const where = labels ? labels[i] : `${brief(edges[i])} to ${brief(edges[i + 1])}`;
      const lines = series.map((one, n) => {
        const part = `${(100 * one.values[i] / totals[n]).toFixed(1)} %`;
        return share ? `${one.name}: ${part}` : `${this.data.y}: ${one.values[i].toLocaleString("en")} (${part})`;
      });
      this.places.push({ x: (this.x(edges[i]) + this.x(edges[i + 1])) / 2, text: [where, ...lines].join("\n") });
    }
  }

  lines() {
    const { series, steps, marks } = this.data, several = series.length > 1;
    const names = cutNames(series.map(one => one.name), 16);
    const after = several ? Math.min(this.width * .34, Math.max(...names.map(name => name.length)) * LETTER + 24) : RIGHT;
    this.frame(steps.length > 1 ? [steps[0], steps[steps.length - 1]] : extent(steps), extent(series.flatMap(one => one.values)), { after });
    const ends = [];
    series.forEach((one, n) => {
      let path = "", pen = "M";
      one.values.forEach((value, i) => {
        if (value !== null) path += `${pen}${this.x(steps[i]).toFixed(1)},${this.y(value).toFixed(1)}`;
        pen = value === null ? "M" : "L";
      });
      shape("path", { d: path, class: `line l${n % 6 + 1}` }, this.svg);
      const last = one.values.filter(value => value !== null).pop();
      ends.push({ n, name: names[n], y: last === undefined ? TOP : this.y(last) });
      if (steps.length === 1 && one.values[0] !== null)
        shape("circle", { cx: this.x(steps[0]), cy: this.y(one.values[0]), r: 3, class: `f${n % 6 + 1}` }, this.svg);
    });
    if (several) {
      ends.sort((a, b) => a.y - b.y);
      ends.forEach((one, i) => { one.at = Math.max(one.y, i ? ends[i - 1].at + LEAST : TOP + 4); });
      let floor = this.height - BOTTOM;
      for (const one of [...ends].reverse()) { one.at = Math.min(one.at, floor); floor = one.at - LEAST; }
      const x = this.x(steps[steps.length - 1]);
      for (const one of ends) {
        shape("path", { d: `M${x + 1},${one.y}L${x + 8},${one.at}H${x + 16}`, class: `line l${one.n % 6 + 1}` }, this.svg);
        this.label(x + 19, one.at + 4, one.name, "start");
      }
    }
    for (const [step, name] of marks || []) {
      const at = shape("line", { x1: this.x(step), x2: this.x(step), y1: TOP, y2: this.height - BOTTOM, class: "mark" }, this.svg);
      shape("title", {}, at).textContent = name;
    }
    steps.forEach((step, i) => {
      const found = series.map(one => `${one.name}: ${brief(one.values[i])}`);
      this.places.push({ x: this.x(step), text: [`${this.data.x} ${step}`, ...found].join("\n") });
    });
  }

  heat() {
    const { labels, steps, low, high } = this.data, count = labels.length, columns = steps.length;
    const codes = Uint8Array.from(atob(this.data.codes), char => char.charCodeAt(0));
    const names = cutNames(labels, 17), floor = this.height - BOTTOM, row = (floor - TOP) / count;
    const left = Math.min(this.width * .34, Math.max(LEFT, Math.max(...names.map(name => name.length)) * LETTER + 10));
    this.frame([steps[0], steps[columns - 1]], [0, count], { left });
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [columns, count];
    const image = new ImageData(columns, count);
    codes.forEach((code, i) => {
      const part = code / 254 * (HEAT.length - 1), at = Math.min(HEAT.length - 2, Math.floor(part));
      for (let c = 0; c < 3; c++) image.data[4 * i + c] = HEAT[at][c] + (HEAT[at + 1][c] - HEAT[at][c]) * (part - at);
      image.data[4 * i + 3] = code === 255 ? 0 : 255;
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
    const box = { x: left, y: TOP, width: this.width - RIGHT - left, height: floor - TOP, preserveAspectRatio: "none", class: "cells" };
    shape("image", { ...box, href: canvas.toDataURL() }, this.svg);
    const every = Math.ceil(LEAST / row);
    names.forEach((name, i) => { if (i % every === 0) this.label(left - 5, TOP + (i + .5) * row + 4, name, "end"); });
    steps.forEach((step, i) => this.places.push({ x: this.x(step), get text() { return this.read(); }, read: () => {
      const n = Math.min(count - 1, Math.max(0, Math.floor(((this.height_at ?? TOP) - TOP) / row))), code = codes[n * columns + i];
      const value = code === 255 ? null : low[n] + (high[n] - low[n]) * code / 254;
      return `${this.data.x} ${step}\n${labels[n]}: ${value === null ? "none" : `about ${brief(Number(value.toPrecision(3)))}`}`;
    } }));
  }

  ranges() {
    const { labels, levels } = this.data;
    const [first, last] = [levels[0], levels[levels.length - 1]];
    this.frame([0, labels.length], extent([...first.values, ...last.values]), { labels });
    labels.forEach((name, i) => {
      const at = levels.map(one => one.values[i]), wide = Math.min(16, (this.x(1) - this.x(0)) * .6);
      const lines = levels.map((one, n) => `${one.name}: ${brief(at[n])}`);
      this.places.push({ x: this.x(i + .5), text: [name, ...lines].join("\n") });
      if (at.includes(null)) return;
      const [low, from, middle, to, high] = at.map(value => this.y(value)), x = this.x(i + .5);
      shape("line", { x1: x, x2: x, y1: low, y2: high, class: "l1" }, this.svg);
      shape("rect", { x: x - wide / 2, width: wide, y: to, height: Math.max(1, from - to), class: "f1", "fill-opacity": .45 }, this.svg);
      shape("line", { x1: x - wide / 2, x2: x + wide / 2, y1: middle, y2: middle, class: "l1", "stroke-width": 2 }, this.svg);
    });
  }

  nearest(x) {
    let best = -1, least = Infinity;
    this.places.forEach((place, i) => {
      const away = Math.abs(place.x - x);
      if (away < least) [best, least] = [i, away];
    });
    return best;
  }

  point(number) {
    const place = this.places[number];
    this.shown = number;
    this.tip.hidden = !place;
    this.cursor.setAttribute("visibility", place ? "visible" : "hidden");
    if (!place) return;
    this.cursor.setAttribute("x1", place.x);
    this.cursor.setAttribute("x2", place.x);
    this.tip.textContent = place.text;
    const wide = this.tip.offsetWidth, right = place.x + 10 + wide <= this.width;
    this.tip.style.left = `${Math.max(0, right ? place.x + 10 : place.x - 10 - wide)}px`;
  }
}

const UNITS = { B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, TiB: 1099511627776 };

// Value of a cell to sort by: a number with its unit, or text.
function sortKey(cell) {
  const found = /^(-?[\d.,]+(?:e[+-]?\d+)?)(?: ([KMGT]?i?B))?( %)?$/.exec(cell.textContent.trim());
  return found ? Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1) : cell.textContent;
}

function sortable(table) {
  table.querySelectorAll("thead th").forEach((head, place) => {
    if (head.querySelector(".hidden")) return; // pictures have no order
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", body = table.tBodies[0];
      for (const other of table.querySelectorAll("thead th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map(row => [sortKey(row.cells[place]), row]);
      rows.sort(([a], [b]) => (typeof a === typeof b ? (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true })) : typeof a === "number" ? -1 : 1) * (down ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
      page(table, 0);
    });
  });
}

const PAGE = 50, search = document.getElementById("search");

// Show rows of a table that match the filter above it, 50 at a time.
function page(table, first) {
  const filter = table.closest("#datasets") && search;
  const words = (filter?.value ?? "").toLowerCase().split(/\s+/);
  const rows = [...table.tBodies[0].rows];
  const found = rows.filter(row => words.every(word => row.textContent.toLowerCase().includes(word)));
  for (const row of rows) row.hidden = true;
  for (const row of found.slice(first, first + PAGE)) row.hidden = false;
  let bar = table.parentElement.nextElementSibling;
  if (!bar?.matches(".pager")) {
    if (rows.length <= PAGE) return;
    bar = document.createElement("div");
    bar.className = "pages pager";
    table.parentElement.after(bar);
  }
  const said = document.createElement("span");
  said.textContent = found.length ? `${first + 1} to ${Math.min(first + PAGE, found.length)} of ${found.length}` : "none";
  said.setAttribute("role", "status");
  bar.replaceChildren(said, ...[["Previous", first - PAGE], ["Next", first + PAGE]].filter(([, at]) => at >= 0 && at < found.length).map(([name, at]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.addEventListener("click", () => page(table, at));
    return button;
  }));
}

function start(part) {
  for (const plot of part.querySelectorAll(".plot")) plot.chart ??= new Chart(plot);
  for (const table of part.querySelectorAll(":is(section, .sheet) table")) { sortable(table); page(table, 0); }
  for (const place of part.querySelectorAll("[data-load]")) load(place);
  for (const button of part.querySelectorAll("button[data-ask]"))
    button.addEventListener("click", () => {
      button.disabled = true;
      button.parentElement.dataset.load = button.dataset.ask;
      load(button.parentElement);
    });
}

async function load(place) {
  const address = place.dataset.load;
  place.textContent = "Reading the dataset …";
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(address);
    const part = document.createElement("template");
    part.innerHTML = await answer.text();
    if (place.dataset.load !== address) return; // something else was asked for meanwhile
    place.replaceChildren(part.content);
  } catch {
    place.textContent = "The server does not answer: is it still running?";
  }
  place.removeAttribute("aria-busy");
  start(place);
}

const root = document.documentElement, kept = "offline-data-theme";
try { root.dataset.theme = localStorage.getItem(kept) ?? ""; } catch { /* a page may have no storage */ }
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem(kept, root.dataset.theme); } catch { /* then it holds for this page */ }
});
let typed;
search?.addEventListener("input", () => {
  const table = document.querySelector("#datasets table"), place = document.getElementById("elsewhere"), words = search.value.trim();
  if (table) page(table, 0);
  if (!place) return;
  clearTimeout(typed);
  place.hidden = !words;
  if (words) typed = setTimeout(() => { place.dataset.load = search.dataset.search + encodeURIComponent(words); load(place); }, 150);
});
document.addEventListener("click", async event => {
  const text = event.target.closest?.("[data-copy]")?.dataset.copy;
  if (!text) return;
  try { await navigator.clipboard.writeText(text); event.target.textContent = "Copied"; } catch { getSelection().selectAllChildren(event.target.parentElement.querySelector("code")); }
});
// On the list of datasets: / searches, j and k move.
document.addEventListener("keydown", event => {
  if (!search || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  const links = [...document.querySelectorAll("#datasets tr:not([hidden]) a")], at = links.indexOf(document.activeElement);
  if (event.key === "/") search.focus();
  else if (event.key === "j") links[Math.min(links.length - 1, at + 1)]?.focus();
  else if (event.key === "k") links[Math.max(0, at - 1)]?.focus();
  else return;
  event.preventDefault();
});
start(document);
