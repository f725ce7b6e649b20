// Keys of every page. They do nothing while the visitor types in a field.

const PAGES = { t: "/topics", g: "/groups", b: "/brokers" };

function rows() {
  return [...document.querySelectorAll("[data-row]")];
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(document.activeElement);
  const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : at + step;
  all[Math.min(Math.max(next, 0), all.length - 1)].focus();
}

function follow(relation) {
  document.querySelector(`a[rel=${relation}]`)?.click();
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = {
    "/": () => document.querySelector("input[type=search]")?.focus(),
    "?": () => document.getElementById("keys").showModal(),
    j: () => move(1),
    k: () => move(-1),
    n: () => follow("next"),
    p: () => follow("prev"),
  };
  const action = actions[event.key] ?? (PAGES[event.key] && (() => { location.href = PAGES[event.key]; }));
  if (!action) return;
  event.preventDefault();
  action();
});
