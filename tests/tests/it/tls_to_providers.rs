//! A provider must prove its name: with another name's certificate, or one of an unknown CA, it gets nothing, least of all
//! the credential.

use std::time::Duration;

use anyhow::ensure;
use scripted_provider::{Listen, Provider, Script, TestCa};
use serde_json::json;
use sluicegate_tests::side_by_side;
use sluicegate_tests::stack::Stack;

/// A provider that is reached as `localhost` and shows a certificate for `name`; its model is called `model`.
async fn provider(stack: &Stack, model: &str, name: &str, ca: &TestCa, trusted: bool) -> Provider {
    let listen = Listen { tls: Some(ca.server(&[name]).unwrap()), ..Listen::default() };
    let provider = Provider::start_on(listen, Script::new()).await.unwrap();
    let base = format!("https://localhost:{}/v1", provider.addr().port());
    stack.admin.provider(model, &base, trusted.then(|| ca.pem()).as_deref()).await.unwrap();
    stack.admin.credential(model, model, "sk-for-the-right-one-only").await.unwrap();
    stack.admin.model(model, model, "m", model).await.unwrap();
    provider
}

#[test]
fn only_the_right_name_of_a_known_ca() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let ca = TestCa::new().unwrap();
        let right = provider(stack, "tls-right", "localhost", &ca, true).await;
        let wrong = provider(stack, "tls-wrong-name", "other.test", &ca, true).await;
        let unknown = provider(stack, "tls-unknown-ca", "localhost", &ca, false).await;
        stack.policy_in_force().await;
        let scene = stack.scene("tls").await;
        let status = |model: &'static str| {
            let scene = &scene;
            async move { Ok::<u16, anyhow::Error>(scene.chat(json!({"model": model})).await?.status) }
        };
        sluicegate_tests::eventually("the right one answers", Duration::from_secs(15), || async {
            let got = status("tls-right").await?;
            ensure!(got == 200, "{got}");
            Ok(())
        })
        .await;
        assert_eq!(right.requests()[0].header("authorization"), Some("Bearer sk-for-the-right-one-only"));
        for model in ["tls-wrong-name", "tls-unknown-ca"] {
            assert!(status(model).await.unwrap() >= 500, "{model}");
        }
        assert!(wrong.connections() > 0 && unknown.connections() > 0, "they were tried");
        assert_eq!((wrong.count(), unknown.count()), (0, 0), "nothing was said to them");
    });
}
