// Which cell is read to make which: the paper's index formulas, and their closure in both ways.
//
// A cell is one number of one array. Its index is an object of the glossary's letters, such as
// {n, p, l, q, g, d1, d3}; `l` always goes with `oh` and `ow`, and `q` with `c`, `kh` and `kw`.

const ORDER =
    ["I", "I_flat", "I'", "K", "K'", "O'", "O", "dO", "dO'", "dK'", "dK", "dI'", "dI_flat", "dI"];
const ROLE = {
  "I": "input",
  "I_flat": "input",
  "I'": "input",
  "K": "kernel",
  "K'": "kernel",
  "O'": "product",
  "O": "output"
};
const roleOf = (name) => ROLE[name] || "gradient";

const range = (count) => Array.from({length: count}, (_, i) => i);

// What a cell is made from: name of its array -> (index, geometry) -> [[array, index], ...]
const READS = {
  "I": () => [],
  "K": () => [],
  "dO": () => [],
  "I_flat": (i, g) => {
    const h = i.oh * g.stride[0] + i.kh * g.dilation[0] - g.padding[0];
    const w = i.ow * g.stride[1] + i.kw * g.dilation[1] - g.padding[1];
    return h >= 0 && h < g.H && w >= 0 && w < g.W ? [["I", {...i, h, w}]] : [];
  },
  "I'": (i) => [["I_flat", i]],
  "K'": (i) => [["K", i]],
  "O'": (i, g) => range(g.D2).flatMap((d2) => [["I'", {...i, d2}], ["K'", {...i, d2}]]),
  "O": (i, g) => range(g.Q).map((q) => ["O'", {...i, q}]),
  "dO'": (i) => [["dO", i]],
  "dK'": (i, g) => range(g.D1).flatMap((d1) => [["I'", {...i, d1}], ["dO'", {...i, d1}]]),
  "dK": (i, g) => range(g.L).map((l) => ["dK'", {...i, n: 0, l}]),
  "dI'": (i, g) => range(g.D3).flatMap((d3) => [["dO'", {...i, d3}], ["K'", {...i, d3}]]),
  "dI_flat": (i, g) => range(g.P).map((p) => ["dI'", {...i, p}]),
  "dI": (i, g) => {
    const found = [];
    for (let kh = 0; kh < g.KH; kh++) {
      for (let kw = 0; kw < g.KW; kw++) {
        const oh = (i.h + g.padding[0] - kh * g.dilation[0]) / g.stride[0];
        const ow = (i.w + g.padding[1] - kw * g.dilation[1]) / g.stride[1];
        if (Number.isInteger(oh) && Number.isInteger(ow) && oh >= 0 && oh < g.OH && ow >= 0 &&
            ow < g.OW) {
          const l = oh * g.OW + ow, q = (i.c * g.KH + kh) * g.KW + kw;
          found.push(["dI_flat", {...i, l, q}]);
        }
      }
    }
    return found;
  },
};

// An index with oh, ow set from its l, and c, kh, kw from its q.
function unfolded(i, {OW, KH, KW}) {
  if ("l" in i) {
    i.oh = Math.floor(i.l / OW);
    i.ow = i.l % OW;
  }
  if ("q" in i) {
    i.c = Math.floor(i.q / (KH * KW));
    i.kh = Math.floor(i.q / KW) % KH;
    i.kw = i.q % KW;
  }
  return i;
}

// Cells of all arrays have one numbering, array after array, in which the edges are kept.
class Graph {
  constructor(run) {
    this.g = run.geometry;
    this.arrays = {};
    this.size = 0;
    for (const name of ORDER) {
      const {axes, shape, scale, values} = run.arrays[name];
      const letters = axes.map((axis) => axis.toLowerCase());
      const bytes = Uint8Array.from(atob(values), (letter) => letter.charCodeAt(0));
      const steps = new Int16Array(bytes.buffer);
      this.arrays[name] = {name, axes, letters, shape, scale, steps, first: this.size};
      this.size += steps.length;
    }
    const from = [], to = [];
    for (const name of ORDER) {
      const array = this.arrays[name];
      for (let flat = 0; flat < array.steps.length; flat++) {
        for (const [source, index] of READS[name](this.index(name, flat), this.g)) {
          from.push(this.arrays[source].first + this.flat(source, index));
          to.push(array.first + flat);
        }
      }
    }
    this.reads = new Edges(this.size, to, from);
    this.feeds = new Edges(this.size, from, to);
  }

  // The value of a cell.
  value(name, flat) {
    const array = this.arrays[name];
    return array.steps[flat] / 32767 * array.scale;
  }

  // The index of a cell, with the letters that follow from others.
  index(name, flat) {
    const {letters, shape} = this.arrays[name], {OW, KH, KW} = this.g, i = {};
    for (let axis = letters.length - 1; axis >= 0; axis--) {
      i[letters[axis]] = flat % shape[axis];
      flat = Math.floor(flat / shape[axis]);
    }
    if ("oh" in i) i.l = i.oh * OW + i.ow;
    if ("kh" in i) i.q = (i.c * KH + i.kh) * KW + i.kw;
    if (!("n" in i)) i.n = 0;
    return unfolded(i, this.g);
  }

  // The cell of an index; l and q hold where the array has oh, ow or c, kh, kw.
  flat(name, i) {
    const {letters, shape} = this.arrays[name], found = unfolded({...i}, this.g);
    return letters.reduce((flat, letter, axis) => flat * shape[axis] + found[letter], 0);
  }

  // [array, cell] of a number in the common numbering.
  cell(number) {
    const name = ORDER.findLast((one) => this.arrays[one].first <= number);
    return [name, number - this.arrays[name].first];
  }

  // Everything that a cell was made from, and everything made from it: 1 read, 2 fed, 3 the cell.
  reach(name, flat) {
    const marks = new Uint8Array(this.size), own = this.arrays[name].first + flat;
    for (const [edges, mark] of [[this.reads, 1], [this.feeds, 2]]) {
      const todo = [own];
      while (todo.length) {
        edges.each(todo.pop(), (next) => {
          if (!marks[next]) {
            marks[next] = mark;
            todo.push(next);
          }
        });
      }
    }
    marks[own] = 3;
    return marks;
  }
}

// Lists of numbers, one for each number: the far ends of its edges, in the order given.
class Edges {
  constructor(size, starts, ends) {
    this.first = new Int32Array(size + 1);
    for (const start of starts) this.first[start + 1]++;
    for (let i = 0; i < size; i++) this.first[i + 1] += this.first[i];
    this.ends = new Int32Array(ends.length);
    const next = this.first.slice();
    for (let edge = 0; edge < ends.length; edge++) this.ends[next[starts[edge]]++] = ends[edge];
  }

  each(start, visit) {
    for (let i = this.first[start]; i < this.first[start + 1]; i++) visit(this.ends[i]);
  }

  list(start) {
    return Array.from(this.ends.subarray(this.first[start], this.first[start + 1]));
  }
}
