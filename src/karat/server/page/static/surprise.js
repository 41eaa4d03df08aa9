// How surprising a token was, in steps that have a colour and a name each.

export const STEPS = [
  // at least this probable, name
  [0.5, "expected", "50 % and more"],
  [0.2, "likely", "20 to 50 %"],
  [0.05, "open", "5 to 20 %"],
  [0.01, "surprising", "1 to 5 %"],
  [0, "rare", "below 1 %"],
];

/** 0 (expected) to 4 (rare). */
export const stepOf = (probability) => STEPS.findIndex(([least]) => probability >= least);

export const bits = (probability) => (probability > 0 ? -Math.log2(probability) : Number.POSITIVE_INFINITY);
