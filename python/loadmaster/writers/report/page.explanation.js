// What is chosen: marked in the timeline, and explained beside what was clicked.

let here = chain.op.length - 1;

// Marks an item and explains it: beside its bar, or in the row of a table where that was clicked.
async function choose(item, { k = linkOf.get(key(item)), home = $("stage") } = {}) {
  chosen = item;
  if (k !== undefined) here = k;
  // An element that moves loses the focus.
  if ($("details").parentElement !== home) home.append($("details"));
  explain(item, k);
  showPosition();
  const length = end(item) - begin(item), [from, to] = sight;
  const seen = begin(item) >= from && end(item) <= to && length >= (WIDE * (to - from)) / COLUMNS;
  await (seen ? draw(from, to) : within(begin(item) - 12 * length, end(item) + 12 * length));
}

function showPosition() {
  const rows = listed(), at = rows.indexOf(here);
  $("position").textContent = chosen && linkOf.get(key(chosen)) === here
    ? `link ${here + 1}, ${at + 1} of ${rows.length}` : counted(rows.length, "link");
}

// The explanation stands below the bar of what is chosen, as far to the right as there is room.
function putBeside() {
  const panel = $("details");
  if (panel.hidden || panel.parentElement !== $("stage")) return;
  const { xaxis, yaxis } = $("timeline")._fullLayout, row = Math.max(rowOf(chosen), 0);
  const left = xaxis._offset + xaxis.d2p(Math.max(begin(chosen), sight[0]));
  panel.style.left = `${Math.max(0, Math.min(left, $("stage").clientWidth - panel.offsetWidth))}px`;
  panel.style.top = `${yaxis._offset + yaxis.d2p(row + 0.5) + 6}px`;
}

function explain(item, k) {
  const what = isOp(item) ? "op" : isTransfer(item) ? "transfer of" : "collective";
  const rows = [[what, nameOf(item)], ["where", placeOf(item)],
                ["when", `${moment(begin(item))} to ${moment(end(item))}, ${took(item)}`]];
  if (isOp(item)) {
    rows.push(["of the user's graph", ops.origin[item.op]]);
    rows.push(["kind", ops.kind.at(item.op)], ["module", ops.module.at(item.op)], ["output", size(ops.bytes[item.op])]);
  } else {
    const wait = begin(item) - sent.queued[item.message];
    rows.push(["members", sent.members[item.message - data.transfers]]);
    rows.push(["bytes", size(sent.bytes[item.message])], ["waited for the channel", seconds(wait)]);
  }
  const cause = causeOf(item);
  if (cause) {
    const by = { device: "its device, busy with ", copy: "its device, copying out ",
                 share: "its device, busy with its share of " }[waitOf(item)] ?? "";
    const leads = make("button", { type: "button", className: "link", textContent: by + titleOf(cause) });
    leads.onclick = () => choose(cause, { home: $("details").parentElement });
    rows.push([isTransfer(item) ? "sent by" : "it waited for", leads]);
  } else rows.push(["it waited for", waitOf(item) === "launch" ? "its launch by the host" : "nothing"]);
  if (k !== undefined) rows.push(["on the chain", `link ${k + 1} of ${chain.op.length}; it waited for ${reasonOf(k)}`]);
  const list = make("dl");
  for (const [name, value] of rows) if (value) list.append(make("dt", {}, name), make("dd", {}, value));
  const close = make("button", { type: "button", className: "close", textContent: "close", onclick: closeDetails });
  // A person who came by keyboard stays in the panel.
  const inside = $("details").contains(document.activeElement);
  $("details").replaceChildren(close, list);
  $("details").hidden = false;
  if (inside) ($("details").querySelector(".link") ?? close).focus({ preventScroll: true });
}

// The keyboard goes back to where the explanation was opened from.
function closeDetails() {
  const inside = $("details").contains(document.activeElement), row = document.querySelector("tr.explained");
  const opener = row ? row.previousElementSibling.querySelector("button") : $("timeline");
  $("details").hidden = true;
  $("stage").append($("details"));
  row?.remove();
  if (inside) opener.focus({ preventScroll: true });
}
document.addEventListener("keydown", (event) => event.key === "Escape" && closeDetails());
