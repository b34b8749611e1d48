//! An issuer of tokens (JWT, ES256), with its keys inline or served.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// Whom the tokens are for.
pub const AUDIENCE: &str = "sluicegate";

/// Signs tokens.
#[derive(Debug)]
pub struct TokenIssuer {
    pub iss: String,
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl TokenIssuer {
    /// With a key of its own.
    pub fn new(iss: impl Into<String>) -> Self {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random);
        Self { iss: iss.into(), key: key.expect("the key just made"), random }
    }

    /// Its JWK set.
    pub fn jwks(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = point.get(1..).expect("an uncompressed point").split_at(32);
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1", "x": text(x), "y": text(y)}]})
    }

    /// A token that is good for an hour, with `more` claims over the usual ones.
    pub fn token(&self, subject: &str, more: Value) -> String {
        let now = chrono::Utc::now().timestamp();
        let mut claims = json!({"iss": self.iss, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 3600});
        if let (Some(claims), Value::Object(more)) = (claims.as_object_mut(), more) {
            claims.extend(more);
        }
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&json!({"alg": "ES256", "typ": "JWT", "kid": "1"})), part(&claims));
        let signature = self.key.sign(&self.random, signed.as_bytes()).expect("a signature");
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

/// Serves a JWK set over plain HTTP, or hangs up while it is away.
#[derive(Debug)]
pub struct JwksServer {
    addr: SocketAddr,
    away: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl JwksServer {
    pub async fn start(jwks: Value) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let away = Arc::new(AtomicBool::new(false));
        let (is_away, body) = (Arc::clone(&away), jwks.to_string());
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = [0; 4096];
                if is_away.load(Ordering::SeqCst) || !matches!(socket.read(&mut request).await, Ok(1..)) {
                    continue;
                }
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = socket.write_all((head + &body).as_bytes()).await;
            }
        });
        Self { addr, away, task }
    }

    pub fn uri(&self) -> String {
        format!("http://{}/jwks.json", self.addr)
    }

    pub fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }
}

impl Drop for JwksServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
