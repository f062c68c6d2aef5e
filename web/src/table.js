// A table of rows that are made anew each time: for tables in which nothing is typed or focused for long.
import { byId, make } from "./dom.js";

// columns: [{name, text, of(row)}]; of gives a text or an element.
export function showTable(id, columns, rows) {
  const table = byId(id);
  if (!table.tHead.children.length)
    table.tHead.append(make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, column.name))));
  const focused = table.contains(document.activeElement) ? document.activeElement.textContent : null;
  table.tBodies[0].replaceChildren(...rows.map((row) => make("tr", {}, ...columns.map((column, i) =>
    make(i ? "td" : "th", { scope: i ? undefined : "row", class: i && !column.text ? "number" : undefined }, column.of(row))))));
  if (focused) [...table.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus({ preventScroll: true });
}
