// What can be chosen, given what is chosen already; what is not there any more falls back to what is likely wanted.

// Folders, and of those with several dates each date.
function runsOf(rows) {
  return distinct(rows, "run").flatMap((run) => {
    const dates = distinct(rows.filter((row) => row.run === run), "date").sort();
    return [run, ...(dates.length > 1 ? dates.map((date) => `${run} | ${date}`) : [])];
  });
}

// What there is in some rows; `compared` says whether there are others beside them.
function optionsOf(rows, compared, data) {
  const timed = distinct(rows.filter((row) => row.ms_p50 && !row.stage), "algorithm");
  const several = new Set(rows.filter((row) => row.ms_p50).map((row) => row.name + row.precision)).size > 1;
  const has = { speedup: () => timed.length && several, versus: () => compared };
  const some = (name) => rows.some((row) => valueOf(row, undefined, name).y);
  return {
    quantities: Object.keys(QUANTITIES).filter((name) => (has[name] ?? some)(name)),
    baselines: timed.flatMap((name) => [`${name} | ${SAME}`, `${name} | ieee`]),
    axes: axesOf(rows, data),
    passes: distinct(rows, "pass"),
    precisions: distinct(rows, "precision"),
    names: distinct(rows, "name"),
  };
}

// The value of a column that most rows have which are as new as their kernels.
function mostCurrent(rows, column) {
  const score = (value) => {
    const some = rows.filter((row) => row[column] === value);
    return some.filter((row) => row.state === "current").length + some.length / 1e6;
  };
  return distinct(rows, column).reduce((a, b) => (score(b) > score(a) ? b : a));
}

// The first workload that sweeps something; none, which stands for all, where none does.
function firstSweep(rows, data) {
  const sweeps = (name) => varying(rows.filter((row) => row.workload === name), data.geometry);
  return distinct(rows, "workload").find((name) => sweeps(name).length) ?? "";
}

// {choices, found}: what was asked for as far as there is such, and what there is. Of the boxes `without` has
// those that are off, so that an algorithm that was never seen is on.
function settle(asked, rows, data) {
  const choices = { without: {}, older: true, ...asked };
  const keep = (name, values, likely) => {
    if (!values.includes(choices[name])) choices[name] = likely;
  };
  keep("file", distinct(rows, "file"), mostCurrent(rows, "file"));
  const file = rows.filter((row) => row.file === choices.file);
  const runs = runsOf(file);
  keep("first", runs, mostCurrent(file, "run"));
  keep("second", runs.filter((run) => run !== choices.first), "");
  const mine = [...ofRun(file, choices.first), ...(choices.second ? ofRun(file, choices.second) : [])];
  const workloads = distinct(mine, "workload");
  keep("workload", ["", ...workloads], firstSweep(mine, data));
  const shown = mine.filter((row) => !choices.workload || row.workload === choices.workload);
  const found = optionsOf(shown, choices.second, data);
  keep("quantity", found.quantities, found.quantities[0]);
  const fold = found.baselines.find((name) => name.startsWith("torch_fold |"));
  keep("baseline", found.baselines, fold ?? found.baselines[0]);
  keep("axis", Object.keys(found.axes), Object.keys(found.axes)[0]);
  keep("layouts", ["fastest", "each"], "fastest");
  for (const list of ["passes", "precisions", "names"]) {
    const left = choices.without[list] ?? (list === "names" ? ["reference"] : []);
    choices[list] = found[list].filter((value) => !left.includes(value));
  }
  return { choices, found: { ...found, runs, workloads, files: distinct(rows, "file") } };
}
