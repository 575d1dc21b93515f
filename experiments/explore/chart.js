// How points are drawn: a Vega-Lite specification. Colour says who, dashes and shapes which precision.

const DASHES = { ieee: [1, 0], tf32x3: [9, 2], tf32: [5, 3], float16: [5, 2, 1, 2], bfloat16: [1, 2] };
const SHAPES = { ieee: "circle", tf32x3: "triangle-up", tf32: "square", float16: "diamond",
  bfloat16: "cross" };
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#3d3d3d", "#8a6d00",
  "#7a4fb5", "#8a8a8a", "#b0122d"];  // of names that have no colour of their own
const MARGIN = 90, NAMES = 130, LEGEND = 190, BETWEEN = 24, LEAST = 150, HIGH = 300, SLOT = 9,
  NARROW = 600, LETTER = 6.5;  // pixels
const BELOW = { bottom: { direction: "vertical", anchor: "start" } };
const INK = "#3d3d3d";
const RATIOS = ["speedup", "versus"];

function colours(names, data) {
  let next = 0;
  return names.map((name) => data.colours[name] ?? PALETTE[next++ % PALETTE.length]);
}

// Places of an axis that have words: the powers of ten, and where there are few of them some between.
const DIGITS = [[1], [1, 2, 5], [1, 1.2, 1.5, 2, 3, 5, 7], [1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 3, 5, 7, 8, 9]];

function ticks(low, high) {
  let found = [];
  for (const digits of DIGITS) {
    found = [];
    for (let exponent = Math.floor(Math.log10(low)); 10 ** exponent <= high; exponent += 1)
      found.push(...digits.map((digit) => Number(`${digit}e${exponent}`)));
    found = found.filter((value) => value >= low && value <= high);
    if (found.length > 2) break;
  }
  return found;
}

// Words in lines of at most so many letters.
function lined(words, most) {
  return words.split(" ").reduce((lines, word) => {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    return lines.length && longer.length <= most ? [...lines.slice(0, -1), longer] : [...lines, word];
  }, []);
}

function axisScale(points, axis) {
  if (axis === WORK) return { type: "quantitative", scale: { type: "log" } };
  if (!isNumeric(points, axis)) return { type: "ordinal", sort: null };
  return { type: "quantitative", scale: { type: "log", base: 2, nice: false, padding: 14 },
    axis: { values: distinct(points, axis).map(Number), format: "d" } };
}

function valueScale(points, quantity) {
  const ends = points.flatMap((point) => [point.low, point.high, point.y]).filter((y) => y);
  const ratio = RATIOS.includes(quantity);
  const low = Math.min(...ends, ratio ? 0.9 : Infinity) / 1.15;
  const high = Math.max(...ends, ratio ? 1.1 : 0) * 1.15;
  return { type: "quantitative", title: QUANTITIES[quantity],
    axis: { values: ticks(low, high), format: "~r" },
    scale: { type: "log", domain: [low, high], nice: false } };
}

// What all marks have in common: who, at which precision, how new.
function looks(points, data) {
  const names = distinct(points, "name"), precisions = distinct(points, "precision");
  const by = { field: "precision", type: "nominal", sort: precisions, title: "precision",
    legend: { symbolFillColor: INK, symbolStrokeColor: INK, symbolDash: [1, 0] } };
  const ranged = (range) => ({ domain: precisions, range });
  const colour = { field: "name", type: "nominal", sort: names, title: "algorithm",
    scale: { domain: names, range: colours(names, data) }, legend: { symbolType: "circle" } };
  return {
    color: colour,
    shape: { ...by, scale: ranged(precisions.map((name) => SHAPES[name] ?? "stroke")) },
    strokeDash: { ...by, scale: ranged(precisions.map((name) => DASHES[name] ?? [2, 2])) },
    opacity: { condition: { test: "datum.state !== 'current'", value: 0.5 }, value: 1 },
  };
}

// A mark at each point; of what is not current it is hollow.
function marks(encoding, points) {
  const mark = { type: "point", size: 55, strokeWidth: 1.6, opacity: 1 };
  const kinds = { "===": { filled: true }, "!==": { filled: false } };
  const states = distinct(points, "state");
  const there = { "===": states.includes("current"), "!==": states.some((state) => state !== "current") };
  return Object.keys(kinds).filter((sign) => there[sign]).map((sign) => ({
    transform: [{ filter: `datum.state ${sign} 'current'` }], mark: { ...mark, ...kinds[sign] },
    encoding: { ...encoding, tooltip: { field: "told" } },
  }));
}

// Dots, a row of them for each workload, one below the other for each algorithm and precision.
function dots(value, look, points) {
  const rows = { field: "workload", type: "nominal", sort: null, title: null,
    axis: { grid: true, tickBand: "extent", labelLimit: NAMES } };
  const x = { field: "y", ...value, title: null, axis: { ...value.axis, orient: "top" } };
  const { color, shape } = look;
  const yOffset = { field: "slot", type: "nominal", sort: null };
  return marks({ x, y: rows, yOffset, color, shape }, points);
}

// Curves with a mark at each point, and a stroke from the 20th to the 80th percentile.
function curves(x, value, look, points, joined) {
  const y = { field: "y", ...value };
  const { color, shape, strokeDash, opacity } = look;
  const found = marks({ x, y, color, shape }, points);
  if (!joined) return found;
  return [
    { mark: { type: "line", strokeWidth: 1.8 },
      encoding: { x, y, color, strokeDash, detail: { field: "curve" }, opacity } },
    { mark: { type: "rule", strokeWidth: 1.2 },
      encoding: { x, y: { field: "low", type: "quantitative" }, y2: { field: "high" }, color, opacity } },
    ...found,
  ];
}

function specification(points, choices, axes, data, width) {
  const each = choices.layouts === "each";
  const flat = points.map((point) => ({
    ...point, x: point[choices.axis], other: null, told: told(point, data, choices.quantity),
    slot: each ? labelOf(point) : `${point.name} ${point.precision}`,
    curve: [point.name, each && point.layout, point.precision, point.setting, point.state,
      point.gpu_uuid].join("|"),
  }));
  const passes = distinct(flat, "pass"), runs = distinct(flat, "run");
  const byWorkload = choices.axis === WORKLOAD;
  const narrow = width < NARROW;  // a phone: panels one below the other, and the legend
  const panel = (field, sort) => ({ field, sort, title: null,
    header: { labelFontSize: 13, labelFontWeight: "bold" } });
  const facet = { [runs.length > 1 || narrow ? "row" : "column"]: panel("pass", passes) };
  if (runs.length > 1) facet.column = panel("run", runs);
  const across = runs.length > 1 ? runs.length : narrow ? 1 : passes.length;
  const panelWidth = Math.max(LEAST, Math.floor(
    (width - MARGIN - (narrow ? 0 : LEGEND) - (byWorkload ? NAMES : 0)) / across) - BETWEEN);
  const x = { field: "x", title: lined(axes[choices.axis], panelWidth / LETTER),
    ...axisScale(points, choices.axis) };
  const value = valueScale(points, choices.quantity), look = looks(flat, data);
  const one = { transform: [{ aggregate: [{ op: "count", as: "of" }], groupby: ["pass", "run"] }],
    mark: { type: "rule", color: "black", strokeWidth: 1.3 },
    encoding: { [byWorkload ? "x" : "y"]: { datum: 1, type: "quantitative" } } };
  const layer = [
    ...(RATIOS.includes(choices.quantity) ? [one] : []),
    ...(byWorkload ? dots(value, look, flat) : curves(x, value, look, flat, choices.axis !== WORK)),
  ];
  return {
    title: { text: titleOf(choices), subtitle: subtitleOf(points, choices), anchor: "start",
      fontSize: 16, subtitleFontSize: 12, subtitleColor: "#595959", offset: 14 },
    background: "white", padding: 8, data: { values: flat }, facet,
    spec: { width: panelWidth,
      height: byWorkload ? { step: SLOT, for: "offset" } : HIGH, layer },
    config: { view: { stroke: null }, axis: { labelFontSize: 12, titleFontSize: 12,
      titleFontWeight: "normal", gridColor: "#e4e4e4" }, legend: { labelFontSize: 12,
      titleFontSize: 12, labelLimit: 170, symbolSize: 70,
      ...(narrow ? { orient: "bottom", columns: 1, layout: BELOW } : {}) } },
  };
}
