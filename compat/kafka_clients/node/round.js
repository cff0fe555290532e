// kafkajs against one broker: ACTION BOOTSTRAP TOPIC [COUNT]. Exit code 0, or 1 with what is wrong.
const { Kafka, CompressionTypes, ConfigResourceTypes, logLevel } = require('kafkajs');

const [action, bootstrap, topic, count] = process.argv.slice(2);
const MESSAGES = 50;
const kafka = new Kafka({ clientId: 'round', brokers: [bootstrap], logLevel: logLevel.NOTHING });
const value = (number) => `${number} ${'x'.repeat(100)}`;

function check(condition, what) {
  if (!condition) throw new Error(JSON.stringify(what));
}

async function produce(to, compression, many) {
  const producer = kafka.producer({ allowAutoTopicCreation: true });
  await producer.connect();
  const messages = Array.from({ length: many }, (_, n) => ({
    key: 'k', value: value(n), headers: { h: 'v' },
  }));
  await producer.send({ topic: to, messages, compression, acks: -1 });
  await producer.disconnect();
}

async function consume(from, group, many) {
  const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: 200 });
  await consumer.connect();
  await consumer.subscribe({ topics: [from], fromBeginning: true });
  const seen = [];
  await new Promise((resolve, reject) => {
    consumer.run({ eachMessage: async ({ message }) => {
      seen.push(message.value.toString());
      if (seen.length === many) resolve();
    } }).catch(reject);
    setTimeout(() => reject(new Error(`only ${seen.length} messages`)), 30000).unref();
  });
  await consumer.disconnect();
  return seen;
}

async function admin(use) {
  const client = kafka.admin();
  await client.connect();
  try { await use(client); } finally { await client.disconnect(); }
}

const actions = {
  produce: () => produce(topic, CompressionTypes.None, MESSAGES),
  consume: async () => {
    const seen = await consume(topic, 'js-consume', MESSAGES);
    check(seen.every((each, n) => each === value(n)), seen.slice(0, 3));
  },
  codecs: async () => {
    await produce(`${topic}-gzip`, CompressionTypes.GZIP, MESSAGES);
    await consume(`${topic}-gzip`, 'js-gzip', MESSAGES);
  },
  write: () => produce(topic, CompressionTypes.GZIP, 10),
  read: async () => {
    // kafkajs itself has gzip only; the other codecs are libraries of their own.
    console.log('not there');
  },
  offsets: () => admin(async (client) => {
    const [at] = await client.fetchTopicOffsets(topic);
    check(at.high === String(MESSAGES) && at.low === '0', at);
    const [past] = await client.fetchTopicOffsetsByTimestamp(topic, 1000);
    check(past.offset === '0', past);
  }),
  groups: () => admin(async (client) => {
    await consume(topic, 'js-group', MESSAGES);
    const [committed] = await client.fetchOffsets({ groupId: 'js-group', topics: [topic] });
    check(committed.partitions[0].offset === String(MESSAGES), committed);
    const listed = await client.listGroups();
    check(listed.groups.some((each) => each.groupId === 'js-group'), listed);
    const described = await client.describeGroups(['js-group']);
    check(described.groups[0].state === 'Empty', described);
    await client.resetOffsets({ groupId: 'js-group', topic, earliest: true });
    await client.deleteGroups(['js-group']);
  }),
  topics: () => admin(async (client) => {
    const made = `${topic}-made`;
    check(await client.createTopics({ topics: [{ topic: made, numPartitions: 2 }] }), made);
    await client.createPartitions({ topicPartitions: [{ topic: made, count: 3 }] });
    const { topics } = await client.fetchTopicMetadata({ topics: [made] });
    check(topics[0].partitions.length === 3, topics);
    await client.deleteTopics({ topics: [made] });
  }),
  configs: () => admin(async (client) => {
    const type = ConfigResourceTypes.TOPIC;
    await client.alterConfigs({ validateOnly: false, resources: [
      { type, name: topic, configEntries: [{ name: 'retention.bytes', value: '1000000' }] }] });
    const { resources } = await client.describeConfigs({ includeSynonyms: false, resources: [
      { type, name: topic, configNames: ['retention.bytes'] }] });
    check(resources[0].configEntries[0].configValue === '1000000', resources);
  }),
  deletion: () => admin(async (client) => {
    await client.fetchTopicOffsets(topic); // or it does not know where the partition is
    const partitions = [{ partition: 0, offset: String(MESSAGES) }];
    await client.deleteTopicRecords({ topic, partitions });
  }),
};

actions[action]().then(() => process.exit(0), (error) => {
  console.error(error.stack);
  process.exit(1);
});
