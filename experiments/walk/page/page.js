// What is chosen (a run, a cell), and how hand, keys and sliders choose it.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);

const state = {
  run: 0,
  pinned: null,
  hover: null
};
const stageOf = (name) => data.stages.find((stage) => stage.output === name) ||
    data.stages.find((stage) => stage.inputs.includes(name));

let graph, marks, stage;
const maps = {};
const numbers = new Numbers($("#numbers")), threads = new Threads($("#threads"));

const inWords = (name) => name.replace("strided_batched_matmul", "batched multiply")
                              .replace("gradient_matmul", "gradient")
                              .replaceAll("_", " ");

// ---- the board

for (const name of ORDER) {
  const panel = $("#panel").content.cloneNode(true).firstElementChild;
  const made = data.stages.findIndex((one) => one.output === name);
  panel.dataset.name = name;
  panel.classList.add(`role-${roleOf(name)}`);
  panel.querySelector(".name").textContent = name;
  panel.querySelector(".step").textContent = made < 0 ? "given" : `${made + 1}`;
  panel.querySelector(".stage").textContent = made < 0 ? "" : inWords(data.stages[made].name);
  panel.querySelector(".figure").textContent =
      (made < 0 ? "" : data.stages[made].where).match(/Figure \d|$/)[0];
  maps[name] = new HeatMap(panel, name);
  (made < 0 ? ["I", "K"].includes(name) : data.stages[made].direction === "forward") ?
      $("#forward").append(panel) :
      $("#backward").append(panel);
  panel.addEventListener("focus", () => enter(name));
  panel.addEventListener("keydown", (event) => move(event, name));
  panel.addEventListener("pointermove", (event) => point(event, name, "hover"));
  panel.addEventListener("pointerleave", () => {
    state.hover = null;
    light();
  });
  panel.addEventListener("click", (event) => point(event, name, "pinned"));
}

function point(event, name, how) {
  const box = maps[name].veil.getBoundingClientRect();
  const flat = maps[name].at(event.clientX - box.left, event.clientY - box.top);
  if (flat < 0) return;
  if (how === "pinned") {
    state.pinned = [name, flat];
    pin();
  } else if (event.pointerType !== "touch" && String(state.hover) !== String([name, flat])) {
    state.hover = [name, flat];
    light();
  }
}

// Coming to an array by Tab: its cell that has most to do with the chosen one.
function enter(name) {
  if (state.pinned[0] === name) return;
  const flat = foremost(graph, graph.reach(...state.pinned), name);
  state.pinned = [name, flat < 0 ? largest(graph, name) : flat];
  pin();
}

const ARROWS = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1]
};

function move(event, name) {
  if (!(event.key in ARROWS)) return;
  event.preventDefault();
  state.pinned = [name, maps[name].step(state.pinned[1], ...ARROWS[event.key], event.shiftKey)];
  pin();
}

// A number that is shown anywhere leads to its cell.
document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-cell]");
  if (!target) return;
  const [name, flat] = target.dataset.cell.split(" ");
  state.pinned = [name, Number(flat)];
  pin();
});

// ---- showing

function light() {
  const [name, flat] = state.hover || state.pinned;
  marks = graph.reach(name, flat);
  for (const map of Object.values(maps)) {
    map.light(marks);
    map.panel.classList.toggle("chosen", map.name === name);
  }
  numbers.show(graph, name, flat, marks);
}

// Show all of what is pinned, which is chosen for good.
function pin() {
  state.hover = null;
  light();
  const [name, flat] = state.pinned;
  const tell = (mark) =>
      counts(graph, marks, mark).map((one) => `${one.cells} of ${one.name}`).join(", ");
  $("#told").textContent = `${title(graph, name, flat)} is ${shown(graph.value(name, flat), 4)}. ` +
      `Read from: ${tell(1) || "nothing"}. Feeds: ${tell(2) || "nothing"}.`;
  stage = stageOf(name);
  showStage();
  threads.show(data, data.runs[state.run], graph, stage, name, flat);
}

function showStage() {
  const card = $("#stage"), code = $("#sources"), run = data.runs[state.run];
  const shape = (name) =>
      `${name} (${run.arrays[name].axes.join(", ")}) = (${run.arrays[name].shape.join(", ")})`;
  const [error, tolerance] = run.checks[stage.name];
  card.querySelector("h2").textContent = `${data.stages.indexOf(stage) + 1}  ${stage.paper}`;
  card.querySelector(".formula").textContent = stage.formula;
  card.querySelector(".shapes").textContent =
      `${stage.inputs.map(shape).join("\n")}\n→ ${shape(stage.output)}`;
  card.querySelector(".check").textContent = `${stage.where}. Read back from the kernel and ` +
      (error ? `off the float64 reference by ${error.toExponential(1)} of the largest value, ` +
               `of ${tolerance.toExponential(1)} allowed.` :
               "equal to the reference in every element.");
  const kernels = run.launches[stage.name].map((launch) => launch.kernel);
  code.querySelector(".own-name").textContent = kernels.join(", ");
  code.querySelector(".own-source").innerHTML =
      kernels.map((kernel) => data.kernels[kernel]).join("\n");
  code.querySelector(".reference-name").textContent = stage.reference;
  code.querySelector(".reference-source").innerHTML = data.references[stage.reference];
  const notes = data.errata.filter((erratum) => erratum.stages.includes(stage.name));
  card.querySelector(".notes").replaceChildren(...notes.map((note) => {
    const box = element("aside", "note");
    box.append(element("h3", "", note.where));
    for (const [word, words] of [["The paper writes", note.writes], ["What holds", note.holds]]) {
      const line = element("p");
      line.append(element("b", "", `${word}: `));
      words.split("`").forEach((part, i) => line.append(i % 2 ? element("code", "", part) : part));
      box.append(line);
    }
    return box;
  }));
  for (const tab of document.querySelectorAll("#strip button")) {
    tab.setAttribute("aria-current", tab.dataset.output === stage.output ? "step" : "false");
  }
}

// ---- the strip of stages

data.stages.forEach((one, number) => {
  const tab = element("button", `role-${roleOf(one.output)}`);
  tab.type = "button";
  tab.tabIndex = -1;  // Tab goes to the arrays themselves
  tab.dataset.output = one.output;
  tab.append(element("b", "", `${number + 1}`), ` ${inWords(one.name)}`);
  tab.title = `${one.paper}   ${one.where}`;
  tab.addEventListener("click", () => maps[one.output].panel.focus());
  $("#strip").append(tab);
});

// ---- the sliders

const SLIDERS = {
  stride: (run) => run.stride.join(" × "),
  window: (run) => run.window.join(" × "),
  sizes: (run) => {
    const {G, D1, D2, D3} = run.geometry;
    return `${G > 1 ? `${G} of ` : ""}${D1}×${D2} @ ${D2}×${D3}`;
  },
};
const stops = {};

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

// Show a run, and in it the largest cell of the array that was shown, at first of the output.
function load(number) {
  state.run = number;
  const run = data.runs[number];
  graph = new Graph(run);
  for (const [name, words] of Object.entries(SLIDERS)) {
    $(`#${name}`).value = stops[name].indexOf(JSON.stringify(run[name]));
    $(`#${name}`).setAttribute("aria-valuetext", words(run));
    $(`#${name} + output`).textContent = words(run);
  }
  draw();
  const name = state.pinned ? state.pinned[0] : "O";
  state.pinned = [name, largest(graph, name)];
  for (const map of Object.values(maps)) {
    const {axes, shape} = map.array;
    map.panel.setAttribute(
        "aria-label",
        `${map.name}, ${axes.map((axis, i) => `${axis} ${shape[i]}`).join(", ")}; ` +
            "arrow keys move by a cell, with Shift by a capsule");
  }
  pin();
}

function draw() {
  scales.clear();
  for (const map of Object.values(maps)) map.show(graph, data.runs[state.run].patch);
}

function redraw() {
  draw();
  pin();
}

let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(redraw, 150);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
load(0);

// For whoever wants to ask the page: what is chosen, and what is drawn where.
window.walk = {
  state,
  maps
};
