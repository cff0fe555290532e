package orders;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

class OrdersTest {
    private static Broker broker;

    @BeforeAll
    static void start() throws Exception {
        broker = new Broker();
    }

    @AfterAll
    static void stop() throws Exception {
        broker.close();
    }

    @Test
    void anOrderIsPublished() throws Exception {
        byte[] paid = "paid".getBytes(StandardCharsets.UTF_8);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl).build();
                Consumer<byte[]> consumer =
                        client.newConsumer().topic("orders").subscriptionName("billing").subscribe()) {
            new Orders(client).publish("42", paid);

            Message<byte[]> message = consumer.receive(30, TimeUnit.SECONDS);
            assertNotNull(message);
            assertEquals("42", message.getKey());
            assertArrayEquals(paid, message.getValue());
            consumer.acknowledge(message);
        }
    }
}
