// Drives a gateway with the official npm client: node check.mjs BASE_URL API_KEY [scripted]
// With "scripted" the policy is the test's own, which says what it is told; without, any policy will do.
import assert from 'node:assert/strict'
import OpenAI from 'openai'

const [baseURL, apiKey, mode] = process.argv.slice(2)
const scripted = mode === 'scripted'
const client = new OpenAI({ baseURL, apiKey, maxRetries: 3, timeout: 120_000 })
const bounds = { model: 'policy', max_tokens: 24, temperature: 0.7, seed: 11 }
const hello = [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'Say hello to Ann' }]
const tool = { name: 'weather', description: 'The weather in a city', parameters: { type: 'object', properties: { city: { type: 'string' } } } }
const tools = [{ type: 'function', function: tool }]

const checks = {
  async models() {
    const ids = []
    for await (const m of client.models.list()) ids.push(m.id)
    assert.equal(ids[0], 'policy')
    await assert.rejects(client.models.retrieve('gpt-0'), OpenAI.NotFoundError)
  },
  async whole() {
    const { data, response } = await client.chat.completions.create({ ...bounds, messages: hello }).withResponse()
    assert.equal(data.id, 'chatcmpl-' + response.headers.get('x-nextstate-turn'))
    assert.equal(typeof data.choices[0].message.content, 'string')
    assert.ok(data.usage.total_tokens > 0)
    if (scripted) assert.equal(data.choices[0].message.content, 'You said: Say hello to Ann')
    const judged = await client.post('/feedback', { body: { response_id: data.id, score: -1, correction: 'Hello, Ann.' } })
    assert.equal(judged.recorded, true)
  },
  async stream() {
    let text = '', usage, chunks = 0
    for await (const chunk of await client.chat.completions.create({ ...bounds, messages: hello, stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? ''
      usage = chunk.usage ?? usage
      chunks++
    }
    assert.ok(usage.total_tokens > 0 && chunks > 2)
    if (scripted) assert.equal(text, 'You said: Say hello to Ann')
    const runner = client.chat.completions.stream({ ...bounds, messages: hello })
    assert.equal(typeof (await runner.finalContent()), 'string')
  },
  async logprobs() {
    const answer = await client.chat.completions.create({ ...bounds, messages: hello, logprobs: true, top_logprobs: 2 })
    assert.ok(answer.choices[0].logprobs.content.length > 0)
    assert.equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2)
  },
  async choices() {
    const answer = await client.chat.completions.create({ ...bounds, messages: hello, n: 3, max_tokens: 8 })
    assert.deepEqual(answer.choices.map((c) => c.index), [0, 1, 2])
  },
  async tools() {
    // The client's own loop: it calls the function and sends its result, until there is a last word.
    let asked = 0
    const runner = client.chat.completions.runTools({
      ...bounds,
      stream: true,
      messages: [{ role: 'user', content: 'call weather' }],
      tools: [{ type: 'function', function: { ...tool, parse: JSON.parse, function: () => (asked++, 'sunny') } }],
    })
    const last = await runner.finalContent()
    if (scripted) assert.deepEqual([asked, last], [1, 'You said: sunny'])
    const answer = await client.chat.completions.create({ ...bounds, tools, messages: [{ role: 'user', content: 'call weather' }] })
    if (scripted) assert.equal(answer.choices[0].message.tool_calls[0].function.arguments, '{"city":"Ulm"}')
  },
  async errors() {
    const bad = (change) => client.chat.completions.create({ ...bounds, messages: hello, ...change })
    await assert.rejects(bad({ temperature: 9 }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature')
    await assert.rejects(bad({ messages: [{ role: 'user', content: [{ type: 'video' }] }] }), (e) => e.param === 'messages[0].content[0].type')
    await assert.rejects(bad({ model: 'gpt-0' }), (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found')
    const wrong = new OpenAI({ baseURL, apiKey: 'nsk_wrong', maxRetries: 0 })
    await assert.rejects(wrong.chat.completions.create({ ...bounds, messages: hello }), OpenAI.AuthenticationError)
  },
  async abort() {
    const stream = await client.chat.completions.create({ ...bounds, messages: hello, stream: true })
    for await (const _ of stream) break // the client closes the connection
  },
}
if (scripted) {
  checks.faults = async () => {
    const ask = (content, more) => client.chat.completions.create({ ...bounds, messages: [{ role: 'user', content }], ...more }, { maxRetries: 0 })
    await assert.rejects(ask('always busy'), OpenAI.RateLimitError)
    await assert.rejects(ask('crash'), OpenAI.InternalServerError)
    await assert.rejects(async () => {
      for await (const _ of await ask('crash later', { stream: true }));
    }, OpenAI.APIError)
  }
}
for (const [name, check] of Object.entries(checks)) {
  await check()
  console.log('ok', name)
}
