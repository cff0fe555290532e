use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use futures::TryStreamExt;
use orders::publish;
use pulsar::{Consumer, OperationRetryOptions, Pulsar, SubType, TokioExecutor};
use serde_json::{json, Value};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

/// A broker in a process of its own, on a free port, with its messages in memory.
struct Broker {
    service_url: String,
    http_url: String,
    /// Holds its standard input, at whose end it stops: with the process of the tests.
    _process: Child,
}

impl Broker {
    fn start() -> Broker {
        // Where pulsemark is installed, if not on the PATH.
        let program = std::env::var("PULSEMARK").unwrap_or("pulsemark".into());
        let mut process = Command::new(program)
            .args(["standalone", "--storage", "memory", "--port", "0", "--http-port", "0", "--json"])
            .args(["--test-controls", "--exit-on-stdin-close"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the broker did not start");
        // The broker writes one line when it serves.
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).expect("the broker was not ready");
        let address = |name: &str| ready[name].as_str().unwrap().to_owned();
        Broker { service_url: address("service_url"), http_url: address("http_url"), _process: process }
    }

    /// Makes a request to the broker's test controls.
    fn control(&self, method: &str, path: &str, body: Value) {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/pulsemark/test/{path}", self.http_url))
            .body(body.to_string())
            .unwrap();
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut answer = agent.run(request).unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        assert!(answer.status().is_success(), "{method} {path}: {} {text}", answer.status());
    }

    async fn client(&self, operation_timeout: Duration) -> Pulsar<TokioExecutor> {
        let options = OperationRetryOptions { operation_timeout, ..Default::default() };
        let builder = Pulsar::builder(&self.service_url, TokioExecutor);
        builder.with_operation_retry_options(options).build().await.unwrap()
    }
}

/// All tests share the broker, one after the other; each finds it as new.
async fn broker() -> MutexGuard<'static, Broker> {
    static BROKER: LazyLock<Mutex<Broker>> = LazyLock::new(|| Mutex::new(Broker::start()));
    let broker = BROKER.lock().await;
    broker.control("POST", "reset", Value::Null);
    broker
}

const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn an_order_is_published() {
    let broker = broker().await;
    let client = broker.client(LIMIT).await;
    let mut consumer: Consumer<String, _> =
        client.consumer().with_topic("orders").with_subscription("billing").build().await.unwrap();

    publish(&client, "42", "paid").await.unwrap();

    let message = timeout(LIMIT, consumer.try_next()).await.unwrap().unwrap().unwrap();
    assert_eq!(message.key(), Some("42".to_owned()));
    assert_eq!(message.deserialize().unwrap(), "paid");
    consumer.ack(&message).await.unwrap();
}

#[tokio::test]
async fn a_reminder_comes_after_an_hour() {
    let broker = broker().await;
    let client = broker.client(LIMIT).await;
    let subscription = client.consumer().with_topic("reminders").with_subscription("mail");
    let mut consumer: Consumer<String, _> =
        subscription.with_subscription_type(SubType::Shared).build().await.unwrap();
    let mut producer = client.producer().with_topic("reminders").build().await.unwrap();
    let reminder = producer.create_message().with_content("pay!").delay(Duration::from_secs(3600)).unwrap();
    reminder.send_non_blocking().await.unwrap().await.unwrap();

    broker.control("POST", "clock/advance", json!({"hours": 1}));

    let message = timeout(LIMIT, consumer.try_next()).await.unwrap().unwrap().unwrap();
    assert_eq!(message.deserialize().unwrap(), "pay!");
}

#[tokio::test]
async fn a_lost_receipt_stores_an_order_twice() {
    let broker = broker().await;
    let client = broker.client(LIMIT).await;
    broker.control("POST", "faults", json!({"fault": "losing_receipts", "topic": "orders", "times": 1}));
    publish(&client, "42", "paid").await.unwrap();
    broker.control("POST", "assertions", json!({"topic": "orders", "key": "42", "count": 2}));
}

#[tokio::test]
async fn a_full_disk_is_an_error() {
    let broker = broker().await;
    let client = broker.client(Duration::from_secs(1)).await;
    broker.control("POST", "faults", json!({"fault": "failing_disk", "error": "ENOSPC"}));
    assert!(timeout(LIMIT, publish(&client, "42", "never stored")).await.unwrap().is_err());
    broker.control("DELETE", "faults", Value::Null);
    broker.control("POST", "assertions", json!({"topic": "orders", "count": 0}));
}
