"use strict";
const table = document.getElementById("index");
const body = table.tBodies[0];
const rows = [...body.rows];

// Sorts the rows by a column: by the key of its cells if they have one, otherwise by their text.
function sort(column, heading) {
  const ascending = heading.getAttribute("aria-sort") !== "ascending";
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
  };
  rows.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    const order = typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true });
    return ascending ? order : -order;
  });
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  body.append(...rows);
}

// Shows the rows that match all filters, and their figures.
function filter() {
  const text = document.getElementById("search").value.trim().toLowerCase();
  const wanted = ["paper", "verdict", "way"].map((name) => document.getElementById(name).value);
  let shown = 0;
  for (const row of rows) {
    const cell = (column) => row.cells[column].textContent;
    const verdict = row.querySelector(".verdict").textContent;
    const matches = row.textContent.toLowerCase().includes(text)
      && (!wanted[0] || cell(1) === wanted[0])
      && (!wanted[1] || verdict === wanted[1])
      && (!wanted[2] || cell(3) === wanted[2]);
    row.hidden = !matches;
    document.getElementById(row.cells[0].textContent).hidden = !matches;
    shown += matches;
  }
  document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
}

[...table.tHead.rows[0].cells].forEach((heading, column) => {
  heading.querySelector("button").addEventListener("click", () => sort(column, heading));
});
for (const name of ["search", "paper", "verdict", "way"]) {
  document.getElementById(name).addEventListener("input", filter);
}
filter();
