// Copy to the clipboard, also where the page came over plain HTTP and browsers have no clipboard for it.
import { icon, iconButton } from "./dom.js";

export function copyButton(text, label) {
  const made = iconButton("copy", label, async () => {
    await copy(text());
    made.replaceChildren(icon("check"));
    setTimeout(() => made.replaceChildren(icon("copy")), 1500);
  });
  return made;
}

export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "hidden";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
