// The lag of each group in the list, requested one after the other.

import { count } from "./units.js";

for (const cell of document.querySelectorAll("[data-lag]")) {
  const response = await fetch(cell.dataset.lag).catch(() => null);
  const answer = response?.ok ? await response.json() : null;
  const isKnown = typeof answer?.lag === "number";
  cell.textContent = isKnown ? count(answer.lag) + (answer.more ? "+" : "") : "–";
}
