// Show only the fields that belong to the chosen start.

const form = document.getElementById("question");
const start = form.elements.namedItem("from");

function update() {
  for (const label of form.querySelectorAll("[data-for]")) {
    const belongs = label.dataset.for === start.value;
    label.hidden = !belongs;
    label.querySelector("input").disabled = !belongs;
  }
}

start.addEventListener("change", update);
update();
