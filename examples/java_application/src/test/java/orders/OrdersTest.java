package orders;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
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

    @BeforeEach
    void reset() throws Exception {
        broker.control("POST", "reset", "");
    }

    @Test
    void aReminderComesAfterAnHour() throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl).build();
                Consumer<byte[]> consumer = client.newConsumer().topic("reminders").subscriptionName("mail")
                        .subscriptionType(SubscriptionType.Shared).subscribe();
                Producer<byte[]> producer = client.newProducer().topic("reminders").create()) {
            producer.newMessage().value("pay!".getBytes(StandardCharsets.UTF_8)).deliverAfter(1, TimeUnit.HOURS).send();
            broker.control("POST", "clock/advance", "{\"hours\": 1}");
            assertNotNull(consumer.receive(30, TimeUnit.SECONDS));
        }
    }

    @Test
    void aLostReceiptStoresAnOrderTwice() throws Exception {
        broker.control("POST", "faults", "{\"fault\": \"losing_receipts\", \"topic\": \"orders\", \"times\": 1}");
        try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl).build()) {
            new Orders(client).publish("42", "paid".getBytes(StandardCharsets.UTF_8));
        }
        broker.control("POST", "assertions", "{\"topic\": \"orders\", \"key\": \"42\", \"count\": 2}");
    }

    @Test
    void aFullDiskIsAnError() throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.serviceUrl).build();
                Producer<byte[]> producer =
                        client.newProducer().topic("orders").sendTimeout(1, TimeUnit.SECONDS).create()) {
            broker.control("POST", "faults", "{\"fault\": \"failing_disk\", \"error\": \"ENOSPC\"}");
            assertThrows(PulsarClientException.TimeoutException.class, () -> producer.send(new byte[] {1}));
            broker.control("DELETE", "faults", "");
        }
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
