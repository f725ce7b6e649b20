// A copier of KafkaJS: it copies a topic to another in transactions, with the offsets of its group in them.
//
// Arguments: the bootstrap server, the name of the group and the transactional id, the two topics, the records of a
// transaction. It prints "ready" when it has initialized the transactional id, and copies until it is killed.
import kafkajs from 'kafkajs'

const [broker, name, read, written, most] = process.argv.slice(2)
const kafka = new kafkajs.Kafka({ clientId: name, brokers: [broker], logLevel: kafkajs.logLevel.NOTHING })

const producer = kafka.producer({ transactionalId: name, idempotent: true, maxInFlightRequests: 1 })
await producer.connect()
// The first transaction initializes the id. Until then, offsets that the killed producer has committed may be pending.
const first = await producer.transaction()
await first.abort()
console.log('ready')

async function copy (partition, messages) {
  const transaction = await producer.transaction()
  try {
    const copies = messages.map(message => ({ partition, value: message.value }))
    await transaction.send({ topic: written, acks: -1, messages: copies })
    const offset = String(BigInt(messages.at(-1).offset) + 1n)
    await transaction.sendOffsets({ consumerGroupId: name, topics: [{ topic: read, partitions: [{ partition, offset }] }] })
    await transaction.commit()
  } catch (error) {
    await transaction.abort()
    throw error
  }
}

const consumer = kafka.consumer({ groupId: name, sessionTimeout: 2_000, heartbeatInterval: 300, maxWaitTimeInMs: 100 })
consumer.on(consumer.events.CRASH, event => {
  console.log(event.payload.error.message)
  process.exit(1)
})
await consumer.connect()
await consumer.subscribe({ topics: [read], fromBeginning: true })
await consumer.run({
  autoCommit: false,
  eachBatchAutoResolve: false,
  eachBatch: async ({ batch, resolveOffset, heartbeat, isRunning, isStale }) => {
    for (let start = 0; start < batch.messages.length && isRunning() && !isStale(); start += Number(most)) {
      const messages = batch.messages.slice(start, start + Number(most))
      await copy(batch.partition, messages)
      resolveOffset(messages.at(-1).offset)
      await heartbeat()
    }
  }
})
