package orders;

import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;

/** An application that publishes to Pulsar with the official Java client. */
public final class Orders {
    private final PulsarClient client;

    public Orders(PulsarClient client) {
        this.client = client;
    }

    /** Sends one order; its number is the key. */
    public void publish(String number, byte[] payload) throws PulsarClientException {
        try (Producer<byte[]> producer = client.newProducer().topic("orders").create()) {
            producer.newMessage().key(number).value(payload).send();
        }
    }
}
