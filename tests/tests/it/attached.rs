use serde_json::json;
use sluicegate_tests::attached::{Pieces, Theirs, knows, stack};
use sluicegate_tests::side_by_side;

#[test]
fn serves() {
    side_by_side(async {
        let stack = stack().await;
        let scene = stack.scene("attached").await;
        let theirs = Theirs::new(stack.provider.addr()).await;
        let pieces = Pieces::render(stack, &["--scope-path-prefix", "/v1"]);
        let envoy = theirs.envoy(Some(&pieces)).await;
        knows(&envoy, &scene).await;
        let reply =
            sluicegate_tests::send(sluicegate_tests::Http::H1, envoy.addr(), scene.chat_call(json!({}))).await.unwrap();
        let (status, headers) = (reply.status, format!("{:?}", reply.headers));
        let text = reply.text().await.unwrap();
        assert_eq!(status, 200, "{headers} {text} {}", envoy.process().log_tail(50));
    });
}
