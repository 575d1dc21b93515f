// All that is chosen stands in the page's address, behind the #, so that a link shows it again.
//
// A part has a name, get() for its value (null: as at first, and left out), and set(value).

const address = {
  parts: [],
  busy: false,

  add(name, get, set) {
    address.parts.push({name, get, set});
  },

  // Write what is chosen now.
  note() {
    if (address.busy) return;
    const found = new URLSearchParams();
    for (const {name, get} of address.parts) {
      const value = get();
      if (value !== null) found.set(name, value);
    }
    const words = found.size ? `#${found}` : location.pathname + location.search;
    history.replaceState(null, "", words);
  },

  // Choose what the address says.
  follow() {
    const found = new URLSearchParams(location.hash.slice(1));
    address.busy = true;
    for (const {name, set} of address.parts) set(found.get(name));
    address.busy = false;
    address.note();
  },
};
