// The opening: what a capsule convolution is, in three sentences and one picture of two halves.

const SVG = document.querySelector("#drawing").content.firstElementChild.namespaceURI;

function shape(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// A matrix as a heat map in an SVG, `side` units a cell; with its numbers where they can be read.
function matrixIn(picture, matrix, role, scale, x, y, side, digits = null) {
  const colours = scaleOf(role);
  matrix.forEach((row, i) => row.forEach((value, j) => {
    const fill = colours[colourOf(Math.max(-1, Math.min(1, value / scale)) * 32767)];
    const place = {x: x + j * side, y: y + i * side, width: side, height: side, fill};
    picture.append(shape("rect", {...place, class: "cell"}));
    if (digits === null) return;
    const middle = {x: place.x + side / 2, y: place.y + side / 2, class: "digit"};
    const size = side / (digits + 1.6);
    picture.append(shape(
        "text", {...middle, fill: isBright(fill) ? "#000000" : "#ffffff", "font-size": size},
        shown(value, digits)));
  }));
  const frame = {x, y, width: side * matrix[0].length, height: side * matrix.length};
  picture.append(shape("rect", {...frame, class: `frame role-${role}`}));
}

const wordIn = (picture, x, y, text, look = "word") =>
    picture.append(shape("text", {x, y, class: look}, text));

const largestOf = (matrix) => Math.max(...matrix.flat().map(Math.abs)) || 1;

const NAMED = 112;  // units that the words above a sheet take

class Opening {
  constructor(section) {
    this.section = section;
  }

  show(data, run, graph) {
    const {KH, KW, C, D1, D2, D3} = run.geometry, count = KH * KW * C;
    const sentences = [
      `A convolution slides a window over an image: the numbers under it, each times a weight, ` +
          `add up to one number.`,
      `In a capsule convolution a small matrix, a capsule, stands at every place, and every weight ` +
          `is a matrix too: the ${count} matrix products under a window add up to one matrix.`,
      `The paper lays all these small products out in memory; here is every number of it, as ` +
          `kernels wrote it that ran on a digit, forward and backward, and what it costs.`,
    ];
    this.section.querySelector(".sentences")
        .replaceChildren(...sentences.map((words) => element("p", "", words)));
    this.section.querySelector(".pictures")
        .replaceChildren(this.scalars(data.opening), this.capsules(data.opening, graph));
  }

  figure(picture, label, ...captions) {
    const figure = element("figure");
    picture.setAttribute("role", "img");
    picture.setAttribute("aria-label", label);
    figure.append(picture, ...captions.map((words) => element("figcaption", "", words)));
    return figure;
  }

  // The paper's Figure 1.
  scalars({scalars: {window, kernel, sum, row, column}, ones}) {
    const picture = shape("svg", {viewBox: "0 0 560 200"});
    const rows = kernel.length, columns = kernel[0].length;
    const side = Math.min(48, 150 / rows, 165 / columns);
    const top = 110 - rows * side / 2, wide = columns * side;
    matrixIn(picture, window, "input", largestOf(window), 10, top, side, 2);
    wordIn(picture, 10 + wide + 20, 116, "·", "sign");
    matrixIn(picture, kernel, "kernel", largestOf(kernel), 50 + wide, top, side, 2);
    const end = 50 + 2 * wide;
    wordIn(picture, end + 42, 116, "Σ →", "sign");
    matrixIn(picture, [[sum]], "output", Math.abs(sum) || 1, end + 88, 110 - 28, 56, 2);
    wordIn(picture, 10 + wide / 2, top - 10, "a window of numbers");
    wordIn(picture, 50 + 1.5 * wide, top - 10, "weights");
    wordIn(picture, end + 116, top - 10, "one number");
    const all = new Set(ones.scalars.flat(3));
    return this.figure(
        picture, "A convolution: window times weights, summed to one number",
        `A convolution: tensor to scalar. ${rows * columns} pixels from row ${row}, column ` +
            `${column} of the digit; as the paper's Figure 1.`,
        `Its example, run here: 5 × 5 × 4 ones under 4 × 4 × 3 ones give 2 × 2 × 2 numbers, all ` +
            `${[...all].join(", ")} = 4 · 4 · 3.`);
  }

  // The paper's Figure 2, at the largest output cell.
  capsules({ones}, graph) {
    const picture = shape("svg", {viewBox: "0 0 560 200"}), {g} = graph;
    const {p, l} = graph.index("O", largest(graph, "O"));
    const rows = g.KH * g.C, columns = g.KW, gap = 3;
    const matrix = (name, lead, down, across) => range(down).map(
        (i) => range(across).map((j) => graph.value(name, graph.flat(name, lead(i, j)))));
    const of = (name, q) => ({
      "I_flat": () => matrix(
          name, (i, j) => ({n: 0, l, q, g: Math.floor(i / g.D1), d1: i % g.D1, d2: j}), g.G * g.D1,
          g.D2),
      "K": () => matrix(
          name, (i, j) => ({p, q, g: Math.floor(i / g.D2), d2: i % g.D2, d3: j}), g.G * g.D2, g.D3),
      "O": () => matrix(
          name, (i, j) => ({n: 0, p, l, g: Math.floor(i / g.D1), d1: i % g.D1, d3: j}), g.G * g.D1,
          g.D3),
    })[name]();
    const scale = (name) => graph.arrays[name].scale;
    const sheet = (name, role, x, cellRows, cellColumns) => {
      const side = Math.min(
          150 / (rows * cellRows + rows * gap / 4), 170 / (columns * cellColumns + columns * gap / 4));
      const high = rows * cellRows * side + (rows - 1) * gap;
      const wide = columns * cellColumns * side + (columns - 1) * gap, top = 110 - high / 2;
      const room = Math.max(wide, NAMED), from = x + (room - wide) / 2;
      range(rows * columns).forEach((q) => {
        const left = from + (q % columns) * (cellColumns * side + gap);
        const down = top + Math.floor(q / columns) * (cellRows * side + gap);
        matrixIn(picture, of(name, q), role, scale(name), left, down, side);
      });
      return [room, top];
    };
    const [wide, top] = sheet("I_flat", "input", 10, g.G * g.D1, g.D2);
    wordIn(picture, 10 + wide + 20, 116, "@", "sign");
    const [across, kernelTop] = sheet("K", "kernel", 50 + wide, g.G * g.D2, g.D3);
    const end = 50 + wide + across;
    wordIn(picture, end + 42, 116, "Σ →", "sign");
    const side = Math.min(84 / g.D3, 120 / (g.G * g.D1)), result = of("O", 0);
    matrixIn(
        picture, result, "output", scale("O"), end + 80, 110 - result.length * side / 2, side,
        side > 16 ? 1 : null);
    wordIn(picture, 10 + wide / 2, top - 10, `${rows * columns} capsules`);
    wordIn(picture, 50 + wide + across / 2, kernelTop - 10, `${rows * columns} kernel capsules`);
    wordIn(picture, end + 80 + g.D3 * side / 2, Math.min(top, kernelTop) - 10, "one capsule");
    const all = new Set(ones.capsules.flat(5));
    return this.figure(
        picture, "A capsule convolution: capsules times kernel capsules, summed to one capsule",
        `A capsule convolution: tensor to tensor. The window of the largest output of this run; as ` +
            `the paper's Figure 2.`,
        `Its example, run here: 5 × 5 capsules of 3 × 3 × 3 ones under 4 × 4 give 2 × 2 capsules, ` +
            `every number ${[...all].join(", ")} = 16 products · 3.`);
  }
}
