// Whether the panel has a place of its own; on a narrow screen it covers the messages (layout.css).

export const fitsBeside = () => matchMedia("(min-width: 72rem)").matches;
