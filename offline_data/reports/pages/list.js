
// The list of episodes of a viewer: its columns, marks, expressions over them as `filter` reads them,
// and histograms that select.

const SIGN = { good: "✓", bad: "✕", unsure: "?" };
const SHARES = new Set(["idle", "saturated"]);
const ROW = 28; // height of a row of the list in pixels

const one = (query, within = document) => within.querySelector(query);
const all = (query, within = document) => [...within.querySelectorAll(query)];
const many = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function make(name, attributes = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    const flag = typeof value === "boolean" && !key.startsWith("aria-"); // those of ARIA are texts, true and false
    if (value !== null && value !== undefined && !(flag && !value)) made.setAttribute(key, flag ? "" : value);
  }
  made.append(...content);
  return made;
}

// A value as all pages show it: four digits, thousands, yes and no.
function show(value, key) {
  if (value === null || value === undefined || value === "" || Number.isNaN(value)) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return value;
  return SHARES.has(key) ? `${Number((100 * value).toPrecision(3))} %` : brief(value);
}

// A bound of an expression: short, and never on the wrong side of the value that it came from.
function bound(value, up) {
  const power = 10 ** Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value) || 1)));
  return Number(((up ? Math.ceil : Math.floor)(value * power + (up ? -1e-9 : 1e-9)) / power).toPrecision(12));
}

// Index of the last of ascending numbers that is not above a value; 0 if all are.
function lastUpTo(numbers, value) {
  let low = 0, high = numbers.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle; else high = middle;
  }
  return low;
}

// ---------------------------------------------------------------- episodes, and expressions over them

class Episodes {
  constructor(data) {
    this.data = data;
    this.numbers = Array.isArray(data.listed) ? data.listed : Array.from({ length: data.listed }, (_, n) => n);
    this.rows = new Map(Array.isArray(data.listed) ? this.numbers.map((n, row) => [n, row]) : []);
    this.columns = new Map();
    this.add(data.columns);
    this.marks = new Marks(data);
    // A column of the data has its name; marks are then beside it.
    [this.mark, this.note] = ["mark", "note"].map(name => this.columns.has(name) ? `marks.${name}` : name);
  }

  add(columns) {
    for (const column of columns) if (!this.columns.has(column.key)) this.columns.set(column.key, column); // the data's own come first
    const curve = this.columns.get("curve");
    if (curve) curve.values ??= Uint8Array.from(atob(curve.codes), char => char.charCodeAt(0));
  }
  get count() { return this.numbers.length; }
  row(number) { return this.rows.size ? this.rows.get(number) : number < this.count ? number : undefined; }
  has(key) { return key === "number" || key === this.mark || key === this.note || (this.columns.has(key) && key !== "curve" && !this.columns.get(key).shown_only); }

  value(row, key) {
    if (key === "number") return this.numbers[row];
    if (key === this.mark) return this.marks.of(this.numbers[row]).mark;
    if (key === this.note) return this.marks.of(this.numbers[row]).note;
    if (key === "ends") return ["terminated", "truncated"].filter(name => this.columns.get(name)?.values[row]).join(", ");
    const column = this.columns.get(key);
    if (!column) return undefined;
    const value = column.values[row];
    return column.kind === "text" ? column.words[value] : column.kind === "flag" ? Boolean(value) : Number(value ?? NaN); // "Infinity"
  }

  every(key) {
    const first = this.value(0, key);
    for (let row = 1; row < this.count; row++) if (!Object.is(this.value(row, key), first)) return false;
    return true;
  }

  // Names of the columns in which an episode is an outlier.
  outliers(row) {
    const column = this.columns.get("outliers");
    return column ? column.names.filter((_, place) => column.marked[row] >> place & 1) : [];
  }
}

const AGGREGATES = {
  min: values => values.reduce((a, b) => Math.min(a, b)), max: values => values.reduce((a, b) => Math.max(a, b)),
  mean: values => values.reduce((a, b) => a + b, 0) / values.length,
  percentile: (values, share) => {
    const sorted = Float64Array.from(values).sort(), at = (sorted.length - 1) * share / 100, low = Math.floor(at);
    return sorted[low] + (sorted[Math.ceil(at)] - sorted[low]) * (at - low);
  },
};
const TOKEN = /\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([A-Za-z_]\w*(?:\.\w+)*)|(<=|>=|==|!=|[-+*/%<>()[\],]))/y;

// A condition on episodes, read as `offline-data filter` reads it.
class Expression {
  constructor(text, episodes) {
    this.episodes = episodes;
    this.tokens = [];
    TOKEN.lastIndex = 0;
    for (let end = 0; end < text.trimEnd().length; end = TOKEN.lastIndex) {
      TOKEN.lastIndex = end;
      const found = TOKEN.exec(text);
      if (!found) throw Error(`not understood: ${text.slice(end).trim().slice(0, 20)}`);
      const kind = ["number", "text", "word", "sign"][found.slice(1).findIndex(part => part !== undefined)];
      this.tokens.push({ kind, text: found[0].trim() });
    }
    this.at = 0;
    this.fields = 0;
    const holds = this.disjunction();
    if (this.at < this.tokens.length) throw Error(`unexpected ${this.next}`);
    if (!this.fields) throw Error("it names no field of the episodes");
    this.test = row => this.flag(holds(row));
  }

  get next() { return this.tokens[this.at]?.text; }
  take(...texts) { return texts.includes(this.next) && this.tokens[this.at].kind !== "text" ? this.tokens[this.at++].text : null; }
  expect(text) { if (!this.take(text)) throw Error(`expected ${text}${this.next ? ` before ${this.next}` : " at the end"}`); }
  flag(value) { if (typeof value !== "boolean") throw Error("a value stands where a condition is expected"); return value; }
  number(value) {
    if (typeof value === "string" || value === null) throw Error("text stands where a number is expected");
    return Number(value);
  }

  joined(part, word, join) {
    let left = part.call(this);
    while (this.take(word)) { const a = left, b = part.call(this); left = row => join(this.flag(a(row)), this.flag(b(row))); }
    return left;
  }
  disjunction() { return this.joined(this.conjunction, "or", (a, b) => a || b); }
  conjunction() { return this.joined(this.negation, "and", (a, b) => a && b); }
  negation() {
    if (!this.take("not")) return this.comparison();
    const inner = this.negation();
    return row => !this.flag(inner(row));
  }

  comparison() {
    const first = this.sum(), links = [];
    let left = first;
    for (;;) {
      const before = this.at, not = this.take("not"), sign = not ? this.take("in") : this.take("<", "<=", ">", ">=", "==", "!=", "in");
      if (!sign) { this.at = before; break; }
      if (sign === "in") {
        const among = this.list().map(each => this.equal(left, each));
        links.push(row => among.some(each => each(row)) !== Boolean(not));
        break;
      }
      const a = left, b = this.sum(), equal = this.equal(a, b);
      links.push({
        "<": row => this.number(a(row)) < this.number(b(row)), "<=": row => this.number(a(row)) <= this.number(b(row)),
        ">": row => this.number(a(row)) > this.number(b(row)), ">=": row => this.number(a(row)) >= this.number(b(row)),
        "==": equal, "!=": row => !equal(row),
      }[sign]);
      left = b;
    }
    return links.length ? row => links.every(link => link(row)) : first;
  }

  list() {
    const close = this.take("[") ? "]" : (this.expect("("), ")"), found = [];
    while (this.next !== close) { found.push(this.sum()); if (!this.take(",")) break; }
    this.expect(close);
    return found;
  }

  equal(left, right) {
    return row => {
      const a = left(row), b = right(row), [text, other] = [a, b].map(value => typeof value === "string" || value === null);
      if (text !== other) throw Error("text is compared with a number");
      if (text && !left.quoted && !right.quoted) throw Error("two fields of text are compared");
      return text ? a === b : Number(a) === Number(b);
    };
  }

  arithmetic(part, signs) {
    let left = part.call(this);
    for (let sign = this.take(...Object.keys(signs)); sign; sign = this.take(...Object.keys(signs))) {
      const act = signs[sign], a = left, b = part.call(this);
      left = row => act(this.number(a(row)), this.number(b(row)));
    }
    return left;
  }
  sum() { return this.arithmetic(this.product, { "+": (a, b) => a + b, "-": (a, b) => a - b }); }
  product() { return this.arithmetic(this.atom, { "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => (a % b + b) % b }); }

  atom() {
    const token = this.tokens[this.at++];
    if (!token) throw Error("it ends early");
    const { kind, text } = token;
    if (kind === "number") return () => Number(text);
    if (kind === "text") { const value = text.slice(1, -1).replace(/\\(.)/g, "$1"); return Object.assign(() => value, { quoted: true }); }
    if (text === "(") { const inner = this.disjunction(); this.expect(")"); return inner; }
    if (text === "-" || text === "+") { const inner = this.atom(); return row => (text === "-" ? -1 : 1) * this.number(inner(row)); }
    if (text === "True" || text === "False") return () => text === "True";
    if (kind !== "word") throw Error(`unexpected ${text}`);
    if (text in AGGREGATES && this.take("(")) return this.aggregate(text);
    if (!this.episodes.has(text)) throw Error(`episodes have no field ${text}`);
    this.fields++;
    return row => this.episodes.value(row, text);
  }

  aggregate(name) {
    const inner = this.disjunction();
    let share = () => 0, value;
    if (name === "percentile") { this.expect(","); share = this.sum(); }
    this.expect(")");
    return () => {
      if (value === undefined) {
        const values = this.episodes.numbers.map((_, row) => this.number(inner(row))).filter(each => !Number.isNaN(each));
        const percent = this.number(share(0));
        if (!(percent >= 0 && percent <= 100)) throw Error("percentile takes a number from 0 to 100");
        value = values.length ? AGGREGATES[name](values, percent) : NaN;
      }
      return value;
    };
  }
}

// Marks and notes of episodes, kept by the server or in the browser.
class Marks {
  constructor(data) {
    this.address = data.served?.marks;
    this.place = `offline-data:marks:${data.id} ${data.identity}`;
    this.all = new Map(Object.entries(data.marks ?? {}).map(([n, mark]) => [Number(n), mark]));
    if (!this.address) try {
      for (const [n, mark] of Object.entries(JSON.parse(localStorage.getItem(this.place)) ?? {})) this.all.set(Number(n), mark);
    } catch { /* a page may have no storage */ }
    this.last = [];
  }

  of(number) { return this.all.get(number) ?? { mark: "", note: "" }; }

  set(number, change, undone = false) {
    const before = this.of(number), after = { ...before, ...change };
    if (!undone) this.last.push([number, before]);
    if (after.mark || after.note) this.all.set(number, after); else this.all.delete(number);
    if (!this.address) {
      try { localStorage.setItem(this.place, JSON.stringify(this.written())); } catch { /* then it holds for this page */ }
      return Promise.resolve();
    }
    // One after the other; one that fails does not keep the next ones back.
    return this.queue = (this.queue ?? Promise.resolve()).catch(() => {}).then(() => this.send(number, after));
  }

  async send(number, { mark, note }) {
    const headers = { "Content-Type": "application/json" };
    await ask(this.address, { method: "POST", headers, body: JSON.stringify({ number, mark, note }) });
  }

  written() { return Object.fromEntries(this.all); }
  count(mark) { let found = 0; for (const each of this.all.values()) found += each.mark === mark; return found; }
}

// ---------------------------------------------------------------- the list of episodes

class List {
  constructor(viewer) {
    Object.assign(this, { viewer, episodes: viewer.episodes, order: [], sort: "number", down: false, where: "" });
    this.box = one(".rows");
    this.body = one("tbody", this.box);
    this.box.addEventListener("scroll", () => this.draw());
    this.body.addEventListener("click", event => {
      const row = event.target.closest("tr[data-number]");
      if (!row || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      viewer.open(Number(row.dataset.number));
    });
    this.field = one("#where");
    this.field.placeholder = { film: "words, or jerk > 0.05", vectors: "words, or return > 500", text: "length < 200" }[viewer.data.kind];
    this.field.addEventListener("input", () => this.filter(this.field.value));
    this.head();
  }

  // Columns with one value in all episodes are a sentence.
  head() {
    const { episodes } = this, { kind } = this.viewer.data, known = key => episodes.columns.has(key);
    const titles = key => episodes.columns.get(key).title;
    const own = [...episodes.columns.keys()].filter(key => !COLUMNS.has(key) && key !== "curve" && !HIDDEN.has(key));
    const wanted = [...COLUMNS].filter(([key]) => known(key) || ["mark", "number", "ends"].includes(key)).concat(own.map(key => [key, 5]));
    const fixed = ["return", "length", "success", "ends", "split", ...SHARES];
    const constant = episodes.count > 1 ? wanted.map(([key]) => key).filter(key => [...fixed, ...own].includes(key) && episodes.every(key)) : [];
    const same = kind === "text" ? [] : constant.filter(key => fixed.includes(key));
    this.same = new Set(constant);
    this.columns = wanted.filter(([key]) => !this.same.has(key) && (key !== "outliers" || episodes.columns.get(key).marked.some(Boolean))
      && (key !== "mark" || this.viewer.marked) && (key !== "curve" || kind === "vectors" || !known("instruction")) && (key !== "ends" || kind !== "text"));
    one("thead tr").replaceChildren(...this.columns.map(([key, level]) => {
      const title = key === "mark" ? "✓" : key === "number" ? "#" : key === "ends" ? "Ends" : titles(key);
      const button = make("button", { type: "button", class: "sort", "aria-label": key === "mark" ? "Mark" : null }, title);
      button.onclick = () => this.sorted(key, this.sort === key ? !this.down : this.numeric(key) && key !== "number");
      return make("th", { scope: "col", class: `p${level}${this.numeric(key) ? " number" : ""}`, "data-key": key }, button);
    }));
    const said = { length: () => many(episodes.value(0, "length"), "step"), ends: () => episodes.value(0, "ends") || "no end" };
    const words = same.map(key => said[key]?.() ?? `${titles(key).toLowerCase()} ${show(episodes.value(0, key), key) || "empty"}`);
    one("#same").textContent = words.length ? `All: ${words.join(", ")}` : "";
    one("#same").hidden = !words.length;
  }

  numeric(key) { return key === "number" || ["number", "flag"].includes(this.episodes.columns.get(key)?.kind); }

  // An expression selects; any other text is looked for in the texts, and becomes a list of numbers.
  selection() {
    const text = this.where.trim(), { episodes } = this;
    if (!text) return { test: () => true, expression: "" };
    try {
      const { test } = new Expression(text, episodes);
      for (let row = 0; row < episodes.count; row++) test(row);
      return { test, expression: text };
    } catch (error) {
      const keys = [...episodes.columns.values()].filter(column => column.kind === "text").map(column => column.key);
      const words = text.toLowerCase();
      const found = new Set(episodes.numbers.filter((_, row) => [...keys, episodes.note].some(key => `${episodes.value(row, key) ?? ""}`.toLowerCase().includes(words))));
      const wrong = /[<>=]|\b(and|or|not|in)\b/.test(text) && !found.size ? `Not an expression: ${error.message}` : "";
      return { test: row => found.has(episodes.numbers[row]), expression: found.size ? `number in [${[...found].join(", ")}]` : "", none: !found.size, wrong };
    }
  }

  // What `filter` takes to keep the episodes of the list but those that are marked bad.
  kept({ expression, none }) {
    if (none) return "";
    const { mark, marks } = this.episodes, bad = marks.count("bad") && !RegExp(`(?<!\\w)${mark}(?!\\w)`).test(expression);
    const first = expression && bad && /\bor\b/.test(expression) ? `(${expression})` : expression;
    return [first, bad && `${mark} != "bad"`].filter(Boolean).join(" and ");
  }

  update() {
    this.chosen = this.selection();
    const { episodes, sort } = this, way = this.down ? -1 : 1, { test } = this.chosen;
    const key = sort === "mark" ? episodes.mark : sort, value = row => key === "curve" ? episodes.value(row, "return") : episodes.value(row, key);
    const rows = Array.from({ length: episodes.count }, (_, row) => row).filter(test);
    const values = new Map(rows.map(row => [row, value(row)])), none = each => each === null || each === undefined || Number.isNaN(each);
    this.order = rows.sort((a, b) => {
      const [x, y] = [values.get(a), values.get(b)];
      return none(x) || none(y) ? none(x) - none(y) || a - b : (x < y ? -1 : x > y ? 1 : 0) * way || a - b;
    });
    for (const th of all("thead th", this.box)) {
      if (th.dataset.key === sort) th.setAttribute("aria-sort", this.down ? "descending" : "ascending"); else th.removeAttribute("aria-sort");
    }
    this.draw(true);
    this.chips();
    this.tally();
    this.reveal();
    this.viewer.spread.update();
  }

  sorted(key, down) { Object.assign(this, { sort: key, down }); this.update(); this.viewer.remember(); }
  filter(text) { this.where = text; this.update(); this.viewer.remember(); }
  place(number) { return this.order.indexOf(this.episodes.row(number)); }

  // Only rows that are seen, and some before and after them, are in the page.
  draw(anew = false) {
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW / 10) * 10 - 20), to = Math.min(this.order.length, from + Math.ceil(this.box.clientHeight / ROW) + 50);
    if (from === this.from && !anew) return;
    this.from = from;
    const held = document.activeElement?.closest?.("tr[data-number]")?.dataset.number;
    const gap = count => {
      if (count <= 0) return [];
      const cell = make("td", { colspan: this.columns.length, class: "gap" });
      cell.style.height = `${count * ROW}px`;
      return [make("tr", { "aria-hidden": "true" }, cell)];
    };
    this.body.replaceChildren(...gap(from), ...this.order.slice(from, to).map((row, i) => this.line(row, from + i)), ...gap(this.order.length - to));
    one("table", this.box).setAttribute("aria-rowcount", this.order.length + 1);
    if (held) one(`tr[data-number="${held}"] a`, this.body)?.focus({ preventScroll: true });
    this.current();
  }

  line(row, place) {
    const { episodes } = this, number = episodes.numbers[row], made = make("tr", { "data-number": number, "aria-rowindex": place + 2 });
    for (const [key, level] of this.columns) {
      const cell = make("td", { class: `${key === "instruction" || key === "beginning" ? "text" : key === "mark" ? "mark" : ""} p${level}${this.numeric(key) ? " number" : ""}` });
      if (key === "mark") cell.append(this.sign(number));
      else if (key === "number") cell.append(make("a", { href: `#episode=${number}`, "aria-label": `Episode ${number}` }, number.toLocaleString("en")));
      else if (key === "curve") cell.append(this.curve(row));
      else if (key === "outliers") {
        const names = episodes.outliers(row).join(", ");
        if (names) cell.append(make("span", { class: "unsure", title: names }, "▲ ", make("span", { class: "names" }, names)));
      } else {
        const text = show(episodes.value(row, key), key);
        cell.append(make("span", { title: text.length > 24 ? text : null }, text));
      }
      made.append(cell);
    }
    return made;
  }

  sign(number) {
    const { mark } = this.episodes.marks.of(number);
    return mark ? make("span", { class: mark }, make("span", { "aria-hidden": "true" }, SIGN[mark]), make("span", { class: "hidden" }, mark)) : make("span", { class: "hidden" }, "no mark");
  }

  curve(row) {
    const { points, values } = this.episodes.columns.get("curve"), levels = [...values.subarray(row * points, (row + 1) * points)];
    const svg = shape("svg", { viewBox: "0 0 62 20", class: "spark", "aria-hidden": "true" });
    shape("path", { d: `M${levels.map((level, i) => `${i * 2},${(18.5 - level / 99 * 17).toFixed(1)}`).join("L")}`, class: "line l1" }, svg);
    return svg;
  }

  // One row, unless the order depends on marks.
  touch(number) {
    if (this.sort === "mark" || this.where) return this.update();
    one(`tr[data-number="${number}"] td.mark`, this.body)?.replaceChildren(this.sign(number));
    this.current();
    this.chosen = this.selection();
    this.tally();
  }

  tally() {
    const { marks, count } = this.episodes, expression = this.kept(this.chosen);
    const [good, bad, unsure] = ["good", "bad", "unsure"].map(mark => marks.count(mark));
    let kept = this.chosen.none ? 0 : count;
    if (expression) {
      const { test } = new Expression(expression, this.episodes);
      kept = this.episodes.numbers.reduce((sum, _, row) => sum + test(row), 0);
    }
    this.field.setAttribute("aria-invalid", Boolean(this.chosen.wrong));
    if (this.field.value !== this.where) this.field.value = this.where;
    one("#count").textContent = this.chosen.wrong || `keeps ${kept.toLocaleString("en")} of ${count.toLocaleString("en")}`;
    one("#expression").textContent = expression || "all episodes: mark or filter to select";
    one("#expression").classList.toggle("soft", !expression);
    this.expression = expression;
    one("#copy").disabled = one("#command").disabled = !expression;
    one("#tally").textContent = `${good} good, ${bad} bad, ${unsure} unsure, ${(count - good - bad - unsure).toLocaleString("en")} left`;
    all(".meter i").forEach((bar, i) => { bar.style.width = `${[good, bad, unsure][i] / count * 100}%`; });
  }

  current() {
    for (const row of all("tr[data-number]", this.body)) {
      const number = Number(row.dataset.number), now = number === this.viewer.number;
      const { shown } = this.viewer.data, absent = shown && !(number in shown);
      row.className = `${now ? "now" : ""} ${absent ? "absent" : ""} ${this.episodes.marks.of(number).mark === "bad" ? "rejected" : ""}`;
      if (absent) row.title = "This episode is not in this file";
      one("a", row).setAttribute("aria-current", now);
    }
  }

  reveal() {
    const at = this.place(this.viewer.number), { box } = this, top = at * ROW;
    if (at >= 0 && top < box.scrollTop) box.scrollTop = top - ROW;
    else if (at >= 0 && top + 3 * ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + 3 * ROW - box.clientHeight;
    this.draw();
    this.current();
  }

  chips() {
    const { episodes, sort, down } = this, column = episodes.columns.get(sort), numeric = column?.kind === "number";
    const offers = [
      ...(this.viewer.marked ? [[`${episodes.mark} == ""`, "Unmarked"], [`${episodes.mark} == "bad"`, "Bad"]] : []),
      ...(episodes.columns.get("outliers")?.marked.some(Boolean) ? [["outliers > 0", "Outliers"]] : []),
      ...(numeric ? [down ? [`${sort} >= percentile(${sort}, 95)`, `Top 5 % by ${column.title.toLowerCase()}`] : [`${sort} <= percentile(${sort}, 5)`, `Lowest 5 % by ${column.title.toLowerCase()}`]] : []),
    ];
    one("#chips").replaceChildren(...offers.map(([expression, title]) => {
      const pressed = this.where === expression, made = make("button", { type: "button", "aria-pressed": pressed }, title);
      made.onclick = () => { this.filter(pressed ? "" : expression); all("#chips button").find(chip => chip.textContent === title)?.focus(); };
      return made;
    }));
  }
}

// Columns of the list in order, and the width from which each is shown (1: always).
const COLUMNS = new Map([
  ["mark", 1], ["number", 1], ["instruction", 1], ["beginning", 1], ["curve", 1], ["return", 1], ["success", 1], ["length", 1], ["outliers", 1],
  ["split", 3], ["jerk", 3], ["ends", 4], ["idle", 5], ["velocity", 5],
]);
const HIDDEN = new Set(["terminated", "truncated", "final_observation", "jerk_p95", "saturated", "lag", "timestamp_error"]);

// ---------------------------------------------------------------- distributions that select

const BINS = 24;
const MEASURES = ["return", "length", "jerk", "velocity", "idle", "saturated"];

class Spread {
  constructor(viewer) {
    Object.assign(this, { viewer, brushes: new Map() });
    this.place = one("#spread");
  }

  build() {
    const { episodes, list, data } = this.viewer, box = one(".histograms", this.place);
    const keys = MEASURES.filter(key => episodes.columns.get(key)?.kind === "number" && !list.same.has(key));
    this.shown = [];
    box.replaceChildren();
    for (const key of data.kind === "vectors" ? keys.slice(0, 3) : keys) {
      const values = episodes.numbers.map((_, row) => episodes.value(row, key)), finite = values.filter(Number.isFinite);
      const [low, high] = [AGGREGATES.min([Infinity, ...finite]), AGGREGATES.max([-Infinity, ...finite])];
      if (!(low < high) || new Set(finite).size < 4) continue;
      this.shown.push(this.histogram(box, key, values, low, high));
    }
    this.place.hidden = !this.shown.length;
    if (data.kind === "film") return;
    this.place.open = true;
  }

  histogram(box, key, values, low, high) {
    const { title } = this.viewer.episodes.columns.get(key), at = value => Math.min(BINS - 1, Math.floor((value - low) / (high - low) * BINS));
    const counts = Array(BINS).fill(0);
    for (const value of values) if (Number.isFinite(value)) counts[at(value)]++;
    const top = Math.max(...counts), bars = counts.map(count => {
      const bar = make("i");
      bar.style.height = `${count / top * 100}%`;
      return bar;
    });
    const now = make("b"), plot = make("div", { class: "bars" }, ...bars, now), from = this.input(`${title} from`, low), to = this.input(`${title} to`, high);
    from.onchange = to.onchange = () => this.brush(key, from.value === "" ? null : Number(from.value), to.value === "" ? null : Number(to.value));
    let start = null;
    const share = event => { const edge = plot.getBoundingClientRect(); return Math.min(1, Math.max(0, (event.clientX - edge.left) / edge.width)); };
    plot.onpointerdown = event => { start = share(event); plot.setPointerCapture(event.pointerId); event.preventDefault(); };
    plot.onpointermove = event => {
      if (start === null) return;
      const [a, b] = [start, share(event)].sort((x, y) => x - y);
      if (b - a > .02) this.brush(key, bound(low + a * (high - low), false), bound(low + b * (high - low), true));
    };
    plot.onpointerup = event => { if (start !== null && Math.abs(share(event) - start) <= .02) this.brush(key, null, null); start = null; };
    box.append(make("div", { class: "histogram" }, make("p", {}, make("b", {}, title), " ", make("span", { class: "soft" }, `${show(low, key)} to ${show(high, key)}`)), plot, make("div", { class: "line" }, from, "to", to)));
    return { key, low, high, at, bars, now, inputs: [from, to] };
  }

  input(label, value) { return make("input", { type: "number", step: "any", "aria-label": label, placeholder: brief(value) }); }

  brush(key, from, to) {
    if (from === null && to === null) this.brushes.delete(key); else this.brushes.set(key, [from, to]);
    const parts = [...this.brushes].map(([name, [a, b]]) => a === null ? `${name} <= ${b}` : b === null ? `${name} >= ${a}` : `${a} <= ${name} <= ${b}`);
    this.viewer.list.filter(parts.join(" and "));
  }

  update() {
    const { episodes, list, number } = this.viewer, row = episodes.row(number);
    if (!list.where) this.brushes.clear();
    for (const { key, low, high, at, bars, now, inputs } of this.shown ?? []) {
      const chosen = new Set(list.where ? list.order.map(each => at(episodes.value(each, key))) : []);
      bars.forEach((bar, place) => bar.classList.toggle("in", chosen.has(place)));
      const value = row === undefined ? NaN : episodes.value(row, key);
      now.hidden = !Number.isFinite(value);
      now.style.left = `${(value - low) / (high - low) * 100}%`;
      inputs.forEach((input, place) => { if (input !== document.activeElement) input.value = this.brushes.get(key)?.[place] ?? ""; });
    }
  }
}
