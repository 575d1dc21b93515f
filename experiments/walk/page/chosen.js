// What is chosen, a run and a cell, and the words for a stage.

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (selector) => document.querySelector(selector);

const state = {
  run: 0,
  pinned: null,
  hover: null
};
const stageOf = (name) => data.stages.find((stage) => stage.output === name) ||
    data.stages.find((stage) => stage.inputs.includes(name));

const inWords = (name) => name.replace("strided_batched_matmul", "batched multiply")
                              .replace("gradient_matmul", "gradient")
                              .replaceAll("_", " ");
