// The sample network: five layers as they follow each other, what they move, and recorded times.

class Network {
  constructor(section) {
    this.section = section;
  }

  show({network}) {
    const {section} = this, {layers, lines, gpu, date, current} = network;
    section.querySelector(".idea").textContent =
        `A batch of ${layers[0].N} digits, 28 × 28 numbers each, goes through five layers; each takes ` +
        `the capsules of the one before. The last has a capsule for each of ten digits.`;
    section.querySelector(".layers").replaceChildren(...this.chain(layers));
    section.querySelector(".costs").replaceChildren(this.bytes(layers), this.times(layers, lines));
    section.querySelector(".where").textContent =
        `Times of the forward pass: medians recorded on ${gpu}, oldest row of ${date}, from ` +
        `experiments/results/${gpu}/table1.csv. ` +
        (current ? "" : "Some kernels have been changed since then. ") +
        "Bytes are computed from the shapes.";
  }

  chain(layers) {
    const first = layers[0], found = [this.volume(first.H, first.C, first.D1, first.D2, `${first.H} × ${first.W} numbers`)];
    for (const one of layers) {
      const arrow = element("div", "arrow");
      arrow.append(
          element("b", "", one.name), element("span", "", `${one.KH} × ${one.KW} window, stride ${one.stride[0]}`),
          element("span", "", `(${one.D1} × ${one.D2}) @ (${one.D2} × ${one.D3})`),
          element("span", "quiet", `${shown(one.flop / 1e6, 0)} MFLOP`));
      found.push(arrow, this.volume(one.OH, one.P, one.D1, one.D3, ""));
    }
    return found;
  }

  // Channels of a map as sheets, and one of its capsules.
  volume(side, channels, rows, columns, name) {
    const figure = element("figure", "volume"), unit = 2.2, gap = 3;
    const sheets = Math.min(channels, 10), map = Math.max(5, side * unit);
    const picture = shape("svg", {viewBox: "0 0 96 100", role: "img"});
    const words = `${side} × ${side} × ${channels} of ${rows} × ${columns}`;
    picture.setAttribute("aria-label", words);
    range(sheets).reverse().forEach((i) => picture.append(shape(
        "rect", {x: 2 + i * gap, y: 2 + i * gap, width: map, height: map, class: "sheet"})));
    const cell = Math.min(5, 30 / columns), x = 94 - cell * columns, y = 98 - cell * rows;
    for (const i of range(rows)) {
      for (const j of range(columns)) {
        picture.append(shape(
            "rect", {x: x + j * cell, y: y + i * cell, width: cell, height: cell, class: "unit"}));
      }
    }
    figure.append(picture, element("figcaption", "", name || words));
    return figure;
  }

  bytes(layers) {
    const most = Math.max(...layers.map(({staged}) => staged));
    const table = this.table("Bytes of a forward pass, one scale", ["layer", "all copies laid out (staged)", "each array once (the fewest)", "ratio"]);
    for (const one of layers) {
      const row = table.tBodies[0].insertRow();
      this.head(row, one.name);
      for (const [label, bytes, look] of [["staged", one.staged, "plain"], ["the fewest", one.least, "least"]]) {
        const cell = row.insertCell(), bar = element("div", `bar ${look}`);
        cell.className = "bars";
        cell.dataset.label = label;
        bar.style.width = `${Math.max(0.5, 100 * bytes / most)}%`;
        cell.append(bar, element("span", "", `${shown(bytes / 1e6, 1)} MB`));
      }
      this.put(row, "ratio", `${shown(one.staged / one.least, 1)} ×`);
    }
    return table;
  }

  times(layers, lines) {
    const table = this.table("Microseconds of a forward pass, as recorded", ["layer", ...lines]);
    for (const one of layers) {
      const row = table.tBodies[0].insertRow();
      this.head(row, one.name);
      for (const line of lines) {
        this.put(row, line, line in one.ms ? shown(one.ms[line] * 1000, 1) : "not recorded");
      }
    }
    return table;
  }

  table(caption, heads) {
    const table = element("table"), line = table.createTHead().insertRow();
    table.createCaption().textContent = caption;
    for (const words of heads) {
      const head = element("th", "", words);
      head.scope = "col";
      line.append(head);
    }
    table.createTBody();
    return table;
  }

  head(row, words) {
    const head = element("th", "", words);
    head.scope = "row";
    row.append(head);
  }

  put(row, label, words) {
    const cell = row.insertCell();
    cell.dataset.label = label;
    cell.textContent = words;
  }
}
