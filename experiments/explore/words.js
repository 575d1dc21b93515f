// What is written: of a point its row and provenance, above the drawing what it shows.

const STATES = { current: "as new as its kernels", older: "OLDER than its kernels",
  prediction: "PREDICTION, not measured" };

function labelOf(row) {
  const layout = row.layout === "capsule" ? "" : ` ${row.layout}`;
  return `${row.name}${layout} ${row.precision}`;
}

const short = (value) => (value ? String(+value.toPrecision(4)) : "");

// {name: words} of a point; what its row does not say is left out.
function told(point, data, quantity) {
  const other = point.other;
  const lines = {
    title: labelOf(point),
    [QUANTITIES[quantity]]: short(point.y),
    workload: `${point.workload}, ${point.pass}`,
    geometry: data.geometry.map((column) => `${column}=${point[column]}`).join(" "),
    "ms (20th, 50th, 80th percentile)":
      [point.ms_p20, point.ms_p50, point.ms_p80].filter((ms) => ms).map(short).join(", "),
    "compared with": other
      ? `${labelOf(other)}: ${short(other.ms_p50)} ms, ${other.gpu}, ${other.date}` : "",
    "host microseconds": short(point.host_us),
    "peak GB": short(point.peak_bytes && point.peak_bytes / 1e9),
    "relative error": point.rel_error ? point.rel_error.toExponential(1) : "",
    state: STATES[point.state],
    GPU: point.gpu,
    card: point.gpu_uuid,
    measured: point.timestamp,
    sources: point.source,
    driver: point.driver,
    cache: point.cache,
    note: point.note,
    file: `${point.run.split(" | ")[0]}/${point.file}.csv`,
  };
  return Object.fromEntries(Object.entries(lines).filter(([, words]) => words));
}

function titleOf(choices) {
  const of = choices.quantity === "speedup" ? "speedup" : QUANTITIES[choices.quantity];
  return `${of[0].toUpperCase()}${of.slice(1)}: ${choices.workload || choices.file}`;
}

// Lines under the title: GPU and dates, what is 1x, whether all is as it seems.
function subtitleOf(points, choices) {
  const dates = distinct(points, "date").sort();
  const when = [...new Set([dates[0], dates.at(-1)])].join(" to ");
  const states = distinct(points, "state");
  const lines = [`${distinct(points, "gpu").join(", ")}, ${when}`];
  if (choices.quantity === "speedup") lines.push(`1x: ${choices.baseline.replace(" | ", ", ")}`);
  if (choices.quantity === "floor")
    lines.push("floor: the least bytes at a copy's rate; at ieee also the operations at an SGEMM's");
  if (choices.quantity === "versus") lines.push(`${choices.first} over ${choices.second}`);
  if (states.includes("older")) lines.push("hollow: rows that are older than their kernels");
  if (states.includes("prediction")) lines.push("PREDICTION, not measured");
  return lines;
}

// Which of the chosen rows have no value, and why.
function lackingOf(rows) {
  const why = Map.groupBy(rows, (row) => `${labelOf(row)} ${row.note.split(":")[0] || "not measured"}`);
  const words = [...why].map(([label, some]) => `${label} (${some.length})`);
  return words.length ? `Without a value: ${words.join("; ")}` : "";
}
