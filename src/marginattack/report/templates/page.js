// Charts are declared by their specs. This script keeps shared parameters equal in all charts and drives the HTML controls.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { unitScale: page.unit, log: false, theme: dark.matches ? "dark" : "light", shared: {} };
  const views = new Map(); // element → { view, norm, chart, params }
  const unitScale = (norm) => (norm === "l0" ? 1 : state.unitScale);

  // Numbers, with the rules of numbers.py.
  const countDecimals = (size, digits) => (size > 0 ? Math.max(digits - 1 - Math.floor(Math.log10(size)), 0) : 0);
  const formatNumber = (value, digits = 4, like = null) => {
    if (value === null || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return "not found";
    const size = Math.abs(value);
    const sign = value < 0 ? "−" : "";
    if (size >= 10 ** (digits - 1)) return sign + Math.round(size).toLocaleString("en");
    if (size > 0 && size < 1e-6) return "< 0.000001";
    if (like !== null && Number(size.toFixed(countDecimals(like, digits)))) return size.toFixed(countDecimals(like, digits));
    const text = size.toFixed(countDecimals(size, digits));
    return sign + (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  };
  const isFraction = (value) => Math.abs(255 * value - Math.round(255 * value)) < 1e-6 && Number(value.toPrecision(4)) !== Number(value.toPrecision(9));
  const formatDistance = (value, norm, like = null) => {
    const fraction = unitScale(norm) === 1 && Number.isFinite(value) && value > 0 && (page.pixels[norm] || isFraction(value));
    const scaled = (unit) => like === null ? null : like * unit;
    return fraction ? `${formatNumber(255 * value, 3, scaled(255))}/255` : formatNumber(value * unitScale(norm), 4, scaled(unitScale(norm)));
  };
  const percent = (share) => `${(100 * share).toFixed(1)} %`;

  const rows = (name) => {
    const { length, columns, names } = page.datasets[name];
    const read = Object.entries(columns).map(([key, values]) => {
      const at = Array.isArray(values) ? (i) => values[i] : () => values;
      return [key, key in names ? (i) => names[key][at(i)] : at];
    });
    return Array.from({ length }, (_, i) => Object.fromEntries(read.map(([key, at]) => [key, at(i)])));
  };

  const embed = async (element) => {
    const { chart, norm } = element.dataset;
    const log = `${chart}-log`;
    const spec = structuredClone(page.specs[norm][state.log && page.specs[norm][log] ? log : chart]);
    spec.datasets ??= {}; // Altair keeps inline data of the spec here
    for (const name of page.uses[chart]) spec.datasets[`${name}_${norm}`] = rows(`${name}_${norm}`);
    const params = spec.params.filter((param) => !param.select);
    for (const param of params) {
      if (param.name === "unit_scale") param.value = unitScale(norm);
      else if (param.name in (state.shared[norm] ?? {})) param.value = state.shared[norm][param.name];
    }
    views.get(element)?.view.finalize();
    const config = structuredClone(page.config);
    for (const param of config.params) param.value = page.themes[state.theme][param.name];
    if (element.clientWidth < 480) config.legend.columns = 1;
    const { view } = await vegaEmbed(element.firstElementChild, spec, { actions: false, renderer: "canvas", config });
    views.set(element, { view, norm, chart, params: new Set(params.map((param) => param.name)) });
    if (chart === "curve") view.addSignalListener("clicked_eps", (_, { eps }) => eps && setPin(norm, eps[0]));
    if (chart === "curve" && Object.keys(page.margins[norm]).length > 1) view.addSignalListener("clicked_series", (_, { series }) => highlight(norm, series?.[0] ?? null));
    if (spec.usermeta?.square) {
      view.addSignalListener("width", () => setTimeout(() => makeSquare(view)));
      await makeSquare(view);
    }
    if (chart === "strips") view.addSignalListener("clicked_class", (_, clicked) => selectClass(clicked.from ? clicked.from[0] : null));
  };
  const paint = (view, theme) => {
    for (const [name, colour] of Object.entries(page.themes[theme])) view.signal(name, colour);
    return view;
  };
  const makeSquare = (view) => view.height(view.width()).resize().runAsync(); // so that its diagonal has 45°
  const onScreen = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return bottom > 0 && top < innerHeight;
  };
  const visibleFirst = (elements) => [...elements].sort((a, b) => onScreen(b) - onScreen(a));
  const pause = () => new Promise((resolve) => setTimeout(resolve)); // keeps the page responsive
  const unembedded = new Set();
  const busy = new Set(); // being drawn
  let embedding = null;
  const embedAll = (elements = all(".chart")) => {
    for (const element of elements) unembedded.add(element);
    embedding ??= (async () => {
      while (unembedded.size) {
        const [element] = visibleFirst(unembedded);
        unembedded.delete(element);
        busy.add(element);
        await embed(element);
        busy.delete(element);
        await pause();
      }
      embedding = null;
    })();
    return embedding;
  };

  // Charts on screen are redrawn at once, the others one after the other when nothing else is to do.
  const waiting = new Set();
  let redrawing = false;
  const redraw = async () => {
    if (redrawing) return;
    redrawing = true;
    while (waiting.size) {
      const [element] = visibleFirst(waiting);
      if (!onScreen(element)) await pause();
      waiting.delete(element);
      busy.add(element);
      await views.get(element)?.view.runAsync();
      busy.delete(element);
    }
    redrawing = false;
  };
  // Resolves once all charts, or those on screen, are up to date.
  const settled = async (which = () => true) => {
    while ([...waiting, ...unembedded, ...busy].some(which)) await pause();
  };
  const setSignal = (norm, name, value) => {
    for (const [element, entry] of views) {
      if (entry.norm !== norm || !(entry.params.has(name) || name === "unit_scale")) continue;
      entry.view.signal(name, value);
      waiting.add(element);
    }
    redraw();
  };
  const setParameter = (norm, name, value) => {
    (state.shared[norm] ??= {})[name] = value;
    setSignal(norm, name, value);
  };
  const norms = Object.keys(page.specs);
  const setParameterAll = (name, value) => norms.forEach((norm) => setParameter(norm, name, value));
  const selectClass = (name) => {
    setParameterAll("selected_class", name);
    document.getElementById("selected-class").value = name ?? "";
  };

  const highlight = (norm, name) => {
    setParameter(norm, "highlight", name);
    document.querySelector(`select.highlight[data-norm="${norm}"]`).value = name ?? "";
  };
  for (const select of all("select.highlight")) select.addEventListener("change", () => highlight(select.dataset.norm, select.value || null));

  // The pinned ε is kept as it was typed; its robust accuracy is counted from all margins.
  const unpacked = new Map();
  const sortedMargins = (norm, series) => {
    const key = `${norm} ${series}`;
    if (!unpacked.has(key)) {
      const bytes = Uint8Array.from(atob(page.margins[norm][series].sorted), (letter) => letter.charCodeAt(0));
      unpacked.set(key, new Float32Array(bytes.buffer));
    }
    return unpacked.get(key);
  };
  const roundedUp = (eps) => eps + Math.min(3e-5 * eps, 1e-6 * Math.max(eps, 1)); // as rounding.py: what counts as within ε
  const countWithin = (values, eps) => {
    let [low, high] = [0, values.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= eps) low = middle + 1; else high = middle;
    }
    return low;
  };
  const wilson = (hits, n, z = 1.959963985) => {
    const [p, q] = [hits / n, z * z / n];
    const [centre, half] = [p + q / 2, z * Math.sqrt(p * (1 - p) / n + q / (4 * n))];
    return [(centre - half) / (1 + q), (centre + half) / (1 + q)];
  };
  const setPin = (norm, eps, typed = null) => {
    setParameter(norm, "pin_text", typed);
    setParameter(norm, "pin", eps);
    describePin(norm);
  };
  const describePin = (norm) => {
    const { pin = null, pin_text: typed = null } = state.shared[norm] ?? {};
    const at = (selector) => document.querySelector(`${selector}[data-norm="${norm}"]`);
    const label = pin === null ? "" : typed ?? formatDistance(pin, norm);
    if (document.activeElement !== at("input.pin")) at("input.pin").value = label;
    at(".unpin").disabled = pin === null;
    const names = Object.keys(page.margins[norm]);
    const lines = pin === null ? [] : names.map((series) => {
      const [margins, { total }] = [sortedMargins(norm, series), page.margins[norm][series]];
      const within = countWithin(margins, roundedUp(pin));
      const robust = margins.length - within;
      const who = names.length > 1 ? `${series}: ` : "";
      return `${who}robust accuracy ${percent(robust / total)} (${wilson(robust, total).map(percent).join(" to ")}); ${within.toLocaleString("en")} of ${margins.length.toLocaleString("en")} margins are within ε.`;
    });
    at("output.pin-summary").textContent = pin === null ? "No ε is pinned." : `At ε = ${label}: ${lines.join(" ")}`;
    describeMatrix(norm, pin, label);
    for (const each of all(`.sides[data-norm="${norm}"]`)) describeSides(each, pin, label);
  };
  const describeMatrix = (norm, pin, label) => {
    const note = document.querySelector(`.matrix-note[data-norm="${norm}"]`);
    if (!note) return;
    const margins = sortedMargins(norm, state.shared[norm]?.series ?? Object.keys(page.margins[norm])[0]);
    const [within, found] = [pin === null ? Infinity : roundedUp(pin), Number.MAX_VALUE].map((eps) => countWithin(margins, eps).toLocaleString("en"));
    note.textContent = pin === null ? "All samples with an adversarial example are counted." : `Only the ${within} of ${found} samples with a margin up to the pinned ε = ${label} are counted.`;
  };

  // Samples that are robust at ε in one run only: as the file has them for its own ε, else counted from the points drawn.
  const written = new Map();
  const describeSides = (sentence, pin, label) => {
    const { norm, series, eps } = sentence.dataset;
    const body = all("details.changed table").find((table) => table.closest("details").dataset.norm === norm && table.closest("details").dataset.series === series).tBodies[0];
    if (!written.has(sentence)) written.set(sentence, [[...sentence.childNodes], [...body.rows]]);
    const [text, listed] = written.get(sentence);
    if (pin === null || Math.abs(pin - eps) <= 1e-9 * eps) {
      sentence.replaceChildren(...text);
      body.replaceChildren(...listed);
      return;
    }
    const points = rows(`paired_${norm}`).filter((row) => row.series === series).map((row) => ({ ...row, a: row.a ?? Infinity, b: row.b ?? Infinity }));
    const size = ({ a, b }) => Math.abs(Math.log(b / a));
    const within = roundedUp(pin);
    const ways = [points.filter(({ a, b }) => b > within && a <= within), points.filter(({ a, b }) => b <= within && a > within)].map((way) => way.sort((x, y) => size(y) - size(x)));
    const every = points[0]?.every > 1 ? ` of the ${points.length.toLocaleString("en")} drawn` : "";
    sentence.textContent = `At the pinned ε = ${label}, ${ways[0].length.toLocaleString("en")}${every} become robust and ${ways[1].length.toLocaleString("en")} no longer are.`;
    body.replaceChildren(...ways.flatMap((way, lost) => way.slice(0, 8).map((row) => {
      const [head, ...margins] = [cell("th", row.name), ...[row.a, row.b].map((value) => Object.assign(cell("td", numberCell(Number.isFinite(value) ? value : null, norm))))];
      head.scope = "row";
      margins.forEach((each, i) => { each.dataset.s = [row.a, row.b][i]; });
      return cell("tr", head, cell("td", row.from), cell("td", lost ? "no longer robust" : "became robust"), ...margins);
    })));
  };
  for (const field of all("input.pin")) {
    const { norm } = field.dataset;
    field.addEventListener("change", () => {
      const text = field.value.trim();
      const [, value, divisor] = text.match(/^(\d*\.?\d+(?:e-?\d+)?)\s*(?:\/\s*(\d*\.?\d+))?$/i) ?? [];
      if (text && value === undefined) {
        document.querySelector(`output.pin-summary[data-norm="${norm}"]`).textContent = `“${text}” is not a distance: type 0.03 or 8/255.`;
        return;
      }
      if (!text) setPin(norm, null);
      else setPin(norm, divisor ? value / divisor : value / unitScale(norm), text);
    });
  }
  for (const button of all(".unpin")) button.addEventListener("click", () => setPin(button.dataset.norm, null));

  // On paper, charts are vectors as wide as their column there. A browser prints after promises, but before timers.
  const drawForPaper = async (element, view) => {
    const width = view.width();
    const square = element.dataset.chart === "paired";
    const wide = !square && element.closest(".columns.wide, .columns:not(:has(> :nth-child(2)))");
    await paint(view, "light").width(wide ? 640 : 290).runAsync();
    if (square) await makeSquare(view);
    const svg = await view.toSVG();
    const paper = Object.assign(document.createElement("div"), { className: "paper", innerHTML: svg });
    element.append(paper);
    addEventListener("afterprint", () => { paper.remove(); paint(view, state.theme).width(width).runAsync(); }, { once: true });
  };
  addEventListener("beforeprint", () => views.forEach(({ view }, element) => drawForPaper(element, view)));

  // The toolbar.
  const applyUnit = () => {
    for (const span of all(".num[data-v]")) {
      const { v, norm, typed, like } = span.dataset; // an ε that was typed stays so in the unit of the file
      span.textContent = typed && state.unitScale === page.unit ? typed : formatDistance(Number(v), norm, like ? Number(like) : null);
    }
    for (const norm of norms) {
      if (state.shared[norm]?.pin_text) setParameter(norm, "pin_text", null); // it was typed in the other unit
      setSignal(norm, "unit_scale", unitScale(norm));
      describePin(norm);
    }
  };
  for (const radio of all('input[name="unit"]')) {
    radio.addEventListener("change", () => { state.unitScale = Number(radio.value); applyUnit(); });
  }
  const log = document.getElementById("log");
  log.addEventListener("change", () => { state.log = log.checked; requestAnimationFrame(() => setTimeout(() => embedAll(all('.chart[data-chart="curve"]')))); });
  document.getElementById("selected-class").addEventListener("change", ({ target }) => setParameterAll("selected_class", target.value || null));
  document.getElementById("class-order").addEventListener("change", ({ target }) => setParameterAll("class_order", target.value));
  for (const select of all("select.sample")) {
    select.addEventListener("change", () => setParameter(select.dataset.norm, "sample", Number(select.value)));
  }
  const showSeries = (wanted) => {
    for (const norm of norms) {
      const name = wanted in page.margins[norm] ? wanted : Object.keys(page.margins[norm])[0];
      setParameter(norm, "series", name);
      for (const each of all(`.of-series[data-norm="${norm}"]`)) each.hidden = each.dataset.series !== name;
      describePin(norm);
    }
  };
  document.getElementById("series")?.addEventListener("change", ({ target }) => showSeries(target.value));
  const theme = document.getElementById("theme");
  const applyTheme = (name) => {
    state.theme = name;
    theme.textContent = name === "dark" ? "Light theme" : "Dark theme";
    for (const [element, { view }] of views) {
      paint(view, name);
      waiting.add(element);
    }
    redraw();
  };
  theme.addEventListener("click", () => {
    const name = state.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = name;
    applyTheme(name);
  });
  dark.addEventListener("change", () => { if (!document.documentElement.dataset.theme) applyTheme(dark.matches ? "dark" : "light"); });
  theme.textContent = state.theme === "dark" ? "Light theme" : "Dark theme";

  // Tables are sorted by the buttons in their headers.
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      all("thead th", table).forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.s ?? row.cells[column].textContent;
      const number = (text) => (text === "inf" ? Infinity : text.trim() === "" ? NaN : Number(text));
      const order = (a, b) => {
        const [x, y] = [number(key(a)), number(key(b))];
        return Number.isNaN(x) || Number.isNaN(y) ? key(a).localeCompare(key(b)) : x === y ? 0 : x - y;
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort((a, b) => (up ? order(a, b) : order(b, a))));
    }));
  }

  // With many classes, the table shows the weakest ones, or those that match the search.
  const cell = (kind, ...content) => {
    const element = document.createElement(kind);
    element.append(...content);
    return element;
  };
  const numberCell = (value, norm) => {
    const span = cell("span", formatDistance(value ?? Infinity, norm));
    if (value !== null) Object.assign(span.dataset, { v: value, norm });
    span.className = "num";
    return span;
  };
  for (const field of all(".class-search")) {
    const { norm, series } = field.dataset;
    const body = field.closest(".of-series").querySelector("table.by-class tbody");
    const [weakest, output] = [[...body.rows], field.closest(".search").querySelector("output")];
    const summary = output.textContent;
    field.addEventListener("input", () => {
      const wanted = field.value.trim().toLowerCase();
      const found = page.classes[norm][series].filter(([name]) => name.toLowerCase().includes(wanted));
      output.textContent = wanted ? `${found.length.toLocaleString("en")} ${found.length === 1 ? "class matches" : "classes match"}${found.length > 20 ? "; the first 20 are listed" : ""}.` : summary;
      body.replaceChildren(...(!wanted ? weakest : found.slice(0, 20).map(([name, n, median, low, high, missing, to, share]) => cell("tr",
        cell("th", name), cell("td", String(n)), cell("td", numberCell(median, norm)),
        (n >= 4 ? cell("td", numberCell(low, norm), " to ", numberCell(high, norm)) : cell("td", "–")), cell("td", String(missing)),
        cell("td", `${to} (${(100 * share).toFixed(0)} %)`)))));
    });
  }

  const select = document.getElementById("series");
  if (select) showSeries(select.value);
  for (const [norm, eps] of Object.entries(page.pin)) setPin(norm, eps, page.pin_text[norm] ?? formatDistance(eps, norm));
  window.report = { page, views, state, formatNumber, formatDistance, ready: embedAll(), settled: () => settled(), shown: () => settled(onScreen) };
})();
