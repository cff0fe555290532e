import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { Kafka, logLevel } from 'kafkajs';
import { Broker } from './broker.js';
import { publish } from './orders.js';

let broker;
let kafka;

before(async () => {
  broker = await Broker.start();
  kafka = new Kafka({
    brokers: [broker.kafkaUrl],
    logLevel: logLevel.NOTHING,
    retry: { retries: 3, initialRetryTime: 50 },
  });
});
after(() => broker.stop());
beforeEach(() => broker.control('POST', 'reset'));

test('an order is published', async () => {
  await publish(kafka, '42', 'paid');
  await broker.control('POST', 'assertions', { topic: 'orders', key: '42', value: 'paid', count: 1 });
});

test('a leader that moves is asked again', async () => {
  const fault = { fault: 'failing_kafka', api: 'Produce', error: 'NOT_LEADER_OR_FOLLOWER', times: 1 };
  const { id } = await broker.control('POST', 'faults', fault);
  await publish(kafka, '42', 'paid');
  const [struck] = await broker.control('GET', 'faults');
  assert.deepEqual([struck.id, struck.hits], [id, 1]);
  await broker.control('POST', 'assertions', { topic: 'orders', count: 1 });
});

test('a lost answer stores an order twice', async () => {
  await publish(kafka, '41', 'first');
  await broker.control('POST', 'faults', { fault: 'losing_kafka_answers', api: 'Produce', times: 1 });
  await publish(kafka, '42', 'paid');
  await broker.control('POST', 'assertions', { topic: 'orders', key: '42', count: 2 });
});

test('an order has the time of the broker', async () => {
  await broker.control('PUT', 'clock', { now: '2031-05-06T07:08:09Z' });
  await publish(kafka, '42', 'paid');
  const [order] = await broker.control('GET', 'messages?topic=orders');
  assert.equal(new Date(order.broker_time_ms).getUTCFullYear(), 2031);
});

test('a full disk is an error', async () => {
  await publish(kafka, '41', 'first');
  await broker.control('POST', 'faults', { fault: 'failing_disk', error: 'ENOSPC' });
  await assert.rejects(publish(kafka, '42', 'never stored'));
  await broker.control('DELETE', 'faults');
  await broker.control('POST', 'assertions', { topic: 'orders', key: '42', count: 0 });
});
