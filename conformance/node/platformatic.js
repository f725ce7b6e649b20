import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'

export class Platformatic {
  name = '@platformatic/kafka'
  codecs = ['none', 'gzip']

  constructor (broker) {
    this.options = { clientId: 'platformatic', bootstrapBrokers: [broker], timeout: 60_000 }
  }

  async admin (use) {
    const admin = new Admin(this.options)
    try {
      return await use(admin)
    } finally {
      await admin.close()
    }
  }

  create (topic) {
    return this.admin(admin => admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 }))
  }

  remove (topic) {
    return this.admin(admin => admin.deleteTopics({ topics: [topic] }))
  }

  async produce (topic, codec, values) {
    const producer = new Producer({ ...this.options, serializers: stringSerializers, idempotent: true })
    const messages = values.map(value => {
      return { topic, key: value, value, partition: Number(value) % 2, headers: { number: value } }
    })
    await producer.send({ messages, acks: -1, ...(codec === 'none' ? {} : { compression: codec }) })
    await producer.close()
  }

  consumer (groupId) {
    return new Consumer({ ...this.options, groupId, deserializers: stringDeserializers })
  }

  async consume (topic, groupId, count) {
    const consumer = this.consumer(groupId)
    const stream = await consumer.consume({
      topics: [topic], autocommit: false, mode: 'committed', fallbackMode: 'earliest', maxWaitTime: 500
    })
    const values = []
    for await (const message of stream) {
      values.push(message.value)
      await message.commit()
      if (values.length === count) break
    }
    await consumer.close(true)
    return values
  }

  async share (topic, groupId) {
    const consumers = [this.consumer(groupId), this.consumer(groupId)]
    const streams = await Promise.all(consumers.map(consumer => {
      return consumer.consume({ topics: [topic], mode: 'latest', maxWaitTime: 500 })
    }))
    for (const stream of streams) stream.on('data', () => {})
    const shares = () => consumers.map(consumer => {
      const mine = (consumer.assignments ?? []).find(assignment => assignment.topic === topic)
      return mine?.partitions.length ?? 0
    })
    while (shares().join() !== '1,1') await new Promise(resolve => setTimeout(resolve, 20))
    await Promise.all(consumers.map(consumer => consumer.close(true)))
    return [1, 1]
  }

  async committed (topic, groupId) {
    const groups = [{ groupId, topics: [{ name: topic, partitionIndexes: [0, 1] }] }]
    const [answer] = await this.admin(admin => admin.listConsumerGroupOffsets({ groups }))
    const found = answer.topics.find(each => each.name === topic)
    return found.partitions.filter(partition => partition.committedOffset >= 0n).length
  }
}
