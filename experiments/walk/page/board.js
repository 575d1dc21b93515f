// The arrays as heat maps, all at once, and what is lit in them.
//
// A map is a table of capsules (sheets of them where there are output channels), each a small table
// of cells. Under the veil of a second canvas lies what the chosen cell has nothing to do with.

const CAPSULE_GAP = 1, SHEET_GAP = 6, MARGIN = 2;  // pixels; the margin is for frames

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
    const spots = range(steps.length / elements)
                      .map((k) => place(this.graph.index(this.name, k * elements), g));
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
      const y = (Math.floor(sheet / this.wide) * this.down + row) * this.rows +
          Math.floor(at / this.columns);
      this.X[flat] = x;
      this.Y[flat] = y;
      this.grid.cells[y * width + x] = flat;
    }
  }

  room() {
    const style = getComputedStyle(this.panel);
    const width = this.panel.querySelector(".map").clientWidth;
    return [width - 2 * MARGIN, parseFloat(style.getPropertyValue("--map-height")) - 2 * MARGIN];
  }

  // Size of a cell if so many sheets stand side by side, with so wide a gap between capsules.
  cellSize(wide, gap = CAPSULE_GAP) {
    const [width, height] = this.room(), high = Math.ceil(this.sheets / wide);
    const across = (width - (wide - 1) * SHEET_GAP - wide * this.across * gap) /
        (wide * this.across * this.columns);
    const down =
        (height - (high - 1) * SHEET_GAP - high * this.down * gap) / (high * this.down * this.rows);
    return Math.min(across, down);
  }

  sheetsAcross() {
    return range(this.sheets)
        .map((i) => i + 1)
        .reduce((best, wide) => (this.cellSize(wide) > this.cellSize(best) ? wide : best), 1);
  }

  fit() {
    const ratio = devicePixelRatio || 1;
    const gap = this.cellSize(this.wide) * ratio < 2 ? 0 : CAPSULE_GAP;
    const size = Math.max(1 / ratio, this.cellSize(this.wide, gap));
    const {width: wide, height: high} = this.grid, {rows, columns} = this;
    [this.lefts, this.rights] = edges(wide, size, gap, columns, this.across * columns, ratio);
    [this.tops, this.bottoms] = edges(high, size, gap, rows, this.down * rows, ratio);
    const width = this.rights.at(-1) + MARGIN, height = this.bottoms.at(-1) + MARGIN;
    for (const canvas of [this.paper, this.veil]) {
      canvas.width = Math.ceil(width * ratio);
      canvas.height = Math.ceil(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
  }

  // The rectangle of a cell, or of all from one to another.
  box(flat, last = flat) {
    const [x, y] = [this.lefts[this.X[flat]], this.tops[this.Y[flat]]];
    return [x, y, this.rights[this.X[last]] - x, this.bottoms[this.Y[last]] - y];
  }

  // The capsule's first and last cell as they stand on the map.
  corners(flat) {
    const {X, Y, rows, columns, grid: {width, cells}} = this;
    const x = X[flat] - X[flat] % columns, y = Y[flat] - Y[flat] % rows;
    return [cells[y * width + x], cells[(y + rows - 1) * width + x + columns - 1]];
  }

  clear(context) {
    context.clearRect(0, 0, this.rights.at(-1) + MARGIN, this.bottoms.at(-1) + MARGIN);
  }

  paint() {
    const context = this.paper.getContext("2d"), colours = scaleOf(roleOf(this.name));
    const {steps} = this.array;
    this.clear(context);
    context.strokeStyle = ink("--line");
    context.lineWidth = 2;
    for (let flat = 0; flat < steps.length; flat++) {
      const corners = this.corners(flat);
      if (corners[0] === flat) context.strokeRect(...this.box(...corners));
    }
    for (let flat = 0; flat < steps.length; flat++) {
      context.fillStyle = colours[colourOf(steps[flat])];
      context.fillRect(...this.box(flat));
    }
  }

  // Lift the veil off the marked cells and draw a line round their capsules.
  light(marks) {
    const context = this.veil.getContext("2d"), {first, steps} = this.array;
    this.clear(context);
    // An array that the chosen cell has nothing to do with is covered less: it can still be looked at.
    const touched = marks.subarray(first, first + steps.length).some(Boolean);
    context.fillStyle = ink(touched ? "--veil" : "--thin-veil");
    context.fillRect(0, 0, this.rights.at(-1) + MARGIN, this.bottoms.at(-1) + MARGIN);
    const capsules = new Map();
    let own = -1;
    for (let flat = 0; flat < steps.length; flat++) {
      const mark = marks[first + flat];
      if (!mark) continue;
      if (mark === 3) own = flat;
      context.clearRect(...this.box(flat));
      const corners = this.corners(flat);
      capsules.set(corners[0], [corners, mark]);
    }
    const frame = (box, width, out) => {
      const [x, y, wide, high] = box;
      context.lineWidth = width;
      context.strokeRect(x - out, y - out, wide + 2 * out, high + 2 * out);
    };
    context.strokeStyle = ink("--ink");
    for (const [corners, mark] of capsules.values()) {
      context.setLineDash(mark === 2 ? [2, 2] : []);
      frame(this.box(...corners), mark === 3 ? 2 : 1, 0.5);
    }
    context.setLineDash([]);
    if (own >= 0) frame(this.box(own), 2, 1);
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

// Where cells begin and end in pixels, whole ones of the screen.
function edges(count, size, gap, capsule, sheet, ratio) {
  const gaps = (i) => MARGIN + Math.floor(i / capsule) * gap + Math.floor(i / sheet) * SHEET_GAP;
  const at = (i, k) => Math.round(i * size * ratio) / ratio + gaps(k);
  return [range(count).map((i) => at(i, i)), range(count).map((i) => at(i + 1, i))];
}

// A colour of the style sheet as [red, green, blue].
function channels(colour) {
  const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

const ink = (variable) => getComputedStyle(document.body).getPropertyValue(variable);

// Where a value, in steps of 1/32767, stands among a role's colours: small ones are lifted by a power
// below 1, as gradients have few large values.
const LIFT = 0.6;
const colourOf = (steps) =>
    Math.round(128 + 128 * Math.sign(steps) * Math.pow(Math.abs(steps) / 32767, LIFT));

// Whether words on a colour of a scale are better dark: what has the larger contrast, by WCAG's measure.
const isBright = (colour) => {
  const linear = (part) => (part <= 10 ? part / 3295 : Math.pow((part / 255 + 0.055) / 1.055, 2.4));
  const [red, green, blue] = colour.match(/\d+/g).map(Number).map(linear);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18;
};

// 257 colours of a role: negative, zero in the middle, positive.
const scales = new Map();
function scaleOf(role) {
  if (!scales.has(role)) {
    const [low, zero, high] = ["--negative", "--zero", `--${role}-ink`].map(ink).map(channels);
    scales.set(role, range(257).map((i) => {
      const end = i < 128 ? low : high, share = Math.abs(i - 128) / 128;
      const mixed = range(3).map((k) => Math.round(zero[k] + (end[k] - zero[k]) * share));
      return `rgb(${mixed.join(" ")})`;
    }));
  }
  return scales.get(role);
}
