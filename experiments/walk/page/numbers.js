// A cell in numbers: what it is, the small product behind it written out, and the sum.

const PRODUCTS = {
  "O'": ["I'", "K'"],
  "dK'": ["I'", "dO'"],
  "dI'": ["dO'", "K'"]
};
const SUMS = {
  "O": ["O'", "q"],
  "dK": ["dK'", "l"],
  "dI_flat": ["dI'", "p"],
  "dI": ["dI_flat", "l, q"],
};
const COPIES = {
  "I_flat": "I",
  "I'": "I_flat",
  "K'": "K",
  "dO'": "dO"
};
const GIVEN = {
  "I": "Given: a pixel of the digit.",
  "K": "Given: a weight, drawn at random.",
  "dO": "Given: dO = O − T, for a target T.",
};
// The product and the sum that are written out beside a cell of each array.
const BESIDE = {
  "I": ["O'", "O"],
  "I_flat": ["O'", "O"],
  "I'": ["O'", "O"],
  "K": ["O'", "O"],
  "K'": ["O'", "O"],
  "O'": ["O'", "O"],
  "O": ["O'", "O"],
  "dO": ["dI'", "dI_flat"],
  "dO'": ["dI'", "dI_flat"],
  "dK'": ["dK'", "dK"],
  "dK": ["dK'", "dK"],
  "dI'": ["dI'", "dI_flat"],
  "dI_flat": ["dI'", "dI_flat"],
  "dI": ["dI'", "dI"],
};
const MOST_DIGITS = 6;  // rows or columns of a capsule whose numbers can still be read

const shown = (value, digits = 2) =>
    value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−");

// I_flat[l 4, q 2 | 1, 3]: a capsule and a cell of it.
function title(graph, name, flat) {
  const {letters} = graph.arrays[name], i = graph.index(name, flat);
  const lead = letters.slice(0, -3).filter((letter) => letter !== "n");
  const cell = letters.slice(-3).filter((letter) => letter !== "g" || graph.g.G > 1);
  const words = (list) => list.map((letter) => `${letter} ${i[letter]}`).join(", ");
  return `${name}[${words(lead)} | ${words(cell)}]`;
}

// How many cells and capsules of each array are lit, by mark.
function counts(graph, marks, mark) {
  return ORDER
      .map((name) => {
        const {first, steps, shape} = graph.arrays[name];
        const elements = shape.slice(-3).reduce((a, b) => a * b);
        const capsules = new Set();
        let cells = 0;
        for (let flat = 0; flat < steps.length; flat++) {
          if (marks[first + flat] === mark) {
            cells++;
            capsules.add(Math.floor(flat / elements));
          }
        }
        return {name, cells, capsules: capsules.size};
      })
      .filter(({cells}) => cells);
}

// The cell of an array with the largest value.
function largest(graph, name) {
  const {steps} = graph.arrays[name];
  return steps.reduce((best, step, flat) => (step > steps[best] ? flat : best), 0);
}

// The lit cell of an array that says most: the largest; the chosen one if it is there; else -1.
function foremost(graph, marks, name) {
  const {first, steps} = graph.arrays[name];
  let best = -1, size = -1;
  for (let flat = 0; flat < steps.length; flat++) {
    const mark = marks[first + flat];
    if (mark === 3) return flat;
    if (mark && Math.abs(steps[flat]) > size) {
      best = flat;
      size = Math.abs(steps[flat]);
    }
  }
  return best;
}

class Numbers {
  constructor(pane) {
    this.pane = pane;
  }

  show(graph, name, flat, marks) {
    this.graph = graph;
    const [product, sum] = BESIDE[name];
    const made = foremost(graph, marks, product);
    const parts = [this.heading(name, flat, marks)];
    if (made >= 0) {
      parts.push(this.product(product, made));
      const total = graph.reach(product, made);
      const added = this.sumOf(sum, marks, total);
      if (added >= 0) parts.push(this.sum(sum, added));
    }
    this.pane.replaceChildren(...parts);
  }

  // A lit cell of `name` that the product above is added to.
  sumOf(name, marks, total) {
    const {first, steps} = this.graph.arrays[name];
    for (let flat = 0; flat < steps.length; flat++) {
      if (marks[first + flat] && total[first + flat] === 2) return flat;
    }
    return foremost(this.graph, marks, name);
  }

  heading(name, flat, marks) {
    const box = element("section", "cell");
    const head = element("h2", `role-${roleOf(name)}`, title(this.graph, name, flat));
    head.append(element("output", "", ` = ${shown(this.graph.value(name, flat), 4)}`));
    box.append(head, element("p", "", this.sentence(name, flat)));
    const list = element("dl", "reach");
    for (const [mark, word] of [[1, "read from"], [2, "feeds"]]) {
      const found = counts(this.graph, marks, mark);
      list.append(element("dt", "", word));
      const line = element("dd", "", found.length ? "" : "nothing");
      for (const one of found) {
        const chip = element("span", `chip role-${roleOf(one.name)}`, `${one.name} `);
        chip.append(element("b", "", `${one.cells}`));
        chip.title = `${one.cells} cells in ${one.capsules} capsules of ${one.name}`;
        line.append(chip, " ");
      }
      list.append(line);
    }
    box.append(list);
    return box;
  }

  sentence(name, flat) {
    if (name in GIVEN) return GIVEN[name];
    const {graph} = this, sources = graph.reads.list(graph.arrays[name].first + flat);
    if (name in COPIES) {
      if (!sources.length) return "A zero: the window reaches into the padding here.";
      return `A copy of ${title(graph, ...graph.cell(sources[0]))}.`;
    }
    if (name in PRODUCTS)
      return `One cell of one small product: ${sources.length / 2} multiplications.`;
    const [terms, letter] = SUMS[name];
    if (!sources.length) return "No window covers it: its gradient is zero.";
    return `The sum over ${letter} of ${sources.length} cells of ${terms}.`;
  }

  product(name, flat) {
    const {graph} = this, box = element("section", "product");
    const [left, right] = PRODUCTS[name], own = graph.arrays[name].first + flat;
    const sources = graph.reads.list(own).map((number) => graph.cell(number));
    box.append(element("h3", "", `The small product ${title(graph, name, flat)}`));
    const row = element("div", "equation");
    row.append(
        this.capsule(left, sources[0][1], sources),
        element("span", "sign", name === "dK'" ? "ᵀ @" : "@"),
        this.capsule(right, sources[1][1], sources),
        element("span", "sign", name === "dI'" ? "ᵀ =" : "="),
        this.capsule(name, flat, [[name, flat]]));
    const terms = range(sources.length / 2).map((k) => [sources[2 * k], sources[2 * k + 1]]);
    const line = element("p", "written");
    terms.forEach(([a, b], k) => {
      if (k) line.append(" + ");
      line.append(this.number(...a), "·", this.number(...b));
    });
    line.append(" = ", this.number(name, flat, 3));
    box.append(row, line);
    return box;
  }

  // A capsule as a table of numbers; its lit cells are framed.
  capsule(name, flat, lit) {
    const {graph} = this, {shape} = graph.arrays[name];
    const [rows, columns] = shape.slice(-2), start = flat - flat % (rows * columns);
    const framed = new Set(lit.filter(([other]) => other === name).map(([, cell]) => cell));
    const table = element("table", `capsule role-${roleOf(name)}`);
    table.append(element("caption", "", name));
    const colours = scaleOf(roleOf(name)), large = Math.max(rows, columns) > MOST_DIGITS;
    if (large) table.classList.add("large");
    for (let r = 0; r < rows; r++) {
      const line = table.insertRow();
      for (let c = 0; c < columns; c++) {
        const cell = line.insertCell(), at = start + r * columns + c,
              steps = graph.arrays[name].steps[at];
        cell.style.background = colours[colourOf(steps)];
        cell.classList.add(isBright(colours[colourOf(steps)]) ? "bright" : "deep");
        cell.classList.toggle("lit", framed.has(at));
        cell.dataset.cell = `${name} ${at}`;
        cell.title = `${title(graph, name, at)} = ${shown(graph.value(name, at), 4)}`;
        if (!large) cell.textContent = shown(graph.value(name, at), 1);
      }
    }
    return table;
  }

  number(name, flat, digits = 2) {
    const made =
        element("span", `number role-${roleOf(name)}`, shown(this.graph.value(name, flat), digits));
    made.dataset.cell = `${name} ${flat}`;
    made.title = title(this.graph, name, flat);
    return made;
  }

  sum(name, flat) {
    const {graph} = this, box = element("section", "sum"), [terms, letter] = SUMS[name];
    const sources =
        graph.reads.list(graph.arrays[name].first + flat).map((number) => graph.cell(number));
    box.append(element("h3", "", `The sum over ${letter}: ${title(graph, name, flat)}`));
    const line = element("p", "written");
    sources.forEach(([other, cell], k) => {
      const value = graph.value(other, cell), i = graph.index(other, cell);
      if (k) line.append(" + ");
      const made = this.number(other, cell);
      made.title =
          `${letter.split(", ").map((one) => `${one} ${i[one]}`).join(", ")}: ${made.title}`;
      if (value < 0)
        line.append("(", made, ")");
      else
        line.append(made);
    });
    line.append(" = ", this.number(name, flat, 3));
    box.append(line);
    return box;
  }
}

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  return made;
}
