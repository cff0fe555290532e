// A broker in a process of its own, on free ports, with its messages in memory.
import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

export class Broker {
  /** Starts it, and resolves when it serves. */
  static async start() {
    // Where pulsemark is installed, if not on the PATH.
    const program = process.env.PULSEMARK ?? 'pulsemark';
    const child = spawn(
      program,
      ['standalone', '--storage', 'memory', '--port', '0', '--http-port', '0', '--kafka-port', '0', '--json',
        '--test-controls', '--exit-on-stdin-close'],
      { stdio: ['pipe', 'pipe', 'inherit'] },
    );
    // The broker writes one line when it serves.
    for await (const line of createInterface({ input: child.stdout })) {
      return new Broker(child, JSON.parse(line));
    }
    throw new Error('the broker was not ready');
  }

  constructor(child, ready) {
    this.child = child;
    this.kafkaUrl = ready.kafka_url;
    this.httpUrl = ready.http_url;
  }

  /** Makes a request to the broker's test controls, and returns the answer. */
  async control(method, path, body) {
    const answer = await fetch(`${this.httpUrl}/pulsemark/test/${path}`, {
      method,
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const text = await answer.text();
    if (!answer.ok) {
      throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    }
    return text ? JSON.parse(text) : null;
  }

  /** Ends it in order. */
  stop() {
    return new Promise((resolve) => {
      this.child.once('exit', resolve);
      this.child.kill('SIGTERM');
    });
  }
}
