//! Admission, traps and resumes on each Envoy that is supported: their filter callbacks differ in the corners.

use serde_json::json;
use sluicegate_tests::{Http, Stack, side_by_side, tools};

use crate::shapes::each_is_admitted_once_or_answered;
use crate::traps::{
    End, clients_that_leave_around_a_resume, next_is_served, paused_and_streaming, stack, trap_at, trapped,
};

async fn holds_on(stack: &Stack) {
    each_is_admitted_once_or_answered(stack).await;
    let scene = stack.scene("versions").await;
    let mut times = 0;
    for http in [Http::H1, Http::H2] {
        for place in ["request-headers", "request-body", "adapter-body", "response-headers"] {
            let end = End::of(&scene, http, trap_at(scene.chat_call(json!({})), place)).await;
            assert!(end.is_restart(), "{place} {http:?}: {end:?}");
            times += 1;
            trapped(stack, times).await;
            next_is_served(&scene, http).await;
        }
    }
    paused_and_streaming(stack, 5).await;
    clients_that_leave_around_a_resume(&scene, 4, 100).await;
}

#[test]
fn on_1_38_2() {
    side_by_side(async { holds_on(&stack(Some(tools::older_envoy("1.38.2"))).await).await });
}

#[test]
fn on_1_39_3() {
    side_by_side(async { holds_on(&stack(Some(tools::older_envoy("1.39.3"))).await).await });
}

#[test]
fn on_1_40_0() {
    side_by_side(async { holds_on(&stack(None).await).await });
}
