// Opens the page once: shows the token behind the # to the server, which gives a cookie for a path of its own.

const told = document.getElementById("told");
const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname);

if (!token) {
  told.textContent = "This address alone opens nothing. Run `metasync ui` in a terminal: it prints one that does.";
} else {
  try {
    const response = await fetch("open", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token }),
    });
    const answer = await response.json();
    if (response.ok) {
      location.replace(answer.path);
    } else {
      told.textContent = answer.error.message;
    }
  } catch {
    told.textContent = "The page has ended. Run `metasync ui` again.";
  }
}
