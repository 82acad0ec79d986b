// The official Node clients behind a pipe: `node driver.mjs URL`.
//
// A line of input is {client, method, args, mode}, with the method named as in Python; a line of output is {whole},
// {pieces}, {pieces, whole} or {error}. Modes: whole, items (a list that the client pages through), stream, helper (the
// client's own stream helper), and abort-whole and abort-stream, which end with {aborted: true}.

import { createInterface } from "node:readline";

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const ABORT_AFTER_MS = 400;
const [, , url] = process.argv;
const common = { apiKey: "none", maxRetries: 0 };
const clients = {
  anthropic: new Anthropic({ ...common, baseURL: url }),
  ollama: new Ollama({ host: url }),
  openai: new OpenAI({ ...common, baseURL: `${url}/v1` }),
};

function method(client, path) {
  const names = path.split(".").map((name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase()));
  const last = names.pop();
  const owner = names.reduce((object, name) => object[name], client);
  return owner[last].bind(owner);
}

async function collect(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

async function helped(stream) {
  const pieces = await collect(stream);
  const final = stream.finalChatCompletion ?? stream.finalResponse ?? stream.finalMessage;
  return { pieces, whole: await final.call(stream) };
}

async function abortedWhole({ client, method: path, args }) {
  const signal = AbortSignal.timeout(ABORT_AFTER_MS);
  // The client of Ollama can abort streams only; a fetch of one's own is its way for the rest.
  const fetching = (to, options) => fetch(to, { ...options, signal });
  const call = client === "ollama"
    ? method(new Ollama({ host: url, fetch: fetching }), path)(...args)
    : method(clients[client], path)(...args, { signal });
  return call.then((whole) => ({ whole }), () => ({ aborted: signal.aborted }));
}

async function abortedStream({ client, method: path, args }) {
  const stream = await method(clients[client], path)(...args);
  for await (const _ of stream) break;
  (stream.controller ?? stream).abort();
  return { aborted: true };
}

const modes = {
  whole: async (call) => ({ whole: await method(clients[call.client], call.method)(...call.args) }),
  items: async (call) => ({ whole: await collect(method(clients[call.client], call.method)(...call.args)) }),
  stream: async (call) => ({ pieces: await collect(await method(clients[call.client], call.method)(...call.args)) }),
  helper: (call) => helped(method(clients[call.client], call.method)(...call.args)),
  "abort-whole": abortedWhole,
  "abort-stream": abortedStream,
};

function failure(error) {
  const { name } = error.constructor;
  return { error: { name, status: error.status ?? error.status_code ?? null, body: error.error ?? error.message } };
}

for await (const line of createInterface({ input: process.stdin })) {
  const call = JSON.parse(line);
  const told = await modes[call.mode](call).catch(failure);
  process.stdout.write(`${JSON.stringify(told)}\n`);
}
