// Growth of topics: the difference of two sizes that the server returned, divided by the time between them.

import { poll } from "./polling.js";
import { count, dataSize } from "./units.js";

function growth(after, before, seconds) {
  const known = typeof after === "number" && typeof before === "number";
  // Retention makes a topic smaller.
  return known && after >= before ? `${dataSize((after - before) / seconds)}/s` : "–";
}

const table = document.querySelector("[data-rates]");
if (table) {
  poll(table.dataset.rates, (after, before, seconds) => {
    for (const row of table.querySelectorAll("[data-topic]")) {
      const name = row.dataset.topic;
      row.querySelector("[data-size]").textContent = dataSize(after.sizes[name]);
      row.querySelector("[data-rate]").textContent = growth(after.sizes[name], before.sizes[name], seconds);
    }
  });
}

const topic = document.querySelector("[data-topic-rates]");
if (topic) {
  const written = (answer) => Object.values(answer.partitions).reduce((sum, each) => sum + (each.end ?? 0), 0);
  poll(topic.dataset.topicRates, (after, before, seconds) => {
    topic.querySelector("[data-size]").textContent = dataSize(after.size);
    topic.querySelector("[data-rate]").textContent = growth(after.size, before.size, seconds);
    const records = topic.querySelector("[data-record-rate]");
    if (records) records.textContent = `${count((written(after) - written(before)) / seconds)}/s`;
  });
}
