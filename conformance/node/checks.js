// What clients in JavaScript do to a broker: KafkaJS and @platformatic/kafka, each by its own means.
//
// Arguments: the bootstrap server. One line per check, in three parts with tabs between: "ok" or "FAILED", the
// client with its version and the check, why it failed. The exit status is the number of failures.
import { readFileSync } from 'node:fs'
import { KafkaJs } from './kafkajs.js'
import { Platformatic } from './platformatic.js'

const LIMIT_MS = 120_000
const broker = process.argv[2]

function numbers (start, end) {
  return Array.from({ length: end - start }, (_, index) => String(start + index))
}

// The group named like the topic reads these numbers, each once, and commits.
async function expect (client, topic, start, end) {
  const values = await client.consume(topic, topic, end - start)
  const wanted = numbers(start, end).sort().join(' ')
  if (values.sort().join(' ') !== wanted) {
    throw new Error(`${values.length} records came instead of ${end - start}, or others`)
  }
}

const checks = {
  'create a topic': (client, topic) => client.create(topic),
  'produce with its own codecs': async (client, topic) => {
    for (const [index, codec] of client.codecs.entries()) {
      await client.produce(topic, codec, numbers(index * 100, index * 100 + 100))
    }
  },
  'consume in a group, and commit': (client, topic) => expect(client, topic, 0, 100 * client.codecs.length),
  'committed offset is read back': async (client, topic) => {
    const partitions = await client.committed(topic, topic)
    if (partitions !== 2) throw new Error(`${partitions} partitions have an offset`)
  },
  'resume where the group stopped': async (client, topic) => {
    await client.produce(topic, 'none', numbers(1_000, 1_100))
    await expect(client, topic, 1_000, 1_100)
  },
  'two members share': async (client, topic) => {
    const shares = await client.share(topic, `${topic}-shared`)
    if (shares.join() !== '1,1') throw new Error(`they have ${shares.join(' and ')} partitions`)
  },
  'delete the topic': (client, topic) => client.remove(topic)
}

function withinLimit (promise) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`not done after ${LIMIT_MS / 1_000} s`)), LIMIT_MS)
    promise.then(resolve, reject).finally(() => clearTimeout(timer))
  })
}

function version (name) {
  const path = new URL(`node_modules/${name}/package.json`, import.meta.url)
  return JSON.parse(readFileSync(path, 'utf8')).version
}

let failures = 0
for (const client of [new KafkaJs(broker), new Platformatic(broker)]) {
  const topic = `${client.name.replace(/\W/g, '')}-${Date.now()}`
  for (const [check, run] of Object.entries(checks)) {
    let why = null
    try {
      await withinLimit(run(client, topic))
    } catch (error) {
      why = String(error.stack ?? error).split(/\s+/).join(' ').slice(0, 500)
      failures++
    }
    console.log([why === null ? 'ok' : 'FAILED', `${client.name} ${version(client.name)}, ${check}`, why ?? ''].join('\t'))
  }
}
process.exit(failures)
