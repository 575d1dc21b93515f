// The sliders: which run is shown.

const SLIDERS = {
  stride: (run) => run.stride.join(" × "),
  window: (run) => run.window.join(" × "),
  sizes: (run) => {
    const {G, D1, D2, D3} = run.geometry;
    return `${G > 1 ? `${G} of ` : ""}${D1}×${D2} @ ${D2}×${D3}`;
  },
};
const stops = {};

// A slider's stop in the address: 2x2, or a4b4c4.
const spelled = (name, run) =>
    Array.isArray(run[name]) ? run[name].join("x") : Object.entries(run[name]).flat().join("");

for (const [name, words] of Object.entries(SLIDERS)) {
  const key = (run) => JSON.stringify(run[name]);
  const runs = [...new Map(data.runs.map((run) => [key(run), run])).values()];
  stops[name] = runs.sort((a, b) => Object.values(a[name])[0] - Object.values(b[name])[0]).map(key);
  const slider = $(`#${name}`);
  slider.max = stops[name].length - 1;
  slider.disabled = stops[name].length < 2;
  slider.addEventListener("input", () => {
    const wanted = stops[name][slider.value];
    const same = (run, other) =>
        JSON.stringify(run[other]) === JSON.stringify(data.runs[state.run][other]);
    const likeness = (run) => Object.keys(SLIDERS).filter((other) => same(run, other)).length;
    const fitting = data.runs.filter((run) => key(run) === wanted);
    load(data.runs.indexOf(
        fitting.reduce((best, run) => (likeness(run) > likeness(best) ? run : best))));
  });
}

// The run that an address asks for, each slider as in the first run unless it says; else the first.
function runOf(wanted) {
  const fits = (run) => Object.keys(SLIDERS).every(
      (name) => spelled(name, run) === (wanted[name] ?? spelled(name, data.runs[0])));
  return Math.max(0, data.runs.findIndex(fits));
}
