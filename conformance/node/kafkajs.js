import kafkajs from 'kafkajs'

const CODECS = { none: kafkajs.CompressionTypes.None, gzip: kafkajs.CompressionTypes.GZIP }

export class KafkaJs {
  name = 'kafkajs'
  codecs = Object.keys(CODECS)

  constructor (broker) {
    const quiet = { logLevel: kafkajs.logLevel.NOTHING }
    this.kafka = new kafkajs.Kafka({ clientId: 'kafkajs', brokers: [broker], requestTimeout: 60_000, ...quiet })
  }

  async admin (use) {
    const admin = this.kafka.admin()
    await admin.connect()
    try {
      return await use(admin)
    } finally {
      await admin.disconnect()
    }
  }

  create (topic) {
    return this.admin(admin => admin.createTopics({ topics: [{ topic, numPartitions: 2 }], waitForLeaders: true }))
  }

  remove (topic) {
    return this.admin(admin => admin.deleteTopics({ topics: [topic] }))
  }

  async produce (topic, codec, values) {
    const producer = this.kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
    await producer.connect()
    const messages = values.map(value => ({ key: value, value, partition: Number(value) % 2, headers: { number: value } }))
    await producer.send({ topic, acks: -1, compression: CODECS[codec], messages })
    await producer.disconnect()
  }

  async consume (topic, groupId, count) {
    const consumer = this.kafka.consumer({ groupId })
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    const values = []
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, event => reject(event.payload.error))
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          values.push(message.value.toString())
          await consumer.commitOffsets([{ topic, partition, offset: String(BigInt(message.offset) + 1n) }])
          if (values.length === count) resolve()
        }
      }).catch(reject)
    })
    await consumer.disconnect()
    return values
  }

  async share (topic, groupId) {
    const held = [0, 0]
    const consumers = await Promise.all(held.map(async (_, member) => {
      const consumer = this.kafka.consumer({ groupId })
      consumer.on(consumer.events.GROUP_JOIN, event => {
        held[member] = (event.payload.memberAssignment[topic] ?? []).length
      })
      await consumer.connect()
      await consumer.subscribe({ topics: [topic] })
      await consumer.run({ eachMessage: async () => {} })
      return consumer
    }))
    while (held.join() !== '1,1') await new Promise(resolve => setTimeout(resolve, 20))
    await Promise.all(consumers.map(consumer => consumer.disconnect()))
    return held
  }

  async committed (topic, groupId) {
    const [answer] = await this.admin(admin => admin.fetchOffsets({ groupId, topics: [topic] }))
    return answer.partitions.filter(partition => BigInt(partition.offset) >= 0n).length
  }
}
