// What a mark's row says, beside the mark that is pointed at and never beyond the window.

const BESIDE = 14;  // pixels between pointer and words

function showTip(handler, event, item, lines) {
  const tip = document.getElementById("tip");
  tip.hidden = !lines;
  if (!lines) return;
  const { title, ...others } = lines;
  tip.replaceChildren(element("b", { textContent: title }), element("table", {},
    ...Object.entries(others).map(([name, words]) => element("tr", {},
      element("th", { textContent: name }), element("td", { textContent: words })))));
  const { width, height } = tip.getBoundingClientRect();
  const right = event.clientX + BESIDE, left = event.clientX - BESIDE - width;
  const x = right + width < innerWidth ? right : left;
  const y = Math.min(event.clientY + BESIDE, innerHeight - height - 4);
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}
