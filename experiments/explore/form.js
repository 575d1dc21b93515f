// The form: selects and boxes of what can be chosen. A change is told as {name: value}.

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function select(name, title, values, chosen, change) {
  const made = element("select", { id: name, onchange: () => change({ [name]: made.value }) },
    ...Object.entries(values).map(([value, words]) => element("option",
      { value, textContent: words, selected: value === chosen })));
  return element("label", { className: "field" }, element("span", { textContent: title }), made);
}

function boxes(name, title, values, choices, change, data) {
  const all = colours(values, data);
  const made = values.map((value, i) => {
    const box = element("input", { type: "checkbox", id: `${name}-${value}`,
      checked: choices[name].includes(value) });
    box.onchange = () => change({ without: { ...choices.without, [name]: values.filter(
      (other) => (other === value ? !box.checked : !choices[name].includes(other))) } });
    const swatch = element("span", { className: "swatch" });
    swatch.style.background = all[i];
    return element("label", {}, box, ...(name === "names" ? [swatch] : []), value);
  });
  return element("fieldset", {}, element("legend", { textContent: title }),
    element("div", { className: "boxes" }, ...made));
}

const itself = (values) => Object.fromEntries(values.map((value) => [value, value.replace(" | ", ", ")]));

function showForm(form, choices, found, data, change) {
  const focus = document.activeElement?.id;
  const older = element("input", { type: "checkbox", id: "older", checked: choices.older });
  older.onchange = () => change({ older: older.checked });
  form.replaceChildren(
    select("file", "Experiment", itself(found.files), choices.file, change),
    select("first", "Results", itself(found.runs), choices.first, change),
    select("second", "Beside", { "": "nothing", ...itself(found.runs.filter(
      (run) => run !== choices.first)) }, choices.second, change),
    select("workload", "Workload", { "": "all", ...itself(found.workloads) }, choices.workload, change),
    select("axis", "Axis", found.axes, choices.axis, change),
    select("quantity", "Shown", Object.fromEntries(found.quantities.map(
      (name) => [name, QUANTITIES[name]])), choices.quantity, change),
    ...(choices.quantity === "speedup"
      ? [select("baseline", "Baseline (1x)", itself(found.baselines), choices.baseline, change)] : []),
    select("layouts", "Layouts", { fastest: "the best of each algorithm", each: "each" },
      choices.layouts, change),
    boxes("passes", "Passes", found.passes, choices, change, data),
    boxes("precisions", "Precisions", found.precisions, choices, change, data),
    boxes("names", "Algorithms", found.names, choices, change, data),
    element("div", { className: "boxes" },
      element("label", {}, older, "rows older than their kernels")),
  );
  if (focus) document.getElementById(focus)?.focus();
}
