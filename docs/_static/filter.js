// Puts a box above each long table, which leaves only the rows that contain all words typed into it.
// A page can be opened with words in its address: coverage.html?rows=softmax

const LONG = 40;

function addFilter(table) {
  const rows = [...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]);
  const box = document.createElement("input");
  const count = document.createElement("span");
  box.type = "search";
  box.className = "table-filter";
  box.placeholder = "Show rows with …";
  box.setAttribute("aria-label", "Show only the rows of the table that contain these words");
  box.value = new URLSearchParams(location.search).get("rows") ?? "";
  count.className = "table-filter-count";
  count.setAttribute("role", "status");

  function show() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  }

  box.addEventListener("input", show);
  const place = table.closest(".table-wrapper") ?? table;
  place.before(box, count);
  show();
}

document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    if (table.tBodies.length && table.tBodies[0].rows.length > LONG) addFilter(table);
  }
});
