// One array over the whole stage, in numbers that can be read from the last row of a room.

const READABLE = 22, LARGEST = 46;  // height of digits, pixels

class Zoom {
  constructor(dialog) {
    this.dialog = dialog;
    this.open = false;
    dialog.querySelector(".close").addEventListener("click", () => this.toggle(false));
    dialog.addEventListener("keydown", (event) => {
      if (event.key in ARROWS && this.open) move(event, state.pinned[0]);
    });
  }

  toggle(open) {
    if (open === this.open) return;
    this.open = open;
    for (const part of document.querySelectorAll("header, main")) part.inert = open;
    if (open) {
      this.dialog.show();
      this.show();
      this.dialog.querySelector(".close").focus();
    } else {
      this.dialog.close();
      maps[state.pinned[0]].panel.focus({preventScroll: true});
    }
    address.note();
  }

  // The chosen cell, and as many capsules around it as can be read.
  show() {
    if (!this.open) return;
    const [name, flat] = state.pinned, map = maps[name];
    this.dialog.querySelector("h2").textContent =
        `${title(graph, name, flat)} = ${shown(graph.value(name, flat), 4)}`;
    this.dialog.querySelector("h2").className = `role-${roleOf(name)}`;
    const {first, count, size} = this.view(map, flat);
    const table = element("table", "numbers");
    table.style.fontSize = `${size}px`;
    const colours = scaleOf(roleOf(name));
    for (let y = first[1]; y < first[1] + count[1]; y++) {
      const row = table.insertRow();
      for (let x = first[0]; x < first[0] + count[0]; x++) {
        const cell = map.grid.cells[y * map.grid.width + x], box = row.insertCell();
        if (cell < 0) continue;
        const colour = colours[colourOf(map.array.steps[cell])];
        box.textContent = shown(graph.value(name, cell));
        box.style.background = colour;
        box.className = isBright(colour) ? "bright" : "deep";
        box.classList.toggle("left", x % map.columns === 0);
        box.classList.toggle("top", y % map.rows === 0);
        box.classList.toggle("lit", marks[map.array.first + cell] > 0);
        box.classList.toggle("own", cell === flat);
        box.dataset.cell = `${name} ${cell}`;
      }
    }
    this.dialog.querySelector(".grid").replaceChildren(table);
    const whole = count[0] === map.grid.width && count[1] === map.grid.height;
    const span = (axis) => `${first[axis]}–${first[axis] + count[axis] - 1}`;
    this.dialog.querySelector(".place").textContent = whole ?
        "all of it" :
        `rows ${span(1)} of ${map.grid.height}, columns ${span(0)} of ${map.grid.width}; ` +
            "arrow keys move";
  }

  // Which cells are shown, whole capsules, and how high their digits are.
  view(map, flat) {
    const pane = this.dialog.querySelector(".grid"), {grid} = map;
    const room = [pane.clientWidth - 8, pane.clientHeight - 8], units = [3.3, 1.55];
    const fitting = Math.min(
        room[0] / (units[0] * grid.width), room[1] / (units[1] * grid.height), LARGEST);
    const size = Math.max(fitting, READABLE), spot = [map.X[flat], map.Y[flat]];
    const capsule = [map.columns, map.rows], all = [grid.width, grid.height];
    const count = [], first = [];
    for (const axis of [0, 1]) {
      const fit = Math.floor(room[axis] / (units[axis] * size));
      const capsules = Math.max(1, Math.floor(fit / capsule[axis]));
      count[axis] = Math.min(all[axis], capsules * capsule[axis]);
      const own = Math.floor(spot[axis] / capsule[axis]);
      const begin = (own - Math.floor((capsules - 1) / 2)) * capsule[axis];
      first[axis] = Math.max(0, Math.min(begin, all[axis] - count[axis]));
    }
    return {first, count, size};
  }
}
