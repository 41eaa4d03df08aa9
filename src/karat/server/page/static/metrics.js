// Prometheus' text form to numbers; samples of one name with other labels are added.

export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const parts = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$/.exec(line);
    if (parts) found[parts[1]] = (found[parts[1]] ?? 0) + Number(parts[2]);
  }
  return found;
}
