// All of it, once everything above is there: the step first, then the rest.

colourKey($("legend"), palette);
colourKey($("legend"), memory.map((d) => [`${d.name} peak ${size(d.peak)} of ${size(d.capacity)}`, d.colour]));
colourKey($("devices"), [...new Set(busy.device)].sort((a, b) => a - b).map((d) => [devices[d], data.colours[d]]));
const [noDevices, noChannels] = data.hidden;
if (noDevices || noChannels) {
  $("legend").append(`the busiest lanes; ${counted(noDevices, "device")} and ${counted(noChannels, "channel")} more are not shown`);
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
showPosition();
document.body.dataset.drawn = "timeline";
// On a phone, rows have only the first line of their names, and bars have no words.
function fitted(layout) {
  const { yaxis } = layout, ticktext = yaxis.ticktext.map((text) => (isNarrow() ? text.split("<br>")[0] : text));
  const font = { size: isNarrow() ? 10 : 12, color: INK };
  return { ...layout, font, dragmode: hasFinger ? false : "zoom", yaxis: { ...yaxis, ticktext } };
}
for (const [id, figure] of Object.entries(data.figures)) {
  await new Promise(requestAnimationFrame);
  const traces = isNarrow() ? figure.data.map((trace) => ({ ...trace, textposition: "none" })) : figure.data;
  await Plotly.newPlot(id, traces, fitted(figure.layout), CONFIG);
}
const VIEWS = { in: [0.25, 0.75], out: [-0.5, 1.5], back: [-0.5, 0.5], on: [0.5, 1.5] };
for (const views of document.querySelectorAll("[data-figure]")) {
  const plot = $(views.dataset.figure), whole = [...plot.layout.xaxis.range];
  views.addEventListener("click", ({ target }) => {
    const view = target.dataset.view, [from, to] = plot.layout.xaxis.range;
    if (!view) return;
    const [first, last] = VIEWS[view] ?? [0, 0];
    const length = Math.min((to - from) * (last - first), whole[1] - whole[0]);
    const start = Math.min(Math.max(from + (to - from) * first, whole[0]), whole[1] - length);
    Plotly.relayout(plot, { "xaxis.range": view === "all" ? whole : [start, start + length] });
  });
}
showGraph();
let drawnAt = innerWidth;
addEventListener("resize", () => {
  if (drawnAt !== innerWidth) showGraph();
  drawnAt = innerWidth;
});
document.body.dataset.drawn = "all";
