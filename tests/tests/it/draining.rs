//! An Envoy that is to stop (`sluicegate drain` beside it): streams that run end whole, new requests are served and told to
//! connect elsewhere, and whoever stops it hears when nothing runs any more, or when it took too long.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use scripted_provider::{Answer, Chat, Hold};
use serde_json::json;
use sluicegate_tests::process::Process;
use sluicegate_tests::sse::text_of;
use sluicegate_tests::{Call, Http, Stack, eventually, send, side_by_side, tools};

struct Drain {
    process: Process,
    address: SocketAddr,
}

impl Drain {
    async fn start(stack: &Stack, longest: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], tools::free_port()));
        let (admin, listen) = (stack.envoy.admin().to_string(), address.to_string());
        let args = ["drain", "--admin", &admin, "--listen", &listen, "--longest", longest];
        let process = Process::start("drain", &tools::folder("drain"), &tools::built("sluicegate"), &args, &[]).await;
        let drain = Self { process, address };
        eventually("it listens", Duration::from_secs(20), || async {
            let metrics = send(Http::H1, drain.address, Call::get("/stats/prometheus")).await?.text().await?;
            ensure!(metrics.contains("sluicegate_ready"), "{metrics}");
            Ok(())
        })
        .await;
        drain
    }

    /// Asks for SIGTERM's work, and returns what `GET /drained` says when it does.
    async fn drain(&self) -> tokio::task::JoinHandle<String> {
        self.process.signal(Signal::TERM);
        let address = self.address;
        tokio::spawn(async move { send(Http::H1, address, Call::get("/drained")).await.unwrap().text().await.unwrap() })
    }
}

#[test]
fn streams_end_whole_before_it_is_drained() {
    side_by_side(async {
        let stack = Stack::start().await;
        let drain = Drain::start(&stack, "60").await;
        let (scene, hold) = (stack.scene("drained").await, Hold::new());
        scene.answer(Answer::from(Chat::text(&["one ", "two"])).hold_events(&hold));
        hold.release(1);
        let mut stream = scene.chat(json!({"stream": true})).await.unwrap().events();
        stream.next().await.unwrap().unwrap();

        let drained = drain.drain().await;
        let other = stack.scene("late").await;
        eventually("it sends clients away", Duration::from_secs(10), || async {
            let reply = other.chat(json!({})).await?;
            ensure!(reply.status == 200, "{}", reply.status);
            ensure!(reply.header("connection") == Some("close"), "{:?}", reply.headers);
            Ok(())
        })
        .await;
        // Longer than it waits for late requests where nothing runs.
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!drained.is_finished() && drain.process.is_running(), "a stream runs");

        hold.open();
        assert_eq!(text_of(&stream.rest().await.unwrap()), "one two");
        assert_eq!(drained.await.unwrap(), "drained\n");
        assert!(drain.process.ended().await.success());
        assert!(stack.envoy.process().terminate().await.success());
    });
}

#[test]
fn it_does_not_wait_for_ever() {
    side_by_side(async {
        let stack = Stack::start().await;
        let drain = Drain::start(&stack, "6").await;
        let (scene, hold) = (stack.scene("endless").await, Hold::new());
        scene.answer(Answer::from(Chat::text(&["one ", "two"])).hold_events(&hold));
        hold.release(1);
        let mut stream = scene.chat(json!({"stream": true})).await.unwrap().events();
        stream.next().await.unwrap().unwrap();
        assert_eq!(drain.drain().await.await.unwrap(), "drained\n");
        assert!(drain.process.log().contains("it took too long"), "{}", drain.process.log());
        // An Envoy that is gone is waited for no longer.
        let drain = Drain::start(&stack, "60").await;
        stack.envoy.process().kill_9().await;
        assert_eq!(drain.drain().await.await.unwrap(), "drained\n");
    });
}
