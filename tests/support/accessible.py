"""What a page must be for all who read it: scripts for a browser that return what is amiss."""

from __future__ import annotations

#: Functions of colours: what stands on what, and the contrast of the two by WCAG 2.
_COLOURS = """
const parts = (css) => {
  const [r, g, b, a = 1] = css.match(/[\\d.]+/g).map(Number);
  return [r, g, b, a];
};
const over = ([r, g, b, a], ground) => [r, g, b].map((p, i) => a * p + (1 - a) * ground[i]);
const light = (rgb) => {
  const linear = (p) => p <= 0.04045 ? p / 12.92 : ((p + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = rgb.map((p) => linear(p / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (e) => {
  const layers = [];
  for (; e; e = e.parentElement) {
    const colour = parts(getComputedStyle(e).backgroundColor);
    if (colour[3] > 0) layers.push(colour);
    if (colour[3] === 1) break;
  }
  return layers.reverse().reduce((below, colour) => over(colour, below), [255, 255, 255]);
};
const opacity = (e) => {
  let all = 1;
  for (; e; e = e.parentElement) all *= Number(getComputedStyle(e).opacity);
  return all;
};
const contrast = (css, e, more = 1) => {
  const [r, g, b, a] = parts(css), below = ground(e);
  const [one, other] = [light(over([r, g, b, a * opacity(e) * more], below)), light(below)];
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
};
const told = (e) =>
  `${e.tagName} ${e.className?.baseVal ?? e.className} ${e.textContent.slice(0, 40)}`;
"""

#: Texts, those of figures too, whose contrast is less than 4.5, or 3 where they are large (AA).
#: What stands on bars is held to it by what chose its ink.
PALE = (
    _COLOURS
    + """
return [...document.querySelectorAll('body *')].filter((e) => {
  if (!e.checkVisibility() || e.closest('script, noscript, .barlayer, .hoverlayer')) return false;
  if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) return false;
  const style = getComputedStyle(e), size = parseFloat(style.fontSize), svg = e.closest('svg');
  const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  return contrast(svg ? style.fill : style.color, svg?.parentElement ?? e) < (large ? 3 : 4.5);
}).map(told);
"""
)

#: Parts of graphics whose contrast with the page is less than 3 (AA): bars and swatches, unless an
#: edge of theirs has it, lines of the graph, curves of memory, edges of inputs and buttons.
FAINT = (
    _COLOURS
    + """
const kinds = '.bar i, .legend i, .time i, button, input, #graph path, .scatterlayer .js-line';
const seen = [...document.querySelectorAll(kinds)]
  .filter((e) => e.checkVisibility() && !e.matches('.link, .opens, [type=checkbox]'));
return seen.filter((e) => {
  const style = getComputedStyle(e);
  if (e.matches('path')) return contrast(style.stroke, e.closest('div'), style.strokeOpacity) < 3;
  const around = e.parentElement, has = parseFloat(style.borderTopWidth);
  const edge = has ? contrast(style.borderTopColor, around) : 1;
  return Math.max(edge, contrast(style.backgroundColor, e.parentElement)) < 3;
}).map((e) => `${told(e)} ${getComputedStyle(e).stroke} ${getComputedStyle(e).backgroundColor}`);
"""
)

#: Elements that are wider than the page, or reach beyond it, what figures cut off aside.
TOO_WIDE = """
const most = document.documentElement.clientWidth + 0.5, root = document.documentElement;
const beyond = root.scrollWidth > most ? [`the page: ${root.scrollWidth}`] : [];
const words = '.xtick text, .ytick text, .y2tick text, .annotation-text, .legendtext, .gtitle';
return beyond.concat([...document.querySelectorAll('body *')]
  .filter((e) => e.checkVisibility() && !e.closest('#js-plotly-tester'))
  .filter((e) => !e.closest('svg') || e.matches(`svg, ${words}`))
  .filter((e) => {
    const box = e.getBoundingClientRect();
    const inside = e.closest('svg') ? 0 : e.scrollWidth;
    return box.width && (box.right > most || box.left < -0.5 || inside > most);
  }).map((e) => e.outerHTML.slice(0, 200)));
"""

#: Words of at most 12 letters, in tables and lists, that stand on two lines.
BROKEN = """
const found = [], walker = document.createTreeWalker(document.querySelector('main'), 4);
while (walker.nextNode()) {
  const { data, parentElement } = walker.currentNode;
  if (!parentElement.checkVisibility() || !parentElement.closest('td, th, dd, dt')) continue;
  for (const { index, 0: word } of data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, index);
    range.setEnd(walker.currentNode, index + word.length);
    if (word.length <= 12 && range.getClientRects().length > 1) found.push(word);
  }
}
return found;
"""

#: What the mouse can use and the tabulator does not reach, or what has no name.
NAMELESS = """
const named = (e) => e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label');
const usable = 'a[href], button, input, select, summary, [tabindex]';
return [...document.querySelectorAll('body *:not(svg *)')].filter((e) => e.checkVisibility())
  .filter((e) => (e.onclick && e.tabIndex < 0) || (e.matches(usable) && !named(e)))
  .concat([...document.querySelectorAll('svg[role=img]:not([aria-label])')])
  .map((e) => e.outerHTML.slice(0, 200));
"""

#: The elements that the tabulator is to reach, in their order, each with a number of its own.
REACHABLE = """
const usable = 'a[href], button, input, select, summary, [tabindex]';
return [...document.querySelectorAll(usable)]
  .filter((e) => e.checkVisibility() && e.tabIndex >= 0 && !e.closest('svg'))
  .map((e, i) => { e.dataset.reached = i; return e.outerHTML.slice(0, 120); });
"""

#: The number of what has the focus, and whether that can be seen.
FOCUSED = """
const e = document.activeElement, style = getComputedStyle(e), box = e.getBoundingClientRect();
const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
  && box.bottom > 0 && box.top < innerHeight;
return [e.dataset.reached === undefined ? -1 : Number(e.dataset.reached), seen];
"""

#: What moves although the reader wants less motion.
MOVING = """
const long = (times) => times.split(',').some((time) => parseFloat(time) > 0);
return [...document.querySelectorAll('body, body *')].filter((e) => {
  const style = getComputedStyle(e);
  return style.scrollBehavior === 'smooth'
    || (style.animationName !== 'none' && long(style.animationDuration))
    || (style.transitionProperty !== 'none' && long(style.transitionDuration));
}).map((e) => e.outerHTML.slice(0, 120));
"""
