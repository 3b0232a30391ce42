// Thumbnails of the listed samples, and the dialog that shows one of them enlarged.
"use strict";
(() => {
  const { page, formatNumber } = window.report;
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const RED = [178, 24, 43], BLUE = [33, 102, 172], ZERO = [247, 247, 247];

  // Pixels of an image, decoded once.
  const decoded = new Map();
  const pixels = (uri) => {
    if (!decoded.has(uri)) {
      decoded.set(uri, (async () => {
        const image = new Image();
        image.src = uri;
        await image.decode();
        const canvas = Object.assign(document.createElement("canvas"), { width: image.width, height: image.height });
        const context = canvas.getContext("2d", { willReadFrequently: true });
        context.drawImage(image, 0, 0);
        return context.getImageData(0, 0, image.width, image.height);
      })());
    }
    return decoded.get(uri);
  };
  const paint = async (canvas, key, pane, gain = null, map = "diverging") => {
    const picture = page.pictures[key];
    const original = await pixels(page.originals[picture.input]);
    const difference = picture.difference ? await pixels(picture.difference) : original; // which no pane shows
    const result = new ImageData(original.width, original.height);
    const [out, x, d] = [result.data, original.data, difference.data];
    const step = picture.largest / 127; // of the difference, in units of the pixel range
    const amplified = (gain ?? 1 / picture.peak) * step;
    for (let i = 0; i < out.length; i += 4) {
      out[i + 3] = 255;
      if (pane === "difference" && map === "diverging") {
        const mean = (d[i] + d[i + 1] + d[i + 2]) / 3 - 128;
        const [size, end] = [Math.min(Math.abs(mean) * amplified, 1), mean > 0 ? RED : BLUE];
        for (let c = 0; c < 3; c++) out[i + c] = ZERO[c] + size * (end[c] - ZERO[c]);
      } else {
        for (let c = 0; c < 3; c++) {
          const change = d[i + c] - 128;
          out[i + c] = pane === "original" ? x[i + c] : pane === "adversarial" ? x[i + c] + 255 * step * change : 127.5 * (1 + amplified * change);
        }
      }
    }
    Object.assign(canvas, { width: original.width, height: original.height });
    canvas.getContext("2d").putImageData(result, 0, 0);
  };

  // A waveform as a path through the least and the largest value of each interval.
  const trace = (svg, lines, limit) => {
    svg.setAttribute("viewBox", "0 0 400 100");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.replaceChildren(...lines.map(([values, style]) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      const point = (value, i) => `${((400 * i) / (values.length - 1)).toFixed(1)} ${(50 - (48 * Math.max(-limit, Math.min(limit, value))) / limit).toFixed(1)}`;
      path.setAttribute("d", `M${values.map(point).join("L")}`);
      path.setAttribute("class", style);
      return path;
    }));
  };
  const largestOf = (...waves) => Math.max(...waves.flat().map(Math.abs), 1e-9);
  const wave = (svg, key, pane, gain = 1) => {
    const { adversarial, difference, input } = page.pictures[key];
    const original = page.originals[input];
    const limit = largestOf(original, adversarial);
    const lines = {
      both: [[adversarial, "adversarial"], [original, "original"]], original: [[original, "original"]],
      adversarial: [[adversarial, "adversarial"]], difference: [[difference.map((value) => gain * value), "difference"]],
    };
    trace(svg, lines[pane], limit);
  };

  const draw = (element) => {
    const { key, pane } = element.dataset;
    return page.pictures[key]?.kind === "image" ? paint(element, key, pane) : wave(element, key, pane);
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target);
    }
  }, { rootMargin: "400px" });
  const thumbnails = all("#samples [data-pane]");
  thumbnails.forEach((element) => seen.observe(element));
  // Those on the page are also drawn once the charts are, for printing: a browser does not wait for images then.
  window.report.pictured = window.report.ready.then(async () => {
    for (const element of thumbnails.filter((each) => each.checkVisibility())) {
      await draw(element);
      await new Promise((resolve) => setTimeout(resolve));
    }
  });

  // Groups of samples.
  const group = document.getElementById("group");
  const showGroup = () => {
    for (const each of all("#samples .group")) each.hidden = each.dataset.group !== group.value;
    for (const each of all("#samples .of-series")) {
      each.querySelector(".no-group").hidden = all(".group", each).some((one) => !one.hidden);
    }
  };
  group?.addEventListener("change", showGroup);
  if (group) showGroup();
  for (const button of all(".copy")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.text);
      } catch { // clipboards need a secure context in some browsers
        const field = Object.assign(document.createElement("textarea"), { value: button.dataset.text });
        document.body.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
        button.focus();
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1200);
    });
  }

  // The dialog.
  const dialog = document.getElementById("detail");
  const find = (selector) => dialog.querySelector(selector);
  const [slider, map, output] = [find("#gain"), find("#map"), find("#gain-text")];
  let opener = null;
  let redraw = () => {};
  const element = (tag, ...content) => {
    const made = document.createElement(tag);
    made.append(...content);
    return made;
  };
  const pane = (title, content) => {
    const figure = element("figure", content, element("figcaption", title));
    return figure;
  };
  // The slider is logarithmic, from 1 to four times what shows the largest difference in full.
  const setUpSlider = (full) => {
    const most = Math.max(4 * full, 10);
    slider.value = Math.round((100 * Math.log(Math.max(full, 1))) / Math.log(most));
    return () => (Number(slider.value) === Math.round((100 * Math.log(Math.max(full, 1))) / Math.log(most)) ? full : most ** (slider.value / 100));
  };
  const show = (key) => {
    const picture = page.pictures[key];
    find(".controls").hidden = !picture || picture.kind === "table" || !picture.difference;
    redraw = () => {};
    if (!picture) return [];
    if (picture.kind === "image" && !picture.difference) { // misclassified as it is
      const canvas = Object.assign(document.createElement("canvas"), { className: picture.pixelated ? "pixelated" : "" });
      paint(canvas, key, "original");
      return [pane("Input", canvas)];
    }
    if (picture.kind === "table") {
      const head = element("thead", element("tr", ...["feature", "input", "adversarial", "change"].map((title) => element("th", title))));
      const body = element("tbody", ...picture.features.map(([name, before, after]) => element("tr", element("th", name),
        ...[before, after, after - before].map((value) => element("td", formatNumber(value))))));
      const more = picture.changed > picture.features.length ? `, the ${picture.features.length} largest changes` : "";
      return [element("table", element("caption", `${picture.changed} of ${picture.of} features changed${more}`), head, body)];
    }
    const image = picture.kind === "image";
    const make = () => (image ? document.createElement("canvas") : document.createElementNS("http://www.w3.org/2000/svg", "svg"));
    const [original, adversarial, difference] = [make(), make(), make()];
    const full = image ? 1 / picture.peak : largestOf(page.originals[picture.input], picture.adversarial) / largestOf(picture.difference);
    const gain = setUpSlider(full);
    find("#map-label").hidden = !image;
    const paintAll = image ? paint : wave;
    redraw = () => {
      paintAll(difference, key, "difference", gain(), map.value);
      output.textContent = `× ${formatNumber(gain(), 3)}`;
    };
    paintAll(original, key, "original");
    paintAll(adversarial, key, "adversarial");
    redraw();
    for (const each of [original, adversarial, difference]) each.setAttribute("class", image ? (picture.pixelated ? "pixelated" : "") : "wave");
    return [pane("Input", original), pane("Adversarial example", adversarial), pane("Difference", difference)];
  };
  const open = (button) => {
    opener = button;
    const item = button.closest(".item");
    const facts = item.querySelector("dl").cloneNode(true);
    facts.hidden = false;
    find(".title").textContent = item.querySelector(".name").textContent;
    find(".subtitle").textContent = item.closest("table").caption.textContent;
    find(".panes").replaceChildren(...show(item.dataset.key));
    find(".facts-of").replaceChildren(facts);
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0; // the focus is on the last buttons
  };
  const openNeighbour = (by) => {
    const near = all(".open.name", opener.closest(".panel")).filter((each) => each.offsetParent);
    const here = near.indexOf(opener.closest(".item").querySelector(".open.name"));
    open(near[(here + by + near.length) % near.length]);
  };
  for (const button of all(".open")) button.addEventListener("click", () => open(button));
  for (const button of all(".step", dialog)) button.addEventListener("click", () => openNeighbour(Number(button.dataset.by)));
  for (const control of [slider, map]) control.addEventListener("input", () => redraw());
  find(".close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => opener?.focus());
  dialog.addEventListener("keydown", ({ key, target }) => {
    if (target === slider || target === map) return; // which use the arrows themselves
    if (key === "ArrowLeft") openNeighbour(-1);
    if (key === "ArrowRight") openNeighbour(1);
    if (key === "+" || key === "-") { slider.value = Number(slider.value) + (key === "+" ? 5 : -5); redraw(); }
  });
})();
