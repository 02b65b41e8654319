// The search box: ops by name or module; what is picked is shown and explained in the timeline.

const MOST = 12;
const lowered = ops.name.map((name) => name.toLowerCase());
let matches = [], picked = -1;

// Best first: the name itself, names that begin so, names and then modules that have it in them.
function matching(text) {
  const ranks = [[], [], [], []];
  for (let i = 0; text && i < lowered.length; i++) {
    const at = lowered[i].indexOf(text);
    if (at === 0) ranks[lowered[i].length === text.length ? 0 : 1].push(i);
    else if (at > 0) ranks[2].push(i);
    else if (ranks[3].length < MOST && ops.module.at(i).toLowerCase().includes(text)) ranks[3].push(i);
  }
  return ranks.flat().slice(0, MOST);
}

function showMatches() {
  const text = $("find").value.trim().toLowerCase();
  matches = matching(text);
  picked = matches.length ? 0 : -1;
  $("found").replaceChildren(...matches.map((op, i) => {
    const module = ops.module.at(op), said = ` ${devices[ops.device[op]]}${module ? ` · ${module}` : ""}`;
    const row = make("li", { id: `found-${i}`, role: "option" }, ops.name[op], make("span", { className: "quiet" }, said));
    row.onmousedown = (event) => { event.preventDefault(); pick(i); };
    return row;
  }));
  if (text && !matches.length) $("found").append(make("li", { className: "quiet", role: "option", ariaDisabled: "true" }, "no op has this in its name or module"));
  listMatches(Boolean(text));
}

function listMatches(open) {
  $("found").hidden = !open;
  $("find").setAttribute("aria-expanded", open);
  [...$("found").children].forEach((row, i) => row.setAttribute("aria-selected", i === picked));
  if (picked >= 0 && open) $("find").setAttribute("aria-activedescendant", `found-${picked}`);
  else $("find").removeAttribute("aria-activedescendant");
}

async function pick(i) {
  listMatches(false);
  $("find").value = ops.name[matches[i]];
  await choose({ op: matches[i] });
  $("timeline").scrollIntoView({ block: "nearest" });
}

$("find").addEventListener("input", showMatches);
$("find").addEventListener("blur", () => listMatches(false));
$("find").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && matches.length) {
    event.preventDefault();
    picked = (picked + step + matches.length) % matches.length;
    listMatches(true);
    $("found").children[picked].scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter" && picked >= 0) pick(picked);
  else if (event.key === "Escape") listMatches(false);
});
