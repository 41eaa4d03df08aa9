// The small card beside a token that the mouse is over, or that has the focus while the panel is closed.
import { h, number, percent, shown } from "./dom.js";

const card = h("div", { class: "card", "aria-hidden": "true", hidden: true });
document.body.append(card);

export function showCard(token, entry) {
  const others = entry.alternatives.filter((other) => other.token !== entry.token).slice(0, 3);
  card.replaceChildren(
    h("p", {}, h("b", {}, shown(entry.text)), ` ${percent(entry.probability)} · rank ${number(entry.rank)}`),
    ...others.map((other) => h("p", { class: "other" }, shown(other.text), ` ${percent(other.probability)}`)),
  );
  card.hidden = false;
  const at = token.getClientRects()[0];
  const { width, height } = card.getBoundingClientRect();
  const left = Math.max(8, Math.min(innerWidth - width - 8, at.left));
  const top = at.top - height - 6 > 8 ? at.top - height - 6 : at.bottom + 6;
  card.style.setProperty("left", `${left}px`);
  card.style.setProperty("top", `${top}px`);
}

export function hideCard() {
  card.hidden = true;
}

addEventListener("scroll", hideCard, { capture: true, passive: true });
