//! The Envoys as the control plane knows them.

use chrono::TimeDelta;
use serde_json::Value;

use super::finding::{Finding, Findings};
use crate::cli::output::text;

/// Past it an Envoy's own clock is worth a look; past the second one tokens are judged wrongly.
const CLOCK_OFF: TimeDelta = TimeDelta::milliseconds(250);
const CLOCK_WRONG: TimeDelta = TimeDelta::seconds(30);

/// The Envoys that live, compared with each other, and those that are gone, without judgement.
pub(super) fn judge_all(envoys: &[Value]) -> Vec<Finding> {
    let (live, gone): (Vec<&Value>, Vec<&Value>) = envoys.iter().partition(|envoy| is(envoy, "live"));
    let mut findings = Vec::new();
    if live.is_empty() {
        let mut none = Findings::about("Envoys");
        none.bad("none is connected", "start one with the bootstrap and node token of this control plane");
        findings.extend(none.all);
    }
    let newest = live.iter().filter_map(|envoy| envoy.get("policy_revision")?.as_i64()).max().unwrap_or(0);
    findings.extend(live.iter().flat_map(|envoy| judge(envoy, newest)));
    // The latest boot of a node comes first; earlier ones say nothing more.
    let mut told: Vec<String> = live.iter().map(|envoy| text(envoy, "node")).collect();
    for envoy in gone {
        let node = text(envoy, "node");
        if !told.contains(&node) {
            findings.push(Finding::Note(format!("Envoy {node}: gone since {}", text(envoy, "last_seen"))));
            told.push(node);
        }
    }
    findings
}

fn is(envoy: &Value, field: &str) -> bool {
    envoy.get(field) == Some(&Value::Bool(true))
}

fn judge(envoy: &Value, newest: i64) -> Vec<Finding> {
    let mut findings = Findings::about(format!("Envoy {}", text(envoy, "node")));
    follows(envoy, newest, &mut findings);
    if is(envoy, "clash") {
        findings.bad(
            &format!("boot {} is one of several that live under this node id", text(envoy, "boot")),
            "give each process a --service-node of its own; one that drains after a hot restart goes by itself",
        );
    }
    clock(envoy, &mut findings);
    let counted = |field: &str| envoy.pointer(&format!("/standing/{field}")).and_then(Value::as_u64).unwrap_or(0);
    if counted("traps") > 0 {
        findings.warning(
            &format!("its filter trapped {} times", counted("traps")),
            "look into its log; `sluicegate reconcile` books what those streams used",
        );
    }
    if counted("records_dropped") > 0 {
        findings.warning(
            &format!("dropped {} usage records", counted("records_dropped")),
            "`sluicegate reconcile` books them from its access log",
        );
    }
    if counted("overfull_buckets") > 0 {
        findings.warning("has far more keys in some buckets than it began with", "start it again");
    }
    findings.all
}

fn follows(envoy: &Value, newest: i64, findings: &mut Findings) {
    let policy = envoy.get("policy_revision").and_then(Value::as_i64).unwrap_or(0);
    if !is(envoy, "ready") {
        findings.bad("has no complete state yet", "if it stays so, look into its log");
    } else if envoy.get("refused_revision").and_then(Value::as_i64).is_some_and(|refused| refused > policy) {
        let (revision, field) = (text(envoy, "refused_revision"), text(envoy, "refused_field"));
        findings.bad(
            &format!("refused policy {revision}: {field}: {}", text(envoy, "refused_message")),
            "change that, or run the filter of this version",
        );
    } else if policy < newest {
        findings.bad(&format!("works by policy {policy}, others by {newest}"), "if it stays behind, look into its log");
    } else {
        findings.good(&format!("Envoy {}, policy {policy}", text(envoy, "envoy_version")));
    }
}

fn clock(envoy: &Value, findings: &mut Findings) {
    let Some(ms) = envoy.pointer("/standing/clock_offset_ms").and_then(Value::as_i64) else { return };
    let off = TimeDelta::try_milliseconds(ms).unwrap_or(TimeDelta::MAX).abs();
    // The offset is what must be added to its clock.
    let fault = format!(
        "its clock is {} ms {} the control plane's",
        off.num_milliseconds(),
        if ms < 0 { "before" } else { "behind" }
    );
    let remedy = "let NTP set the clocks of both machines";
    if off > CLOCK_WRONG {
        findings.bad(&format!("{fault}: tokens (JWT) expire at the wrong time"), remedy);
    } else if off > CLOCK_OFF {
        findings.warning(&fault, remedy);
    } else {
        findings.good(&format!("its clock agrees with the control plane's ({ms} ms)"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn envoy(node: &str, live: bool, policy: i64) -> Value {
        json!({"node": node, "ready": true, "policy_revision": policy, "envoy_version": "1", "live": live, "last_seen": "then"})
    }

    fn lines(envoys: &[Value]) -> Vec<String> {
        judge_all(envoys).iter().map(Finding::line).collect()
    }

    #[test]
    fn what_is_gone_is_noted_and_not_compared_with() {
        let told = lines(&[envoy("a", true, 4), envoy("b", false, 9), envoy("b", false, 8), envoy("a", false, 9)]);
        assert_eq!(told, ["OK   Envoy a: Envoy 1, policy 4\n", "note Envoy b: gone since then\n"]);
        let found = judge_all(&[envoy("a", true, 4), envoy("b", true, 5)]);
        assert!(matches!(&found[..], [Finding::Bad(_), Finding::Good(_)]), "{found:?}");
        assert!(matches!(&judge_all(&[envoy("a", false, 4)])[..], [Finding::Bad(_), Finding::Note(_)]));
    }

    #[test]
    fn clashes_clocks_and_losses_are_named() {
        let with = |field: &str, value: Value| {
            let mut envoy = envoy("a", true, 4);
            match field {
                "clash" => envoy["clash"] = value,
                field => envoy["standing"] = json!({field: value}),
            }
            lines(&[envoy]).pop().unwrap()
        };
        assert!(with("clash", json!(true)).starts_with("FAIL Envoy a: boot - is one of several"));
        assert!(with("clock_offset_ms", json!(-250)).starts_with("OK   Envoy a: its clock agrees"));
        assert!(with("clock_offset_ms", json!(251)).starts_with("WARN Envoy a: its clock is 251 ms behind"));
        assert!(with("clock_offset_ms", json!(-30_001)).starts_with("FAIL Envoy a: its clock is 30001 ms before"));
        assert!(with("traps", json!(2)).starts_with("WARN Envoy a: its filter trapped 2 times"));
        assert!(with("records_dropped", json!(3)).starts_with("WARN Envoy a: dropped 3 usage records"));
    }
}
