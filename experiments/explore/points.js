// From rows to points: what is chosen is kept, and each gets the value that is asked for.

const SAME = "same precision";
const QUANTITIES = {
  speedup: "times as fast as the baseline",
  time: "time of one call (ms)",
  floor: "fraction of the floor",
  memory: "peak device memory (GB)",
  versus: "times as fast as in the other results",
};
const TENSOR_CORES = ["tf32", "tf32x3", "float16", "bfloat16"];  // no SGEMM bounds these

function place(row, data) {
  return [row.file, row.workload, row.pass, ...data.geometry.map((column) => row[column])].join("|");
}

function variant(row) {
  return [row.algorithm, row.stage, row.layout, row.precision, row.dtype].join("|");
}

function byPlace(rows, data) {
  return Map.groupBy(rows, (row) => place(row, data));
}

function fastest(rows) {
  const timed = rows.filter((row) => row.ms_p50);
  return timed.reduce((best, row) => (!best || row.ms_p50 < best.ms_p50 ? row : best), undefined);
}

// The row that is 1x beside a row: the baseline's fastest layout there.
function baselineOf(row, places, choices, data) {
  const [algorithm, precision] = choices.baseline.split(" | ");
  const wanted = precision === SAME ? data.classes[row.precision] ?? row.precision : precision;
  return fastest((places.get(place(row, data)) ?? []).filter(
    (other) => other.algorithm === algorithm && !other.stage && other.precision === wanted));
}

function floorOf(row) {
  const flop = TENSOR_CORES.includes(row.precision) ? 0 : row.flop_fraction;
  return Math.max(row.byte_fraction ?? 0, flop ?? 0) || null;
}

// {y, low, high, other} of a row: low and high by its 20th and 80th percentile, other the row it is divided by.
function valueOf(row, other, quantity) {
  const at = (value) => {
    const ms = row[value];
    if (quantity === "memory") return row.peak_bytes && row.peak_bytes / 1e9;
    if (!ms) return null;
    if (quantity === "time") return ms;
    if (quantity === "floor") return floorOf(row) && (floorOf(row) * row.ms_p50) / ms;
    return other ? other.ms_p50 / ms : null;
  };
  return { y: at("ms_p50"), low: at("ms_p80"), high: at("ms_p20"), other };
}

function worse(row, other) {
  return other && row.state === "current" ? other.state : row.state;
}

function isChosen(row, choices) {
  return row.file === choices.file && (!choices.workload || row.workload === choices.workload)
    && choices.passes.includes(row.pass) && choices.precisions.includes(row.precision)
    && choices.names.includes(row.name);
}

// {points, lacking}: the points of the chosen rows, and the rows that have no value.
function pointsOf(rows, choices, data) {
  const versus = choices.quantity === "versus";
  const second = choices.second && byPlace(ofRun(rows, choices.second), data);
  const runs = [choices.first, ...(choices.second && !versus ? [choices.second] : [])];
  const points = [], lacking = [];
  for (const run of runs) {
    const every = ofRun(rows, run), places = byPlace(every, data);
    const chosen = every.filter((row) => isChosen(row, choices));
    const setting = settings(chosen, choices.axis, data);
    for (const row of chosen) {
      let other;
      if (versus) other = second.get(place(row, data))?.find((its) => variant(its) === variant(row));
      if (choices.quantity === "speedup") other = baselineOf(row, places, choices, data);
      const value = valueOf(row, other, choices.quantity);
      const state = worse(row, other);
      if (state === "older" && !choices.older) continue;
      if (!value.y) lacking.push(row);
      else points.push({ ...row, ...value, run, state, setting: setting(row) });
    }
  }
  return { points: choices.layouts === "each" ? points : best(points, choices), lacking };
}

// Of the layouts of a variant at one place the best one alone.
function best(points, choices) {
  const less = ["time", "memory"].includes(choices.quantity);
  const groups = Map.groupBy(points, (point) => [point.run, point.name, point.precision,
    point.workload, point.pass, point.setting, point[choices.axis]].join("|"));
  return [...groups.values()].map((group) => group.reduce(
    (found, point) => ((less ? point.y < found.y : point.y > found.y) ? point : found)));
}
