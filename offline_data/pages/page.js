"use strict";
// Draws the charts of a page from the JSON in it; loads parts of a page that its server sends apart.

const LEFT = 50, RIGHT = 10, TOP = 8, BOTTOM = 34;

function shape(name, attributes, parent) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

function brief(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en");
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2).replace(/\.?0*e\+?/, "e");
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
  return found;
}

function extent(values, least, greatest) {
  let low = least ?? Infinity, high = greatest ?? -Infinity;
  for (const value of values) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
  if (!(low <= high)) return [0, 1];
  if (low === high) return [low - (Math.abs(low) || 1) * .5, high + (Math.abs(high) || 1) * .5];
  return [low, high];
}

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
      this.point(this.nearest(event.clientX - box.left));
    });
    this.svg.addEventListener("pointerleave", () => this.point(-1));
    this.svg.addEventListener("blur", () => this.point(-1));
    this.svg.addEventListener("keydown", event => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way) return;
      event.preventDefault();
      this.point(Math.min(this.places.length - 1, Math.max(0, (this.shown ?? -1) + way)));
    });
  }

  // Scales from data to pixels, axes with ticks and their labels.
  frame(xs, ys, { labels, whole } = {}) {
    const right = this.width - RIGHT, floor = this.height - BOTTOM;
    this.x = value => LEFT + (value - xs[0]) / (xs[1] - xs[0]) * (right - LEFT);
    this.y = value => floor - (value - ys[0]) / (ys[1] - ys[0]) * (floor - TOP);
    shape("line", { x1: LEFT, x2: right, y1: floor, y2: floor, class: "axis" }, this.svg);
    for (const value of ticks(ys[0], ys[1], this.height > 170 ? 5 : 3)) {
      if (whole && !Number.isInteger(value)) continue;
      shape("line", { x1: LEFT, x2: right, y1: this.y(value), y2: this.y(value), class: "axis" }, this.svg);
      this.label(LEFT - 5, this.y(value) + 4, this.data.share ? `${brief(value * 100)}%` : tick(value), "end");
    }
    const room = Math.max(2, Math.floor((right - LEFT) / 62));
    if (labels) {
      const every = Math.ceil(labels.length / room);
      labels.forEach((name, i) => {
        if (i % every === 0) this.label(this.x(i + .5), floor + 14, name.length > 9 ? `${name.slice(0, 8)}…` : name);
      });
    } else for (const value of ticks(xs[0], xs[1], room)) this.label(this.x(value), floor + 14, tick(value));
    this.label((LEFT + right) / 2, floor + 29, this.data.x || "");
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
    const { series, steps, marks } = this.data;
    const [low, high] = extent(series.flatMap(one => one.values));
    this.frame(extent(steps), [low - (high - low) * .04, high + (high - low) * .04]);
    series.forEach((one, n) => {
      let path = "", pen = "M";
      one.values.forEach((value, i) => {
        if (value !== null) path += `${pen}${this.x(steps[i]).toFixed(1)},${this.y(value).toFixed(1)}`;
        pen = value === null ? "M" : "L";
      });
      shape("path", { d: path, class: `line l${n % 6 + 1}` }, this.svg);
      if (steps.length === 1 && one.values[0] !== null)
        shape("circle", { cx: this.x(steps[0]), cy: this.y(one.values[0]), r: 3, class: `f${n % 6 + 1}` }, this.svg);
    });
    for (const [step, name] of marks || []) {
      const at = shape("line", { x1: this.x(step), x2: this.x(step), y1: TOP, y2: this.height - BOTTOM, class: "mark" }, this.svg);
      shape("title", {}, at).textContent = name;
    }
    steps.forEach((step, i) => {
      const found = series.map(one => `${one.name}: ${brief(one.values[i])}`);
      this.places.push({ x: this.x(step), text: [`${this.data.x} ${step}`, ...found].join("\n") });
    });
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

function start(part) {
  for (const plot of part.querySelectorAll(".plot")) new Chart(plot);
  for (const place of part.querySelectorAll("[data-load]")) load(place);
  for (const button of part.querySelectorAll("button[data-ask]"))
    button.addEventListener("click", () => {
      button.disabled = true;
      button.parentElement.dataset.load = button.dataset.ask;
      load(button.parentElement);
    });
}

async function load(place) {
  place.textContent = "Reading the dataset …";
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(place.dataset.load);
    const part = document.createElement("template");
    part.innerHTML = await answer.text();
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
document.getElementById("search")?.addEventListener("input", event => {
  const words = event.target.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("#datasets tbody tr"))
    row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
});
start(document);
