// Elements without a framework. Text is always text: names come from other people's programs.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

export const byId = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Colours of things of a kind, in their order.
export const CATEGORY = ["#7b5ea7", "#b5487b", "#3b8c8c", "#8a7a2a", "#5b6abf", "#a35c3a", "#4d7d3c", "#888888"];
