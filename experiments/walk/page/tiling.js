// The two matrices that a fused kernel multiplies and nobody lays out, and the tiles it cuts them into.
//
// The left matrix has a row m for each output position and d1, a column k for each q and d2; the right
// one a row k and a column n for each output channel and d3.

// A kernel's tiles over the matrices of a run: which element is where.
class Tiling {
  constructor(graph, tile) {
    Object.assign(this, tile);
    this.graph = graph;
    [this.M, this.N, this.K] = graph.g.gemm;
    this.down = Math.ceil(this.M / this.BM);
    this.across = Math.ceil(this.N / this.BN);
    this.blocks = this.down * this.across * graph.g.G;
    this.steps = Math.ceil(this.K / this.BK);
    this.parts = "TM" in tile ? this.threads : this.threads / WARP;
  }

  // Where a block begins, and which g it is of.
  place(block) {
    return {
      m: block % this.down * this.BM,
      n: Math.floor(block / this.down) % this.across * this.BN,
      g: Math.floor(block / (this.down * this.across)),
    };
  }

  // Cells of the arrays that hold an element; -1 outside the matrix.
  left(m, k, g) {
    const {D1, D2} = this.graph.g;
    if (m >= this.M || k >= this.K) return -1;
    const l = Math.floor(m / D1), q = Math.floor(k / D2);
    return this.graph.flat("I_flat", {n: 0, l, q, g, d1: m % D1, d2: k % D2});
  }

  right(k, n, g) {
    const {D2, D3} = this.graph.g;
    if (k >= this.K || n >= this.N) return -1;
    const p = Math.floor(n / D3), q = Math.floor(k / D2);
    return this.graph.flat("K", {p, q, g, d2: k % D2, d3: n % D3});
  }

  result(m, n, g) {
    const {D1, D3} = this.graph.g;
    if (m >= this.M || n >= this.N) return -1;
    const p = Math.floor(n / D3), l = Math.floor(m / D1);
    return this.graph.flat("O", {n: 0, p, l, g, d1: m % D1, d3: n % D3});
  }

  // The pixel behind an element of the left matrix; -1 in the padding or outside.
  pixel(m, k, g) {
    const flat = this.left(m, k, g), {first} = this.graph.arrays["I_flat"];
    const found = flat < 0 ? [] : this.graph.reads.list(first + flat);
    return found.length ? found[0] - this.graph.arrays["I"].first : -1;
  }

  // Rows and columns of its block's tile that a thread or a warp computes.
  owned(part) {
    if ("TM" in this) {
      const [high, wide] = [this.BM / this.TM, this.BN / this.TN];
      return {
        rows: range(this.TM).map((i) => Math.floor(part / wide) + i * high),
        columns: range(this.TN).map((j) => part % wide + j * wide),
      };
    }
    const wide = this.BN / this.WN;
    const [m, n] = [Math.floor(part / wide) * this.WM, part % wide * this.WN];
    return {rows: range(this.WM).map((i) => m + i), columns: range(this.WN).map((j) => n + j)};
  }

  // Words of shared memory of a step's elements.
  leftWord(m, k, step) {
    return step % this.stages * this.words + m * this.left_[0] + k * this.left_[1];
  }

  rightWord(k, n, step) {
    return step % this.stages * this.words + this.begins + k * this.right_[0] + n * this.right_[1];
  }

  // The sum for an element of the result after some steps.
  sum(m, n, g, steps) {
    let total = 0;
    for (let k = 0; k < Math.min(this.K, steps * this.BK); k++) {
      total += this.graph.value("I_flat", this.left(m, k, g)) *
          this.graph.value("K", this.right(k, n, g));
    }
    return total;
  }
}
