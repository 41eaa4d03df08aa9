// Prometheus' text form to numbers; samples of one name with other labels are added.

export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const parts = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)$/.exec(line);
    if (parts) found[parts[1]] = (found[parts[1]] ?? 0) + Number(parts[2]);
  }
  return found;
}

// [words, number] of what a server counts since its start; states are counted where a model has some.
export function totalsOf(now) {
  const rows = [
    ["Requests", now.karat_requests_total],
    ["Tokens of prompts", now.karat_prompt_tokens_total],
    ["of these from the cache", now.karat_prompt_tokens_cached_total],
    ["there, but without a state", now.karat_prefix_cache_stateless],
    ["Tokens of answers", now.karat_generation_tokens_total],
    ["States kept", now.karat_state_snapshots],
    ["Bytes of states", now.karat_state_bytes],
    ["Steps", now.karat_steps],
    ["Preemptions", now.karat_preemptions],
  ];
  return rows.filter(([, value]) => value !== undefined);
}
