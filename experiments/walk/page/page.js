// The board and what is shown of it, and how hand and keys choose a cell.

let graph, marks, stage;
const maps = {};
const numbers = new Numbers($("#numbers")), threads = new Threads($("#threads"));
const opening = new Opening($("#opening")), tileView = new TileView($("#tile"));
const routing = new Routing($("#routing")), network = new Network($("#network"));
const zoom = new Zoom($("#zoom"));

const guide = new Guide($("#guide"));

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
  const enlarge = panel.querySelector(".enlarge");
  enlarge.setAttribute("aria-label", `enlarge ${name}`);
  enlarge.addEventListener("click", (event) => {
    event.stopPropagation();
    if (state.pinned[0] !== name) enter(name);
    zoom.toggle(true);
  });
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
  document.dispatchEvent(new Event("pinned"));
  show();
  address.note();
}

function show() {
  state.hover = null;
  light();
  const [name, flat] = state.pinned;
  const tell = (mark) =>
      counts(graph, marks, mark).map((one) => `${one.cells} of ${one.name}`).join(", ");
  $("#told").textContent = `${title(graph, name, flat)} is ${shown(graph.value(name, flat), 4)}. ` +
      `Read from: ${tell(1) || "nothing"}. Feeds: ${tell(2) || "nothing"}.`;
  stage = guide.stage || stageOf(name);
  for (const direction of ["forward", "backward"]) {
    document.body.classList.toggle(direction, stage.direction === direction);
  }
  showStage();
  threads.show(data, data.runs[state.run], graph, stage, name, flat);
  showRouting();
  zoom.show();
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
  tileView.show(run, graph);
  pin();
}

// The opening and routing tell of the first run, whatever the sliders say.
let first;
const graphOfFirst = () => (first ||= new Graph(data.runs[0]));

function showOpening() {
  opening.show(data, data.runs[0], graphOfFirst());
}

// Routing of the window that the chosen cell belongs to, else of the largest output's.
function showRouting() {
  const own = state.run ? {} : graph.index(...state.pinned), all = graphOfFirst();
  routing.show(data, all, "l" in own ? own.l : all.index("O", largest(all, "O")).l);
}

function draw() {
  scales.clear();
  for (const map of Object.values(maps)) map.show(graph, data.runs[state.run].patch);
}

// Everything again, after a change of size or colours.
function redraw() {
  draw();
  showOpening();
  tileView.choose({});
  show();
}

let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(redraw, 150);
});
