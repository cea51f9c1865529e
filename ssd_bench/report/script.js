"use strict";
// Shows one table or figure at a time, or all that match the filters; in their tables, only matching rows and columns.
(() => {
  const form = document.getElementById("filters");
  const status = document.getElementById("status");
  const names = ["paper", "model", "task", "method", "q", "show"];
  const list = (element, axis) => (element.dataset[axis] || "").split("|");
  const exhibits = [...document.querySelectorAll("[data-exhibit]")].map((element) => ({
    element,
    link: document.querySelector(`nav a[href="#${element.id}"]`),
    text: `${element.dataset.exhibit} ${element.textContent}`.toLowerCase(),
    model: list(element, "model"),
    task: list(element, "task"),
    method: list(element, "method"),
    figure: element.querySelector("figure") !== null,
    cells: [...element.querySelectorAll(".wide [data-task]")],
    rows: [...element.querySelectorAll(".wide [data-method]")],
    bodies: [...element.querySelectorAll(".wide tbody")],
  }));
  const fits = (values, chosen) => !chosen || values.includes(chosen);
  let current = exhibits.find((exhibit) => exhibit.cells.length) || exhibits[0];
  let fitting = exhibits;

  function narrow(exhibit, chosen) {
    for (const cell of exhibit.cells) cell.hidden = !fits(list(cell, "task"), chosen.task);
    for (const row of exhibit.rows) {
      const fit = fits(list(row, "model"), chosen.model) && fits(list(row, "method"), chosen.method);
      row.hidden = !fit || !row.querySelector("td:not([hidden]) .n");
    }
    for (const body of exhibit.bodies) body.hidden = !body.querySelector("tr[data-method]:not([hidden])");
    return exhibit.bodies.length === 0 || exhibit.bodies.some((body) => !body.hidden);
  }

  function fit(exhibit, chosen, words) {
    const all =
      fits([exhibit.element.dataset.paper], chosen.paper) &&
      ["model", "task", "method"].every((axis) => fits(exhibit[axis], chosen[axis])) &&
      words.every((word) => exhibit.text.includes(word));
    return all && (narrow(exhibit, chosen) || exhibit.figure);
  }

  function apply() {
    const chosen = Object.fromEntries(names.map((name) => [name, form.elements[name].value.trim()]));
    const words = chosen.q.toLowerCase().split(/\s+/).filter(Boolean);
    fitting = exhibits.filter((exhibit) => fit(exhibit, chosen, words));
    if (!fitting.includes(current)) current = fitting[0];
    for (const exhibit of exhibits) {
      const fit = fitting.includes(exhibit);
      exhibit.element.hidden = !fit || !(chosen.show || exhibit === current);
      exhibit.link.parentElement.hidden = !fit;
      exhibit.link.toggleAttribute("aria-current", exhibit === current);
    }
    for (const group of document.querySelectorAll(".contents > div")) {
      group.hidden = !group.querySelector("li:not([hidden])");
    }
    document.getElementById("nothing").hidden = fitting.length > 0;
    document.querySelector(".steps").hidden = Boolean(chosen.show) || fitting.length < 2;
    status.textContent = `${fitting.length} of ${exhibits.length} match`;
    return chosen;
  }

  function remember(chosen) {
    const kept = new URLSearchParams(names.filter((name) => chosen[name]).map((name) => [name, chosen[name]]));
    history.replaceState(null, "", `#${kept}`);
  }

  function step(by) {
    const at = fitting.indexOf(current) + by;
    location.hash = fitting[(at + fitting.length) % fitting.length].element.id;
  }

  // "#swift_table8" names a table or figure, shown whatever the filters are; "#paper=swift&task=GSM8K" sets filters
  function follow() {
    const hash = decodeURIComponent(location.hash.slice(1));
    const chosen = exhibits.find((exhibit) => exhibit.element.id === hash);
    if (chosen) {
      current = chosen;
      if (!fitting.includes(chosen)) for (const name of names) form.elements[name].value = "";
      apply();
      chosen.element.scrollIntoView();
    } else if (!hash || hash.includes("=")) {
      const given = new URLSearchParams(hash);
      for (const name of names) form.elements[name].value = given.get(name) ?? "";
      apply();
    }
  }

  // A table that sorts: by number where both cells start with one, else by text; cells without a value come last
  function sort(head) {
    const table = head.closest("table");
    const at = [...head.parentElement.children].indexOf(head);
    const falling = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "ascending" : "descending");
    const value = (row) => row.children[at].textContent.trim();
    const number = (text) => parseFloat(text.replaceAll(",", ""));
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, text: value(row), number: number(value(row)) }));
    rows.sort((a, b) => {
      const absent = (a.text === "–") - (b.text === "–");
      const order = a.number - b.number || a.text.localeCompare(b.text);
      return absent || (falling ? order : -order);
    });
    body.append(...rows.map(({ row }) => row));
  }

  for (const head of document.querySelectorAll(".sortable th[scope=col]")) {
    head.tabIndex = 0;
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => event.key === "Enter" && sort(head));
  }
  addEventListener("beforeprint", () => {
    for (const element of document.querySelectorAll("#answers details:not(#results)")) element.open = true;
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => remember(apply()));
  form.addEventListener("reset", () => setTimeout(() => remember(apply())));
  document.getElementById("previous").addEventListener("click", () => step(-1));
  document.getElementById("next").addEventListener("click", () => step(1));
  addEventListener("hashchange", follow);
  if (matchMedia("(max-width: 40rem)").matches) document.getElementById("contents").open = false;
  apply();
  follow();
})();
