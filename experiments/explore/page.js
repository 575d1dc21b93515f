// The page: choices to drawing, and choices to the address, so that a link shows one drawing.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ROWS = unpack(DATA);
let view;

function fromAddress() {
  try {
    return JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
  } catch {
    return {};
  }
}

async function show(asked) {
  const { choices, found } = settle(asked, ROWS, DATA);
  const { passes, precisions, names, ...kept } = choices;
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(kept))}`);
  showForm(document.getElementById("choices"), choices, found, DATA,
    (change) => show({ ...kept, ...change }));
  const { points, lacking } = pointsOf(ROWS, choices, DATA);
  tell(choices, points, lacking);
  const drawing = document.getElementById("drawing");
  for (const button of document.querySelectorAll("#saving button")) button.disabled = !points.length;
  view?.finalize();
  if (!points.length) {
    drawing.textContent = "Nothing that is chosen has this value.";
    return;
  }
  const drawn = specification(points, choices, found.axes, DATA, drawing.clientWidth);
  ({ view } = await vegaEmbed(drawing, drawn, { actions: false, renderer: "svg", tooltip: showTip }));
}

function tell(choices, points, lacking) {
  const rows = ofRun(ROWS, choices.first).filter((row) => row.file === choices.file);
  const current = rows.filter((row) => row.state === "current").length;
  document.getElementById("told").textContent = `${choices.first.replace(" | ", ", ")}, `
    + `${choices.file}.csv: ${current} of ${rows.length} rows are as new as their kernels`;
  document.getElementById("lacking").textContent = lackingOf(lacking);
  const lines = points.map((point) => told(point, DATA, choices.quantity));
  const columns = [...new Set(lines.flatMap((line) => Object.keys(line)))];
  const cells = (tag, words) => words.map((word) => element(tag, { textContent: word ?? "" }));
  document.getElementById("table").replaceChildren(element("table", {},
    element("thead", {}, element("tr", {}, ...cells("th", columns))),
    element("tbody", {}, ...lines.map((line) => element("tr", {},
      ...cells("td", columns.map((column) => line[column])))))));
}

async function save(format) {
  const link = element("a", { href: await view.toImageURL(format, 2), download: `capsules.${format}` });
  link.click();
}

for (const format of ["png", "svg"]) document.getElementById(format).onclick = () => save(format);
addEventListener("hashchange", () => show(fromAddress()));
let waiting;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => show(fromAddress()), 200);
});
show(fromAddress());
