// Charts are declared by their specs. This script keeps shared parameters equal in all charts and drives the HTML controls.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { unitScale: page.unit, log: false, theme: dark.matches ? "dark" : "light", shared: {} };
  const views = new Map(); // element → { view, norm, chart, params }
  const unitScale = (norm) => (norm === "l0" ? 1 : state.unitScale);
  const short = (value) => String(Number(value.toPrecision(4)));

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
    const { view } = await vegaEmbed(element.firstElementChild, spec, { actions: false, renderer: "canvas", config: page.config[state.theme] });
    views.set(element, { view, norm, chart, params: new Set(params.map((param) => param.name)) });
    if (chart === "curve") view.addSignalListener("clicked_eps", (_, { eps }) => eps && setParameter(norm, "pin", eps[0]));
    if (chart === "strips") view.addSignalListener("clicked_class", (_, clicked) => selectClass(clicked.from ? clicked.from[0] : null));
  };
  const embedAll = async (elements = all(".chart")) => {
    for (const element of elements) {
      await embed(element);
      await new Promise((resolve) => setTimeout(resolve)); // keep the page responsive
    }
  };

  // Set a shared parameter in all charts of a norm.
  const setParameter = (norm, name, value) => {
    (state.shared[norm] ??= {})[name] = value;
    for (const { view, norm: of, params } of views.values()) {
      if (of === norm && params.has(name)) view.signal(name, value).runAsync();
    }
    if (name === "pin") describePin(norm);
  };
  const norms = Object.keys(page.specs);
  const setParameterAll = (name, value) => norms.forEach((norm) => setParameter(norm, name, value));
  const selectClass = (name) => {
    setParameterAll("selected_class", name);
    document.getElementById("selected-class").value = name ?? "";
  };

  // Describe in words what a pinned ε means.
  const describePin = (norm) => {
    const pin = state.shared[norm]?.pin ?? null;
    const at = (selector) => document.querySelector(`${selector}[data-norm="${norm}"]`);
    const field = at("input.pin");
    if (document.activeElement !== field) field.value = pin === null ? "" : short(pin * unitScale(norm));
    at(".unpin").disabled = pin === null;
    const pinned = pin === null ? [] : rows(`curve_${norm}`).filter((row) => row.eps === pin);
    const lines = pinned.map(({ series, robust, low, high, hits }) => {
      const measured = page.measured[norm][series];
      const who = pinned.length > 1 ? `${series}: ` : "";
      return `${who}robust accuracy ${robust.toFixed(1)} % (${low.toFixed(1)} to ${high.toFixed(1)} %); ${(measured - hits).toLocaleString("en")} of ${measured.toLocaleString("en")} margins are within ε.`;
    });
    at("output.pin-summary").textContent = pin === null ? "No ε is pinned." : `At ε = ${short(pin * unitScale(norm))}: ${lines.join(" ")}`;
  };
  for (const field of all("input.pin")) {
    const { norm } = field.dataset;
    field.addEventListener("change", () => {
      const value = Number(field.value) / unitScale(norm);
      const levels = rows(`curve_${norm}`).map((row) => row.eps);
      const nearest = levels.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a));
      setParameter(norm, "pin", field.value === "" || Number.isNaN(value) ? null : nearest);
      if (state.shared[norm].pin !== null) field.value = short(nearest * unitScale(norm));
    });
  }
  for (const button of all(".unpin")) button.addEventListener("click", () => setParameter(button.dataset.norm, "pin", null));

  // The toolbar.
  const applyUnit = () => {
    for (const span of all(".num[data-v]")) span.textContent = short(Number(span.dataset.v) * state.unitScale);
    for (const { view, norm } of views.values()) view.signal("unit_scale", unitScale(norm)).runAsync();
    norms.forEach(describePin);
  };
  for (const radio of all('input[name="unit"]')) {
    radio.addEventListener("change", () => { state.unitScale = Number(radio.value); applyUnit(); });
  }
  const log = document.getElementById("log");
  log.addEventListener("change", () => { state.log = log.checked; embedAll(all('.chart[data-chart="curve"]')); });
  document.getElementById("selected-class").addEventListener("change", ({ target }) => setParameterAll("selected_class", target.value || null));
  document.getElementById("class-order").addEventListener("change", ({ target }) => setParameterAll("class_order", target.value));
  for (const select of all("select.sample")) {
    select.addEventListener("change", () => setParameter(select.dataset.norm, "sample", Number(select.value)));
  }
  const showSeries = (wanted) => {
    for (const norm of norms) {
      const name = wanted in page.measured[norm] ? wanted : Object.keys(page.measured[norm])[0];
      setParameter(norm, "series", name);
      for (const each of all(`.of-series[data-norm="${norm}"]`)) each.hidden = each.dataset.series !== name;
    }
  };
  document.getElementById("series")?.addEventListener("change", ({ target }) => showSeries(target.value));
  const theme = document.getElementById("theme");
  const applyTheme = (name) => {
    state.theme = name;
    theme.textContent = name === "dark" ? "Light theme" : "Dark theme";
    embedAll();
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
    all("thead button", table).forEach((button, column) => button.addEventListener("click", () => {
      const head = button.parentElement;
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

  // The dialog shows the content of a sample's item, enlarged.
  const dialog = document.getElementById("detail");
  let opener = null;
  const open = (button) => {
    opener = button;
    const item = button.closest(".item");
    const facts = item.querySelector("dl").cloneNode(true);
    facts.hidden = false;
    const trio = item.querySelector(".trio");
    dialog.querySelector(".content").replaceChildren(...(trio ? [trio.cloneNode(true)] : []), facts);
    if (!dialog.open) dialog.showModal();
  };
  const openNeighbour = (by) => {
    const near = all(".open", opener.closest(".panel")).filter((each) => each.offsetParent);
    open(near[(near.indexOf(opener) + by + near.length) % near.length]);
  };
  for (const button of all(".open")) button.addEventListener("click", () => open(button));
  for (const button of all(".step", dialog)) button.addEventListener("click", () => openNeighbour(Number(button.dataset.by)));
  dialog.querySelector(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => opener?.focus());
  dialog.addEventListener("keydown", ({ key }) => {
    if (key === "ArrowLeft") openNeighbour(-1);
    if (key === "ArrowRight") openNeighbour(1);
  });

  const select = document.getElementById("series");
  if (select) showSeries(select.value);
  for (const [norm, eps] of Object.entries(page.pin)) setParameter(norm, "pin", eps);
  window.report = { views, state, ready: embedAll() };
})();
