// How a workspace fares, in a colour, a sign and words.

import { h, icon } from "./dom.js";
import { size } from "./words.js";

const DOING = {
  "in step": ["good", "check", "In step"],
  waiting: ["warn", "waiting", "Waiting"],
  pushing: ["busy", "sync", "Pushing"],
  pulling: ["busy", "sync", "Pulling"],
  looking: ["busy", "sync", "Looking for news"],
  paused: ["", "pause", "Paused"],
  stuck: ["bad", "alert", "Needs you"],
  starting: ["busy", "sync", "Starting"],
  stopping: ["", "pause", "Stopping"],
};

export function tone(state) {
  return DOING[state.doing] ?? ["", "waiting", state.doing];
}

export function chip(state, connected = true) {
  const [colour, sign, words] = connected ? tone(state) : ["bad", "alert", "Not connected"];
  return h("span", { class: `chip ${colour}` }, icon(sign), words);
}

const CONDITIONS = {
  ok: ["good", "check", "Healthy"],
  full: ["warn", "alert", "Full"],
  "held back": ["warn", "waiting", "Held back"],
  "not linked": ["warn", "link", "Not linked here"],
  down: ["bad", "alert", "Away"],
  replaced: ["bad", "alert", "Emptied or replaced"],
  "rolled back": ["bad", "alert", "Set back"],
  distrusted: ["bad", "alert", "Not trusted"],
  "not usable": ["bad", "alert", "Not usable"],
};

export function condition(backend) {
  if (backend.evidence?.length) return ["bad", "alert", "Not to be trusted"];
  return CONDITIONS[backend.condition] ?? ["warn", "alert", backend.condition];
}

export function health(backend) {
  const [colour, sign, words] = condition(backend);
  return h("span", { class: `chip ${colour}` }, icon(sign), words);
}

const PHASES = {
  scan: "Reading the folder", upload: "Sending", download: "Fetching", checkout: "Writing files", agree: "Agreeing",
  check: "Checking", sync: "Beginning", push: "Beginning", pull: "Beginning",
};

export function phase(activity) {
  const told = PHASES[activity.phase] ?? activity.phase;
  if (activity.unit === "B") {
    const whole = activity.total ? ` of ${size(activity.total)}` : "";
    return `${told}: ${size(activity.done)}${whole}`;
  }
  if (activity.unit) {
    const whole = activity.total ? ` of ${activity.total.toLocaleString("en")}` : "";
    return `${told}: ${activity.done.toLocaleString("en")}${whole} ${activity.unit}`;
  }
  return told;
}
