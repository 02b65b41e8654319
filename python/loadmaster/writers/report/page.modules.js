// The graph: an outline of modules that open, with lines for what goes from one to another.

const MOST_LINES = 150, svg = $("lines");
const tree = columns(data.modules), busy = columns(data.modules.busy), flow = columns(data.modules.sent);
const nodes = tree.name.map((name, i) => ({
  name, parent: tree.parent[i], ops: tree.ops[i], children: [], seconds: new Map(), open: false, told: false,
}));
nodes.forEach((node, i) => node.parent >= 0 && nodes[node.parent].children.push(i));
busy.node.forEach((node, i) => nodes[node].seconds.set(busy.device[i], busy.seconds[i]));
for (let i = nodes.length - 1; i >= 0; i--) {
  const { parent, ops: own, seconds: took } = nodes[i];
  if (parent < 0) continue;
  nodes[parent].ops += own;
  for (const [device, s] of took) nodes[parent].seconds.set(device, (nodes[parent].seconds.get(device) ?? 0) + s);
}
const total = (node) => [...node.seconds.values()].reduce((sum, s) => sum + s, 0);

// The nodes that are shown, from the top, and which of them each node is in.
function shownNodes() {
  const rows = [], row = new Int32Array(nodes.length).fill(-1);
  const visit = (i, depth) => {
    rows.push({ i, depth });
    if (nodes[i].open) nodes[i].children.forEach((child) => visit(child, depth + 1));
  };
  nodes.forEach((node, i) => node.parent < 0 && visit(i, 0));
  rows.forEach(({ i }, r) => { if (!nodes[i].open) row[i] = r; });
  nodes.forEach((node, i) => { if (row[i] < 0 && node.parent >= 0) row[i] = row[node.parent]; });
  return [rows, row];
}

// At first the longest modules are open, until there is something to see.
const FEW = 8, ENOUGH = 50;
for (let shown = shownNodes()[0]; shown.length < FEW; shown = shownNodes()[0]) {
  const closed = shown.map(({ i }) => nodes[i])
    .filter((node) => !node.open && node.children.length && shown.length + node.children.length <= ENOUGH);
  if (!closed.length) break;
  closed.reduce((a, b) => (total(b) > total(a) ? b : a)).open = true;
}

// The heaviest flows between rows: [from, to, bytes, bytes that change devices].
function flows(row) {
  const sums = new Map();
  flow.src.forEach((src, i) => {
    const from = row[src], to = row[flow.dst[i]];
    if (from === to || from < 0 || to < 0) return;
    const sum = sums.get(`${from} ${to}`) ?? [from, to, 0, 0];
    sum[2] += flow.bytes[i];
    sum[3] += flow.moved[i];
    sums.set(`${from} ${to}`, sum);
  });
  return [...sums.values()].sort((a, b) => b[2] - a[2]);
}

function timeBar(node, most) {
  const bar = make("span", { className: "time" });
  for (const [device, s] of [...node.seconds].sort((a, b) => a[0] - b[0])) {
    const piece = make("i", { title: `${devices[device]}: ${seconds(s)}` });
    piece.style.cssText = `background:${data.colours[device]};width:${(100 * s) / most}%`;
    bar.append(piece);
  }
  return bar;
}

// What a module is: ops, devices, what it reads and gives, and the way to its time in the step.
function toldOf(i, r, lines) {
  const node = nodes[i], where = [...node.seconds].sort((a, b) => b[1] - a[1]);
  const shares = where.slice(0, 4).map(([d, s]) => `${devices[d]} ${seconds(s)}`).join(", ");
  const more = where.length > 4 ? ` and ${where.length - 4} devices more` : "";
  const bytes = (at) => size(lines.reduce((sum, line) => sum + (line[at] === r ? line[2] : 0), 0));
  const flowing = node.open ? "" : `; reads ${bytes(1)} of others, gives ${bytes(0)}`;
  const leads = make("button", { type: "button", className: "link", textContent: "show it in the step" });
  leads.onclick = async () => {
    await within(tree.start[i], tree.finish[i]);
    $("timeline").scrollIntoView({ block: "center" });
    $("timeline").focus({ preventScroll: true });
  };
  return make("p", { className: "quiet" }, `${counted(node.ops, "op")}: ${shares || "no time"}${more}${flowing}. `, leads);
}

function showGraph(focused) {
  const [rows, row] = shownNodes(), lines = flows(row);
  const most = Math.max(...nodes.filter((node) => node.parent < 0).map(total), 1e-12);
  const elements = rows.map(({ i, depth }, r) => {
    const node = nodes[i], leaf = !node.children.length;
    const opens = make("button", { type: "button", className: leaf ? "opens leaf" : "opens", textContent: node.name });
    opens.setAttribute("aria-expanded", node.open || node.told);
    opens.style.marginLeft = `${depth}em`;
    opens.onclick = () => {
      node.told = !(node.open || node.told);
      node.open = node.told && !leaf;
      showGraph(i);
    };
    const element = make("div", { className: "module" }, opens, timeBar(node, most),
                         make("span", {}, seconds(total(node))), make("span"), node.told && toldOf(i, r, lines));
    element.dataset.node = i;
    for (const event of ["mouseenter", "focusin"]) element.addEventListener(event, () => pickOut(r));
    for (const event of ["mouseleave", "focusout"]) element.addEventListener(event, () => pickOut(-1));
    return element;
  });
  $("graph").replaceChildren(...elements, svg);
  drawFlows(elements, lines.slice(0, MOST_LINES));
  if (focused !== undefined) $("graph").querySelector(`[data-node="${focused}"] button`).focus();
}

function drawFlows(elements, lines) {
  const width = isNarrow() ? 44 : 110, top = $("graph").getBoundingClientRect().top;
  const middle = elements.map((element) => {
    const box = element.firstElementChild.getBoundingClientRect();
    return (box.top + box.bottom) / 2 - top;
  });
  svg.setAttribute("width", width);
  svg.setAttribute("height", $("graph").clientHeight);
  svg.replaceChildren();
  svg.setAttribute("aria-label", `${counted(lines.length, "line")} between modules`);
  for (const [from, to, bytes, moved] of lines) {
    const path = document.createElementNS(svg.namespaceURI, "path"), far = Math.abs(from - to);
    const reach = Math.min(width - 4, 14 + 5 * far) * 1.3;
    path.setAttribute("d", `M2 ${middle[from]}C${reach} ${middle[from]} ${reach} ${middle[to]} 2 ${middle[to]}`);
    // Lines to far away are thinner and paler: there are many, and the near ones show the order of
    // the model. The palest has a contrast of 3 with the page.
    const near = 1 / (0.6 + 0.4 * far);
    path.setAttribute("stroke-width", 0.8 + 2.4 * near * Math.sqrt(bytes / lines[0][2]));
    path.setAttribute("stroke-opacity", Math.max(moved > 0 ? 0.8 : 0.7, near));
    if (moved > 0) path.classList.add("moves");
    path.dataset.ends = `${from} ${to}`;
    svg.append(path);
  }
}

function pickOut(r) {
  for (const path of $("graph").querySelectorAll("path")) {
    path.classList.toggle("near", path.dataset.ends.split(" ").includes(`${r}`));
  }
  $("graph").classList.toggle("picks", $("graph").querySelector("path.near") !== null);
}
