// A key that the visitor types is not null.

const kind = document.querySelector("[name=key_kind]");
document.querySelector("[name=key]")?.addEventListener("input", (event) => {
  if (event.target.value && kind.value === "null") kind.value = "text";
});
