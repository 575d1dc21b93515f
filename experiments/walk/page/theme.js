// Light or dark: what was chosen, else what the system says. Runs before anything is drawn.

const theme = {
  system: matchMedia("(prefers-color-scheme: dark)"),
  chosen: null,  // "light", "dark", or null for the system's

  get shown() {
    return theme.chosen || (theme.system.matches ? "dark" : "light");
  },

  show() {
    document.documentElement.dataset.theme = theme.shown;
    document.dispatchEvent(new Event("theme"));
  },

  choose(name) {
    theme.chosen = ["light", "dark"].includes(name) ? name : null;
    theme.show();
  },
};
theme.system.addEventListener("change", theme.show);
theme.show();
