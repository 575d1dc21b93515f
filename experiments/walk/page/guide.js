// The guided walk: one key or button for the next step, a mark of how far it is, in and out anywhere.

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
    else show();
    this.steering = false;
    this.flat = state.pinned[1];
    this.tell(step);
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
    show();
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

  // The stage that a step is about; none where something else is looked at.
  get stage() {
    return this.about && data.stages.find(({name}) => name === this.about.id);
  }

  // Put aside the arrays that a step is not about; without a step, none.
  spread(step) {
    const about = step && step.cell ? [step.cell, ...step.beside] : null;
    this.about = step;
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

  // n, PageDown and the right arrow go on; b, PageUp and the left arrow back; Escape leaves. The arrows
  // stay with an array or a slider that has the focus. A presenter's clicker sends the Page keys.
  key(event) {
    const free = !event.target.closest("input, .panel, #zoom, #strip, .code");
    const is = (arrow, ...keys) => keys.includes(event.key) || free && event.key === arrow;
    if (!this.on && event.key !== "n") return;
    if (!this.on) this.go();
    else if (is("ArrowRight", "n", "PageDown")) this.go(this.at + 1);
    else if (is("ArrowLeft", "b", "PageUp")) this.go(this.at - 1);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }
}
