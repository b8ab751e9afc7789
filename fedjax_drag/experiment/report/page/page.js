"use strict";
(() => {
  const charts = new Map();
  const drawn = new Set();
  const fine = matchMedia("(pointer: fine)").matches;
  const PRINTED = 680; // width of a printed page in CSS pixels, A4 or Letter within their margins

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faint = (hex) => hex + "2e";

  function painted(trace) {
    const series = trace.meta;
    if (trace.type === "heatmap") {
      if (series >= 0) return { ...trace, colorbar: { thickness: 12, outlinewidth: 0, ...trace.colorbar } };
      return { ...trace, colorscale: [[0, color("--gone")], [1, color("--gone")]] };
    }
    const paint = series < 0 ? color("--ink") : color(`--s${series % 8}`);
    const line = { ...trace.line, color: paint };
    return { ...trace, line, marker: { ...trace.marker, color: paint }, fillcolor: faint(paint) };
  }

  function layout(chart, width, tall) {
    const axis = { gridcolor: color("--rule"), linecolor: color("--rule"), zerolinecolor: color("--rule"),
      automargin: true, fixedrange: !fine, exponentformat: "power" };
    const shapes = (chart.layout.shapes || []).map((shape) => ({ ...shape,
      line: { color: color("--muted"), width: 1.5, dash: "dot" } }));
    return {
      height: tall ? 384 : 260, ...(width && { width }), autosize: !width, ...chart.layout, shapes,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: { l: 44, r: 12, t: 8, b: 36 }, font: { color: color("--ink"), size: 12, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: color("--paper"), bordercolor: color("--rule"), font: { color: color("--ink") } },
      dragmode: fine ? "zoom" : false,
      xaxis: { ...axis, ...(chart.layout.xaxis.ticktext && innerWidth < 640 && { tickangle: -90 }), ...chart.layout.xaxis }, yaxis: { ...axis, ...chart.layout.yaxis },
    };
  }

  function draw(element, width) {
    if (!charts.has(element)) charts.set(element, JSON.parse(element.nextElementSibling.textContent));
    const chart = charts.get(element);
    const hidden = new Set(hiddenSeries(element));
    const data = chart.data.map((trace) => ({ ...painted(trace), meta: undefined,
      visible: trace.type === "heatmap" || !hidden.has(trace.meta) }));
    const own = element.closest(".part")?.querySelector(".range input")?.checked;
    const shown = own ? { ...chart, layout: { ...chart.layout, yaxis: { ...chart.layout.yaxis, range: undefined, autorange: true } } } : chart;
    const alone = !element.closest(".many");
    const tall = alone && matchMedia("(min-width: 40rem)").matches;
    const options = { responsive: !width, displaylogo: false, displayModeBar: fine ? "hover" : false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
    Plotly.react(element, data, layout(shown, width, tall), options);
    drawn.add(element);
  }

  function hiddenSeries(element) {
    const part = element.closest(".part");
    const buttons = part ? part.querySelectorAll('.legend button[aria-pressed="false"]') : [];
    return [...buttons].map((button) => Number(button.dataset.series));
  }

  const elements = [...document.querySelectorAll(".chart")];
  const visible = (element) => element.offsetParent !== null && !element.closest("details:not([open])");
  const redraw = () => drawn.forEach((element) => draw(element));

  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting || drawn.has(entry.target)) return;
    draw(entry.target);
    watcher.unobserve(entry.target);
  }), { rootMargin: "400px" });
  elements.forEach((element) => watcher.observe(element));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const folded = document.querySelectorAll("#setup details:not([open])");
  const unfold = (open) => folded.forEach((details) => { details.open = open; });
  addEventListener("beforeprint", () => unfold(true));
  addEventListener("afterprint", () => unfold(false));
  addEventListener("beforeprint", () => elements.filter(visible).forEach((element) =>
    draw(element, element.closest(".many") ? PRINTED / 2 - 8 : PRINTED)));
  addEventListener("afterprint", redraw);

  document.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    button.closest(".part").querySelectorAll(".chart").forEach((element) => drawn.has(element) && draw(element));
  }));

  document.querySelectorAll(".range input").forEach((box) => box.addEventListener("change", () =>
    box.closest(".part").querySelectorAll(".chart").forEach((element) => drawn.has(element) && draw(element))));

  document.querySelectorAll("select[data-shows]").forEach((select) => {
    const show = () => document.querySelectorAll(`.${select.dataset.shows}`).forEach((block, i) => {
      block.hidden = i !== select.selectedIndex;
    });
    select.addEventListener("change", show);
    show(); // a browser that goes back keeps what was selected
  });

  document.querySelectorAll(".filter").forEach((bar) => {
    const rows = [...bar.parentElement.querySelectorAll("tbody tr")];
    const show = () => {
      const text = bar.querySelector('[type="search"]').value.trim().toLowerCase();
      const barred = [...bar.querySelectorAll('[type="checkbox"]:not(:checked)')].map((box) => box.value);
      rows.forEach((row) => {
        const needs = row.dataset.needs.split("|");
        row.hidden = !row.dataset.words.toLowerCase().includes(text) || barred.some((need) => needs.includes(need));
      });
    };
    bar.addEventListener("input", show);
    show(); // a browser that goes back keeps what was entered
  });

  document.querySelectorAll(".sortable thead th").forEach((head, column) => head.addEventListener("click", () => {
    const body = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") === "descending";
    const value = (row) => {
      const text = row.cells[column].textContent.trim();
      const number = parseFloat(text.replaceAll(",", ""));
      return Number.isNaN(number) ? text : number;
    };
    const rank = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * rank(value(a), value(b)));
    head.closest("tr").querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  }));
})();
