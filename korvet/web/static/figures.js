// What the broker's metrics say, read again every few seconds.

import { poll } from "./polling.js";

const panel = document.querySelector("[data-figures]");
if (panel) {
  const fault = document.querySelector("[data-figures-fault]");
  const cells = new Map([...panel.querySelectorAll("[data-figure]")].map((cell) => [cell.dataset.figure, cell]));
  poll(panel.dataset.figures, (answer) => {
    fault.textContent = answer.fault && `The metrics cannot be read: ${answer.fault}`;
    for (const [name, lines] of Object.entries(answer.sections)) {
      for (const [words, value] of lines) {
        const cell = cells.get(`${name} ${words}`);
        if (cell) cell.textContent = value;
      }
    }
  });
}
