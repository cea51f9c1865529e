"use strict";
// Filters: an exhibit stays where it has all that is chosen; of its table, the rows and columns that do.
(() => {
  const form = document.getElementById("filters");
  const status = document.getElementById("status");
  const names = ["paper", "model", "task", "method", "q"];
  const list = (element, axis) => (element.dataset[axis] || "").split("|");
  const exhibits = [...document.querySelectorAll("[data-exhibit]")].map((element) => ({
    element,
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

  function narrow(exhibit, chosen) {
    for (const cell of exhibit.cells) cell.hidden = !fits(list(cell, "task"), chosen.task);
    for (const row of exhibit.rows) {
      const fit = fits(list(row, "model"), chosen.model) && fits(list(row, "method"), chosen.method);
      row.hidden = !fit || !row.querySelector("td:not([hidden]) .n");
    }
    for (const body of exhibit.bodies) body.hidden = !body.querySelector("tr[data-method]:not([hidden])");
    return exhibit.bodies.length === 0 || exhibit.bodies.some((body) => !body.hidden);
  }

  function apply() {
    const chosen = Object.fromEntries(names.map((name) => [name, form.elements[name].value.trim()]));
    const words = chosen.q.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const exhibit of exhibits) {
      const fit =
        fits([exhibit.element.dataset.paper], chosen.paper) &&
        ["model", "task", "method"].every((axis) => fits(exhibit[axis], chosen[axis])) &&
        words.every((word) => exhibit.text.includes(word));
      exhibit.element.hidden = !fit || (!narrow(exhibit, chosen) && !exhibit.figure);
      shown += exhibit.element.hidden ? 0 : 1;
      const link = document.querySelector(`nav a[href="#${exhibit.element.id}"]`);
      if (link) link.parentElement.hidden = exhibit.element.hidden;
    }
    for (const section of document.querySelectorAll(".paper")) {
      section.hidden = !section.querySelector("article:not([hidden])");
    }
    for (const group of document.querySelectorAll(".contents > div")) {
      group.hidden = !group.querySelector("li:not([hidden])");
    }
    document.getElementById("nothing").hidden = shown > 0;
    status.textContent = `${shown} of ${exhibits.length} shown`;
    return chosen;
  }

  function remember(chosen) {
    const kept = new URLSearchParams(names.filter((name) => chosen[name]).map((name) => [name, chosen[name]]));
    history.replaceState(null, "", `#${kept}`);
  }

  // "#swift_table2" is an exhibit, which is shown whatever the filters; "#paper=swift&task=GSM8K" are filters
  function follow() {
    const hash = location.hash.slice(1);
    const target = hash && !hash.includes("=") ? document.getElementById(decodeURIComponent(hash)) : null;
    if (target) {
      const hidden = target.closest("[hidden]");
      if (hidden) {
        for (const name of names) form.elements[name].value = "";
        apply();
        target.scrollIntoView();
      }
      return;
    }
    const given = new URLSearchParams(hash);
    for (const name of names) form.elements[name].value = given.get(name) ?? "";
    apply();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => remember(apply()));
  form.addEventListener("reset", () => setTimeout(() => remember(apply())));
  addEventListener("hashchange", follow);
  addEventListener("beforeprint", () => {
    for (const element of document.querySelectorAll("details")) element.open = true;
  });
  if (matchMedia("(max-width: 40rem)").matches) document.getElementById("filter-panel").open = false;
  apply();
  follow();
})();
