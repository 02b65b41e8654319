// Numbers and items in words.

// Plotly's labels read some HTML; names may look like it.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
function scaled(value, steps) {
  for (const [size, unit] of steps) {
    if (Math.abs(value) >= 0.9995 * size) return `${+(value / size).toPrecision(3)} ${unit}`;
  }
  return `0 ${steps.at(-1)[1]}`;
}
const seconds = (s) => scaled(s, [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"], [1, "s"]]);
// A point in time, to the nanosecond however long the step is.
const moment = (s) => `${(1e3 * s).toFixed(6).replace(/\.?0+$/, "")} ms`;
const size = (b) =>
  scaled(b, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
const shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.max(most - 1, 0))}…`);
const counted = (n, one) => `${n} ${n === 1 ? one : `${one}s`}`;

const nameOf = (item) => (isOp(item) ? ops.name[item.op] : sent.name.at(item.message));
const placeOf = (item) => (isOp(item) ? devices[ops.device[item.op]] : sent.place.at(item.message));
const titleOf = (item) => (isTransfer(item) ? `transfer of ${nameOf(item)}` : nameOf(item));
const took = (item) => seconds(end(item) - begin(item));

// A link of the chain: what the runtime does beside ops and messages, and why it began no earlier.
const WORK = { copy: "copy of ", share: "a share of ", launch: "launches up to " };
const linkTitle = (k) => (WORK[chain.doing.at(k)] ?? "") + titleOf(link(k));
function reasonOf(k) {
  const word = chain.waited.at(k);
  if (word === "nothing" || k === 0) return "nothing: it runs first";
  const cause = titleOf(link(k - 1));
  return { op: "its input from ", transfer: "its input: ", device: "its device, busy with ",
           channel: "its channel, busy with ", collective: "its channel, busy with ",
           copy: "the sender's copy of ", share: "its device, busy with its share of ",
           launch: "its host, busy with launches up to " }[word] + cause;
}

// An element with attributes and children; null and false children are left out.
function make(tag, attributes = {}, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}
function colourKey(where, entries) {
  for (const [label, colour] of entries) {
    const box = make("i");
    box.style.background = colour;
    where.append(make("span", {}, box, label));
  }
}

// Black or white, whichever is easier to read on a colour (contrast by WCAG, at least 4.5).
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => {
    const part = parseInt(colour.slice(at, at + 2), 16) / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
