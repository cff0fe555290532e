//! An application that publishes to Pulsar with the crate `pulsar`.

use pulsar::{Error, Pulsar, TokioExecutor};

/// Sends one order; its number is the key.
pub async fn publish(client: &Pulsar<TokioExecutor>, number: &str, payload: &str) -> Result<(), Error> {
    let mut producer = client.producer().with_topic("orders").build().await?;
    let message = producer.create_message().with_key(number).with_content(payload);
    message.send_non_blocking().await?.await?;
    producer.close().await
}
