"use strict";
// Draws the figures of a run. All texts of a run (names, reasons, lines of log) are put in as text, never as HTML.

const KINDS = [["read", "reading data"], ["computed", "computing"], ["moved", "moving values"], ["waited", "waiting for others"]];
const MOST_LINES = 200;
const find = (id) => document.getElementById(id);
let run = null;
let pointer = null; // the time under the pointer, on all curves

// -- elements ---------------------------------------------------------------------------------------------------

function made(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function drawn(tag, attributes = {}, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function figure(value, digits = 4) {
  if (value === null || value === undefined || value === "") return "–";
  if (!isNumber(value)) return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)) return value.toExponential(2);
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(digits)));
}

function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${at ? value.toPrecision(3) : value} ${units[at]}`;
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(2))} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(2))} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");
const percent = (part, whole) => `${Math.round((100 * part) / whole)}\u00a0%`;

function table(box, columns, rows, empty) {
  if (!rows.length) return box.replaceChildren(made("p", { class: "empty" }, empty));
  const right = columns.map((_, column) => rows.every((row) => isNumber(row[column]?.sort ?? row[column]) || row[column] === null));
  const side = (column) => (right[column] ? { class: "right" } : {});
  const head = made("tr", {}, ...columns.map((name, column) => made("th", { scope: "col", ...side(column) }, name)));
  const body = rows.map((row) => made("tr", {}, ...row.map((cell, column) => made("td", side(column), cell?.text ?? figure(cell)))));
  return box.replaceChildren(made("table", {}, made("thead", {}, head), made("tbody", {}, ...body)));
}

// -- curves -----------------------------------------------------------------------------------------------------

function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return found;
}

// The range of an axis, where a value lies on it (0 to 1), and the values with a line. From 0, or by powers of ten.
// Whole numbers have no lines between them.
function scale(values, mayBeLog) {
  const low = Math.min(...values), high = Math.max(...values);
  if (mayBeLog && low > 0 && high / low > 50) {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    const every = Math.ceil((to - from) / 4);
    const lines = [];
    for (let at = from; at <= to; at += every) lines.push(10 ** at);
    return { at: (value) => (Math.log10(value) - from) / (to - from), lines, log: true };
  }
  const from = Math.min(0, low), to = high > from ? high + (high - from) * 0.08 : from + 1;
  const lines = ticks(from, to, 4);
  return { at: (value) => (value - from) / (to - from), lines: values.every(Number.isInteger) ? lines.filter(Number.isInteger) : lines, log: false };
}

function short(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(0);
  return Math.abs(value) >= 1e4 ? `${Number((value / 1000).toPrecision(3))}k` : String(Number(value.toPrecision(3)));
}

function chart(box, title, series, marks, mayBeLog) {
  const times = run.points.map((point) => point[0]);
  const curves = series.map((each) => ({ ...each, values: run.points.map((point) => point[run.curves.indexOf(each.of)]) }));
  const known = curves.flatMap((each) => each.values.filter(isNumber));
  const heading = made("h2", {}, title), keys = made("div", { class: "keys" });
  const svg = drawn("svg", { role: "img" });
  box.replaceChildren(made("div", { class: "chart-head" }, heading, keys), svg);
  if (!known.length) {
    svg.append(drawn("text", { x: 8, y: 24 }, "nothing told yet"));
    svg.setAttribute("aria-label", `${title}: nothing told yet`);
    return;
  }
  const width = Math.max(200, svg.clientWidth || box.clientWidth - 34), height = 170;
  const left = 42, bottom = height - 20, top = 8, right = width - 8;
  const axis = scale(known, mayBeLog);
  const first = times[0], last = Math.max(times[times.length - 1], first + 1);
  const x = (at) => left + ((at - first) / (last - first)) * (right - left);
  const y = (value) => bottom - axis.at(value) * (bottom - top);
  if (axis.log) heading.append(" (logarithmic)");
  for (const value of axis.lines) {
    svg.append(drawn("line", { class: value === 0 ? "axis" : "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  svg.append(drawn("text", { x: left, y: height - 4 }, clock(first)));
  svg.append(drawn("text", { x: right, y: height - 4, "text-anchor": "end" }, clock(last)));
  for (const at of marks.filter((each) => each >= first && each <= last)) {
    const mark = drawn("path", { class: "mark", d: `M${x(at)} ${bottom - 6}l4 6h-8z` });
    mark.append(drawn("title", {}, `checkpoint, seen at ${clock(at)}`));
    svg.append(mark);
  }
  const shown = pointer === null ? times.length - 1 : nearest(times, pointer);
  for (const { of, name, colour, values } of curves) {
    let path = "", pen = false;
    values.forEach((value, point) => {
      if (isNumber(value) && !(axis.log && value <= 0)) path += `${pen ? "L" : "M"}${x(times[point]).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = isNumber(value);
    });
    svg.append(drawn("path", { class: `curve ${colour}`, d: path, "data-of": of }));
    const value = values[shown];
    if (isNumber(value)) svg.append(drawn("circle", { class: `dot ${colour}`, cx: x(times[shown]), cy: y(value), r: 3 }));
    keys.append(made("span", { class: `key ${colour}` }, made("span", {}, `${name} ${figure(value)}`)));
  }
  if (pointer !== null) {
    keys.prepend(made("span", {}, clock(times[shown])));
    svg.append(drawn("line", { class: "cursor", x1: x(times[shown]), x2: x(times[shown]), y1: top, y2: bottom }));
  }
  const latest = curves.map((each) => `${each.name} ${figure(each.values[times.length - 1])}`).join(", ");
  svg.setAttribute("aria-label", `${title} from ${clock(first)} to ${clock(last)}; at the end ${latest}`);
  svg.addEventListener("pointermove", (event) => {
    const inside = (event.clientX - svg.getBoundingClientRect().left - left) / (right - left);
    pointer = first + Math.min(1, Math.max(0, inside)) * (last - first);
    drawCharts();
  });
  svg.addEventListener("pointerleave", () => { pointer = null; drawCharts(); });
}

function nearest(times, at) {
  let best = 0;
  times.forEach((time, point) => { if (Math.abs(time - at) < Math.abs(times[best] - at)) best = point; });
  return best;
}

function drawCharts() {
  const charts = find("charts");
  while (charts.children.length < 3) charts.append(made("div", { class: "chart" }));
  const marks = run.checkpoints.map((each) => each.seen);
  const examples = run.points.some((point) => isNumber(point[run.curves.indexOf("examples_per_s")]));
  chart(charts.children[0], "Loss", [{ of: "loss", name: "mean", colour: "one" }], marks, true);
  chart(charts.children[1], "Throughput", examples
    ? [{ of: "examples_per_s", name: "examples/s", colour: "one" }]
    : [{ of: "pushes_per_s", name: "pushes/s", colour: "one" }], marks, false);
  chart(charts.children[2], "Staleness (versions)", [
    { of: "staleness", name: "most", colour: "two" }, { of: "mean_staleness", name: "mean", colour: "one" }], marks, false);
}

// -- sections ---------------------------------------------------------------------------------------------------

// What chief and ps said last: of this reading, or of the last one in which they answered.
function told() {
  const own = Object.keys(run.status.training).length > 0;
  const last = own ? { training: run.status.training, ps: run.status.ps, tasks: run.tasks } : run.last;
  return { training: last.training ?? {}, ps: last.ps ?? {}, tasks: last.tasks ?? run.tasks, own };
}

function drawHead() {
  const { status } = run;
  const name = `run ${status.id}${status.name ? ` ${status.name}` : ""}`;
  document.title = `${name}: ${status.state}`;
  find("title").textContent = name;
  find("state").textContent = status.state;
  find("state").className = `pill ${status.state.toLowerCase()}`;
  const values = Object.entries(status.values ?? {}).map(([key, value]) => `${key}=${value}`).join(", ");
  find("about").textContent = [status.command, values, status.resumes ? `goes on from run ${status.resumes}` : ""].filter(Boolean).join(" · ");
  const ended = find("ended");
  ended.hidden = !run.is_over && !run.trouble;
  const when = status.since ? ` at ${new Date(status.since).toLocaleString("en-GB")}` : "";
  const code = isNumber(status.exit_code) ? `, exit code ${status.exit_code}` : "";
  ended.textContent = run.is_over
    ? `The run has ended: ${status.state}${when}${code}${status.reason ? `. ${status.reason}` : ""}. ${run.points.length ? "All figures are the last ones." : "Nobody watched it: there are no figures of its training."}`
    : `The figures of the training are the last ones: ${run.trouble}`;
}

function drawWhy({ training, own }) {
  const why = find("why"), waits = training.waits;
  const known = Object.keys(training.workers ?? {}).length > 0;
  let text = training.why || "";
  if (!text && waits) {
    const until = isNumber(waits.until_s) ? `, until a deadline in ${duration(waits.until_s)}` : "";
    text = `${waits.who.join(", ")} waits for ${waits.for.join(", ")} since ${duration(waits.since_s)}${until}`;
  }
  why.hidden = !own || !(text || known);
  why.className = text ? "speaks" : "quiet";
  why.textContent = text || "No worker stands out.";
}

function drawTiles({ training, tasks }) {
  const moved = run.points.length ? run.points[run.points.length - 1][run.curves.indexOf("mb_per_s")] : null;
  const living = tasks.filter((row) => isWorker(row) && row.state === "RUNNING").length;
  const tiles = [
    ["step", training.step], ["loss", training.loss], ["pushes/s", training.pushes_per_s, 3],
    ["examples/s", training.examples_per_s, 3], ["MB/s moved", moved, 3], ["workers", living],
    ["last checkpoint", training.saved ? training.saved_ago || training.saved : null],
  ];
  const shown = tiles.filter(([name, value]) => isNumber(value) || value || name === "step" || name === "loss");
  find("tiles").replaceChildren(...shown.map(([name, value, digits]) =>
    made("div", { class: "tile", "data-figure": name }, made("b", {}, figure(value, digits)), made("span", {}, name))));
}

const taskOf = (row) => { const parts = row.task.split("."); return parts.length > 2 ? `${parts[1]}:${parts[2]}` : parts[1]; };
const isWorker = (row) => taskOf(row).startsWith("worker:");

function drawLanes({ training, tasks }) {
  const times = Object.fromEntries(Object.entries(training.workers ?? {}).filter(([, own]) => own.recent.length));
  const workers = tasks.filter(isWorker);
  const spans = Object.values(times).map(({ recent }) => recent.reduce((sum, piece) => sum + piece.slice(1).reduce((a, b) => a + b, 0), 0));
  const span = Math.max(1e-6, ...spans);
  const any = spans.length > 0;
  find("legend").replaceChildren(...(any ? KINDS.map(([kind, words]) => made("span", { class: `key ${kind}` }, made("span", {}, words))) : []));
  const cells = (kind, who, bar, ...figures) => made("div", { class: `lane ${kind}` }, made("div", { class: "who" }, who),
    made("div", { class: "bar" }, bar), ...figures.map((each) => made("div", { class: "figure" }, each)));
  const head = cells("first", "", any ? `the last steps of each, on one scale of ${duration(span)}` : "", "a step takes", "loss", "staleness");
  const lanes = workers.map((row) => {
    const name = taskOf(row), own = times[name];
    const bar = own ? lane(own, span) : made("span", { class: "none" }, row.state === "RUNNING" ? "its times are not known" : row.state);
    return cells("", name, bar, own ? perStep(own) : rate(row), figure(row.loss), figure(row.staleness));
  });
  find("lanes").replaceChildren(...(workers.length ? [head, ...lanes] : [made("p", { class: "empty" }, "This run has no workers.")]));
}

function perStep({ recent }) {
  const steps = recent.reduce((sum, piece) => sum + piece[0], 0);
  const seconds = recent.reduce((sum, piece) => sum + piece.slice(1).reduce((a, b) => a + b, 0), 0);
  return steps ? duration(seconds / steps) : "–";
}

const rate = (row) => (row["pushes/s"] ? duration(1 / row["pushes/s"]) : "–");

// The last stretches of steps of a worker, the newest on the right, each as wide as it took.
function lane({ recent }, span) {
  const sums = KINDS.map((_, kind) => recent.reduce((sum, piece) => sum + piece[kind + 1], 0));
  const whole = sums.reduce((a, b) => a + b, 0) || 1;
  const mix = KINDS.map(([, words], kind) => [sums[kind], `${words} ${percent(sums[kind], whole)}`])
    .filter(([sum]) => sum / whole >= 0.005).sort((a, b) => b[0] - a[0]).map(([, words]) => words).join(", ");
  const svg = drawn("svg", { viewBox: "0 0 1000 26", preserveAspectRatio: "none", role: "img", "aria-label": mix });
  let at = 1000 - (1000 * whole) / span;
  for (const piece of recent) {
    const from = at;
    KINDS.forEach(([kind, words], index) => {
      const width = (1000 * piece[index + 1]) / span;
      if (width > 0) {
        const part = drawn("rect", { class: kind, x: at.toFixed(2), y: 0, width: width.toFixed(2), height: 26 });
        part.append(drawn("title", {}, `${words} ${duration(piece[index + 1])}, in ${figure(piece[0])} ${piece[0] === 1 ? "step" : "steps"}`));
        svg.append(part);
      }
      at += width;
    });
    if (from > 0) svg.append(drawn("rect", { class: "cut", x: from.toFixed(2), y: 0, width: 1.5, height: 26 }));
  }
  const box = made("div");
  box.append(svg, made("div", { class: "mix" }, mix));
  return box;
}

function drawTables({ training, ps, tasks }) {
  const servers = Object.entries(ps).map(([index, values]) => [
    `ps:${index}`, values.state, values.step ?? null, values.version ?? null,
    isNumber(values.nbytes) ? { text: bytes(values.nbytes), sort: values.nbytes } : null,
    values.applied ?? null, values.dropped ?? null, values.refused ?? null]);
  table(find("ps"), ["ps", "state", "step", "version", "bytes", "applied", "dropped", "refused"], servers, "No ps has told anything yet.");
  const saved = [...run.checkpoints].reverse().map((each) => [{ text: each.name }, { text: clock(each.seen) }]);
  table(find("saved"), ["name", "seen at"], saved, "None so far.");
  const published = [...(training.published ?? [])].reverse().map((each) => [each.number, { text: each.label || "–" }, each.step]);
  find("published-part").hidden = !published.length;
  table(find("published"), ["number", "label", "step"], published, "None so far.");
  const now = Object.fromEntries(run.tasks.map((row) => [row.task, row]));
  const rows = tasks.map((row) => [
    { text: taskOf(row) }, { text: (now[row.task] ?? row).state }, row.step, row["pushes/s"], row["MB/s in"], row["MB/s out"],
    row["CPU %"], row["memory MB"], row["GPU %"], row["GPU MB"], (now[row.task] ?? row).restarts]);
  const names = ["task", "state", "step", "pushes/s", "MB/s in", "MB/s out", "CPU %", "memory MB", "GPU %", "GPU MB", "restarts"];
  const kept = names.map((_, column) => !names[column].startsWith("GPU") || rows.some((row) => row[column] !== null));
  const some = (row) => row.filter((_, column) => kept[column]);
  table(find("tasks"), some(names), rows.map((row) => some(row.map((cell) => (isNumber(cell) && !Number.isInteger(cell) ? Number(cell.toPrecision(3)) : cell)))), "No tasks.");
}

function addLines(lines, anew) {
  const log = find("log");
  const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 20;
  if (anew) log.replaceChildren();
  log.append(...lines.map(([at, task, text]) => made("div", {},
    made("span", { class: "when" }, new Date(at).toLocaleTimeString("en-GB")), made("span", { class: "from" }, task), text)));
  while (log.children.length > MOST_LINES) log.firstChild.remove();
  if (!log.children.length) log.append(made("p", { class: "empty" }, "Nothing printed yet."));
  else log.querySelector(".empty")?.remove();
  if (follows || anew) log.scrollTop = log.scrollHeight;
}

function draw() {
  const last = told();
  const nothing = run.is_over && !run.points.length;
  for (const id of ["tiles", "charts", "workers-card", "ps-card", "saved-card"]) find(id).hidden = nothing;
  drawHead();
  drawWhy(last);
  drawTiles(last);
  drawCharts();
  drawLanes(last);
  drawTables(last);
}

// -- where the figures come from ----------------------------------------------------------------------------------

function take(news) {
  const anew = news.curves !== undefined;
  if (!anew) news = { ...news, curves: run.curves, points: [...run.points, ...news.points] };
  run = { ...run, ...news };
  if (!run.status) return;
  addLines(news.lines, anew);
  draw();
}

function connect() {
  const link = find("link");
  const events = new EventSource("events");
  events.onopen = () => { link.textContent = "live"; link.className = "live"; };
  events.onmessage = (event) => take(JSON.parse(event.data));
  events.onerror = () => { link.textContent = "dps watch does not answer"; link.className = ""; };
}

const own = find("data").textContent;
if (own) {
  take(JSON.parse(own));
  find("link").textContent = `saved at ${new Date(run.at * 1000).toLocaleString("en-GB")}`;
  find("save").hidden = true;
} else connect();
addEventListener("resize", () => { if (run?.status) drawCharts(); });
