// An application that publishes to Kafka with kafkajs.

/** Sends one order; its number is the key. */
export async function publish(kafka, number, payload) {
  const producer = kafka.producer();
  await producer.connect();
  try {
    await producer.send({ topic: 'orders', messages: [{ key: number, value: payload }] });
  } finally {
    await producer.disconnect();
  }
}
