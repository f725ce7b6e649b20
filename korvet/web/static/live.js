// The live view. The server sends a few records at a time; contents become text, never HTML.

const MOST_ROWS = 200;
const list = document.getElementById("live");
const state = document.getElementById("state");
const pause = document.getElementById("pause");
let shown = 0;
let skipped = false;
let isPaused = false;

function cell(name, className, text) {
  const element = document.createElement(name);
  element.className = className;
  element.textContent = text;
  return element;
}

function row(record) {
  const item = document.createElement("li");
  const line = document.createElement("a");
  line.className = "line";
  line.href = record.url;
  line.dataset.row = "";
  const where = cell("span", "where", `${record.partition}`);
  where.append(cell("span", "at", `@${record.offset}`));
  line.append(
    where,
    cell("time", "", record.time),
    cell("span", `key ${record.key_kind}`, record.key),
    cell("span", `value ${record.value_kind}`, record.value),
  );
  item.append(line);
  return item;
}

function show(data) {
  skipped ||= data.skipped;
  if (isPaused || !data.records.length) return;
  list.prepend(...data.records.reverse().map(row));
  while (list.children.length > MOST_ROWS) list.lastElementChild.remove();
  shown += data.records.length;
}

function report() {
  const sample = skipped ? "; more arrive than are shown" : "";
  state.textContent = isPaused ? "Paused." : `${shown.toLocaleString("en-US")} records shown${sample}.`;
  skipped = false;
}

const source = new EventSource(list.dataset.events);
source.addEventListener("open", () => { state.textContent = "Waiting for records …"; });
source.addEventListener("records", (event) => show(JSON.parse(event.data)));
source.addEventListener("fault", (event) => {
  source.close();
  clearInterval(timer);
  state.textContent = JSON.parse(event.data).message;
});
source.addEventListener("error", () => { state.textContent = "The connection was lost; it is tried again."; });
// Screen readers announce the state, so it changes rarely.
const timer = setInterval(() => { if (source.readyState === EventSource.OPEN && (shown || isPaused)) report(); }, 2000);

pause.addEventListener("click", () => {
  isPaused = !isPaused;
  pause.setAttribute("aria-pressed", String(isPaused));
  pause.textContent = isPaused ? "Continue" : "Pause";
  report();
});
addEventListener("pagehide", () => source.close());
