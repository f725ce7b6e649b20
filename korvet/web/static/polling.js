// Requests of one address every few seconds, while the page is visible.

const INTERVAL_MS = 3000;

async function read(address) {
  const response = await fetch(address, { headers: { accept: "application/json" } });
  return response.ok ? response.json() : null;
}

// Calls `show` with the answer, the answer before it, and the seconds between them, from the second answer on.
export function poll(address, show) {
  let before = null;
  const step = async () => {
    if (!document.hidden) {
      const answer = await read(address).catch(() => null);
      const now = performance.now();
      if (answer && before) show(answer, before.answer, (now - before.now) / 1000);
      before = answer && { answer, now };
    }
    setTimeout(step, INTERVAL_MS);
  };
  step();
}
