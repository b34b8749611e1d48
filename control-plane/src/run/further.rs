//! Where things are, and how to go on.

use super::local::Local;
use super::report::Report;
use super::show::Shown;

/// For a run that stays up: what to try, and where to look.
pub fn print(local: &Local, shown: Option<&Shown>, report: &Report) {
    let program = program();
    let (http, admin) = (local.http, local.envoy_admin);
    let token = local.data.path("admin-token").display().to_string();
    report.line(&format!(
        r#"
  The ledger, and why a request went where it went:
     export SLUICEGATE_URL=http://{http} SLUICEGATE_ADMIN_TOKEN=$(cat {token})
     {program} usage"#
    ));
    if let Some(id) = shown.and_then(|shown| shown.last) {
        report.line(&format!("     {program} explain {id}"));
    }
    report.line(&format!("\n  A key for somebody:\n     {program} keys create --org demo NAME"));
    if let Some(shown) = shown {
        use_it(local, &shown.model.0, report);
    }
    report.line("\n  Where things are:");
    report.property("metrics", &format!("Envoy http://{admin}/stats/prometheus, control plane http://{http}/metrics"));
    report.property("Admin API", &format!("http://{http}/openapi.json"));
    if let Some(postgres) = local.postgres {
        let password = local.data.path("postgres-password").display().to_string();
        report.property("Postgres", &format!("\"postgres://sluicegate:$(cat {password})@{postgres}/postgres\""));
    }
    logs(local, report);
}

/// For a run that ends now: what stays.
pub fn print_ended(local: &Local, report: &Report) {
    report.line("\n  What stays:");
    report.property("state", &format!("{} (keys, database, usage)", local.data.directory().display()));
    logs(local, report);
    report.property("again", &format!("{} run, without --once, stays up with all of it", program()));
}

fn logs(local: &Local, report: &Report) {
    let files = [("access", "access.log"), ("logs", "envoy.log"), ("", "control-plane.log")];
    for (what, file) in files {
        report.property(what, &local.data.path(file).display().to_string());
    }
    if local.postgres.is_some() {
        report.property("", &local.data.path("postgres/postgres.log").display().to_string());
    }
}

fn use_it(local: &Local, model: &str, report: &Report) {
    let (envoy, key) = (local.envoy, local.data.path("demo-key").display().to_string());
    report.line(&format!(
        r#"
  Use it:
     export OPENAI_BASE_URL=http://{envoy}/v1 OPENAI_API_KEY=$(cat {key})
     curl $OPENAI_BASE_URL/chat/completions -H "authorization: Bearer $OPENAI_API_KEY" -H 'content-type: application/json' \
       -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
  The same in Python, after `pip install openai`:
     python3 -c 'from openai import OpenAI; print(OpenAI().chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}]))'
  Claude Code and Codex need /v1/messages and /v1/responses, which come later."#
    ));
}

/// How this program was called.
fn program() -> String {
    std::env::args().next().unwrap_or_else(|| "sluicegate".to_owned())
}
