// Live: what the server does now, from its /metrics, asked once a second while this is open and seen.
import { makeChart } from "./chart.js";
import { h, number } from "./dom.js";
import { readMetrics, totalsOf } from "./metrics.js";

const EVERY_MS = 1000;

export function makeLive(app) {
  const charts = [
    makeChart("Answers computed", (now) => now.karat_sequences_running, { unit: "", whole: true }),
    makeChart("Waiting", (now) => now.karat_sequences_waiting, { unit: "", whole: true }),
    makeChart("Tokens a second", (now, was, seconds) => (tokensOf(now) - tokensOf(was)) / seconds, { unit: "" }),
    makeChart("Time of a step", (now, was, seconds) => stepOf(now, was, seconds), { unit: " ms" }),
    makeChart("Cache in use", (now) => (100 * now.karat_kv_blocks_used) / now.karat_kv_blocks, {
      unit: " %",
      most: 100,
    }),
    makeChart("Found in the cache", (now, was) => hitsOf(now, was), { unit: " %", most: 100 }),
  ];
  const totals = h("dl", { class: "facts-list" });
  const trouble = h("p", { class: "bad", hidden: true });
  const element = h(
    "div",
    {},
    trouble,
    h(
      "div",
      { class: "charts" },
      charts.map((chart) => chart.element),
    ),
    h("h3", {}, "Since the start"),
    totals,
    h("p", { class: "note" }, "From /metrics, once a second."),
  );
  let timer = null;
  let was = null;

  async function look() {
    timer = null;
    if (!document.hidden) {
      try {
        const now = { at: performance.now(), ...readMetrics(await app.api.text("/metrics")) };
        if (was) for (const chart of charts) chart.add(now, was, (now.at - was.at) / 1000);
        was = now;
        showTotals(now);
        trouble.hidden = true;
      } catch (error) {
        trouble.textContent = error.message;
        trouble.hidden = false;
      }
    }
    if (isOpen) timer = setTimeout(look, EVERY_MS);
  }

  function showTotals(now) {
    totals.replaceChildren(
      ...totalsOf(now).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, number(value)))),
    );
  }

  let isOpen = false;
  return {
    element,
    open() {
      isOpen = true;
      if (timer === null) look();
    },
    close() {
      isOpen = false;
      clearTimeout(timer);
      timer = null;
      was = null;
    },
  };
}

const tokensOf = (now) =>
  now.karat_tokens_generated ??
  (now.karat_inter_token_latency_seconds_count ?? 0) + (now.karat_time_to_first_token_seconds_count ?? 0);

function stepOf(now, was, seconds) {
  const steps = now.karat_steps - was.karat_steps;
  return steps > 0 && now.karat_sequences_running > 0 ? (1000 * seconds) / steps : null;
}

function hitsOf(now, was) {
  const asked = now.karat_prefix_cache_queries - was.karat_prefix_cache_queries;
  return asked > 0 ? (100 * (now.karat_prefix_cache_hits - was.karat_prefix_cache_hits)) / asked : null;
}
