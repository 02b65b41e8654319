// What the page draws, unpacked: see contents.py. The files page.*.js are one script, in the order in
// which __init__.py names them.
"use strict";
const $ = (id) => document.getElementById(id);

function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}
const stream = new Blob([bytesOf($("data").textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
const buffer = await new Response(stream).arrayBuffer();
const textEnd = 8 + Number(new BigUint64Array(buffer, 0, 1)[0]);
const data = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, textEnd - 8)));

const TYPES = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };
function unpacked(value) {
  if (Array.isArray(value) && value[0] in TYPES) {
    const [kind, from, length] = value;
    return new TYPES[kind](buffer, textEnd + from, length);
  }
  if (value && value.words) {
    const of = unpacked(value.of);
    return { at: (i) => value.words[of[i]] };
  }
  return value;
}
const columns = (table) =>
  Object.fromEntries(Object.entries(table).map(([name, value]) => [name, unpacked(value)]));

const lanes = data.lanes.map(columns), memory = data.memory.map(columns), parts = data.parts.map(unpacked);
const ops = columns(data.ops), sent = columns(data.messages), chain = columns(data.chain);
const { span, palette, devices } = data, SHADES = data.shades[0].length;
for (const lane of lanes) {
  const { start, finish } = lane.device ? ops : sent;
  lane.start = Float64Array.from(lane.what, (i) => start[i]);
  lane.finish = Float64Array.from(lane.what, (i) => finish[i]);
}

// An item is an op of the reduced graph or a message: {op} or {message}. Messages are the transfers,
// then the collectives.
const WAITS = ["nothing", "op", "device", "message", "copy", "share", "launch"];
const isOp = (item) => item.op !== undefined;
const table = (item) => (isOp(item) ? ops : sent);
const isTransfer = (item) => !isOp(item) && item.message < data.transfers;
const number = (item) => (isOp(item) ? item.op : item.message);
const begin = (item) => table(item).start[number(item)];
const end = (item) => table(item).finish[number(item)];
const rowOf = (item) => table(item).row[number(item)];
const waitOf = (item) => WAITS[table(item).waited[number(item)]];
const causeOf = (item) => {
  const word = waitOf(item), cause = table(item).cause[number(item)];
  if (["nothing", "launch"].includes(word)) return null;
  return ["message", "copy", "share"].includes(word) ? { message: cause } : { op: cause };
};

// Links of the chain of causes, from the first on.
const link = (k) => (chain.op[k] >= 0 ? { op: chain.op[k] } : { message: chain.message[k] });
const key = (item) => `${isOp(item)} ${number(item)}`;
const linkOf = new Map();
for (let k = 0; k < chain.op.length; k++) linkOf.set(key(link(k)), k);
