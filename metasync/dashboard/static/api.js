// Asks the server, and hears what it tells.

export class Refused extends Error {
  constructor(error) {
    super(error.message);
    this.kind = error.kind;
    this.step = error.next_step;
    this.guard = error.guard ?? null;
  }
}

const ENDED = { kind: "Ended", message: "The page has ended", next_step: "Run `metasync ui` again." };

async function asked(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refused(ENDED);
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Refused(ENDED);
  }
  if (!response.ok) throw new Refused(answer.error);
  return answer;
}

function query(fields) {
  const given = Object.entries(fields ?? {}).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** One look at a workspace: `overview`, `log`, `files` and so on. */
export function look(workspace, view, fields) {
  return asked(`api/${workspace}/${view}${query(fields)}`);
}

/** Has something done. */
export function act(workspace, action, fields = {}) {
  return asked(`api/${workspace}/do/${action}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(fields),
  });
}

/** The address of a file of a version, to be saved. */
export function fileUrl(workspace, version, path) {
  return `api/${workspace}/file${query({ version, path })}`;
}

/** The address of a side of a conflict that is a picture. */
export function pictureUrl(workspace, copy, side) {
  return `api/${workspace}/picture${query({ copy, side })}`;
}

/** Calls `heard` with each state of a workspace, and `connected` with whether the server is there. */
export function listen(heard, connected) {
  const source = new EventSource("api/events");
  source.addEventListener("message", (event) => heard(JSON.parse(event.data)));
  source.addEventListener("open", () => connected(true));
  source.addEventListener("error", () => connected(false));
}
