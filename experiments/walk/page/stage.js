// The card of a stage: its formula, shapes, check and errata; and its kernel beside the loops.

function showStage() {
  const card = $("#stage"), code = $("#sources"), run = data.runs[state.run];
  const shape = (name) =>
      `${name} (${run.arrays[name].axes.join(", ")}) = (${run.arrays[name].shape.join(", ")})`;
  const [error, tolerance] = run.checks[stage.name];
  card.querySelector("h2").textContent = `${data.stages.indexOf(stage) + 1}  ${stage.paper}`;
  card.querySelector(".formula").textContent = stage.formula;
  card.querySelector(".shapes").textContent =
      `${stage.inputs.map(shape).join("\n")}\n→ ${shape(stage.output)}`;
  card.querySelector(".check").textContent = `${run.captions[stage.name]}. Read back from the kernel and ` +
      (error ? `off the float64 reference by ${error.toExponential(1)} of the largest value, ` +
               `of ${tolerance.toExponential(1)} allowed.` :
               "equal to the reference in every element.");
  const kernels = run.launches[stage.name].map((launch) => launch.kernel);
  code.querySelector(".own-name").textContent = kernels.join(", ");
  code.querySelector(".own-source").innerHTML =
      kernels.map((kernel) => data.kernels[kernel]).join("\n");
  code.querySelector(".reference-name").textContent = stage.reference;
  code.querySelector(".reference-source").innerHTML = data.references[stage.reference];
  const notes = data.errata.filter((erratum) => erratum.stages.includes(stage.name));
  card.querySelector(".notes").replaceChildren(...notes.map((note) => {
    const box = element("aside", "note");
    box.append(element("h3", "", note.where));
    for (const [word, words] of [["The paper writes", note.writes], ["What holds", note.holds]]) {
      const line = element("p");
      line.append(element("b", "", `${word}: `));
      words.split("`").forEach((part, i) => line.append(i % 2 ? element("code", "", part) : part));
      box.append(line);
    }
    return box;
  }));
  let current;
  for (const tab of document.querySelectorAll("#strip button")) {
    const chosen = tab.dataset.output === stage.output;
    tab.setAttribute("aria-current", chosen ? "step" : "false");
    if (chosen) current = tab;
  }
  // In sight where the strip is wider than the screen.
  const strip = $("#strip");
  strip.scrollLeft = current.offsetLeft - (strip.clientWidth - current.offsetWidth) / 2;
}
