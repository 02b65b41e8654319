// The chain of causes: walked link by link above the timeline, and in parts that open.

const LINKS = 12;
const lengthOf = (k) => chain.finish[k] - chain.start[k];
const listed = () => {
  const all = [...chain.op.keys()];
  return $("long").checked ? all.filter((k) => lengthOf(k) >= 0.01 * span || k === here) : all;
};

$("walk").addEventListener("click", (event) => {
  const step = event.target.dataset.step, rows = listed(), at = rows.indexOf(here);
  if (!step || !rows.length) return;
  const next = { first: 0, back: at - 1, on: at + 1, last: rows.length - 1 }[step];
  const k = rows[Math.min(Math.max(next, 0), rows.length - 1)];
  choose(link(k), { k });
});
$("long").addEventListener("change", showPosition);

function linkRow(part, k) {
  const leads = make("button", { type: "button", className: "link", textContent: linkTitle(k) });
  const said = ` on ${placeOf(link(k))}, ${seconds(lengthOf(k))} from ${moment(chain.start[k])}; before it, ${reasonOf(k)}`;
  const row = make("tr", { className: "link-row" },
                   make("td", { colSpan: 5 }, leads, make("span", { className: "quiet" }, said)));
  row.dataset.of = part;
  row.dataset.link = k;
  leads.onclick = () => {
    const cell = make("td", { colSpan: 5 }), below = make("tr", { className: "explained link-row" }, cell);
    closeDetails();
    below.dataset.of = part;
    row.after(below);
    choose(link(k), { k, home: cell });
  };
  return row;
}

// Rows of a part's links after a row, the longest first, some at a time.
function listLinks(part, after, from) {
  const rows = [...parts[part].slice(from, from + LINKS)].map((k) => linkRow(part, k));
  const left = parts[part].slice(from + LINKS);
  if (left.length) {
    const total = left.reduce((sum, k) => sum + lengthOf(k), 0);
    const more = make("button", { type: "button", textContent: `${counted(left.length, "more link")}, ${seconds(total)} in all` });
    const row = make("tr", { className: "link-row" }, make("td", { colSpan: 5 }, more));
    row.dataset.of = part;
    more.onclick = () => {
      const first = listLinks(part, row, from + LINKS);
      row.remove();
      first.querySelector("button").focus();
    };
    rows.push(row);
  }
  after.after(...rows);
  return rows[0];
}

$("chain").addEventListener("click", ({ target }) => {
  const part = target.dataset.part;
  if (part === undefined) return;
  const opens = target.getAttribute("aria-expanded") === "false";
  target.setAttribute("aria-expanded", opens);
  if (opens) listLinks(+part, target.closest("tr"), 0);
  else {
    if ($("details").closest(`[data-of="${part}"]`)) closeDetails();
    document.querySelectorAll(`#chain [data-of="${part}"]`).forEach((row) => row.remove());
  }
});
