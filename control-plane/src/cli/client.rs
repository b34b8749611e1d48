//! A client of the Admin API.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use chrono::{DateTime, Utc};
use reqwest::tls::TlsInfo;
use reqwest::{Certificate, Method, RequestBuilder, StatusCode, Url};
use serde::Serialize;
use serde_json::Value;

use super::input;
use super::output::Output;
use crate::admin::{Problem, VERSION_HEADER};
use crate::credentials::Secret;
use crate::tls::not_after;

/// Where the control plane is, and who asks.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(super) struct ClientArgs {
    /// The control plane's HTTP port
    #[arg(long, env = "SLUICEGATE_URL", default_value = "http://127.0.0.1:18001", global = true)]
    url: Url,
    /// An admin token
    #[arg(long = "token", env = "SLUICEGATE_ADMIN_TOKEN", hide_env_values = true, value_parser = secret, global = true)]
    admin_token: Option<Secret>,
    /// PEM file of the authority that signed the control plane's certificate
    #[arg(long, env = "SLUICEGATE_CA", global = true)]
    ca: Option<PathBuf>,
    /// How answers are printed
    #[arg(short, long, value_enum, default_value_t, global = true)]
    pub output: Output,
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text.to_owned()))
}

/// Names and values of a URL's query.
type Query<'a> = &'a [(&'a str, &'a str)];

/// Authorities of every public and private kind together.
const MAX_CA_BYTES: u64 = 4 << 20;

/// The list that an answer holds.
pub(super) fn items<'a>(answer: &'a Value, field: &str) -> anyhow::Result<&'a [Value]> {
    let items = answer.get(field).and_then(Value::as_array);
    items.map(Vec::as_slice).with_context(|| format!("the answer has no `{field}`; is it a Sluicegate control plane?"))
}

/// A connection to the Admin API.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    url: Url,
    token: Secret,
}

impl ClientArgs {
    pub fn connect(&self) -> anyhow::Result<Client> {
        let token = self.admin_token.clone().context("no admin token: set SLUICEGATE_ADMIN_TOKEN, or give --token")?;
        let roots = match &self.ca {
            Some(path) => {
                let pem = input::bytes(path, MAX_CA_BYTES).context("--ca")?;
                Certificate::from_pem_bundle(&pem).with_context(|| format!("--ca {}", path.display()))?
            }
            None => webpki_root_certs::TLS_SERVER_ROOT_CERTS
                .iter()
                .map(|root| Certificate::from_der(root))
                .collect::<Result<_, _>>()?,
        };
        let http = reqwest::Client::builder().tls_certs_only(roots).tls_info(true).build()?;
        Ok(Client { http, url: self.url.clone(), token })
    }
}

impl Client {
    /// A call to a path given by its segments, which are escaped.
    fn request(&self, method: Method, path: &[&str], query: Query<'_>) -> anyhow::Result<RequestBuilder> {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow::anyhow!("{} cannot be a base", self.url))?
            .pop_if_empty()
            .extend(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        Ok(self.http.request(method, url).bearer_auth(self.token.expose()))
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let unreachable = || format!("the control plane at {} does not answer", self.url);
        let response = request.send().await.with_context(unreachable)?;
        let status = response.status();
        let ours = response.headers().contains_key(VERSION_HEADER);
        let body = response.bytes().await.with_context(unreachable)?;
        if status.is_success() && !ours {
            bail!("what answers at {} is no Sluicegate control plane; give its address with --url", self.url);
        }
        if status == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        if status.is_success() {
            return serde_json::from_slice(&body).with_context(|| format!("{} answered no JSON", self.url));
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(Problem { error }) => match error.field {
                Some(field) => bail!("{field}: {}", error.message),
                None => bail!("{}", error.message),
            },
            Err(_) => bail!("{} answered {status}; is it a Sluicegate control plane?", self.url),
        }
    }

    pub async fn get(&self, path: &[&str], query: Query<'_>) -> anyhow::Result<Value> {
        self.send(self.request(Method::GET, path, query)?).await
    }

    /// All parts of a list.
    pub async fn list(&self, path: &[&str]) -> anyhow::Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut after = "0".to_owned();
        loop {
            let mut page = self.get(path, &[("limit", "1000"), ("after", &after)]).await?;
            let part = page.get_mut("items").map(Value::take);
            let Some(Value::Array(part)) = part else { bail!("{} answered no list", self.url) };
            items.extend(part);
            match page.get("next").and_then(Value::as_str) {
                Some(next) => after = next.to_owned(),
                None => return Ok(items),
            }
        }
    }

    pub async fn post(&self, path: &[&str], query: Query<'_>, body: &impl Serialize) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path, query)?.json(body)).await
    }

    pub async fn post_text(&self, path: &[&str], text: String) -> anyhow::Result<Value> {
        self.send(self.request(Method::POST, path, &[])?.body(text)).await
    }

    pub async fn delete(&self, path: &[&str]) -> anyhow::Result<()> {
        self.send(self.request(Method::DELETE, path, &[])?).await.map(drop)
    }

    /// Whether the control plane says it is ready, and until when its certificate is valid, where it has one.
    pub async fn ready(&self) -> anyhow::Result<(bool, Option<DateTime<Utc>>)> {
        let response = self.request(Method::GET, &["readyz"], &[])?.send().await?;
        let certificate = response.extensions().get::<TlsInfo>().and_then(TlsInfo::peer_certificate);
        Ok((response.status().is_success(), certificate.and_then(not_after)))
    }
}
