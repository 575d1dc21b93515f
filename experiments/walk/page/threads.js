// Who computes a cell: the block, the thread and the addresses, as they were counted on the
// simulator.

const WARP = 32, SECTOR = 32;
const KINDS = {
  read: "reads",
  write: "writes",
  atomic: "atomic adds"
};
const LISTED = 6;  // runs of addresses that are written out

// A launch, with its short notes spread out when they are asked for.
class Launch {
  constructor(told) {
    Object.assign(this, told);
    this.block_size = told.block.reduce((a, b) => a * b);
    this.spread = new Map();
  }

  // thread -> its elements in order, for one memory and one kind of access.
  touched(memory, kind) {
    const key = `${memory.name} ${kind}`;
    if (!this.spread.has(key)) {
      const threads = new Map(), told = memory[kind];
      for (let i = 0; told && i < told.threads.length; i += 5) {
        const [thread, pattern, start, step, alike] = told.threads.slice(i, i + 5);
        for (let k = 0; k < alike; k++) {
          threads.set(thread + k, spreadOut(told.patterns[pattern], start + k * step));
        }
      }
      this.spread.set(key, threads);
    }
    return this.spread.get(key);
  }

  // How often a thread touched a memory.
  count(memory, kind, thread) {
    if (!memory[kind]) return 0;
    if (!memory.shared) return (this.touched(memory, kind).get(thread) || []).length;
    const {threads} = memory[kind];
    for (let i = 0; i < threads.length; i += 3) {
      if (threads[i] <= thread && thread < threads[i] + threads[i + 2]) return threads[i + 1];
    }
    return 0;
  }

  // Threads that touched an element of an array in one of some ways.
  whoTouched(name, flat, kinds) {
    const memory = this.memories.find((one) => one.name === name), found = [];
    for (const kind of memory ? kinds : []) {
      for (const [thread, elements] of this.touched(memory, kind)) {
        if (elements.includes(flat)) found.push(thread);
      }
    }
    return found;
  }

  place(thread) {
    const dims =
        (number, [x, y]) => [number % x, Math.floor(number / x) % y, Math.floor(number / (x * y))];
    return {
      block: dims(Math.floor(thread / this.block_size), this.grid),
      thread: dims(thread % this.block_size, this.block),
      warp: Math.floor((thread % this.block_size) / WARP),
      lane: (thread % this.block_size) % WARP,
    };
  }

  // The threads of a thread's warp.
  warpOf(thread) {
    const block = thread - thread % this.block_size, first = thread - (thread - block) % WARP;
    return range(Math.min(WARP, block + this.block_size - first)).map((lane) => first + lane);
  }

  total(kind, shared) {
    return this.memories.filter((one) => one.shared === shared && one[kind])
        .reduce((sum, one) => sum + one[kind].count, 0);
  }

  // Sectors that all warps moved: an atomic add reads and writes.
  sectors() {
    let sum = 0;
    for (const memory of this.memories) {
      for (const kind of Object.keys(KINDS)) {
        if (!memory.shared && memory[kind])
          sum += memory[kind].transactions[1] * (kind === "atomic" ? 2 : 1);
      }
    }
    return sum;
  }
}

// Flat (start, step, count, times) from a start on.
function spreadOut(runs, start) {
  const found = [];
  for (let i = 0; i < runs.length; i += 4) {
    for (let time = 0; time < runs[i + 3]; time++) {
      for (let k = 0; k < runs[i + 2]; k++) found.push(start + runs[i] + k * runs[i + 1]);
    }
  }
  return found;
}

// 3, 4, 5, 9 as "3–5, 9".
function ranges(elements) {
  const sorted = [...new Set(elements)].sort((a, b) => a - b), found = [];
  for (const element of sorted) {
    const last = found.at(-1);
    if (last && last[1] === element - 1)
      last[1] = element;
    else
      found.push([element, element]);
  }
  const words = found.slice(0, LISTED).map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`));
  return words.join(", ") + (found.length > LISTED ? `, … (${found.length} runs)` : "");
}

// What the columns of a table are called, for a screen too narrow for its head.
const columnsOf = (table) => Array.from(table.tHead.rows[0].cells, (head) => head.textContent);

const dims = (list) => `(${list.join(", ")})`;
const thousands = (number) => number.toLocaleString("en-US");

class Threads {
  constructor(section) {
    this.section = section;
    this.choice = section.querySelector("select");
    this.choice.addEventListener("change", () => this.render());
  }

  // Offer the kernels that make an array: the stage's own, then whole algorithms that end in it.
  show(data, run, graph, stage, name, flat) {
    Object.assign(this, {data, run, graph, name, flat});
    const made = {O: "forward", dI: "backward", dK: "backward"}[stage.output];
    const offers = [[inWords(stage.name), "the stage alone", run.launches[stage.name]]];
    for (const [algorithm, told] of Object.entries(run.algorithms)) {
      const makes = (launch) =>
          launch.memories.some((one) => one.name === stage.output && (one.atomic || one.write));
      if (made) offers.push([algorithm, `algorithm ${algorithm}, ${made}`, told[made].filter(makes)]);
    }
    this.offers = offers.map(([who, words, told]) => ({who, words, count: told.length}));
    this.launches = offers.flatMap(
        ([who, words, told]) => told.map((launch) => new Launch({who, ...launch})));
    this.choose();
    this.render();
    this.compare(made || stage.direction);
  }

  // Fill the list; stay with who was chosen, and there with a launch that makes the cell.
  choose() {
    const before = this.choice.selectedOptions[0]?.dataset.who;
    const left = this.launches.slice();
    this.choice.replaceChildren(...this.offers.map(({who, words, count}) => {
      const group = element("optgroup");
      group.label = words;
      group.append(...left.splice(0, count).map((launch, i) => {
        const many = count > 1 ? `${i + 1} of ${count}: ` : "";
        const option = element("option", "", `${many}${launch.purpose}`);
        option.dataset.who = who;
        return option;
      }));
      return group;
    }));
    const {name, flat, launches} = this, who = launches.some((launch) => launch.who === before);
    const fits = (launch) => (!who || launch.who === before) &&
        launch.whoTouched(name, flat, ["write", "atomic"]).length;
    const found = launches.findIndex(fits);
    const same = launches.findIndex((launch) => launch.who === before);
    this.choice.selectedIndex = found >= 0 ? found : Math.max(0, same);
  }

  render() {
    const launch = this.launches[this.choice.selectedIndex], {name, flat} = this;
    const makers = launch.whoTouched(name, flat, ["write", "atomic"]);
    const found = makers.length ? makers : launch.whoTouched(name, flat, ["read"]);
    const thread = found.length ? found.at(-1) : 0;
    const who = this.section.querySelector(".who"), place = launch.place(thread);
    const verb = makers.length ? "writes" : found.length ? "reads" : "does not touch";
    who.replaceChildren(
        `Block `, element("b", "", dims(place.block)), `, thread `,
        element("b", "", dims(place.thread)),
        ` (lane ${place.lane} of warp ${place.warp}) ${verb} `,
        element("b", `role-${roleOf(name)}`, title(this.graph, name, flat)),
        found.length > 1 ? `, as do ${found.length - 1} others` : "",
        `. The kernel ${launch.kernel} ${launch.purpose}. Grid ${dims(launch.grid)}, block ${dims(launch.block)}: ` +
            `${thousands(launch.grid.reduce((a, b) => a * b) * launch.block_size)} threads.`);
    this.table(launch, thread);
    this.strips(launch, thread);
    this.section.querySelector(".kernel-source").innerHTML = this.data.kernels[launch.kernel];
  }

  table(launch, thread) {
    const body = this.section.querySelector(".accesses tbody");
    const heads = columnsOf(body.parentElement);
    body.replaceChildren();
    for (const memory of launch.memories) {
      for (const [kind, word] of Object.entries(KINDS)) {
        if (!memory[kind]) continue;
        const row = body.insertRow(), {count, transactions} = memory[kind];
        const role = memory.name in this.graph.arrays ? `role-${roleOf(memory.name)}` : "";
        const head = element("th", role, memory.name);
        head.scope = "row";
        row.append(head);
        const put = (words) => {
          const cell = row.insertCell();
          cell.textContent = words;
          cell.dataset.label = heads[cell.cellIndex];
        };
        put(memory.shared ? "shared" : "global");
        put(word);
        put(thousands(launch.count(memory, kind, thread)));
        put(thousands(count));
        if (!transactions) {
          put("–");
          put("–");
          put("within the block");
          continue;
        }
        const [requests, sectors, fewest] = transactions;
        put(thousands(requests));
        put(`${thousands(sectors)} / ${thousands(fewest)}`);
        const ratio = sectors / fewest;
        put(ratio < 1.05 ? "coalesced" : `${shown(ratio, 1)} × the fewest`);
        row.cells[7].className = ratio < 1.05 ? "good" : ratio < 2 ? "" : "bad";
      }
    }
  }

  // Each global array from end to end: what the warp touches, and the thread within it.
  strips(launch, thread) {
    const box = this.section.querySelector(".strips"), warp = launch.warpOf(thread);
    box.replaceChildren();
    for (const memory of launch.memories) {
      if (memory.shared) continue;
      for (const [kind, word] of Object.entries(KINDS)) {
        if (!memory[kind]) continue;
        const threads = launch.touched(memory, kind), own = threads.get(thread) || [];
        const colour =
            memory.name in this.graph.arrays ? `--${roleOf(memory.name)}-ink` : "--quiet";
        const figure = element("figure"), canvas = element("canvas");
        const words = own.length ? `${word} ${ranges(own)}` : `no ${word} by this thread`;
        figure.append(
            canvas, element("figcaption", "", `${memory.name} [0–${memory.size - 1}]: ${words}`));
        box.append(figure);
        const width = canvas.clientWidth || 300, ratio = devicePixelRatio || 1;
        canvas.width = width * ratio;
        canvas.height = 14 * ratio;
        const context = canvas.getContext("2d"), unit = canvas.width / memory.size;
        const mark = (elements, fill) => {
          context.fillStyle = fill;
          for (const one of elements)
            context.fillRect(one * unit, 0, Math.max(unit, ratio), canvas.height);
        };
        mark(warp.flatMap((other) => threads.get(other) || []), ink("--warp"));
        mark(own, ink(colour));
      }
    }
  }

  // What each algorithm moves in a pass, and the fewest bytes that it could.
  compare(direction) {
    const {run, data} = this, itemsize = run.dtype === "float64" ? 8 : 4;
    const passes = direction === "forward" ? ["forward"] : ["backward_input", "backward_kernel"];
    const stages = [...new Set(passes.flatMap((pass) => data.passes[pass]))];
    const rows = [["staged", stages.flatMap((stage) => run.launches[stage])]];
    for (const [algorithm, told] of Object.entries(run.algorithms))
      rows.push([algorithm, told[direction]]);
    const totals = rows.map(([words, told]) => {
      const launches = told.map((launch) => new Launch(launch));
      const sum = (kind, shared) =>
          launches.reduce((all, launch) => all + launch.total(kind, shared), 0);
      return {
        words,
        global: [sum("read", false), sum("write", false), sum("atomic", false)],
        shared: sum("read", true) + sum("write", true),
        parts: launches.map((launch) => [launch.kernel, launch.sectors() * SECTOR]),
        bytes: launches.reduce((all, launch) => all + launch.sectors(), 0) * SECTOR,
      };
    });
    const least = run.least * passes.length, most = Math.max(...totals.map(({bytes}) => bytes));
    const body = this.section.querySelector(".totals tbody");
    body.replaceChildren();
    const heads = columnsOf(body.parentElement);
    const put = (words, numbers, bytes, parts, look) => {
      const row = body.insertRow(), head = element("th", "", words), bar = element("div", "bar");
      head.scope = "row";
      row.append(head);
      for (const number of numbers) {
        const cell = row.insertCell();
        cell.textContent = number === "" ? "" : thousands(number);
        cell.dataset.label = heads[cell.cellIndex];
      }
      for (const [kernel, share] of parts) {
        const part = element("span", `part ${look}`);
        part.style.width = `${100 * share / most}%`;
        part.title = `${kernel.replaceAll("_", " ")}: ${thousands(share)} bytes`;
        bar.append(part);
      }
      const cell = row.insertCell();
      cell.className = "bars";
      cell.dataset.label = heads[cell.cellIndex];
      cell.append(bar, element("span", "", `${thousands(bytes)} · ${shown(bytes / least, 1)} ×`));
    };
    for (const {words, global, shared, bytes, parts} of totals) {
      put(words, [...global, shared], bytes, parts, "");
    }
    put("the fewest", ["", "", "", ""], least, [["every array once", least]], "least");
    this.section.querySelector(".direction").textContent =
        direction === "forward" ? "the forward pass" : "both gradients";
    this.section.querySelector(".moral").textContent =
        totals.filter(({words}) => words !== "naive")
            .map(
                ({words, global, bytes}) =>
                    `${words} reads ${thousands(global[0])} numbers, writes ` +
                    `${thousands(global[1])} and moves ${
                        shown(bytes / least, 1)} times the bytes that it must`)
            .join("; ") +
        ".";
    const {gemm, G} = run.geometry;
    this.section.querySelector(".fold").textContent =
        `The fold: ${G > 1 ? "for each g it" : "it"} is one matrix ` +
        `product, M × K by K × N, with M = N·OH·OW·D1 = ${gemm[0]}, N = P·D3 = ${gemm[1]} and ` +
        `K = C·KH·KW·D2 = ${gemm[2]}: nothing has to be laid out.`;
  }
}
