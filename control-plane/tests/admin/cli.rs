//! The client commands against a real Admin API.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use sluicegate_core::exchange::log::{Origin, recorded};
use sluicegate_core::proto::dataplane::{Ended, Record};
use tokio::io::AsyncWriteExt as _;

use crate::fixture::{ADMIN_TOKEN, Gate};

pub struct Cli {
    pub gate: Gate,
    pub url: String,
}

impl Cli {
    pub async fn new() -> Self {
        let gate = Gate::stocked().await;
        let url = gate.served().await;
        Self { gate, url }
    }

    pub fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_sluicegate"));
        command
            .args(args)
            .env_clear()
            .envs([("SLUICEGATE_URL", self.url.as_str()), ("SLUICEGATE_ADMIN_TOKEN", ADMIN_TOKEN)])
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    pub async fn run(&self, args: &[&str], input: &str) -> Output {
        let mut child = self.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that does not read its input may be gone already.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        child.wait_with_output().await.unwrap()
    }

    pub async fn ok(&self, args: &[&str], input: &str) -> String {
        let output = self.run(args, input).await;
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub async fn fails(&self, args: &[&str], input: &str) -> String {
        let output = self.run(args, input).await;
        assert!(!output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }
}

#[tokio::test]
async fn a_keys_life() {
    let cli = Cli::new().await;
    let create = ["keys", "create", "ci", "--org", "acme", "--model", "gpt-4o", "--network", "10.0.0.0/8"];
    let first = cli.ok(&create, "").await;
    assert!(first.starts_with("sk-sg-") && first.trim().lines().count() == 1);
    let second = cli.ok(&["keys", "rotate", "acme/ci"], "").await;
    assert_ne!(first, second);
    let list = cli.ok(&["keys", "list"], "").await;
    assert!(list.starts_with("KEY ID") && list.contains("gpt-4o") && list.contains("10.0.0.0/8"), "{list}");
    let json: Value = serde_json::from_str(&cli.ok(&["keys", "list", "-o", "json"], "").await).unwrap();
    assert_eq!(json[0]["name"], "ci");
    cli.ok(&["keys", "revoke", "acme/ci"], "").await;
    assert!(cli.fails(&["keys", "revoke", "acme/ci"], "").await.contains("no key is named"));
    assert_eq!(
        cli.fails(&["keys", "create", "x", "--org", "none"], "").await,
        "sluicegate: org: no org is named \"none\"\n"
    );
}

#[tokio::test]
async fn a_file_is_validated_applied_and_exported() {
    let cli = Cli::new().await;
    let export = cli.ok(&["export"], "").await;
    assert!(export.starts_with("version: v1"), "{export}");
    assert_eq!(cli.ok(&["apply", "-f", "-", "--prune"], &export).await, "");
    let more = format!("{}- name: umbrella\n{}", section(&export, "orgs"), "keys:\n- {org: umbrella, name: k}\n");
    let more = format!("version: v1\n{more}");
    let dry = cli.ok(&["apply", "-f", "-", "--dry-run"], &more).await;
    assert_eq!(dry, "+ org umbrella\n+ key umbrella/k\n");
    let done = cli.ok(&["apply", "-f", "-"], &more).await;
    assert!(done.contains("umbrella/k sk-sg-"), "{done}");
    cli.ok(&["validate", "-f", "-"], &export).await;
    let bad = more.replace("umbrella, name: k", "nobody, name: k");
    assert!(cli.fails(&["validate", "-f", "-"], &bad).await.contains("keys[0].org: no org of this file"));
    cli.ok(&["validate", "-f", "-", "--partial"], &bad).await;
    assert!(cli.fails(&["apply", "-f", "-"], &bad).await.contains("keys[0].org: no org is named"));
}

/// What the docs show can be used as it stands.
#[tokio::test]
async fn the_files_in_the_docs_are_good() {
    let cli = Cli::new().await;
    for (name, text) in
        [("README.md", include_str!("../../../README.md")), ("docs/file.md", include_str!("../../../docs/file.md"))]
    {
        let files: Vec<&str> = text
            .split("```yaml\n")
            .skip(1)
            .map(|after| after.split("```").next().unwrap())
            .filter(|file| file.starts_with("version: v1"))
            .collect();
        assert_eq!(files.len(), 1, "{name}");
        cli.ok(&["validate", "-f", "-"], files[0]).await;
    }
}

/// A top-level section of a YAML file, to its end.
fn section<'a>(file: &'a str, name: &str) -> &'a str {
    let start = file.find(&format!("\n{name}:")).unwrap() + 1;
    let length = file[start..].match_indices('\n').map(|(i, _)| i + 1).find(|i| {
        let rest = &file[start + i..];
        !rest.starts_with(['-', ' '])
    });
    &file[start..start + length.unwrap()]
}

#[tokio::test]
async fn an_access_log_is_reconciled_and_explained() {
    let cli = Cli::new().await;
    let now = chrono::Utc::now().timestamp_nanos_opt().unwrap();
    let record = Record {
        seq: 1,
        admitted_ns: now,
        operation: (0..16).collect::<Vec<u8>>().into(),
        attempt: 1,
        last: true,
        requested_model: "gpt-4o".into(),
        route: "chat.completions".into(),
        status: 200,
        ended: Ended::Complete.into(),
        cost_nano: Some(2_500),
        ..Record::default()
    };
    let line =
        format!("x POST /v1/chat/completions 200 {}\n", recorded(Origin { boot: 1, vm: 2, context: 3 }, &[record]));
    for (added, already) in [(1, 0), (0, 1)] {
        let report: Value = serde_json::from_str(&cli.ok(&["reconcile", "-o", "json"], &line).await).unwrap();
        assert_eq!((&report["added"], &report["already"]), (&json!(added), &json!(already)));
    }
    let request = "00010203-0405-0607-0809-0a0b0c0d0e0f";
    let told = cli.ok(&["explain", request], "").await;
    assert!(told.contains(request) && told.contains("$0.0000025") && told.contains("client got 200"), "{told}");
    assert!(cli.ok(&["usage"], "").await.contains(request));
    assert!(cli.ok(&["usage", "--by", "day"], "").await.contains("$0.0000025"));
    assert!(cli.fails(&["usage", "--key", "none"], "").await.contains("no key is named"));
}

#[tokio::test]
async fn a_node_token_is_printed_as_its_environment() {
    let cli = Cli::new().await;
    let made = cli.ok(&["nodes", "token", "create", "edge"], "").await;
    assert!(made.starts_with("SLUICEGATE_NODE_TOKEN=sgn-") && made.contains("\nSLUICEGATE_SEAL_KEY="), "{made}");
    cli.ok(&["nodes", "token", "revoke", "edge"], "").await;
    assert!(cli.ok(&["nodes", "token", "list"], "").await.contains("edge"));
    cli.ok(&["nodes", "list"], "").await;
}

#[tokio::test]
async fn what_is_wrong_is_said_in_one_line() {
    let cli = Cli::new().await;
    let wrong = cli.fails(&["keys", "list", "--token", "wrong"], "").await;
    assert_eq!(wrong, "sluicegate: send a valid admin token: Authorization: Bearer <token>\n");
    let nobody = cli.fails(&["keys", "list", "--url", "http://127.0.0.1:9"], "").await;
    assert!(nobody.contains("the control plane at http://127.0.0.1:9/ does not answer"), "{nobody}");
    // The API has no readiness of its own here; what doctor finds is that nothing is ready.
    let sick = cli.run(&["doctor"], "").await;
    assert!(!sick.status.success());
    let told = String::from_utf8(sick.stdout).unwrap();
    assert!(told.contains("FAIL Envoys: none is connected") && told.contains("OK   models: 1"), "{told}");
    assert_eq!(cli.gate.get("/v1/keys").await["items"], json!([]));
}

#[tokio::test]
async fn doctor_says_what_is_missing_and_what_to_do() {
    let cli = Cli::new().await;
    let gate = &cli.gate;
    for name in ["local", "remote"] {
        let provider = json!({"name": name, "dialect": "openai", "base_url": "https://models.example"});
        gate.created("/v1/providers", provider).await;
        let model = json!({"name": format!("{name}-tiny"), "targets": [{"provider": name, "model": "t1"}]});
        gate.created("/v1/models", model).await;
    }
    for (name, source) in [("no-file", "file:/nowhere/at/all"), ("no-variable", "env:SLUICEGATE_TEST_NOT_SET")] {
        let credential = json!({"name": name, "provider": "remote", "source": source});
        if name == "no-variable" {
            let model = json!({"targets": [{"provider": "remote", "model": "t1", "credential": "no-file"}]});
            gate.patched("/v1/models/remote-tiny", model).await;
        }
        gate.created("/v1/credentials", credential).await;
    }
    let output = cli.run(&["doctor"], "").await;
    let told = String::from_utf8(output.stdout).unwrap();
    for line in [
        "FAIL credential no-file: cannot be read (file:/nowhere/at/all): ",
        "FAIL credential no-variable: cannot be read (env:SLUICEGATE_TEST_NOT_SET): ",
        "; set SLUICEGATE_TEST_NOT_SET in the control plane's environment",
        "WARN provider local: no credential, but used by local-tiny: ",
        "WARN model local-tiny: local/t1 is unpriced: cost will be unknown; add a price for provider local, model t1",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert!(!told.contains("WARN provider remote") && !told.contains("credential main"), "{told}");
}

#[tokio::test]
async fn the_last_admin_token_stays() {
    let cli = Cli::new().await;
    let token = cli.ok(&["admin-token", "create", "alice"], "").await;
    assert!(token.starts_with("sga-") && token.trim().lines().count() == 1, "{token}");
    assert!(cli.ok(&["admin-token", "list", "--token", token.trim()], "").await.contains("alice"));
    cli.ok(&["admin-token", "revoke", "seed", "--token", token.trim()], "").await;
    assert!(cli.fails(&["admin-token", "list"], "").await.contains("send a valid admin token"));
    let last = cli.fails(&["admin-token", "revoke", "alice", "--token", token.trim()], "").await;
    assert!(last.contains("is the last admin token"), "{last}");
    let taken = cli.fails(&["admin-token", "create", "alice", "--token", token.trim()], "").await;
    assert_eq!(taken, "sluicegate: name: this name is taken\n");
}

#[tokio::test]
async fn usage_names_nobody_and_what_is_gone() {
    let cli = Cli::new().await;
    cli.ok(&["keys", "create", "ci", "--org", "acme"], "").await;
    let id = cli.gate.get("/v1/keys/acme%2Fci").await["id"].as_u64().unwrap();
    let record = |seq: u64, key: u64, refusal: &str| Record {
        seq,
        admitted_ns: chrono::Utc::now().timestamp_nanos_opt().unwrap(),
        operation: vec![u8::try_from(seq).unwrap(); 16].into(),
        attempt: 1,
        last: true,
        key: key.try_into().unwrap(),
        refusal: refusal.into(),
        status: 401,
        ended: Ended::Refused.into(),
        ..Record::default()
    };
    let records = [record(1, 0, "invalid_api_key"), record(2, id, ""), record(3, id, "")];
    let line = format!("x {}\n", recorded(Origin { boot: 1, vm: 2, context: 3 }, &records));
    cli.ok(&["reconcile"], &line).await;
    cli.ok(&["keys", "revoke", "acme/ci"], "").await;
    let by_key = cli.ok(&["usage", "--by", "key"], "").await;
    assert!(by_key.contains("\n-  ") && by_key.contains(&format!("\nci (deleted {id})  ")), "{by_key}");
    for by in ["org", "team", "user", "model"] {
        assert!(cli.ok(&["usage", "--by", by], "").await.contains("\n-  "), "{by}");
    }
    let gone = cli.ok(&["usage", "--key", &id.to_string()], "").await;
    assert_eq!(gone.lines().count(), 3, "{gone}");
    let cut = cli.run(&["usage", "--limit", "2"], "").await;
    assert_eq!(String::from_utf8(cut.stdout).unwrap().lines().count(), 3);
    assert!(String::from_utf8(cut.stderr).unwrap().contains("only 2 are shown, there are more"));
    let all = cli.run(&["usage", "--limit", "3", "--from", "2026-01-01"], "").await;
    assert!(all.stderr.is_empty() && String::from_utf8(all.stdout).unwrap().contains("invalid_api_key"));
    let told = cli.ok(&["explain", "01010101-0101-0101-0101-010101010101"], "").await;
    assert!(told.contains("the key was not known") && told.contains("never reached the provider"), "{told}");
    assert!(!told.contains("went to") && !told.contains("usage  "), "{told}");
}

#[tokio::test]
async fn a_log_of_no_use_and_a_wrong_time_are_refused_in_words() {
    let cli = Cli::new().await;
    let useless = cli.fails(&["reconcile"], "hello\nworld\n").await;
    assert!(useless.contains("none of 2 lines holds a record"), "{useless}");
    cli.ok(&["reconcile"], "").await;
    let wants = "wants a time such as 2030-01-01T00:00:00Z, or a date such as 2030-01-01\n";
    let create = ["keys", "create", "x", "--org", "acme", "--expires-at", "soon"];
    assert_eq!(cli.fails(&create, "").await, format!("sluicegate: expires_at: {wants}"));
    assert_eq!(cli.fails(&["usage", "--from", "soon"], "").await, format!("sluicegate: from: {wants}"));
    assert!(cli.fails(&["validate", "-f", "-"], "").await.contains("is empty"));
    cli.ok(&["keys", "create", "old", "--org", "acme", "--expires-at", "2020-01-01"], "").await;
    let list = cli.ok(&["keys", "list"], "").await;
    assert!(list.lines().next().unwrap().contains("CREATED") && list.contains("expired"), "{list}");
}

#[tokio::test]
async fn a_keyring_is_created_once() {
    let cli = Cli::new().await;
    let path = std::env::temp_dir().join(format!("sluicegate-cli-keyring-{}", std::process::id()));
    let path = path.to_str().unwrap();
    let _ = std::fs::remove_file(path);
    cli.ok(&["keyring", "create", path], "").await;
    assert!(cli.fails(&["keyring", "create", path], "").await.contains("File exists"));
    std::fs::remove_file(path).unwrap();
}
