// The arrays as heat maps, all at once, and what is lit in them.
//
// A map is a table of capsules (sheets of them where there are output channels), each a small table
// of cells. Under the veil of a second canvas lies what the chosen cell has nothing to do with.

const CAPSULE_GAP = 1, SHEET_GAP = 6;  // pixels

// Sheet, row and column at which a capsule stands.
const PLACES = {
  "N, C, H, W": (i) => [i.c, i.h, i.w],
  "P, C, KH, KW": (i, g) => [i.p, i.kh, i.c * g.KW + i.kw],
  "N, L, Q": (i) => [0, i.q, i.l],
  "N, P, L, Q": (i) => [i.p, i.q, i.l],
  "P, L, Q": (i) => [i.p, i.q, i.l],
  "N, P, OH, OW": (i) => [i.p, i.oh, i.ow],
};

class HeatMap {
  constructor(panel, name) {
    this.panel = panel;
    this.name = name;
    [this.paper, this.veil] = panel.querySelectorAll("canvas");
  }

  // Lay out and draw the array of a run.
  show(graph, patch) {
    this.graph = graph;
    this.array = graph.arrays[this.name];
    this.arrange(patch);
    this.fit();
    this.paint();
  }

  // Where each cell stands in one grid of all cells: X to the right, Y down.
  arrange(patch) {
    const {axes, letters, shape, steps} = this.array, g = this.graph.g;
    const lead = axes.length - 3, capsule = shape.slice(lead);
    const isInput = letters.at(-2) === "d1" && letters.at(-1) === "d2";
    this.rows = isInput ? patch.rows : capsule[0] * capsule[1];
    this.columns = isInput ? patch.columns : capsule[2];
    const elements = capsule[0] * capsule[1] * capsule[2];
    const place = PLACES[axes.slice(0, lead).join(", ")];
    const spots = range(steps.length / elements).map(
      (k) => place(this.graph.index(this.name, k * elements), g));
    const most = (axis) => Math.max(...spots.map((spot) => spot[axis])) + 1;
    [this.sheets, this.down, this.across] = [most(0), most(1), most(2)];
    this.wide = this.sheetsAcross();
    const width = this.wide * this.across * this.columns;
    const height = Math.ceil(this.sheets / this.wide) * this.down * this.rows;
    this.X = new Int16Array(steps.length);
    this.Y = new Int16Array(steps.length);
    this.grid = {width, height, cells: new Int32Array(width * height).fill(-1)};
    for (let flat = 0; flat < steps.length; flat++) {
      const [sheet, row, column] = spots[Math.floor(flat / elements)];
      const element = flat % elements, at = isInput ? patch.place[element] : element;
      const x = ((sheet % this.wide) * this.across + column) * this.columns + at % this.columns;
      const y = (Math.floor(sheet / this.wide) * this.down + row) * this.rows
        + Math.floor(at / this.columns);
      this.X[flat] = x;
      this.Y[flat] = y;
      this.grid.cells[y * width + x] = flat;
    }
  }

  room() {
    const style = getComputedStyle(this.panel);
    return [this.panel.querySelector(".map").clientWidth, parseFloat(style.getPropertyValue("--map-height"))];
  }

  // Size of a cell if so many sheets stand side by side.
  cellSize(wide) {
    const [width, height] = this.room(), high = Math.ceil(this.sheets / wide);
    const across = (width - (wide - 1) * SHEET_GAP - wide * this.across * CAPSULE_GAP)
      / (wide * this.across * this.columns);
    const down = (height - (high - 1) * SHEET_GAP - high * this.down * CAPSULE_GAP)
      / (high * this.down * this.rows);
    return Math.min(across, down);
  }

  sheetsAcross() {
    return range(this.sheets).map((i) => i + 1)
      .reduce((best, wide) => (this.cellSize(wide) > this.cellSize(best) ? wide : best), 1);
  }

  fit() {
    const ratio = devicePixelRatio || 1;
    this.size = Math.max(1 / ratio, Math.floor(this.cellSize(this.wide) * ratio) / ratio);
    this.lefts = this.edges(this.grid.width, this.columns, this.across * this.columns);
    this.tops = this.edges(this.grid.height, this.rows, this.down * this.rows);
    const width = this.lefts.at(-1), height = this.tops.at(-1);
    for (const canvas of [this.paper, this.veil]) {
      canvas.width = Math.ceil(width * ratio);
      canvas.height = Math.ceil(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
  }

  // Where cells begin in pixels, one more for the end.
  edges(count, capsule, sheet) {
    return range(count + 1).map((i) => i * this.size + Math.floor(i / capsule) * CAPSULE_GAP
      + (i < count ? Math.floor(i / sheet) * SHEET_GAP : (Math.ceil(count / sheet) - 1) * SHEET_GAP));
  }

  paint() {
    const context = this.paper.getContext("2d"), colours = scaleOf(roleOf(this.name));
    context.clearRect(0, 0, this.lefts.at(-1), this.tops.at(-1));
    context.fillStyle = ink("--line");
    for (let y = 0; y < this.grid.height; y += this.rows) {
      for (let x = 0; x < this.grid.width; x += this.columns) {
        if (this.grid.cells[y * this.grid.width + x] < 0) continue;
        context.fillRect(this.lefts[x] - 1, this.tops[y] - 1,
          this.columns * this.size + 2, this.rows * this.size + 2);
      }
    }
    const {steps} = this.array;
    for (let flat = 0; flat < steps.length; flat++) {
      context.fillStyle = colours[Math.round((steps[flat] / 32767 + 1) * 128)];
      context.fillRect(this.lefts[this.X[flat]], this.tops[this.Y[flat]], this.size, this.size);
    }
  }

  // Lift the veil off the marked cells and draw a line round their capsules.
  light(marks) {
    const context = this.veil.getContext("2d"), {first, steps} = this.array, s = this.size;
    const width = this.columns * s, height = this.rows * s;
    context.clearRect(0, 0, this.lefts.at(-1), this.tops.at(-1));
    context.fillStyle = ink("--veil");
    context.fillRect(0, 0, this.lefts.at(-1), this.tops.at(-1));
    const capsules = new Map();
    let own = -1;
    for (let flat = 0; flat < steps.length; flat++) {
      const mark = marks[first + flat];
      if (!mark) continue;
      if (mark === 3) own = flat;
      context.clearRect(this.lefts[this.X[flat]], this.tops[this.Y[flat]], s, s);
      const x = this.X[flat] - this.X[flat] % this.columns, y = this.Y[flat] - this.Y[flat] % this.rows;
      capsules.set(`${x} ${y}`, [this.lefts[x], this.tops[y], mark]);
    }
    context.strokeStyle = ink("--ink");
    for (const [x, y, mark] of capsules.values()) {
      context.setLineDash(mark === 2 ? [2, 2] : []);
      context.lineWidth = mark === 3 ? 2 : 1;
      context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    }
    if (own >= 0) {
      context.setLineDash([]);
      context.lineWidth = 2;
      context.strokeRect(this.lefts[this.X[own]] - 1, this.tops[this.Y[own]] - 1, s + 2, s + 2);
    }
  }

  // The cell under a point of the canvas, or -1.
  at(x, y) {
    const find = (edges, place) => edges.findLastIndex((edge) => edge <= place);
    const column = find(this.lefts, x), row = find(this.tops, y);
    const inside = column >= 0 && row >= 0 && column < this.grid.width && row < this.grid.height;
    return inside ? this.grid.cells[row * this.grid.width + column] : -1;
  }

  // The next cell to the right and down, so many cells or capsules on; itself at the edge.
  step(flat, right, down, byCapsule) {
    const x = this.X[flat] + right * (byCapsule ? this.columns : 1);
    const y = this.Y[flat] + down * (byCapsule ? this.rows : 1);
    const inside = x >= 0 && y >= 0 && x < this.grid.width && y < this.grid.height;
    const next = inside ? this.grid.cells[y * this.grid.width + x] : -1;
    return next < 0 ? flat : next;
  }
}

// A colour of the style sheet as [red, green, blue].
function channels(colour) {
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

const ink = (variable) => getComputedStyle(document.body).getPropertyValue(variable);

// 257 colours of a role: negative, zero in the middle, positive.
const scales = new Map();
function scaleOf(role) {
  if (!scales.has(role)) {
    const [low, zero, high] = ["--negative", "--zero", `--${role}-ink`].map((name) => channels(ink(name)));
    scales.set(role, range(257).map((i) => {
      const end = i < 128 ? low : high, share = Math.abs(i - 128) / 128;
      return `rgb(${range(3).map((k) => Math.round(zero[k] + (end[k] - zero[k]) * share)).join(" ")})`;
    }));
  }
  return scales.get(role);
}
