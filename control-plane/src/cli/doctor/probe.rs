//! Reads an Envoy's admin interface. Nothing that it asks for changes anything.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use chrono::Utc;
use reqwest::{Client, Method, Url};
use serde_json::Value;

use super::envoy::{self, Dumps};
use super::finding::{Finding, Findings};

const TIMEOUT: Duration = Duration::from_secs(20);
/// A configuration with a thousand clusters has some ten.
const MAX_PAGE_BYTES: usize = 256 << 20;

/// What is found at an admin interface.
pub(super) async fn examine(url: &Url) -> Vec<Finding> {
    match dumps(url).await {
        Ok(dumps) => envoy::judge(url.as_str().trim_end_matches('/'), &dumps, Utc::now()),
        Err(error) => {
            let mut findings = Findings::about(format!("Envoy {url}"));
            findings.bad(&format!("{error:#}"), "give the address of the bootstrap's `admin`, from its own machine");
            findings.all
        }
    }
}

async fn dumps(url: &Url) -> anyhow::Result<Dumps> {
    // It is on this machine or in its pod, whatever proxy the environment names.
    let http = Client::builder().no_proxy().timeout(TIMEOUT).build()?;
    let page = async |method: Method, path: &str| page(&http, url, method, path).await;
    let json = async |path: &str| -> anyhow::Result<Value> {
        let text = page(Method::GET, path).await?;
        serde_json::from_str(&text).with_context(|| format!("answers /{path} with no JSON: is it an Envoy?"))
    };
    let server_info = json("server_info").await?;
    ensure!(server_info.get("version").is_some_and(Value::is_string), "is no Envoy: its /server_info has no version");
    Ok(Dumps {
        server_info,
        config: json("config_dump").await?,
        certs: json("certs").await?,
        // Without parameters it changes nothing; Envoy answers no GET of it.
        logging: page(Method::POST, "logging").await?,
        stats: page(Method::GET, "stats").await?,
    })
}

async fn page(http: &Client, url: &Url, method: Method, path: &str) -> anyhow::Result<String> {
    let mut target = url.clone();
    target.path_segments_mut().map_err(|()| anyhow::anyhow!("is no address of a server"))?.pop_if_empty().push(path);
    let mut response = http.request(method, target).send().await.context("does not answer")?;
    ensure!(response.status().is_success(), "answers /{path} with {}: is it an Envoy?", response.status());
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.with_context(|| format!("broke off in /{path}"))? {
        body.extend_from_slice(&chunk);
        ensure!(body.len() <= MAX_PAGE_BYTES, "/{path} is larger than {} MiB", MAX_PAGE_BYTES >> 20);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}
