// The timeline. At every zoom, ops and messages (transfers, collectives) of some pixels are bars; the
// rest are merged by column of pixels into a heatmap: a cell takes the colour of what fills most of it,
// paler the less is filled. Plotly draws.

const COLUMNS = 900, WIDE = 4, LABEL = 40, ROW = 22, MEMORY = 150;
const INK = "#1f2933", MARK = "#d9480f";
const CONFIG = { responsive: true, displayModeBar: false };
// On a phone, names beside the lanes are short, and a finger scrolls the page: buttons zoom.
const isNarrow = () => innerWidth <= 640;
const hasFinger = matchMedia("(pointer: coarse)").matches;
const drawnWidth = () => $("timeline").clientWidth - (isNarrow() ? 90 : 200);

const itemOf = (lane, i) => (lanes[lane].device ? { op: lanes[lane].what[i] } : { message: lanes[lane].what[i] });
const before = (sorted, value) => {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
};

function merged(row, from, to) {
  // A lane between two times: wide items one by one, the rest as filled seconds by column.
  const lane = lanes[row], pixel = (to - from) / COLUMNS;
  const filled = palette.map(() => null), count = new Uint32Array(COLUMNS), wide = [];
  const longest = new Int32Array(COLUMNS).fill(-1);
  for (let i = before(lane.finish, from); i < lane.start.length && lane.start[i] < to; i++) {
    if (lane.finish[i] - lane.start[i] >= WIDE * pixel) {
      wide.push(i);
      continue;
    }
    const sums = (filled[lane.colour[i]] ??= new Float64Array(COLUMNS));
    const first = Math.max(0, Math.floor((lane.start[i] - from) / pixel));
    const last = Math.min(COLUMNS - 1, Math.floor((lane.finish[i] - from) / pixel));
    for (let c = first; c <= last; c++) {
      const left = from + c * pixel;
      sums[c] += Math.max(0, Math.min(lane.finish[i], left + pixel) - Math.max(lane.start[i], left));
      count[c]++;
      const other = longest[c];
      if (other < 0 || lane.finish[i] - lane.start[i] > lane.finish[other] - lane.start[other]) longest[c] = i;
    }
  }
  return { filled, count, longest, wide, pixel };
}

function cells(row, part) {
  const look = new Array(COLUMNS).fill(null), text = new Array(COLUMNS).fill("");
  for (let c = 0; c < COLUMNS; c++) {
    if (!part.count[c]) continue;
    let total = 0, best = -1;
    part.filled.forEach((sums, colour) => {
      if (!sums) return;
      total += sums[c];
      if (best < 0 || sums[c] > part.filled[best][c]) best = colour;
    });
    const share = Math.min(1, total / part.pixel);
    look[c] = best * SHADES + Math.max(1, Math.ceil(share * SHADES - 1e-6)) - 0.5;
    const item = itemOf(row, part.longest[c]), what = lanes[row].device ? "ops" : "messages";
    text[c] = part.count[c] === 1
      ? `${plain(titleOf(item))}<br>${took(item)} from ${moment(begin(item))}`
      : `${part.count[c]} ${what}, ${Math.round(100 * share)} % filled<br>longest: ${plain(nameOf(item))}`;
  }
  return [look, text];
}

function shaded() {
  const shades = data.shades.flat(), n = shades.length;
  return shades.flatMap((colour, k) => [[k / n, colour], [(k + 1) / n, colour]]);
}
const SCALE = shaded();

function laneTraces(from, to) {
  const z = [], text = [], wide = { y: [], base: [], x: [], colour: [], ink: [], label: [], hover: [], item: [] };
  let single = 0, many = 0;
  lanes.forEach((lane, row) => {
    const part = merged(row, from, to);
    const [look, said] = cells(row, part);
    z.push(look);
    text.push(said);
    many += part.count.reduce((sum, n) => sum + (n > 1 ? 1 : 0), 0);
    for (const i of part.wide) {
      const item = itemOf(row, i), length = lane.finish[i] - lane.start[i];
      const shown = Math.min(lane.finish[i], to) - Math.max(lane.start[i], from);
      const pixels = (shown / part.pixel) * (drawnWidth() / COLUMNS);
      const label = pixels >= LABEL ? shortened(nameOf(item), Math.floor((pixels - 8) / 7)) : "";
      wide.y.push(row);
      wide.base.push(lane.start[i]);
      wide.x.push(length);
      wide.colour.push(palette[lane.colour[i]][1]);
      wide.ink.push(inkOn(palette[lane.colour[i]][1]));
      wide.label.push(plain(label));
      wide.hover.push(`${plain(titleOf(item))}<br>${placeOf(item)}, ${took(item)} from ${moment(begin(item))}`);
      wide.item.push(item);
      single++;
    }
  });
  $("sight").textContent =
    `${seconds(from)} to ${seconds(to)}: ${single} shown one by one` + (many ? `, ${many} columns of shorter ones merged` : "");
  const step = (to - from) / COLUMNS;
  return [
    { name: "merged", type: "heatmap", z, text, x0: from + step / 2, dx: step, y0: 0, dy: 1, ygap: 4,
      colorscale: SCALE, zmin: 0, zmax: palette.length * SHADES, zauto: false, showscale: false,
      // Cells hold k + 0.5, the middle of the stops from k to k + 1.
      hoverongaps: false, hovertemplate: "%{text}<extra></extra>" },
    { name: "single", type: "bar", orientation: "h", y: wide.y, base: wide.base, x: wide.x, width: 0.8,
      marker: { color: wide.colour, line: { color: "white", width: 0.6 } }, text: wide.label,
      textposition: "inside", insidetextanchor: "middle", constraintext: "none", textangle: 0,
      insidetextfont: { size: 11, color: wide.ink }, hovertext: wide.hover,
      hovertemplate: "%{hovertext}<extra></extra>", customdata: wide.item, showlegend: false },
  ];
}

function chainTraces(from, to) {
  // Level lines per lane, those nearer than a pixel as one; upright ones unless they would be a curtain.
  const pixel = (to - from) / COLUMNS, level = lanes.map(() => []), upright = new Map();
  for (let k = 0; k < chain.op.length; k++) {
    const item = link(k);
    if (end(item) < from || begin(item) > to) continue;
    for (const row of chain.rows[k]) {
      const last = level[row].at(-1);
      if (last && begin(item) - last[1] < pixel) last[1] = Math.max(last[1], end(item));
      else level[row].push([begin(item), end(item)]);
    }
    const now = chain.rows[k][0], was = k ? chain.rows[k - 1][0] : now;
    if (now !== undefined && was !== undefined && now !== was && begin(item) >= from) {
      const column = Math.floor((begin(item) - from) / pixel);
      const old = upright.get(column) ?? [begin(item), was, was];
      upright.set(column, [old[0], Math.min(old[1], now, was), Math.max(old[2], now, was)]);
    }
  }
  const x = [], y = [];
  level.forEach((parts, row) => parts.forEach(([a, b]) => {
    x.push(a, b, null);
    y.push(row + 0.45, row + 0.45, null);
  }));
  if (upright.size <= COLUMNS / 8) {
    for (const [time, low, high] of upright.values()) {
      x.push(time, time, null);
      y.push(low + 0.45, high + 0.45, null);
    }
  }
  return [{ name: "chain", type: "scatter", mode: "lines", x, y, line: { color: INK, width: 2 },
            hoverinfo: "skip", showlegend: false }];
}

function memoryTraces(from, to) {
  // Every change where there are few; else the most in every column.
  return memory.map((device) => {
    const whole = device.capacity || device.peak || 1;
    const first = Math.max(0, before(device.time, from) - 1), last = before(device.time, to);
    let x = [], used = [];
    if (last - first <= COLUMNS) {
      for (let i = first; i < last; i++) x.push(device.time[i]), used.push(device.used[i]);
      if (last > first) x.push(to), used.push(used.at(-1));
    } else {
      const step = (to - from) / COLUMNS;
      for (let c = 0, i = first; c < COLUMNS; c++) {
        let most = device.used[Math.max(i - 1, first)];
        for (; i < last && device.time[i] < from + (c + 1) * step; i++) most = Math.max(most, device.used[i]);
        x.push(from + c * step);
        used.push(most);
      }
    }
    return { name: `${plain(device.name)}: peak ${size(device.peak)} of ${size(device.capacity)}`,
             type: "scatter", mode: "lines", x, y: used.map((b) => (100 * b) / whole), yaxis: "y2", showlegend: false,
             line: { shape: "hv", width: 1.4, color: device.colour },
             text: used.map((b) => `${plain(device.name)}: ${size(b)}`), hovertemplate: "%{text} (%{y:.1f} %)<extra></extra>" };
  });
}

let chosen = null;
const lanesHeight = ROW * lanes.length, height = lanesHeight + MEMORY + 90;
const split = (MEMORY + 20) / (lanesHeight + MEMORY + 20);
const fullest = Math.max(...memory.map((d) => d.peak / (d.capacity || d.peak || 1)), 0);
// Up to the capacity, unless the curves would then lie flat on the axis.
const top = fullest > 0.2 || !fullest ? Math.max(105, 105 * fullest) : 125 * fullest;

function layout(from, to) {
  const shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, yref: "y2", y0: 100, y1: 100,
                    line: { color: MARK, width: 1, dash: "dot" } }];
  if (chosen && rowOf(chosen) >= 0) {
    const y = rowOf(chosen);
    shapes.push({ name: "chosen", type: "rect", x0: begin(chosen), x1: end(chosen), y0: y - 0.5, y1: y + 0.5,
                  line: { color: MARK, width: 2 } });
  }
  const narrow = isNarrow(), size = narrow ? 10 : 12;
  const named = (lane) => (narrow ? shortened(lane.name, 12) : `${shortened(lane.name, 24)} · ${lane.note}`);
  return {
    height, shapes, bargap: 0, hovermode: "closest", dragmode: hasFinger ? false : "zoom", font: { size, color: INK },
    margin: narrow ? { l: 40, r: 8, t: 8, b: 30 } : { l: 60, r: 16, t: 8, b: 36 }, showlegend: false,
    xaxis: { range: [from, to], minallowed: -0.01 * span, maxallowed: 1.01 * span, anchor: "y2", nticks: narrow ? 5 : 12,
             tickformat: "~s", ticksuffix: "s", zeroline: false },
    yaxis: { domain: [split, 1], range: [lanes.length - 0.4, -0.6], fixedrange: true, showgrid: false,
             zeroline: false, tickvals: lanes.map((_, i) => i), ticktext: lanes.map((lane) => plain(named(lane))),
             automargin: true },
    yaxis2: { domain: [0, split - 20 / (lanesHeight + MEMORY + 20)], range: [0, top], ticksuffix: " %", nticks: 5,
              automargin: true, fixedrange: true, title: { text: "memory", font: { size }, standoff: 8 } },
  };
}

let sight = [0, span];
async function draw(from, to) {
  sight = [from, to];
  const traces = [...laneTraces(from, to), ...chainTraces(from, to), ...memoryTraces(from, to)];
  await Plotly.react("timeline", traces, layout(from, to), CONFIG);
  putBeside();
}
const within = (from, to) => {
  const length = Math.min(span, Math.max(to - from, 1e-7 * span));
  const start = Math.min(Math.max(0, (from + to - length) / 2), span - length);
  return draw(start, start + length);
};
// Nearer or farther by a factor, about a time that stays where it is.
function zoom(factor, about = chosen ? (begin(chosen) + end(chosen)) / 2 : (sight[0] + sight[1]) / 2) {
  const [from, to] = sight, at = Math.min(Math.max(about, from), to);
  const length = Math.min(span, Math.max((to - from) * factor, 1e-7 * span));
  const start = Math.min(Math.max(0, at - ((at - from) / (to - from)) * length), span - length);
  return draw(start, start + length);
}

// -- by hand -------------------------------------------------------------------------------------

const ZOOMS = { in: () => zoom(0.5), out: () => zoom(2), all: () => draw(0, span) };
$("zoom").addEventListener("click", ({ target }) => ZOOMS[target.dataset.zoom]?.());
$("timeline").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const { xaxis } = $("timeline")._fullLayout, x = event.clientX - $("timeline").getBoundingClientRect().left;
  zoom(event.deltaY < 0 ? 0.8 : 1.25, xaxis.p2d(x - xaxis._offset));
}, { passive: false });

// The bar that an arrow leads to: the next of the lane, or of another lane the one at that time.
function neighbour(right, down) {
  const row = chosen ? rowOf(chosen) : -1;
  if (row < 0) {
    const first = lanes.findIndex((lane) => lane.what.length);
    return first < 0 ? null : itemOf(first, 0);
  }
  if (right) {
    const i = lanes[row].what.indexOf(number(chosen)) + right;
    return i >= 0 && i < lanes[row].what.length ? itemOf(row, i) : null;
  }
  let to = row + down;
  while (lanes[to] && !lanes[to].what.length) to += down;
  if (!lanes[to]) return null;
  return itemOf(to, Math.min(before(lanes[to].finish, begin(chosen)), lanes[to].what.length - 1));
}
const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const KEYS = { "+": ZOOMS.in, "=": ZOOMS.in, "-": ZOOMS.out, 0: ZOOMS.all };
$("timeline").addEventListener("keydown", (event) => {
  const item = event.key in ARROWS && neighbour(...ARROWS[event.key]);
  if (item) choose(item);
  else KEYS[event.key]?.();
  if (event.key in ARROWS || event.key in KEYS) event.preventDefault();
});
