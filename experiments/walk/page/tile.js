// A block of the fused kernel at work: what it loads of the two matrices, where that lies in shared
// memory, and what a thread or a warp multiplies, step by step over k.

const BANKS = 32;

// Numbers in order as [first, count] of neighbours.
function runsOf(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[0] + last[1] === number) last[1]++;
    else found.push([number, 1]);
  }
  return found;
}

class TileView {
  constructor(section) {
    this.section = section;
    this.at = null;
    this.inputs = {which: section.querySelector(".which")};
    for (const name of ["block", "step", "part"]) {
      this.inputs[name] = section.querySelector(`.${name}`);
      this.inputs[name].addEventListener(
          "input", () => this.choose({[name]: Number(this.inputs[name].value)}));
    }
    this.inputs.which.addEventListener(
        "change", () => this.choose({which: this.inputs.which.selectedIndex}));
    section.querySelector(".next").addEventListener("click", () => this.choose({step: this.at.step + 1}));
    section.querySelector(".back").addEventListener("click", () => this.choose({step: this.at.step - 1}));
  }

  show(run, graph) {
    this.run = run;
    this.graph = graph;
    this.tilings = run.tiles.map(
        ({left, right, ...tile}) => new Tiling(graph, {...tile, left_: left, right_: right}));
    this.inputs.which.replaceChildren(...this.tilings.map((tiling) => element(
        "option", "", `${tiling.name}, ${tiling.BM} × ${tiling.BN}, k by ${tiling.BK}`)));
    this.choose(this.at ? {} : this.start());
  }

  // Where it begins: the block of the largest output, halfway along k.
  start() {
    const tiling = this.tilings[0], {graph} = this;
    const {l, d1, p, d3, g} = graph.index("O", largest(graph, "O"));
    const down = Math.floor((l * graph.g.D1 + d1) / tiling.BM);
    const across = Math.floor((p * graph.g.D3 + d3) / tiling.BN);
    const block = (g * tiling.across + across) * tiling.down + down;
    return {which: 0, block, step: Math.floor(tiling.steps / 2), part: 0};
  }

  // Choose a kernel, block, step, thread or warp, as far as there are so many.
  choose(wanted) {
    this.at = {...this.at, ...wanted};
    const {at, inputs} = this;
    at.which = Math.min(at.which, this.tilings.length - 1);
    const tiling = this.tiling = this.tilings[at.which];
    for (const [name, most] of [["block", tiling.blocks], ["step", tiling.steps], ["part", tiling.parts]]) {
      at[name] = Math.max(0, Math.min(most - 1, at[name]));
      inputs[name].max = most - 1;
      inputs[name].value = at[name];
      inputs[name].disabled = most < 2;
      inputs[name].nextElementSibling.textContent = `${at[name]} of ${most}`;
    }
    inputs.which.selectedIndex = at.which;
    this.section.querySelector(".whose").firstChild.textContent =
        "TM" in tiling ? "thread " : "warp ";
    this.render();
    address.note();
  }

  render() {
    const {tiling, at} = this, {m, n, g} = tiling.place(at.block), k = at.step * tiling.BK;
    const own = tiling.owned(at.part), whose = "TM" in tiling ? "Thread" : "Warp";
    const last = (begin, count, all) => Math.min(begin + count, all) - 1;
    this.section.querySelector(".idea").textContent =
        `A capsule convolution is one matrix product of ${tiling.M} × ${tiling.K} by ` +
        `${tiling.K} × ${tiling.N}. The matrices are never laid out: a block of ${tiling.threads} ` +
        `threads computes ${tiling.BM} × ${tiling.BN} of the result and finds by indices what it ` +
        `needs. ${tiling.multiplies[0].toUpperCase()}${tiling.multiplies.slice(1)}. ` +
        (tiling.ran ? "This kernel ran for this page, on the simulator, whose tiles are small." :
                      "This tile is the one that the package takes on the simulator; it did not run " +
                 "for this page.");
    const rows = `rows m ${m}–${last(m, tiling.BM, tiling.M)}`;
    const columns = `columns n ${n}–${last(n, tiling.BN, tiling.N)}`;
    const sum = `k ${k}–${last(k, tiling.BK, tiling.K)}`;
    this.section.querySelector(".now").textContent =
        `Block ${at.block} loads ${rows} and ${sum} of the left matrix, ${sum} and ${columns} of the ` +
        `right one. ${whose} ${at.part} multiplies rows ${ranges(own.rows.map((i) => m + i))} by ` +
        `columns ${ranges(own.columns.map((j) => n + j))} of them, ` +
        `${own.rows.length * own.columns.length * tiling.BK} multiplications.` +
        (m + tiling.BM > tiling.M || n + tiling.BN > tiling.N ?
             " The tile reaches over the matrix's end: zeros lie there." : "");
    this.drawMatrices(m, n, g);
    this.drawPixels(m, g);
    this.drawShared(m, n, g);
    this.drawResult(m, n, g);
    const say = (name, words) => {
      this.section.querySelector(`.${name} figcaption`).textContent = words;
      this.section.querySelector(`.${name} canvas`).setAttribute("aria-label", words);
    };
    say("matrices", `The implicit matrices: left ${tiling.M} × ${tiling.K} from I, above ` +
        `${tiling.K} × ${tiling.N} from K, and their product O. Bright: loaded at this step; pale: ` +
        `by this block at another.`);
    say("pixels", `The pixels of I behind them: bright at this step, pale at another.`);
    say("shared", `Shared memory, a row for ${BANKS} banks: ${tiling.stages > 1 ?
        `stage ${at.step % tiling.stages} of ${tiling.stages}, ` : ""}left tile from word 0, right tile ` +
        `from word ${tiling.begins}, outlined what ${whose.toLowerCase()} ${at.part} reads.`);
    say("result", `The block's sums after ${at.step + 1} of ${tiling.steps} steps, outlined those of ` +
        `${whose.toLowerCase()} ${at.part}.`);
  }

  // A canvas of so many cells of a size, cleared.
  canvas(name, across, down, size) {
    const canvas = this.section.querySelector(`.${name} canvas`), ratio = devicePixelRatio || 1;
    const [width, height] = [across * size + 4, down * size + 4];
    canvas.width = Math.ceil(width * ratio);
    canvas.height = Math.ceil(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 2 * ratio, 2 * ratio);
    return context;
  }

  room(name) {
    return this.section.querySelector(`.${name}`).clientWidth - 6;
  }

  colour(name, flat) {
    return scaleOf(roleOf(name))[colourOf(this.graph.arrays[name].steps[flat])];
  }

  drawMatrices(m0, n0, g) {
    const {tiling, at} = this, {M, N, K, BM, BN, BK} = tiling, gap = 2;
    const size = Math.max(1, Math.min(8, Math.floor(
        Math.min(this.room("matrices") / (K + gap + N), 330 / (K + gap + M)))));
    const context = this.canvas("matrices", K + gap + N, K + gap + M, size);
    const cell = (x, y, colour, pale) => {
      context.globalAlpha = pale;
      context.fillStyle = colour;
      context.fillRect(x * size, y * size, size, size);
    };
    const within = (i, begin, count) => i >= begin && i < begin + count;
    const k0 = at.step * BK;
    const alpha = (mine, now) => (mine ? (now ? 1 : 0.45) : 0.14);
    for (let m = 0; m < M; m++) {
      for (let k = 0; k < K; k++) {
        const pale = alpha(within(m, m0, BM), within(k, k0, BK));
        cell(k, K + gap + m, this.colour("I_flat", tiling.left(m, k, g)), pale);
      }
      for (let n = 0; n < N; n++) {
        const pale = within(m, m0, BM) && within(n, n0, BN) ? 1 : 0.14;
        cell(K + gap + n, K + gap + m, this.colour("O", tiling.result(m, n, g)), pale);
      }
    }
    for (let k = 0; k < K; k++) {
      for (let n = 0; n < N; n++) {
        const pale = alpha(within(n, n0, BN), within(k, k0, BK));
        cell(K + gap + n, k, this.colour("K", tiling.right(k, n, g)), pale);
      }
    }
    context.globalAlpha = 1;
    const frame = (x, y, wide, high, colour, width) => {
      context.strokeStyle = ink(colour);
      context.lineWidth = width;
      context.strokeRect(x * size, y * size, wide * size, high * size);
    };
    const [high, wide, deep] = [Math.min(BM, M - m0), Math.min(BN, N - n0), Math.min(BK, K - k0)];
    frame(0, K + gap, K, M, "--line", 1);
    frame(K + gap, 0, N, K, "--line", 1);
    frame(K + gap, K + gap, N, M, "--line", 1);
    frame(0, K + gap + m0, K, high, "--input-ink", 1);
    frame(K + gap + n0, 0, wide, K, "--kernel-ink", 1);
    frame(k0, K + gap + m0, deep, high, "--ink", 2);
    frame(K + gap + n0, k0, wide, deep, "--ink", 2);
    frame(K + gap + n0, K + gap + m0, wide, high, "--output-ink", 2);
  }

  drawPixels(m0, g) {
    const {tiling, at} = this, map = maps["I"], {width, height} = map.grid;
    const size = Math.max(1, Math.min(6, Math.floor(this.room("pixels") / width)));
    const context = this.canvas("pixels", width, height, size);
    const loaded = new Map();
    for (let m = m0; m < Math.min(m0 + tiling.BM, tiling.M); m++) {
      for (let k = 0; k < tiling.K; k++) {
        const pixel = tiling.pixel(m, k, g), now = Math.floor(k / tiling.BK) === at.step;
        if (pixel >= 0) loaded.set(pixel, now || loaded.get(pixel) || false);
      }
    }
    map.array.steps.forEach((_, flat) => {
      const [x, y] = [map.X[flat] * size, map.Y[flat] * size];
      context.globalAlpha = loaded.has(flat) ? (loaded.get(flat) ? 1 : 0.45) : 0.14;
      context.fillStyle = this.colour("I", flat);
      context.fillRect(x, y, size, size);
      if (!loaded.get(flat)) return;
      context.strokeStyle = ink("--ink");
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    });
    context.globalAlpha = 1;
    context.strokeStyle = ink("--line");
    context.strokeRect(0, 0, width * size, height * size);
  }

  // The words of this step's stage: word -> what lies there, and whether it is read by the part.
  words(m0, n0, g) {
    const {tiling, at} = this, own = tiling.owned(at.part), found = new Map();
    const base = at.step % tiling.stages * tiling.words, k0 = at.step * tiling.BK;
    for (let k = 0; k < tiling.BK; k++) {
      for (let m = 0; m < tiling.BM; m++) {
        const flat = tiling.left(m0 + m, k0 + k, g), mine = own.rows.includes(m);
        found.set(tiling.leftWord(m, k, at.step) - base, {name: "I_flat", flat, mine});
      }
      for (let n = 0; n < tiling.BN; n++) {
        const flat = tiling.right(k0 + k, n0 + n, g), mine = own.columns.includes(n);
        found.set(tiling.rightWord(k, n, at.step) - base, {name: "K", flat, mine});
      }
    }
    return found;
  }

  drawShared(m0, n0, g) {
    const {tiling} = this, found = this.words(m0, n0, g), rows = Math.ceil(tiling.words / BANKS);
    const size = Math.max(4, Math.min(18, Math.floor(this.room("shared") / BANKS)));
    const context = this.canvas("shared", BANKS, rows, size);
    for (let word = 0; word < tiling.words; word++) {
      const [x, y] = [word % BANKS * size, Math.floor(word / BANKS) * size], here = found.get(word);
      context.fillStyle = !here ? ink("--warp") :
          here.flat < 0 ? ink("--zero") : this.colour(here.name, here.flat);
      context.fillRect(x, y, size, size);
      context.strokeStyle = here && here.mine ? ink("--ink") :
          ink(here && here.name === "K" ? "--kernel-ink" : here ? "--input-ink" : "--line");
      context.lineWidth = here && here.mine ? (size < 12 ? 1.2 : 2) : 0.5;
      context.strokeRect(x + 1, y + 1, size - 2, size - 2);
    }
  }

  drawResult(m0, n0, g) {
    const {tiling, at} = this, own = tiling.owned(at.part), {BM, BN} = tiling;
    const size = Math.max(4, Math.min(26, Math.floor(Math.min(this.room("result") / BN, 200 / BM))));
    const context = this.canvas("result", BN, BM, size), colours = scaleOf("output");
    const {scale} = this.graph.arrays["O"];
    for (let m = 0; m < BM; m++) {
      for (let n = 0; n < BN; n++) {
        const inside = tiling.result(m0 + m, n0 + n, g) >= 0;
        const value = inside ? tiling.sum(m0 + m, n0 + n, g, at.step + 1) : 0;
        const share = Math.max(-1, Math.min(1, value / scale));
        context.fillStyle = inside ? colours[colourOf(share * 32767)] : ink("--warp");
        context.fillRect(n * size, m * size, size, size);
      }
    }
    context.strokeStyle = ink("--ink");
    context.lineWidth = 2;
    for (const [m, high] of runsOf(own.rows)) {
      for (const [n, wide] of runsOf(own.columns)) {
        context.strokeRect(n * size + 1, m * size + 1, wide * size - 2, high * size - 2);
      }
    }
  }
}
