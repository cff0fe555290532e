package orders

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// connect makes the broker as new, and returns a client of it.
func connect(t *testing.T) pulsar.Client {
	t.Helper()
	control(t, "POST", "reset", "")
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: serviceURL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestAReminderComesAfterAnHour(t *testing.T) {
	client := connect(t)
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic: "reminders", SubscriptionName: "mail", Type: pulsar.Shared,
	})
	if err != nil {
		t.Fatal(err)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "reminders"})
	if err != nil {
		t.Fatal(err)
	}
	message := &pulsar.ProducerMessage{Payload: []byte("pay!"), DeliverAfter: time.Hour}
	if _, err := producer.Send(context.Background(), message); err != nil {
		t.Fatal(err)
	}

	control(t, "POST", "clock/advance", `{"hours": 1}`)

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	received, err := consumer.Receive(ctx)
	if err != nil || string(received.Payload()) != "pay!" {
		t.Fatalf("got %v, %v", received, err)
	}
}

func TestALostReceiptStoresAnOrderTwice(t *testing.T) {
	client := connect(t)
	control(t, "POST", "faults", `{"fault": "losing_receipts", "topic": "orders", "times": 1}`)
	if err := Publish(client, "42", []byte("paid")); err != nil {
		t.Fatal(err)
	}
	control(t, "POST", "assertions", `{"topic": "orders", "key": "42", "count": 2}`)
}

func TestAFullDiskIsAnError(t *testing.T) {
	client := connect(t)
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: "orders", SendTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	control(t, "POST", "faults", `{"fault": "failing_disk", "error": "ENOSPC"}`)
	message := &pulsar.ProducerMessage{Payload: []byte("never stored")}
	if _, err := producer.Send(context.Background(), message); !errors.Is(err, pulsar.ErrSendTimeout) {
		t.Fatalf("got %v", err)
	}
	control(t, "DELETE", "faults", "")
	control(t, "POST", "assertions", `{"topic": "orders", "count": 0}`)
}
