// Numbers as the server's pages show them.

const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export function dataSize(bytes) {
  if (bytes === null || bytes === undefined || bytes < 0) return "–";
  let unit = 0;
  while (bytes >= 999.5 && unit < UNITS.length - 1) {
    bytes /= 1000;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 99.5 ? bytes.toFixed(0) : bytes.toFixed(1)} ${UNITS[unit]}`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}
