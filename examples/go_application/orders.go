// Package orders is an application that publishes to Pulsar with the official Go client.
package orders

import (
	"context"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Publish sends one order; its number is the key.
func Publish(client pulsar.Client, number string, payload []byte) error {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: "orders"})
	if err != nil {
		return err
	}
	defer producer.Close()
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Key: number, Payload: payload})
	return err
}
