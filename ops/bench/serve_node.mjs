// The baseline of `bench serve`: node-llama-cpp on the same file. One JSON command a line in, one JSON answer a line out.
import readline from "node:readline";
import {getLlama} from "node-llama-cpp";

const {model: modelPath, threads, sequences, context: contextSize, batch: batchSize} = JSON.parse(process.argv[2]);
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: threads});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({sequences, contextSize, batchSize, threads});
const all = Array.from({length: sequences}, () => context.getSequence());

// respond decodes n tokens greedily after a prompt; the end of a text does not end it.
async function respond(sequence, prompt, n) {
    await sequence.clearHistory();
    let count = 0;
    for await (const _ of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true}))
        if (++count >= n)
            break;
    return count;
}

const verbs = {
    async decode({prompts, tokens}) {
        const counts = await Promise.all(prompts.map((prompt, i) => respond(all[i], prompt, tokens)));
        return counts.reduce((a, b) => a + b, 0);
    },
    async prefill({prompts}) {
        for (const prompt of prompts) {
            await all[0].clearHistory();
            await all[0].evaluateWithoutGeneratingNewTokens(prompt);
        }
        return prompts.reduce((a, b) => a + b.length, 0);
    }
};

process.stdout.write(JSON.stringify({tokens: 0, seconds: 0}) + "\n");
for await (const line of readline.createInterface({input: process.stdin})) {
    const command = JSON.parse(line);
    const start = performance.now();
    const tokens = await verbs[command.verb](command);
    process.stdout.write(JSON.stringify({tokens, seconds: (performance.now() - start) / 1000}) + "\n");
}
process.exit(0);
