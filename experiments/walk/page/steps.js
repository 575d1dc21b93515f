// The steps of the guided walk, from the opening through all stages, forward and backward.
//
// A step has an array whose cell says most about it, the arrays beside it, and a sentence; where numbers
// are replicated it says what that costs. Or it has a section further down.

const size = (name) => graph.arrays[name].steps.length;
const number = (count) => thousands(count);
const often = (count) => (count === 1 ? "once" : count === 2 ? "twice" : `${count} times`);
const many = (count, thing) => `${number(count)} ${thing}${count === 1 ? "" : "s"}`;
const timesAsMany = (more, less) => {
  const ratio = shown(size(more) / size(less), 1).replace(/\.0$/, "");
  return ratio === "1" ? "as many" : `${ratio} times as many`;
};

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
    say: (flat, g) => `Follow one number of the output. It comes from ${many(g.Q, "capsule")} of I ` +
        `under its window and as many of K that belong to its channel.`,
  },
  {
    id: "capsule_im2col",
    cell: "I",
    beside: ["I_flat"],
    say: (flat, g) => `Under every window lie ${many(g.Q, "capsule")}, which become one column of I_flat. This ` +
        `pixel lies under ${many(readers("I", flat), "window")} of ${g.L}, so it is copied ` +
        `${often(readers("I", flat))}.`,
    why: () => `I has ${number(size("I"))} numbers, I_flat ${number(size("I_flat"))}: ` +
        `${timesAsMany("I_flat", "I")}, to be written and then read again.`,
  },
  {
    id: "input_extend",
    cell: "I_flat",
    beside: ["I'"],
    say: (flat, g) => `Every output channel wants the columns for itself: I' holds I_flat ` +
        `${often(g.P)}.`,
    why: (g) => `Nothing new is in it. ${number(size("I'"))} numbers are written, ${g.P} for each ` +
        `that is read; with 32 channels it would be 32.`,
  },
  {
    id: "kernel_extend",
    cell: "K",
    beside: ["K'"],
    say: (flat, g) => `Every window wants the kernel for itself: K' holds K ${often(g.L)}, ` +
        `as there are positions.`,
    why: (g) => `${number(size("K"))} numbers become ${number(size("K'"))}. On a larger image it is ` +
        `worse: the copies grow with the positions, and all say the same.`,
  },
  {
    id: "strided_batched_matmul",
    cell: "O'",
    beside: ["I'", "K'"],
    say: (flat, g) => `Now all small products are alike, and one batched call makes them: row times ` +
        `column, ${many(g.D2, "multiplication")} for this cell, ` +
        `${many(g.P * g.L * g.Q * g.G, "product")} in all.`,
    why: () => `The products are small, so each number that is read serves few multiplications: ` +
        `memory decides the time, not arithmetic.`,
  },
  {
    id: "output_reduce",
    cell: "O",
    beside: ["O'"],
    say: (flat, g) => `${many(sources("O", flat), "product")} of one window, added up: here is ` +
        `the number that the walk began with.`,
    why: () => `O' has ${timesAsMany("O'", "O")} numbers as O, and all of them were written only to ` +
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
    say: (flat, g) => `A sum hands its gradient to every term: dO' holds dO ${often(g.Q)}.`,
    why: () => `${number(size("dO"))} numbers become ${number(size("dO'"))}, a third replication, ` +
        `which both gradients read.`,
  },
  {
    id: "kernel_gradient_matmul",
    cell: "dK'",
    beside: ["I'", "dO'"],
    say: (flat, g) => `For the kernel: the input capsule, transposed, times the gradient of its ` +
        `product; ${many(g.D1, "multiplication")} a cell.`,
  },
  {
    id: "kernel_reduce",
    cell: "dK",
    beside: ["dK'"],
    say: (flat, g) => `A weight was used at every position, so its gradient is the sum over ` +
        `all of them, ${sources("dK", flat)} here.`,
    why: () => `dK' has ${timesAsMany("dK'", "dK")} numbers as what it is summed to.`,
  },
  {
    id: "input_gradient_matmul",
    cell: "dI'",
    beside: ["dO'", "K'"],
    say: (flat, g) => `For the input: the gradient of the product times the kernel capsule, ` +
        `transposed; ${many(g.D3, "multiplication")} a cell.`,
  },
  {
    id: "input_reduce",
    cell: "dI_flat",
    beside: ["dI'"],
    say: (flat, g) => `A column was copied for ${many(g.P, "channel")}; its gradient is the sum over them.`,
  },
  {
    id: "capsule_col2im",
    cell: "dI",
    beside: ["dI_flat"],
    say: (flat, g) => `And a pixel under ${many(sources("dI", flat), "window")} takes the gradients of all ` +
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
