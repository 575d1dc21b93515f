// What of all that is chosen the address holds, and the page's start.

for (const name of Object.keys(SLIDERS)) {
  const now = () => spelled(name, data.runs[state.run]);
  address.add(name, () => (now() === spelled(name, data.runs[0]) ? null : now()), () => {});
}
address.add("at", () => state.pinned.join("."), (value) => {
  const wanted = new URLSearchParams(location.hash.slice(1));
  load(runOf(Object.fromEntries(Object.keys(SLIDERS).map((name) => [name, wanted.get(name)]))));
  const [, name, flat] = (value || "").match(/^(.+)\.(\d+)$/) || [];
  if (!(name in maps) || flat >= graph.arrays[name].steps.length) return;
  state.pinned = [name, Number(flat)];
  pin();
});
address.add("theme", () => theme.chosen, (value) => theme.choose(value));
address.add("projector", () => (isProjected() ? "1" : null), (value) => project(value === "1"));
const tileWords = ({which, block, step, part}) => [which, block, step, part].join("-");
address.add("tile", () => {
  const words = tileWords(tileView.at);
  return words === tileWords(tileView.start()) ? null : words;
}, (value) => {
  if (!/^\d+-\d+-\d+-\d+$/.test(value || "")) return tileView.choose(tileView.start());
  const [which, block, step, part] = value.split("-").map(Number);
  tileView.choose({which, block, step, part});
});
address.add("iteration", () => (routing.iteration > 1 ? `${routing.iteration}` : null),
            (value) => routing.choose(parseInt(value, 10) || 1));
address.add("step", () => (guide.on ? STEPS[guide.at].id : null), (value) => {
  const at = STEPS.findIndex(({id}) => id === value);
  const points = !new URLSearchParams(location.hash.slice(1)).has("at");
  if (at >= 0) guide.enter(at, points);
  else if (guide.on) guide.leave();
});
address.add("zoom", () => (zoom.open ? "1" : null), (value) => zoom.toggle(value === "1"));
addEventListener("hashchange", address.follow);

// ---- the start

const asked = new URLSearchParams(location.hash.slice(1));
address.busy = true;
network.show(data);
showModes();
load(0);
showOpening();
address.busy = false;
if (asked.size) {
  address.follow();
  if (!asked.has("step")) $("#strip").scrollIntoView();
}

// For whoever wants to ask the page: what is chosen, and what is drawn where.
window.walk = {
  state,
  maps,
  guide,
  zoom,
  tile: tileView,
  routing,
  marks: () => marks,
  colour: (role, steps) => scaleOf(role)[colourOf(steps)]
};
