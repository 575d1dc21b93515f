// The guided walk: step by step from the opening through all stages, forward and backward.
//
// A step has an array and a cell that says most about it, the arrays beside it, and a sentence; where
// numbers are replicated it says what that costs. Or it has a section further down.

const size = (name) => graph.arrays[name].steps.length;
const times = (more, less) => shown(size(more) / size(less), 1).replace(/\.0$/, "");
const number = (count) => thousands(count);

// The cell of an array with the most direct readers, among those that an output cell comes from.
function mostRead(name, from) {
  const {first, steps} = graph.arrays[name], lit = graph.reach("O", from);
  let best = 0, most = -1;
  for (let flat = 0; flat < steps.length; flat++) {
    const readers = graph.feeds.list(first + flat).length;
    const rank = readers + Math.abs(steps[flat]) / 32768;
    if (lit[first + flat] && rank > most) [best, most] = [flat, rank];
  }
  return best;
}
const readers = (name, flat) => graph.feeds.list(graph.arrays[name].first + flat).length;
const sources = (name, flat) => graph.reads.list(graph.arrays[name].first + flat).length;

const STEPS = [
  {id: "opening", section: "#opening", say: () => "One number there, one small matrix here: that is all the difference. Now follow it through memory."},
  {
    id: "given",
    cell: "O",
    beside: ["I", "K"],
    say: (flat, g) => `Follow one number of the output. It comes from the ${g.Q} capsules of I ` +
        `under its window and the ${g.Q} capsules of K that belong to its channel.`,
  },
  {
    id: "capsule_im2col",
    cell: "I",
    beside: ["I_flat"],
    say: (flat, g) => `The ${g.Q} capsules under each of the ${g.L} windows become one column of ` +
        `I_flat. This pixel lies under ${readers("I", flat)} of them, so it is copied ` +
        `${readers("I", flat)} times.`,
    why: () => `I has ${number(size("I"))} numbers, I_flat ${number(size("I_flat"))}: ` +
        `${times("I_flat", "I")} times as many, to be written and then read again.`,
  },
  {
    id: "input_extend",
    cell: "I_flat",
    beside: ["I'"],
    say: (flat, g) => `Every output channel wants the columns for itself: I' holds I_flat ` +
        `${g.P} times.`,
    why: (g) => `Nothing new is in it. ${number(size("I'"))} numbers are written, ${g.P} for each ` +
        `that is read; with 32 channels it would be 32.`,
  },
  {
    id: "kernel_extend",
    cell: "K",
    beside: ["K'"],
    say: (flat, g) => `Every window wants the kernel for itself: K' holds K ${g.L} times, once for ` +
        `each position.`,
    why: (g) => `${number(size("K"))} numbers become ${number(size("K'"))}. On a larger image it is ` +
        `worse: the copies grow with the positions, and all say the same.`,
  },
  {
    id: "strided_batched_matmul",
    cell: "O'",
    beside: ["I'", "K'"],
    say: (flat, g) => `Now all small products are alike, and one batched call makes them: row times ` +
        `column, ${g.D2} multiplications for this cell, ${number(g.P * g.L * g.Q * g.G)} products ` +
        `in all.`,
    why: () => `The products are small, so each number that is read serves few multiplications: ` +
        `memory decides the time, not arithmetic.`,
  },
  {
    id: "output_reduce",
    cell: "O",
    beside: ["O'"],
    say: (flat, g) => `The ${sources("O", flat)} products under one window are added up: here is ` +
        `the number that the walk began with.`,
    why: () => `O' is ${times("O'", "O")} times as large as O, and all of it was written only to ` +
        `be summed.`,
  },
  {
    id: "dO",
    cell: "dO",
    beside: ["O"],
    say: () => "Backward. The loss says how each output number should change: dO, of the shape of O.",
  },
  {
    id: "output_extend",
    cell: "dO",
    beside: ["dO'"],
    say: (flat, g) => `A sum hands its gradient to every term: dO' holds dO ${g.Q} times.`,
    why: () => `${number(size("dO"))} numbers become ${number(size("dO'"))}, a third replication, ` +
        `which both gradients read.`,
  },
  {
    id: "kernel_gradient_matmul",
    cell: "dK'",
    beside: ["I'", "dO'"],
    say: (flat, g) => `For the kernel: the input capsule, transposed, times the gradient of its ` +
        `product; ${g.D1} multiplications a cell.`,
  },
  {
    id: "kernel_reduce",
    cell: "dK",
    beside: ["dK'"],
    say: (flat, g) => `A weight was used at every position, so its gradient is the sum over ` +
        `${sources("dK", flat)} of them.`,
    why: () => `dK' is ${times("dK'", "dK")} times as large as what it is summed to.`,
  },
  {
    id: "input_gradient_matmul",
    cell: "dI'",
    beside: ["dO'", "K'"],
    say: (flat, g) => `For the input: the gradient of the product times the kernel capsule, ` +
        `transposed; ${g.D3} multiplications a cell.`,
  },
  {
    id: "input_reduce",
    cell: "dI_flat",
    beside: ["dI'"],
    say: (flat, g) => `A column was copied for ${g.P} channels; its gradient is the sum over them.`,
  },
  {
    id: "capsule_col2im",
    cell: "dI",
    beside: ["dI_flat"],
    say: (flat, g) => `And a pixel under ${sources("dI", flat)} windows takes the gradients of all ` +
        `its copies. That is the whole of forward and backward.`,
  },
  {
    id: "tile",
    section: "#tile",
    say: () => "All copies were of numbers that already lay somewhere. The fused kernel computes " +
        "where, and loads a tile of each matrix straight to shared memory. Its buttons step over k.",
  },
  {
    id: "bytes",
    section: "#bytes",
    say: () => "This is what it saves: the bytes that each algorithm moved in this run, on one scale.",
    why: () => "Copies are written once and read once, and products written to be added: bytes that " +
        "no result needs.",
  },
  {
    id: "routing",
    section: "#routing",
    say: () => "Routing weighs the votes before they are added: capsules that agree count more, " +
        "from iteration to iteration.",
  },
  {
    id: "network",
    section: "#network",
    say: () => "And this is a whole network of five such layers, with the times that were recorded " +
        "on a GPU.",
  },
];

class Guide {
  constructor(bar) {
    this.bar = bar;
    this.at = 0;
    this.on = false;
    this.steering = false;
    const press = (selector, act) => bar.querySelector(selector).addEventListener("click", act);
    press(".next", () => this.go(this.at + 1));
    press(".back", () => this.go(this.at - 1));
    press(".leave", () => this.leave());
    STEPS.forEach((step, at) => {
      const mark = element("button"), item = element("li");
      mark.type = "button";
      mark.tabIndex = -1;
      mark.setAttribute("aria-label", `step ${at + 1}: ${inWords(step.id)}`);
      mark.title = inWords(step.id);
      mark.addEventListener("click", () => this.go(at));
      item.append(mark);
      bar.querySelector(".marks").append(item);
    });
    document.addEventListener("pinned", () => this.steering || !this.on || this.spread());
  }

  // Go to a step, or to where the walk was left, and choose its cell.
  go(at = this.at) {
    this.enter(at, true);
  }

  // Show a step; an address may bring its own cell.
  enter(at, points = false) {
    this.at = Math.max(0, Math.min(STEPS.length - 1, at));
    this.on = true;
    this.bar.hidden = false;
    document.body.classList.add("guided");
    const step = STEPS[this.at];
    this.spread(step);
    this.steering = true;
    if (step.cell && points) this.point(step);
    this.steering = false;
    this.flat = state.pinned[1];
    this.tell(step);
    zoom.show();
    const shownAt = $(step.section || "#strip");
    shownAt.scrollIntoView({block: "start", behavior: "instant"});
    if (step.cell) maps[step.cell].panel.scrollIntoView({block: "nearest", behavior: "instant"});
    address.note();
  }

  leave() {
    this.on = false;
    this.bar.hidden = true;
    document.body.classList.remove("guided");
    document.documentElement.style.setProperty("--guide-height", "0px");
    this.spread();
    zoom.show();
    address.note();
    $("#enter").focus({preventScroll: true});
  }

  // Choose the step's cell: one that the largest output number has to do with.
  point({id, cell}) {
    const from = largest(graph, "O");
    const ends = {O: from, dO: from, dK: largest(graph, "dK")};
    let flat = cell === "I" || id === "input_extend" || id === "kernel_extend" ?
        mostRead(cell, from) : ends[cell];
    if (flat === undefined) {
      const marks = graph.reach(...(roleOf(cell) === "gradient" ? ["dO", from] : ["O", from]));
      flat = foremost(graph, marks, cell);
    }
    state.pinned = [cell, flat < 0 ? largest(graph, cell) : flat];
    pin();
  }

  // Put aside the arrays that a step is not about; without a step, none.
  spread(step) {
    const about = step && step.cell ? [step.cell, ...step.beside] : null;
    document.body.classList.toggle("focused", Boolean(about));
    for (const map of Object.values(maps)) {
      map.panel.classList.toggle("aside", Boolean(about) && !about.includes(map.name));
    }
    if (isProjected()) draw();  // they take the room of those put aside
    light();
  }

  tell(step) {
    const {bar} = this, g = graph.g, why = bar.querySelector(".why");
    bar.querySelector(".say").textContent = step.say(this.flat, g);
    why.hidden = !step.why;
    why.textContent = step.why ? `Why does this cost so much? ${step.why(g)}` : "";
    bar.querySelector(".count").textContent = `${this.at + 1} / ${STEPS.length}`;
    bar.querySelector(".back").disabled = this.at === 0;
    bar.querySelector(".next").disabled = this.at === STEPS.length - 1;
    bar.querySelectorAll(".marks button").forEach((mark, at) => {
      mark.classList.toggle("done", at < this.at);
      mark.setAttribute("aria-current", at === this.at ? "step" : "false");
    });
    document.documentElement.style.setProperty("--guide-height", `${bar.offsetHeight}px`);
  }

  // n and PageDown go on, b and PageUp back, Escape leaves; a presenter's clicker sends the Page keys.
  key(event) {
    if (event.key === "n") return this.go(this.on ? this.at + 1 : this.at);
    if (!this.on) return;
    if (event.key === "PageDown") this.go(this.at + 1);
    else if (event.key === "b" || event.key === "PageUp") this.go(this.at - 1);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }
}
