package orders

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestAnOrderIsPublished(t *testing.T) {
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: serviceURL})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()

	if err := Publish(client, "42", []byte("paid")); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if message.Key() != "42" || string(message.Payload()) != "paid" {
		t.Fatalf("got key %q, payload %q", message.Key(), message.Payload())
	}
	if err := consumer.Ack(message); err != nil {
		t.Fatal(err)
	}
}
