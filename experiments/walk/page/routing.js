// Routing on the digit: what each child's vote counts with each parent, iteration after iteration.

class Routing {
  constructor(section) {
    this.section = section;
    this.slider = section.querySelector(".iteration");
    this.iteration = 1;
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
  }

  // Show the window of an output position; the first that was routed if it was not.
  show(data, graph, l) {
    const {positions, couplings} = data.routing;
    this.graph = graph;
    this.data = data.routing;
    this.place = Math.max(0, positions.indexOf(l));
    this.l = positions[this.place];
    this.iterations = couplings[this.place].length;
    this.slider.max = this.iterations;
    this.choose(this.iteration);
  }

  choose(iteration) {
    this.iteration = Math.max(1, Math.min(this.iterations, iteration));
    this.slider.value = this.iteration;
    this.slider.nextElementSibling.textContent = `${this.iteration} of ${this.iterations}`;
    this.render();
    address.note();
  }

  render() {
    const {section, graph, iteration, l} = this, {g} = graph;
    const couplings = this.data.couplings[this.place], now = couplings[iteration - 1];
    const lengths = this.data.lengths[this.place][iteration - 1];
    section.querySelector(".idea").textContent =
        `The ${g.Q} capsules under a window are children; each votes for the ${g.P} parents, the output ` +
        `channels, by its small product. Routing adds the votes with weights, the couplings, which ` +
        `grow where a vote agrees with what all came to. Dynamic routing of Sabour, Frosst and ` +
        `Hinton, run on this digit and equal to the loop reference within ` +
        `${this.data.error.toExponential(0)}.`;
    const most = now[0].reduce((best, share, q) =>
        Math.abs(share - 1 / g.P) > Math.abs(now[0][best] - 1 / g.P) ? q : best, 0);
    section.querySelector(".now").textContent = iteration === 1 ?
        `Window l = ${l}, iteration 1: nothing is known yet, every coupling is ${shown(1 / g.P)}.` :
        `Window l = ${l}, iteration ${iteration}: child q ${most} has moved furthest, to ` +
            `${now.map((of, p) => `${shown(of[most])} for parent ${p}`).join(", ")}. The parents' ` +
            `capsules are ${lengths.map((length) => shown(length)).join(" and ")} long.`;
    const boxes = range(g.P).map((p) => this.curves(couplings, p));
    section.querySelector(".drawings").replaceChildren(this.children(now), ...boxes);
  }

  // Every child as it lies under the window, with a bar for each parent.
  children(now) {
    const {graph, l} = this, {g} = graph, figure = element("figure", "children");
    const columns = g.KW, high = 58 + 15 * g.P, wide = 92;
    const picture = shape("svg", {viewBox: `0 0 ${columns * wide} ${g.KH * g.C * high}`, role: "img"});
    picture.setAttribute("aria-label", "The children's capsules and their couplings");
    picture.style.maxWidth = `${columns * 150}px`;
    range(g.Q).forEach((q) => {
      const x = q % columns * wide, y = Math.floor(q / columns) * high;
      const rows = g.G * g.D1, side = Math.min(46 / rows, 46 / g.D2);
      const capsule = range(rows).map((i) => range(g.D2).map((d2) => graph.value(
          "I_flat",
          graph.flat("I_flat", {n: 0, l, q, g: Math.floor(i / g.D1), d1: i % g.D1, d2}))));
      matrixIn(picture, capsule, "input", graph.arrays["I_flat"].scale, x + 4, y + 4, side);
      wordIn(picture, x + 72, y + 30, `q ${q}`);
      range(g.P).forEach((p) => {
        const top = y + 56 + 15 * p, share = now[p][q];
        const whole = {x: x + 4, y: top, height: 10};
        picture.append(shape("rect", {...whole, width: wide - 40, class: "trough"}));
        picture.append(shape("rect", {...whole, width: (wide - 40) * share, class: `share parent-${p % 4}`}));
        picture.append(shape("text", {x: x + wide - 32, y: top + 9, class: "value"}, shown(share)));
      });
    });
    figure.append(picture, element("figcaption", "", "Each child, and its coupling to every parent: parent 0 above."));
    return figure;
  }

  // The couplings of all children to one parent over the iterations.
  curves(couplings, p) {
    const figure = element("figure", "curves"), [wide, high, edge] = [240, 150, 26];
    const picture = shape("svg", {viewBox: `0 0 ${wide} ${high}`, role: "img"});
    picture.setAttribute("aria-label", `Couplings to parent ${p} over the iterations`);
    const x = (t) => edge + 6 + t * (wide - edge - 16) / Math.max(1, this.iterations - 1);
    const y = (share) => high - edge - share * (high - edge - 8);
    for (const share of [0, 0.5, 1]) {
      picture.append(shape("line", {x1: edge, x2: wide, y1: y(share), y2: y(share), class: "rule"}));
      picture.append(shape("text", {x: edge - 4, y: y(share) + 4, class: "value", "text-anchor": "end"}, `${share}`));
    }
    range(this.iterations).forEach((t) => wordIn(picture, x(t), high - 8, `${t + 1}`));
    const now = x(this.iteration - 1);
    picture.append(shape("line", {x1: now, x2: now, y1: y(0), y2: y(1), class: "now-line"}));
    range(this.graph.g.Q).forEach((q) => {
      const points = couplings.map((of, t) => `${x(t)},${y(of[p][q])}`).join(" ");
      const line = shape("polyline", {points, class: `curve parent-${p % 4}`});
      line.append(shape("title", {}, `child q ${q}`));
      picture.append(line);
    });
    figure.append(picture, element("figcaption", "", `Parent ${p}: a line for each child, over the iterations.`));
    return figure;
  }
}
