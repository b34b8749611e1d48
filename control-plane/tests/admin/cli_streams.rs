//! What the client commands read and write when files, pipes and servers are not what they seem.

use std::fs::File;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use serde_json::{Value, json};

use crate::cli::Cli;

/// Runs a command with something else as its standard output.
async fn into(cli: &Cli, args: &[&str], stdout: impl Into<Stdio>) -> (Output, String) {
    // `output` would put a pipe in its place.
    let output = cli.command(args).stdout(stdout).spawn().unwrap().wait_with_output().await.unwrap();
    let told = String::from_utf8(output.stderr.clone()).unwrap();
    (output, told)
}

#[tokio::test]
async fn output_that_cannot_be_written_is_an_error() {
    let cli = Cli::new().await;
    cli.ok(&["keys", "create", "ci", "--org", "acme"], "").await;
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for args in [
        &["keys", "list"][..],
        &["keys", "list", "-o", "json"],
        &["nodes", "list"],
        &["nodes", "token", "list"],
        &["admin-token", "list"],
        &["export"],
        &["export", "-o", "json"],
        &["usage"],
        &["usage", "--by", "day"],
        &["doctor"],
        &["reconcile"],
    ] {
        let (output, told) = into(&cli, args, full()).await;
        assert!(!output.status.success(), "{args:?}");
        assert!(told.contains("cannot write to standard output: No space left on device"), "{args:?}: {told}");
    }
    let (output, _) = into(&cli, &["--help"], full()).await;
    assert!(!output.status.success());
}

#[tokio::test]
async fn a_secret_that_nobody_got_is_told_with_what_to_do() {
    let cli = Cli::new().await;
    let file = std::env::temp_dir().join(format!("sluicegate-cli-apply-{}.yaml", std::process::id()));
    std::fs::write(&file, "{version: v1, keys: [{org: acme, name: applied}]}").unwrap();
    let commands: [(&[&str], &str); 6] = [
        (&["keys", "create", "ci", "--org", "acme"], "`sluicegate keys rotate acme/ci`"),
        (&["keys", "create", "ci2", "--org", "acme", "-o", "json"], "`sluicegate keys rotate acme/ci2`"),
        (&["keys", "rotate", "acme/ci"], "`sluicegate keys rotate acme/ci`"),
        (&["nodes", "token", "create", "edge"], "`sluicegate nodes token revoke edge`"),
        (&["admin-token", "create", "alice"], "`sluicegate admin-token revoke alice`"),
        (&["apply", "-f", file.to_str().unwrap()], "`sluicegate keys rotate` for acme/applied"),
    ];
    for (args, remedy) in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (output, told) = into(&cli, args, full).await;
        assert!(!output.status.success(), "{args:?}");
        assert!(told.contains("No space left on device") && told.contains(remedy), "{args:?}: {told}");
    }
    std::fs::remove_file(file).unwrap();
    // Nor did a reader that went away.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let (output, told) = into(&cli, &["keys", "rotate", "acme/ci"], writer).await;
    assert!(!output.status.success() && told.contains("`sluicegate keys rotate acme/ci`"), "{told}");
}

#[tokio::test]
async fn a_reader_that_went_away_is_no_error() {
    let cli = Cli::new().await;
    for args in [&["export"][..], &["keys", "list"], &["usage", "-o", "json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (output, told) = into(&cli, args, writer).await;
        assert!(output.status.success() && told.is_empty(), "{args:?}: {told}");
    }
    // Where nobody reads errors either, the command still ends as it should.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let status = cli.command(&["keys", "list", "--token", "wrong"]).stderr(full).status().await.unwrap();
    assert_eq!(status.code(), Some(1));
}

#[tokio::test]
async fn what_answers_must_be_a_control_plane() {
    let mut cli = Cli::new().await;
    for answer in
        [json!({}), json!([]), json!({"items": []}), json!({"id": 1, "items": [], "secret": "x"}), Value::Null]
    {
        let body = answer.to_string();
        let router = Router::new().fallback(move || async move { ([("content-type", "application/json")], body) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        cli.url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router).into_future());
        for args in [
            &["keys", "create", "x", "--org", "acme"][..],
            &["keys", "list"],
            &["keys", "rotate", "1"],
            &["keys", "revoke", "1"],
            &["nodes", "list"],
            &["nodes", "token", "create", "x"],
            &["nodes", "token", "list"],
            &["nodes", "token", "revoke", "x"],
            &["admin-token", "create", "x"],
            &["admin-token", "list"],
            &["admin-token", "revoke", "x"],
            &["export"],
            &["usage"],
            &["usage", "--by", "day"],
            &["usage", "--org", "acme"],
            &["explain", "00010203-0405-0607-0809-0a0b0c0d0e0f"],
        ] {
            let told = cli.fails(args, "").await;
            assert!(told.contains("is no Sluicegate control plane"), "{args:?} {answer}: {told}");
        }
        for (args, input) in [(&["apply", "-f", "-"][..], "version: v1"), (&["reconcile"], "a line\n")] {
            let told = cli.fails(args, input).await;
            assert!(told.contains("is no Sluicegate control plane"), "{args:?} {answer}: {told}");
        }
        let sick = cli.run(&["doctor"], "").await;
        let told = String::from_utf8(sick.stdout).unwrap();
        assert!(!sick.status.success() && told.contains("FAIL control plane: "), "{told}");
    }
}

#[tokio::test]
async fn input_is_bounded() {
    let cli = Cli::new().await;
    let began = Instant::now();
    for path in ["/dev/zero", "/dev/urandom", "/tmp"] {
        for command in ["validate", "apply"] {
            let told = cli.fails(&[command, "-f", path], "").await;
            assert!(told.contains(&format!("{path} is neither a file nor a pipe")), "{told}");
        }
        assert!(cli.fails(&["keys", "list", "--ca", path], "").await.contains("is neither a file nor a pipe"));
        assert!(cli.fails(&["reconcile", path], "").await.contains("is neither a file nor a pipe"));
    }
    let endless = async |args: &[&str]| {
        let output = cli.command(args).stdin(File::open("/dev/zero").unwrap()).output().await.unwrap();
        assert!(!output.status.success(), "{args:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(endless(&["validate", "-f", "-"]).await.contains("standard input is larger than 64 MiB"));
    assert!(endless(&["reconcile"]).await.contains("a line is longer than"));
    for deep in ["[", "{a: ", "[{a: "] {
        let told = cli.fails(&["validate", "-f", "-"], &format!("version: v1\norgs: {}", deep.repeat(200_000))).await;
        assert!(told.contains("is nested deeper than 64 levels at line 2"), "{told}");
    }
    let directives = cli.fails(&["validate", "-f", "-"], &"%TAG !a! x\n".repeat(50_000)).await;
    assert!(directives.contains("has more than 8 directives"), "{directives}");
    // The quadratic parser took minutes for the last ones.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test]
async fn doctor_says_so_where_no_envoy_answers() {
    let cli = Cli::new().await;
    let told = async |args: Vec<String>| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = cli.run(&args, "").await;
        assert!(!output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let without = told(vec!["doctor".into()]).await;
    assert!(without.contains("note Envoys: their own configuration was not looked at"), "{without}");
    for line in ["OK   database: Postgres ", "OK   database: has all ", "OK   database: its clock agrees"] {
        assert!(without.contains(line), "{line}: {without}");
    }
    // A control plane is no Envoy, nor is nobody.
    let args = |url: &str| vec!["doctor".into(), "--envoy-admin".into(), url.to_owned()];
    let not = told(args(&cli.url)).await;
    assert!(not.contains(&format!("FAIL Envoy {}/: answers /server_info with ", cli.url)), "{not}");
    let nobody = told(args("http://127.0.0.1:9")).await;
    assert!(nobody.contains("FAIL Envoy http://127.0.0.1:9/: does not answer"), "{nobody}");
    // An Envoy is looked at even where the control plane cannot be.
    let output = cli.command(&["doctor", "--envoy-admin", "http://127.0.0.1:9"]).env_clear().output().await.unwrap();
    let alone = String::from_utf8(output.stdout).unwrap();
    assert!(
        alone.contains("FAIL control plane: no admin token") && alone.contains("FAIL Envoy http://127.0.0.1:9/"),
        "{alone}"
    );
}

#[tokio::test]
async fn doctor_tells_when_certificates_end() {
    let mut cli = Cli::new().await;
    let (url, ca) = cli.gate.served_with_tls().await;
    let authority = json!({"ca": ca, "base_url": "https://models.example/v1"});
    cli.gate.patched("/v1/providers/openai", authority).await;
    let file = std::env::temp_dir().join(format!("sluicegate-cli-ca-{}.pem", std::process::id()));
    std::fs::write(&file, ca).unwrap();
    cli.url = url;
    let output = cli.run(&["doctor", "--ca", file.to_str().unwrap()], "").await;
    std::fs::remove_file(file).unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    for line in [
        "OK   control plane: its certificate is valid until 4096-",
        "OK   provider openai: its CA is valid until 4096-",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
}
