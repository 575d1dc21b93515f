// How the page looks, light or dark, for a room or a desk; and keys that work anywhere.

const isProjected = () => document.body.classList.contains("projected");

function showModes() {
  $("#theme").textContent = theme.shown === "dark" ? "light" : "dark";
  $("#projector").setAttribute("aria-pressed", isProjected());
}

function project(on) {
  if (on === isProjected()) return;
  document.body.classList.toggle("projected", on);
  document.documentElement.classList.toggle("large", on);
  showModes();
  redraw();
}

document.addEventListener("theme", () => {
  showModes();
  redraw();
});
$("#theme").addEventListener("click", () => theme.choose(theme.shown === "dark" ? "light" : "dark"));
$("#projector").addEventListener("click", () => project(!isProjected()));
$("#enter").addEventListener("click", () => guide.go());

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
  if (event.key === "z") zoom.toggle(!zoom.open);
  else if (event.key === "p") project(!isProjected());
  else if (event.key === "Escape" && zoom.open) zoom.toggle(false);
  else guide.key(event);
});
