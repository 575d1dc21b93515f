// What a sweep sweeps: the columns of the geometry that vary, those that vary as one taken together.

const WORKLOAD = "workload";
const WORK = "gflop";
const MANY = 40;  // workloads that have a row each

function varying(rows, columns) {
  const together = new Map();
  for (const column of columns) {
    const values = distinct(rows, column);
    if (values.length < 2) continue;
    const pattern = rows.map((row) => values.indexOf(row[column])).join();
    together.set(pattern, [...(together.get(pattern) ?? []), column]);
  }
  return [...together.values()].sort(
    (a, b) => distinct(rows, b[0]).length - distinct(rows, a[0]).length);
}

// {value: label} of the axes that there are for some rows; the one that shows most comes first.
function axesOf(rows, data) {
  const found = {}, work = { [WORK]: "work: 10^9 floating-point operations" };
  const count = distinct(rows, WORKLOAD).length, several = count > 1;
  if (count > MANY) return { ...work, [WORKLOAD]: "workload" };
  if (several) found[WORKLOAD] = "workload";
  for (const columns of several ? [] : varying(rows, data.geometry)) {
    const same = columns.filter((c) => rows.every((row) => row[c] === row[columns[0]]));
    const label = same.join(" = ");
    found[columns[0]] = columns.length > 1 ? label : `${label}: ${data.meaning[label]}`;
  }
  if (!several && !Object.keys(found).length) found[WORKLOAD] = "workload";
  return { ...found, ...work };
}

// In words, what the axes beside x are set to: one curve is of one setting.
function settings(rows, axis, data) {
  if (axis === WORKLOAD || axis === WORK) return () => "";
  const others = varying(rows, data.geometry).filter((columns) => !columns.includes(axis));
  return (row) => others.map(([column]) => `${column} = ${row[column]}`).join(", ");
}

function isNumeric(rows, column) {
  return rows.every((row) => /^[1-9]\d*$/.test(row[column]));
}
