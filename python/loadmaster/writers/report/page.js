// The zooming part of a report. Data come from contents.py; Plotly draws. At every zoom, ops and
// messages (transfers, collectives) of some pixels are bars; the rest are merged by column of pixels
// into a heatmap: a cell takes the colour of what fills most of it, paler the less is filled.
"use strict";
(async () => {
  const COLUMNS = 900, WIDE = 4, LABEL = 60, ROW = 22, MEMORY = 190;
  const INK = "#1f2933", MARK = "#d9480f";
  const WAITS = ["nothing", "op", "device", "message", "copy", "launch"];
  const CONFIG = { responsive: true, displaylogo: false,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  const $ = (id) => document.getElementById(id);

  // -- data ----------------------------------------------------------------------------------

  function bytesOf(text) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  }
  const packed = new Blob([bytesOf($("data").textContent)]);
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
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

  const lanes = data.lanes.map(columns), memory = data.memory.map(columns);
  const ops = columns(data.ops), sent = columns(data.messages), chain = columns(data.chain);
  const { span, palette, devices } = data, SHADES = data.shades[0].length;
  for (const lane of lanes) {
    const { start, finish } = lane.device ? ops : sent;
    lane.start = Float64Array.from(lane.what, (i) => start[i]);
    lane.finish = Float64Array.from(lane.what, (i) => finish[i]);
  }

  // -- words ---------------------------------------------------------------------------------

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

  // An item is an op of the reduced graph or a message: {op} or {message}. Messages are the transfers,
  // then the collectives.
  const isOp = (item) => item.op !== undefined;
  const table = (item) => (isOp(item) ? ops : sent);
  const isTransfer = (item) => !isOp(item) && item.message < data.transfers;
  const number = (item) => (isOp(item) ? item.op : item.message);
  const begin = (item) => table(item).start[number(item)];
  const end = (item) => table(item).finish[number(item)];
  const rowOf = (item) => table(item).row[number(item)];
  const nameOf = (item) => (isOp(item) ? ops.name[item.op] : sent.name.at(item.message));
  const placeOf = (item) => (isOp(item) ? devices[ops.device[item.op]] : sent.place.at(item.message));
  const titleOf = (item) => (isTransfer(item) ? `transfer of ${nameOf(item)}` : nameOf(item));
  const took = (item) => seconds(end(item) - begin(item));

  // -- the timeline --------------------------------------------------------------------------

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
    const z = [], text = [], wide = { y: [], base: [], x: [], colour: [], label: [], hover: [], item: [] };
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
        const room = Math.floor(shown / part.pixel / 7), name = nameOf(item);
        const label = shown >= LABEL * part.pixel ? (name.length <= room ? name : `${name.slice(0, room - 1)}…`) : "";
        wide.y.push(row);
        wide.base.push(lane.start[i]);
        wide.x.push(length);
        wide.colour.push(palette[lane.colour[i]][1]);
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
        insidetextfont: { size: 11, color: "white" }, hovertext: wide.hover,
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
               type: "scatter", mode: "lines", x, y: used.map((b) => (100 * b) / whole), yaxis: "y2",
               line: { shape: "hv", width: 1.4, color: device.colour },
               text: used.map(size), hovertemplate: `${plain(device.name)}: %{text} (%{y:.1f} %)<extra></extra>` };
    });
  }

  let chosen = null;
  const lanesHeight = ROW * lanes.length, height = lanesHeight + MEMORY + 134;
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
    return {
      height, shapes, bargap: 0, hovermode: "closest", dragmode: "zoom",
      margin: { l: 130, r: 60, t: 34, b: 60 }, legend: { orientation: "h", y: -36 / height },
      xaxis: { range: [from, to], minallowed: -0.01 * span, maxallowed: 1.01 * span, anchor: "y2",
               tickformat: "~s", ticksuffix: "s", zeroline: false },
      yaxis: { domain: [split, 1], range: [lanes.length - 0.4, -0.6], fixedrange: true, showgrid: false,
               zeroline: false, tickvals: lanes.map((_, i) => i),
               ticktext: lanes.map((l) => `${plain(l.name)} · ${l.note}`), automargin: true },
      yaxis2: { domain: [0, split - 20 / (lanesHeight + MEMORY + 20)],
                range: [0, top], ticksuffix: " %",
                automargin: true,
                title: { text: "memory of capacity", font: { size: 11 }, standoff: 12 } },
    };
  }

  let sight = [0, span];
  async function draw(from, to) {
    sight = [from, to];
    const traces = [...laneTraces(from, to), ...chainTraces(from, to), ...memoryTraces(from, to)];
    await Plotly.react("timeline", traces, layout(from, to), { ...CONFIG, scrollZoom: true });
  }
  const within = (from, to) => {
    const length = Math.min(span, Math.max(to - from, 1e-7 * span));
    const start = Math.min(Math.max(0, (from + to - length) / 2), span - length);
    return draw(start, start + length);
  };

  // -- what is chosen ------------------------------------------------------------------------

  const link = (k) => (chain.op[k] >= 0 ? { op: chain.op[k] } : { message: chain.message[k] });
  const linkOf = new Map();
  for (let k = 0; k < chain.op.length; k++) linkOf.set(JSON.stringify(link(k)), k);
  let here = chain.op.length - 1;

  const waitOf = (item) => WAITS[table(item).waited[number(item)]];
  const causeOf = (item) => {
    const word = waitOf(item), cause = table(item).cause[number(item)];
    if (["nothing", "launch"].includes(word)) return null;
    return word === "message" || word === "copy" ? { message: cause } : { op: cause };
  };

  function choose(item, k = linkOf.get(JSON.stringify(item))) {
    chosen = item;
    if (k !== undefined) here = k;
    showChain();
    showDetails(item);
    const length = end(item) - begin(item), [from, to] = sight;
    const seen = begin(item) >= from && end(item) <= to && length >= (WIDE * (to - from)) / COLUMNS;
    return seen ? draw(from, to) : within(begin(item) - 12 * length, end(item) + 12 * length);
  }

  function showDetails(item) {
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
    const list = document.createElement("dl"), cause = causeOf(item);
    const add = (name, value) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.append(value);
      list.append(dt, dd);
    };
    rows.filter(([, value]) => value).forEach(([name, value]) => add(name, value));
    if (cause) {
      const button = document.createElement("button");
      const by = { device: "its device, busy with ", copy: "its device, copying out " }[waitOf(item)];
      button.className = "link";
      button.textContent = (by ?? "") + titleOf(cause);
      button.onclick = () => choose(cause);
      add(isTransfer(item) ? "sent by" : "it waited for", button);
    } else add("it waited for", waitOf(item) === "launch" ? "its launch by the host" : "nothing");
    $("details").replaceChildren(list);
    $("details").hidden = false;
  }

  // -- the chain -----------------------------------------------------------------------------

  const lengthOf = (k) => chain.finish[k] - chain.start[k];
  const isLong = (k) => lengthOf(k) >= 0.01 * span;
  // What the runtime does beside ops and messages.
  const WORK = { copy: "copy of ", launch: "launches up to " };
  const listed = () => {
    const all = [...chain.op.keys()];
    return $("long").checked ? all.filter((k) => isLong(k) || k === here) : all;
  };
  function reasonOf(k) {
    const word = chain.waited.at(k);
    if (word === "nothing" || k === 0) return "nothing: it runs first";
    const cause = titleOf(link(k - 1));
    return { op: "its input from ", transfer: "its input: ", device: "its device, busy with ",
             channel: "its channel, busy with ", collective: "its channel, busy with ",
             copy: "the sender's copy of ", launch: "its host, busy with launches up to " }[word] + cause;
  }

  function showChain() {
    const rows = listed(), at = rows.indexOf(here);
    const from = Math.max(0, Math.min(at - 5, rows.length - 11));
    const shown = rows.slice(from, from + 11).map((k) => {
      const item = link(k), tr = document.createElement("tr");
      const title = (WORK[chain.doing.at(k)] ?? "") + titleOf(item);
      const cells = [k + 1, title, placeOf(item), moment(chain.start[k]), seconds(lengthOf(k)), reasonOf(k)];
      for (const cell of cells) tr.insertCell().textContent = cell;
      tr.tabIndex = 0;
      tr.dataset.link = k;
      tr.className = k === here ? "here" : "";
      tr.onclick = () => choose(item, k);
      tr.onkeydown = (event) => event.key === "Enter" && choose(item, k);
      return tr;
    });
    $("chain").tBodies[0].replaceChildren(...shown);
    $("position").textContent = `${at + 1} of ${rows.length}`;
  }

  $("walk").addEventListener("click", (event) => {
    const step = event.target.dataset.step, rows = listed(), at = rows.indexOf(here);
    if (!step || !rows.length) return;
    const next = { first: 0, back: at - 1, on: at + 1, last: rows.length - 1 }[step];
    const k = rows[Math.min(Math.max(next, 0), rows.length - 1)];
    choose(link(k), k);
  });
  $("long").addEventListener("change", showChain);

  // -- all of it -----------------------------------------------------------------------------

  for (const [label, colour] of palette) {
    const entry = document.createElement("span"), box = document.createElement("i");
    box.style.background = colour;
    entry.append(box, label);
    $("legend").append(entry);
  }
  const [noDevices, noChannels] = data.hidden;
  if (noDevices || noChannels) {
    $("legend").append(`the busiest lanes; ${noDevices} devices and ${noChannels} channels more are not shown`);
  }

  await draw(0, span);
  $("timeline").on("plotly_relayout", (change) => {
    if (change["xaxis.autorange"]) draw(0, span);
    else if ("xaxis.range[0]" in change) draw(Math.max(0, change["xaxis.range[0]"]), Math.min(span, change["xaxis.range[1]"]));
    else if ("xaxis.range" in change) draw(...change["xaxis.range"]);
  });
  $("timeline").on("plotly_click", ({ points: [point] }) => {
    if (point.data.name === "single") choose(point.customdata);
    else if (point.data.name === "merged") {
      const length = (sight[1] - sight[0]) / 16;
      within(point.x - length, point.x + length);
    }
  });
  showChain();
  document.body.dataset.drawn = "timeline";
  for (const [id, figure] of Object.entries(data.figures)) {
    await new Promise(requestAnimationFrame);
    await Plotly.newPlot(id, figure.data, figure.layout, { ...CONFIG, displayModeBar: id === "graph" });
  }
  $("graph").on("plotly_click", ({ points: [point] }) => {
    if (!point.customdata) return;
    within(...point.customdata);
    $("timeline").scrollIntoView({ block: "center" });
  });
  document.body.dataset.drawn = "all";
})();
