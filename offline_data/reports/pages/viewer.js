
// The viewer of episodes: film, timeline and keys, from the JSON of the page: `cameras`, `tracks`,
// `columns` of the episodes `listed`, and episodes in `shown`, or addresses of them in `served`.

const RATE = 10; // steps a second of a dataset that states none
const LINES = 8; // features of a leaf up to which each is a line; more are a heat map
const CHUNK = 8; // steps whose frames a server is asked for together

// ---------------------------------------------------------------- film

// Frames of an episode: those in the page, or what the server sent until now, eight steps at a time.
class Frames {
  constructor(viewer, number, episode) {
    Object.assign(this, { viewer, number, given: episode?.cameras, got: new Map(), asked: new Set(), side: viewer.film.side });
  }

  at(key, step) {
    const found = this.given?.[key];
    if (found) return `data:${found.kind};base64,${found.files[lastUpTo(found.steps, step)]}`;
    for (let before = step; before > step - CHUNK && before >= 0; before--) if (this.got.has(before)) return this.got.get(before)[key];
    return null;
  }

  has(step) { return !this.viewer.data.served || this.got.has(step); }

  // Ask for the frames of a step, and of `ahead` chunks after it.
  async want(step, length, ahead = 0) {
    const { viewer, number } = this;
    if (!viewer.data.served || viewer.film.cameras.every(camera => viewer.film.played(number, camera))) return;
    const last = Math.floor((length - 1) / CHUNK);
    for (let chunk = Math.floor(step / CHUNK), to = Math.min(last, chunk + ahead); chunk <= to; chunk++) {
      if (this.asked.has(chunk)) continue;
      this.asked.add(chunk);
      const query = `&number=${this.number}&first=${chunk * CHUNK}&stop=${Math.min(length, (chunk + 1) * CHUNK)}&side=${this.side}`;
      try {
        for (const [key, { steps, kind, files }] of Object.entries(await ask(this.viewer.data.served.frames + query)))
          steps.forEach((each, i) => this.got.set(each, { ...this.got.get(each), [key]: `data:${kind};base64,${files[i]}` }));
      } catch (error) {
        this.asked.delete(chunk);
        this.viewer.say(error.message);
        return;
      }
      this.viewer.film.paint();
    }
  }
}

async function ask(address, options) {
  let answer;
  try { answer = await fetch(address, options); } catch { throw Error("The server does not answer: is it still running?"); }
  if (answer.ok) return answer.headers.get("Content-Type").startsWith("application/json") ? answer.json() : answer.text();
  throw Error((await answer.text()).replace(/<[^>]*>/g, "") || `The server answers ${answer.status}`);
}

class Film {
  constructor(viewer) {
    Object.assign(this, { viewer, place: one("#cameras"), camera: null, kept: new Map(), side: 320 });
    new ResizeObserver(() => { this.pack(); this.strip(); }).observe(one("#film"));
    document.addEventListener("fullscreenchange", () => this.pack());
  }

  get cameras() { return this.viewer.data.cameras.filter(camera => !(camera.key in (this.viewer.data.black ?? {}))); }

  // Of this episode, the one it is compared with, and the next one.
  frames(number, episode) {
    if (!this.kept.has(number)) this.kept.set(number, new Frames(this.viewer, number, episode));
    const found = this.kept.get(number);
    found.given ??= episode?.cameras;
    this.kept.delete(number);
    this.kept.set(number, found);
    for (const old of [...this.kept.keys()].slice(0, -4)) if (old !== this.viewer.number && old !== this.viewer.pinned) this.kept.delete(old);
    return found;
  }

  build() {
    const { viewer, cameras } = this, shown = viewer.pinned === null ? [viewer.number] : [viewer.number, viewer.pinned];
    this.tiles = shown.flatMap(number => cameras.map((camera, place) => {
      const played = this.played(number, camera);
      const image = played ? this.video(number, camera) : make("img", { alt: "", width: camera.width, height: camera.height });
      const label = viewer.pinned === null ? camera.label : `${camera.label}, episode ${number}`;
      const key = cameras.length > 1 && viewer.pinned === null ? [make("kbd", {}, `${place + 1}`), " "] : [];
      const button = make("button", { type: "button", class: "camera", "aria-pressed": this.camera === place, title: "Enlarge" }, image, make("span", {}, ...key, label));
      button.onclick = () => this.enlarge(place);
      return { number, camera, image, button, played };
    }));
    this.place.replaceChildren(...this.tiles.map(tile => tile.button));
    this.pack();
    this.strip();
  }

  // The times of a video that the browser plays itself.
  played(number, camera) { return this.unplayable ? undefined : this.viewer.loaded.get(number)?.videos?.[camera.key]; }

  video(number, camera) {
    const { served } = this.viewer.data, source = `${served.video}&number=${number}&camera=${encodeURIComponent(camera.key)}`;
    const made = make("video", { src: source, width: camera.width, height: camera.height, preload: "auto", "aria-label": `${camera.label}, episode ${number}` });
    made.muted = true;
    made.addEventListener("seeked", () => this.paint());
    made.addEventListener("loadedmetadata", () => this.paint());
    made.addEventListener("error", () => { if (!this.unplayable) { this.unplayable = true; this.build(); this.paint(); } });
    return made;
  }

  enlarge(place) {
    this.camera = this.camera === place || place >= this.cameras.length ? null : place;
    this.tiles.forEach(({ button, camera }) => button.setAttribute("aria-pressed", this.cameras.indexOf(camera) === this.camera));
    this.pack();
    this.viewer.remember();
  }

  // Columns of cameras with which the images are largest in the room that the charts leave.
  pack() {
    const { tiles, place } = this;
    if (!tiles?.length) return;
    const narrow = innerWidth <= 860, whole = document.fullscreenElement, pinned = this.viewer.pinned !== null;
    const { width: w, height: h } = tiles[0].camera, width = place.clientWidth || one(".transport").clientWidth, aspect = w / h, gap = 8, caption = 20, count = tiles.length;
    const below = whole ? 130 : this.camera !== null || pinned ? 210 : 330, top = place.getBoundingClientRect().top + one("#film").scrollTop;
    const room = narrow ? width * 1.1 : Math.max(200, innerHeight - top - below);
    const size = columns => Math.min((width - gap * (columns - 1)) / columns, ((room - gap * (Math.ceil(count / columns) - 1)) / Math.ceil(count / columns) - caption) * aspect);
    const large = this.camera ?? (narrow && count > 2 ? 0 : null);
    for (const { button } of tiles) button.style.gridColumn = button.style.gridRow = button.style.order = "";
    place.style.gridTemplateRows = "";
    if (large !== null && count > 1 && !pinned) {
      const small = Math.min(width * .24, ((room - gap * (count - 2)) / (count - 1) - caption) * aspect), wide = Math.min(width - small - gap, (room - caption) * aspect);
      place.style.gridTemplateColumns = `${wide}px ${small}px`;
      place.style.gridTemplateRows = `repeat(${count - 1}, min-content) 1fr`;
      tiles.forEach(({ button }, i) => {
        button.style.gridColumn = i === large ? 1 : 2;
        if (i === large) { button.style.gridRow = `1 / span ${count}`; button.style.order = -1; }
      });
      this.resolve(wide);
      return;
    }
    let columns = pinned ? this.cameras.length : 1;
    for (let more = columns + 1; more <= count && !pinned; more++) if (size(more) > size(columns) + 1) columns = more;
    place.style.gridTemplateColumns = `repeat(${columns}, ${Math.max(80, size(columns))}px)`;
    this.resolve(size(columns));
  }

  // Frames of a server have about as many pixels as are shown.
  resolve(width) {
    const most = Math.max(...this.cameras.map(camera => Math.max(camera.width, camera.height)));
    const side = [160, 320, 640, 1280].find(each => each >= Math.min(most, width * devicePixelRatio)) ?? 1280;
    if (side <= this.side) return;
    this.side = side;
    for (const frames of this.kept.values()) { frames.asked.clear(); frames.side = side; }
    this.paint();
  }

  paint() {
    const { viewer } = this;
    for (const { number, camera, image, played } of this.tiles ?? []) {
      if (played) { // a video that still seeks goes on to the newest step afterwards
        const time = played[Math.min(viewer.step, played.length - 1)];
        if (!image.seeking && image.readyState && Math.abs(image.currentTime - time) > 1e-4) image.currentTime = time;
        continue;
      }
      const frames = this.frames(number, viewer.loaded.get(number)), length = viewer.loaded.get(number)?.length ?? 1;
      const step = Math.min(viewer.step, length - 1), source = frames.at(camera.key, step);
      if (source && image.src !== source) image.src = source;
      frames.want(step, length, viewer.playing ? 3 : 1);
      image.alt = `${camera.label}, episode ${number}, step ${step}`;
    }
  }

  get ready() { return !this.tiles?.length || this.tiles.every(tile => tile.played) || this.frames(this.viewer.number).has(this.viewer.step); }

  async strip() {
    const box = one(".thumbnails"), { viewer, cameras } = this, { number } = viewer, episode = viewer.episode;
    if (!box || !episode || !box.clientWidth) return;
    const count = Math.min(episode.length, Math.max(4, Math.floor(box.clientWidth / 56))), every = Math.ceil(episode.length / count), key = `${number} ${every} ${cameras[0].key}`;
    if (box.dataset.key === key) return;
    box.dataset.key = key;
    const steps = Array.from({ length: Math.ceil(episode.length / every) }, (_, i) => Math.min(episode.length - 1, i * every));
    let source = step => this.frames(number, episode).at(cameras[0].key, step);
    if (viewer.data.served) {
      const query = `&number=${number}&first=0&stop=${episode.length}&every=${every}&side=96&camera=${viewer.data.cameras.indexOf(cameras[0])}`;
      let found;
      try { [found] = Object.values(await ask(viewer.data.served.frames + query)); } catch { return; }
      if (viewer.number !== number) return;
      source = step => `data:${found.kind};base64,${found.files[lastUpTo(found.steps, step)]}`;
    }
    one(".thumbnails")?.replaceChildren(...steps.map(step => make("img", { src: source(step), alt: "" })));
  }
}

// ---------------------------------------------------------------- timeline

// Values of many features: codes from the least to the greatest value of each; 255 is none.
function unpack({ codes, low, high }) {
  const bytes = Uint8Array.from(atob(codes), char => char.charCodeAt(0)), columns = bytes.length / low.length;
  return low.map((least, i) => Array.from(bytes.subarray(i * columns, (i + 1) * columns), code => code === 255 ? null : least + code / 254 * (high[i] - least)));
}

class Timeline {
  constructor(viewer) {
    Object.assign(this, { viewer, ranges: new Map(), common: new Set(), off: new Map(), lines: new Map() });
    for (const { key, low, high } of viewer.data.tracks) this.ranges.set(key, low.map((each, i) => [each ?? Infinity, high[i] ?? -Infinity]));
    const box = one("#timeline"), over = one("#over"), slider = one("#seek");
    let held = false;
    const at = event => { const edge = over.getBoundingClientRect(); viewer.seek(Math.floor((event.clientX - edge.left) / edge.width * viewer.length)); };
    box.addEventListener("pointerdown", event => {
      if (event.target.closest(".name") || event.button || event.clientX < over.getBoundingClientRect().left) return;
      held = true;
      box.setPointerCapture(event.pointerId);
      at(event);
    });
    box.addEventListener("pointermove", event => { if (held) at(event); });
    for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, () => { held = false; });
    slider.addEventListener("input", () => viewer.seek(Number(slider.value)));
  }

  // Scales are of the dataset, so that episodes compare; they grow where an episode exceeds them.
  range(key, values) {
    const known = this.ranges.get(key) ?? [];
    this.ranges.set(key, values.map((row, i) => {
      let [low, high] = known[i] ?? [Infinity, -Infinity];
      for (const value of row) if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
      return [low, high];
    }));
    return this.ranges.get(key);
  }

  build() {
    const { viewer } = this, { episode, data } = viewer, other = viewer.pinned === null ? null : viewer.loaded.get(viewer.pinned), tracks = [], still = [];
    if (viewer.film.cameras.length) tracks.push(make("div", { class: "track" }, make("div", { class: "name empty soft" }, "film"), make("div", { class: "thumbnails" })));
    this.shown = [];
    for (const [key, values] of Object.entries(episode.tracks)) {
      const ranges = this.range(key, values), labels = data.tracks.find(track => track.key === key)?.labels ?? values.map(() => "");
      if (other?.tracks[key]) this.range(key, other.tracks[key]);
      if (ranges.every(([low, high]) => !(low < high))) {
        still.push(`${key}: ${[...new Set(ranges.map(([low]) => Number.isFinite(low) ? brief(low) : "none"))].slice(0, 4).join(", ")} at every step`);
        continue;
      }
      if (values.length > LINES && values.every(row => row.every(value => value === row[0]))) {
        still.push(`${key}: constant in this episode`);
        continue;
      }
      const name = make("div", { class: "name" }, make("p", { class: "head" }, make("b", { title: key }, key))), plot = make("div", { class: "lane" });
      const track = { key, values, ranges, labels, name, plot, other: other?.tracks[key] };
      tracks.push(make("div", { class: "track" }, name, plot));
      if (values.length <= LINES) this.drawLines(track); else tracks.push(...this.drawHeat(track));
    }
    for (const [key, changes] of episode.texts) {
      const words = make("div", { class: "words" });
      this.shown.push({ change: t => { words.textContent = changes[lastUpTo(changes.map(([step]) => step), t)]?.[1] ?? "(missing)"; } });
      tracks.push(make("div", { class: "track" }, make("div", { class: "name" }, make("b", {}, key)), words));
    }
    one("#tracks").replaceChildren(...tracks);
    one("#constant").textContent = still.join("; ");
    one("#constant").hidden = !still.length;
    viewer.film.strip();
  }

  value(values, i) { return values[i][lastUpTo(this.viewer.episode.steps, this.viewer.step)]; }

  label(place, i, track) {
    const [low, high] = track.ranges[i], digits = Math.min(4, Math.max(0, 2 - Math.floor(Math.log10(Math.max(-low, high) || 1)))); // the same at every step
    this.shown.push({ change: () => {
      const value = this.value(track.values, i);
      place.textContent = value === null || value === undefined ? "none" : Math.abs(value) >= 1e6 ? brief(value) : (Number(value.toFixed(digits)) || 0).toFixed(digits);
    } });
  }

  drawLines(track) {
    const { key, values, ranges, labels, name, plot } = track, off = this.off.get(key) ?? this.off.set(key, new Set()).get(key);
    const chosen = values.map((_, i) => i).filter(i => !off.has(i)), common = this.common.has(key);
    const both = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
    const scale = i => common ? both : ranges[i], only = chosen.length === 1 ? ranges[chosen[0]] : common ? both : null;
    plot.classList.toggle("single", values.length === 1);
    plot.append(this.paths(track, chosen, scale));
    if (only) plot.append(make("span", { class: "high" }, brief(only[1])), make("span", { class: "low" }, brief(only[0])));
    const again = () => { this.build(); this.seek(); };
    if (values.length > 1) {
      const button = make("button", { type: "button", class: "scale" }, `scale: ${common ? "common" : "each"}`);
      button.onclick = () => { if (common) this.common.delete(key); else this.common.add(key); again(); };
      one(".head", name).append(button);
    }
    name.append(make("ul", {}, ...values.map((_, i) => {
      const number = make("span"), button = make("button", { type: "button", class: `t${i}`, "aria-pressed": !off.has(i), title: labels[i] || key }, make("i"), labels[i].replace(/^\[|\](?= |$)/g, ""), number);
      button.onclick = () => { if (off.has(i)) off.delete(i); else off.add(i); again(); };
      this.label(number, i, track);
      return make("li", {}, button);
    })));
  }

  paths(track, chosen, scale) {
    const { viewer } = this, svg = shape("svg", { viewBox: `0 0 ${viewer.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const draw = (episode, values, i, dashed) => {
      const [low, high] = scale(i), { steps } = episode;
      let path = "", pen = "M";
      values[i].forEach((value, at) => {
        if (value !== null) path += `${pen}${steps[at] + .5},${(100 - (value - low) / (high - low || 1) * 100).toFixed(2)}`;
        pen = value === null ? "M" : "L";
      });
      if (steps.length === 1) path += "h.01";
      shape("path", { d: path, class: `line t${i}${dashed ? " dashed" : ""}` }, svg);
    };
    const [low, high] = chosen.length ? scale(chosen[0]) : [0, 0];
    if (low < 0 && high > 0 && (chosen.length === 1 || this.common.has(track.key))) shape("path", { d: `M0,${100 + low / (high - low) * 100}H${viewer.length}`, class: "zero" }, svg);
    for (const i of chosen) {
      if (track.other) draw(viewer.loaded.get(viewer.pinned), track.other, i, true);
      draw(viewer.episode, track.values, i, false);
    }
    return svg;
  }

  drawHeat(track) {
    const { key, values, ranges, labels, name, plot } = track, columns = values[0].length, rows = values.length;
    const canvas = make("canvas", { width: columns, height: rows, "aria-hidden": "true" }), context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    values.forEach((row, i) => row.forEach((value, t) => {
      const [low, high] = ranges[i], share = value === null ? 0 : (value - low) / (high - low || 1), at = Math.min(1, Math.max(0, share)) * (HEAT.length - 1), from = Math.min(HEAT.length - 2, Math.floor(at));
      for (let c = 0; c < 3; c++) image.data[4 * (i * columns + t) + c] = HEAT[from][c] + (HEAT[from + 1][c] - HEAT[from][c]) * (at - from);
      image.data[4 * (i * columns + t) + 3] = value === null ? 0 : 255;
    }));
    context.putImageData(image, 0, 0);
    plot.append(canvas);
    plot.style.height = `${Math.min(420, Math.max(96, rows * (innerHeight > 1000 ? 6 : 3.4) + 12))}px`;
    const select = make("select", { "aria-label": `One dimension of ${key} as a line` }, make("option", { value: "" }, "no line"), ...labels.map((label, i) => make("option", { value: i }, `line of ${label}`)));
    select.value = this.lines.get(key) ?? "";
    select.onchange = () => { if (select.value === "") this.lines.delete(key); else this.lines.set(key, Number(select.value)); this.build(); this.seek(); };
    name.append(make("p", { class: "soft" }, `${rows} dimensions, each from its least to its greatest value`), select);
    if (!this.lines.has(key)) return [];
    const i = this.lines.get(key), line = { ...track, plot: make("div", { class: "lane single" }) }, number = make("b");
    line.plot.append(this.paths(line, [i], () => ranges[i]), make("span", { class: "high" }, brief(ranges[i][1])), make("span", { class: "low" }, brief(ranges[i][0])));
    this.label(number, i, track);
    return [make("div", { class: "track" }, make("div", { class: "name" }, `${labels[i]} `, number), line.plot)];
  }

  seek() {
    one("#cursor").style.left = `${(this.viewer.step + .5) / this.viewer.length * 100}%`;
    for (const { change } of this.shown ?? []) change(this.viewer.step);
  }
}

// ---------------------------------------------------------------- the page

class Viewer {
  constructor(data) {
    Object.assign(this, { data, number: null, step: 0, pinned: null, playing: false, speed: 1, end: "loop", rest: 0, loaded: new Map() });
    this.marked = !data.unmarked;
    this.text = data.kind === "text";
    this.rate = data.rate ?? RATE;
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.episodes = new Episodes(data);
    this.film = this.text ? { cameras: [], build() {}, paint() {}, strip() {}, pack() {} } : new Film(this);
    this.spread = new Spread(this);
    this.list = new List(this);
    if (!this.text) this.timeline = new Timeline(this);
    one(".facts").textContent = data.facts.join(" · ");
    for (const part of [".marks", ".keep"]) if (!this.marked) one(part).hidden = true;
    this.controls();
    this.restore();
    this.spread.build();
    this.list.update();
    this.open(this.first, this.start).then(() => this.later());
    if (data.note) this.say(data.note);
  }

  // Findings and quality come after the first episode; those of a large dataset at a click.
  later() {
    const { served, findings, asked } = this.data, panel = one("#findings");
    const fill = found => {
      one("summary", panel).innerHTML = found.line;
      one(".drop", panel).innerHTML = found.panel;
      this.data.black = found.black;
      this.describeCameras();
      if (Object.keys(found.black).length && !this.text) { this.film.build(); this.timeline.build(); this.seek(this.step, true); }
    };
    if (findings) fill(findings);
    else if (!served) panel.hidden = true;
    const leaves = one("#leaves"), sheet = one(".sheet", leaves);
    leaves.addEventListener("toggle", () => { if (served && leaves.open && !sheet.childElementCount) { sheet.dataset.load = served.leaves; load(sheet); } });
    if (!served) return;
    const get = (address, then, place, label) => {
      const run = () => ask(address).then(then, error => this.say(error.message));
      if (!asked) return void run();
      const button = make("button", { type: "button" }, `${label}${asked}`);
      button.onclick = () => { button.disabled = true; button.textContent = "Reading the dataset …"; run().then(() => button.remove()); };
      place.append(button);
    };
    get(served.findings, fill, one(".drop", panel), "Check the dataset");
    if (!this.text) get(served.quality, columns => {
      this.episodes.add(columns);
      this.list.head();
      this.spread.build();
      this.list.update();
      this.describe();
    }, one("#chips").parentElement, "Measure the episodes");
  }

  describeCameras() {
    const black = Object.entries(this.data.black ?? {}).map(([key, why]) => `${key} is not shown: ${why}.`);
    const notes = (this.data.cameras ?? []).map(({ key, label }) => [label, this.episode?.cameras[key]?.note]).filter(([, note]) => note).map(([label, note]) => `${label}: ${note}.`);
    const rate = this.data.rate ? `${this.data.rate} steps/s.` : `The dataset states no rate: played at ${RATE} steps/s.`;
    if (one("#said")) one("#said").textContent = [...black, ...notes, rate].join(" ");
  }

  get episode() { return this.loaded.get(this.number); }
  get length() { return this.episode?.length ?? 1; }

  async read(number) {
    if (this.loaded.has(number)) return this.loaded.get(number);
    const { served, shown } = this.data;
    let found = shown?.[number];
    if (served) {
      this.film.frames?.(number).want(0, this.episodes.value(number, "length") || 1);
      found = await ask(`${this.text ? served.document : served.episode}&number=${number}`);
    }
    if (found?.tracks) for (const [key, track] of Object.entries(found.tracks)) if (!Array.isArray(track)) found.tracks[key] = unpack(track);
    if (found !== undefined) this.loaded.set(number, found);
    for (const old of [...this.loaded.keys()].slice(0, -8)) if (served && old !== this.number && old !== this.pinned) this.loaded.delete(old);
    return found;
  }

  // Show an episode; a film that plays goes on in it, unless less motion is asked for.
  async open(number, step = 0, goes = !this.calm.matches) {
    if (this.playing && !goes) this.play(false);
    let found;
    this.wanted = number;
    try { found = await this.read(number); } catch (error) { this.say(error.message); return; }
    if (this.wanted !== number) return;
    Object.assign(this, { number, rest: 0 });
    const missing = found === undefined;
    for (const part of all(".transport, #timeline, #cameras, #said, #constant, #notes, #document")) part.hidden = missing;
    one("#missing").hidden = !missing;
    if (missing) {
      const { id } = this.data, view = this.text ? [] : [make("code", {}, `offline-data report ${id} --episode ${number}`), " writes it to a file; "];
      one("#missing").replaceChildren(`${this.text ? "Document" : "Episode"} ${number} is not in this file. `, ...view, make("code", {}, "offline-data browse"), " shows all.");
    } else if (this.text) one("#document").innerHTML = found;
    else {
      this.film.build();
      this.timeline.build();
      one("#seek").max = this.length - 1;
      one("#notes").replaceChildren(...found.notes.map(note => make("p", {}, ...note.split("`").map((part, i) => i % 2 ? make("code", {}, part) : part))));
      this.seek(step, true);
    }
    this.describe();
    this.describeCameras();
    this.list.reveal();
    this.spread.update();
    this.remember();
    const next = this.list.order[this.list.place(number) + 1];
    if (this.data.served && next !== undefined) this.read(this.episodes.numbers[next]).catch(() => {});
  }

  describe() {
    const { episodes, list, number } = this, row = episodes.row(number), noun = this.text ? "Document" : "Episode";
    one("#title").textContent = `${noun} ${number}`;
    one("#facts").replaceChildren();
    if (row === undefined) return;
    const instruction = episodes.value(row, "instruction"), title = instruction || `${noun} ${number}`, odd = episodes.outliers(row), facts = [];
    if (instruction) facts.push(`${noun} ${number}`);
    facts.push(many(episodes.value(row, "length"), this.text ? "token" : "step"));
    for (const key of ["return", "success"]) if (episodes.columns.has(key) && !list.same.has(key)) facts.push(`${key} ${show(episodes.value(row, key))}`);
    if (!this.text) facts.push(episodes.value(row, "ends") || "no end");
    for (const key of ["split", "id"]) if (episodes.columns.has(key) && !list.same.has(key)) facts.push(`${key} ${show(episodes.value(row, key))}`);
    one("#title").textContent = title;
    one("#facts").replaceChildren(...(odd.length ? [make("b", { class: "unsure" }, `▲ outlier in ${odd.join(", ")}`), " · "] : []), facts.join(" · "));
    document.title = `${title} · ${this.data.id}`;
    const { mark, note } = episodes.marks.of(number);
    for (const button of all("[data-mark]")) button.setAttribute("aria-pressed", mark === button.dataset.mark);
    if (one("#note") !== document.activeElement) one("#note").value = note ?? "";
    one("#pin")?.setAttribute("aria-pressed", this.pinned !== null);
  }

  seek(step, quiet = false) {
    if (!this.episode || this.text) return;
    this.step = Math.min(this.length - 1, Math.max(0, step));
    const said = `step ${brief(this.step)} of ${brief(this.length - 1)}, ${(this.step / this.rate).toFixed(1)} s`;
    this.timeline.seek();
    one("#seek").value = this.step;
    one("#seek").setAttribute("aria-valuetext", said);
    one("#step").textContent = said;
    this.film.paint();
    if (quiet) return;
    clearTimeout(this.spoken);
    this.spoken = setTimeout(() => { if (!this.playing) one("#live").textContent = said; this.remember(); }, 250);
  }

  play(on = !this.playing) {
    if (this.text || !this.episode) return;
    if (on && this.step === this.length - 1) this.seek(0, true);
    this.playing = on;
    one("#live").textContent = on ? "Playing" : "";
    one("#play").replaceChildren(on ? "❚❚ Pause " : "▶ Play ", make("kbd", {}, "Space"));
    cancelAnimationFrame(this.timer);
    if (!on) { this.seek(this.step); return; }
    let last = performance.now();
    this.rest = 0;
    const tick = now => {
      if (!this.playing) return;
      if (this.film.ready) this.rest += (now - last) / 1000 * this.rate * this.speed; // a film waits for its frames
      last = now;
      const whole = Math.floor(this.rest);
      if (whole) { this.rest -= whole; this.advance(whole); }
      this.timer = requestAnimationFrame(tick);
    };
    this.timer = requestAnimationFrame(tick);
  }

  advance(steps) {
    if (this.step + steps < this.length) return this.seek(this.step + steps, true);
    if (this.end === "loop") return this.seek(0, true);
    if (this.end === "next" && this.list.place(this.number) < this.list.order.length - 1) return this.neighbour(1, true);
    this.seek(this.length - 1, true);
    this.play(false);
  }

  neighbour(way, goes) {
    const at = this.list.place(this.number), row = this.list.order[at < 0 ? 0 : at + way];
    if (row === undefined) this.say(way > 0 ? "This is the last episode of the list" : "This is the first episode of the list");
    else this.open(this.episodes.numbers[row], 0, goes);
  }

  // The next episode of the list without a mark, from its beginning where its end has none.
  unmarked() {
    const { order } = this.list, at = this.list.place(this.number) + 1;
    return [...order.slice(at), ...order.slice(0, at)].map(row => this.episodes.numbers[row]).find(number => !this.episodes.marks.of(number).mark);
  }

  mark(mark, stay = false) {
    if (!this.marked) return;
    const { number } = this, again = !mark || this.episodes.marks.of(number).mark === mark;
    this.change(number, { mark: again ? "" : mark });
    const next = again || stay ? undefined : this.unmarked();
    this.list.touch(number);
    if (next === undefined) this.describe(); else this.open(next);
    this.say(again ? `Episode ${number}: no mark` : `Episode ${number}: ${mark}. ${stay || next !== undefined ? "z takes it back." : "All episodes of the list have a mark."}`);
  }

  change(number, change, undone) {
    this.episodes.marks.set(number, change, undone).catch(error => {
      one("#kept").textContent = `The mark of episode ${number} is not kept: ${error.message}`; // and stays, as a toast does not
      one("#kept").className = "bad";
    });
  }

  takeBack() {
    const last = this.episodes.marks.last.pop();
    if (!last) return this.say("There is no mark to take back");
    this.change(last[0], last[1], true);
    this.list.touch(last[0]);
    this.open(last[0]);
    this.say(`Episode ${last[0]}: ${last[1].mark || "no mark"} again`);
  }

  say(text) {
    one("#toast").textContent = text;
    clearTimeout(this.fading);
    this.fading = setTimeout(() => { one("#toast").textContent = ""; }, 3000);
  }

  pin() {
    if (this.text || !this.episode) return;
    this.pinned = this.pinned === null ? this.number : null;
    this.say(this.pinned === null ? "Comparing ended" : `Episode ${this.pinned} stays; choose another beside it`);
    this.film.build();
    this.timeline.build();
    this.seek(this.step);
    this.describe();
    this.remember();
  }

  async copy(text, what) {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = make("textarea", { class: "hidden" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.say(`Copied the ${what}`);
  }

  get command() {
    const name = this.data.name.replace(/^.*[:/]/, "").replace(/[^\w.-]+/g, "-");
    return `offline-data filter ${this.data.id} '${this.list.expression.replaceAll("'", "'\\''")}' --out ${name}-kept --view`;
  }

  download() {
    const { id, identity } = this.data, marks = Object.entries(this.episodes.marks.written()).map(([n, { mark, note }]) => [n, { mark: mark || null, note }]);
    const text = JSON.stringify({ format_version: 1, dataset: id, identity, episodes: Object.fromEntries(marks) }, null, 1);
    make("a", { href: `data:application/json,${encodeURIComponent(text)}`, download: `${this.data.name.replace(/[^\w.-]+/g, "-")}.marks.json` }).click();
  }

  // All state but marks is in the address.
  remember() {
    const kept = new URLSearchParams({ episode: this.number ?? 0 });
    const add = (key, value, usual) => { if (value !== usual && value !== null) kept.set(key, value); };
    add("t", this.step, 0);
    add("sort", this.list.sort, "number");
    add("down", this.list.down ? "" : null, null);
    add("where", this.list.where, "");
    add("camera", this.film.camera ?? null, null);
    add("pin", this.pinned, null);
    add("speed", this.speed, 1);
    add("end", this.end, "loop");
    history.replaceState(null, "", `#${kept}`);
  }

  restore() {
    const kept = new URLSearchParams(location.hash.slice(1)), whole = key => /^\d{1,15}$/.test(kept.get(key) ?? "") ? Number(kept.get(key)) : null;
    const { list } = this, inFile = Object.keys(this.data.shown ?? {}).map(Number);
    this.first = whole("episode") ?? (inFile.includes(this.episodes.numbers[0]) || !inFile.length ? this.episodes.numbers[0] : inFile[0]);
    this.start = whole("t") ?? 0;
    if (this.episodes.columns.has(kept.get("sort")) || kept.get("sort") === "mark") list.sort = kept.get("sort");
    list.down = kept.has("down");
    list.where = kept.get("where") ?? "";
    if (!this.text) this.film.camera = whole("camera");
    if (whole("pin") !== null) this.read(whole("pin")).then(found => { if (found) { this.pinned = whole("pin"); this.open(this.first, this.start); } });
    this.speed = [.25, .5, 1, 2, 4, 8].find(speed => speed === Number(kept.get("speed"))) ?? 1;
    this.end = ["stop", "loop", "next"].find(end => end === kept.get("end")) ?? "loop";
    if (one("#speed")) { one("#speed").value = this.speed; one("#end").value = this.end; }
  }

  controls() {
    const press = (query, act) => { const button = one(query); if (button) button.onclick = event => { act(button); if (event.detail) button.blur(); }; };
    press("#play", () => this.play());
    press("#previous", () => this.neighbour(-1));
    press("#next", () => this.neighbour(1));
    press("#pin", () => this.pin());
    press("#full", () => this.full());
    press("#keys", () => one("#help").showModal());
    press("#close", () => one("#help").close());
    press("#copy", () => this.copy(this.list.expression, "expression"));
    press("#command", () => this.copy(this.command, "command"));
    press("#download", () => this.download());
    for (const button of all("[data-mark]")) button.onclick = event => { this.mark(button.dataset.mark); if (event.detail) button.blur(); };
    const speed = one("#speed"), end = one("#end"), note = one("#note");
    if (speed) speed.onchange = () => { this.speed = Number(speed.value); this.remember(); };
    if (end) end.onchange = () => { this.end = end.value; this.remember(); };
    note.onchange = () => { const { number } = this; this.change(number, { note: note.value }); this.list.touch(number); this.say(`Episode ${number}: note kept`); };
    note.onkeydown = event => { if (event.key === "Enter") note.blur(); };
    const keys = this.keys();
    one("#help ul").replaceChildren(...keys.filter(([key]) => key).map(([key, text]) => make("li", {}, make("kbd", {}, key), ` ${text}`)));
    const acts = new Map(keys.flatMap(([, , pairs]) => Object.entries(pairs)));
    document.addEventListener("keydown", event => this.key(event, acts));
    document.addEventListener("click", event => { for (const open of all("header details[open]")) if (!open.contains(event.target)) open.open = false; });
    let pointed = false; // after a choice with the pointer a menu gives the keys back
    for (const [kind, so] of [["pointerdown", true], ["keydown", false]]) document.addEventListener(kind, () => { pointed = so; }, true);
    document.addEventListener("change", event => { if (pointed && event.target.matches("main select")) event.target.blur(); });
    addEventListener("hashchange", () => location.reload());
  }

  full() { if (document.fullscreenElement) document.exitFullscreen(); else one("#film").requestFullscreen?.(); }

  faster(way) {
    const box = one("#speed");
    box.selectedIndex = Math.min(box.length - 1, Math.max(0, box.selectedIndex + way));
    this.speed = Number(box.value);
    this.say(`Speed ${box.selectedOptions[0].text}`);
    this.remember();
  }

  ending() {
    const box = one("#end");
    box.selectedIndex = (box.selectedIndex + 1) % box.length;
    this.end = box.value;
    this.say(box.selectedOptions[0].text);
    this.remember();
  }

  // Text of a key, what it does, and the function of each.
  keys() {
    const marks = this.marked ? [
      ["g", "good, and on", { g: () => this.mark("good") }], ["b", "bad, and on", { b: () => this.mark("bad") }], ["u", "unsure, and on", { u: () => this.mark("unsure") }],
      ["G B U", "mark and stay", { G: () => this.mark("good", true), B: () => this.mark("bad", true), U: () => this.mark("unsure", true) }],
      ["x", "no mark", { x: () => this.mark("", true) }], ["z", "take the last mark back", { z: () => this.takeBack() }], ["n", "note", { n: () => one("#note").focus() }],
    ] : [];
    const film = this.text ? [] : [
      ["Space", "play, pause", { " ": () => this.play() }],
      ["← →", "one step (Shift: ten)", { ArrowLeft: event => this.seek(this.step - (event.shiftKey ? 10 : 1)), ArrowRight: event => this.seek(this.step + (event.shiftKey ? 10 : 1)) }],
      ["Home End", "first, last step", { Home: () => this.seek(0), End: () => this.seek(this.length - 1) }],
      ["1 … 9", "enlarge a camera", Object.fromEntries(this.data.cameras.slice(0, 9).map((_, i) => [`${i + 1}`, () => this.film.enlarge(i)]))],
      ["c", "compare with another episode", { c: () => this.pin() }], ["f", "full screen", { f: () => this.full() }],
      ["l", "at the end: stop, loop, next", { l: () => this.ending() }], ["[ ]", "slower, faster", { "[": () => this.faster(-1), "]": () => this.faster(1) }],
    ];
    return [...film, ["j k", "next, previous episode", { j: () => this.neighbour(1), k: () => this.neighbour(-1) }], ...marks,
      ["/", "filter", { "/": () => this.list.field.focus() }], ["e", "copy the expression", { e: () => this.list.expression && this.copy(this.list.expression, "expression") }],
      ["?", "this list", { "?": () => one("#help").showModal() }]];
  }

  key(event, acts) {
    const inside = event.target.closest?.("input:not([type=range]), select, textarea, dialog");
    if (event.key === "Escape") {
      if (inside?.tagName === "INPUT") return inside.blur();
      const opened = all("header details[open]");
      for (const panel of opened) { panel.open = false; one("summary", panel).focus(); }
      if (!opened.length && !inside && !this.text && this.film.camera !== null) this.film.enlarge(this.film.camera);
      return;
    }
    if (inside || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.length === 1 && event.key !== " " && !one("#letters").checked) return;
    if (event.key === " " && event.target.closest?.("button, summary, a")) return;
    if (/^(Home|End)$/.test(event.key) && event.target.closest?.(".rows, .sheet")) return;
    const act = acts.get(event.key);
    if (!act) return;
    event.preventDefault();
    act(event);
  }
}

if (document.body.matches(".viewer")) new Viewer(JSON.parse(one("#data script").textContent));
