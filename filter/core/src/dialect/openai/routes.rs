//! Which paths there are.

use super::Operation;
use crate::refusal::Refusal;

/// Where a request wants to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    ChatCompletions,
    Embeddings,
    /// The list of models; answered here.
    Models,
    /// One model, by its decoded name; answered here.
    Model(String),
}

impl Route {
    /// What is metered on this route; `None` for those answered here.
    pub fn operation(&self) -> Option<Operation> {
        match self {
            Self::ChatCompletions => Some(Operation::ChatCompletions),
            Self::Embeddings => Some(Operation::Embeddings),
            Self::Models | Self::Model(_) => None,
        }
    }
}

/// Finds the route of a request. `path` is the `:path` header, query included.
pub fn route(method: &str, path: &str) -> Result<Route, Refusal> {
    let plain = path.split_once('?').map_or(path, |(plain, _)| plain);
    let unknown = || Refusal::UnknownRoute { method: method.to_owned(), path: plain.to_owned() };
    let below = plain.strip_prefix("/v1/").ok_or_else(unknown)?;
    let (route, allowed) = match below {
        "chat/completions" => (Route::ChatCompletions, "POST"),
        "embeddings" => (Route::Embeddings, "POST"),
        "models" => (Route::Models, "GET"),
        _ => {
            let id = below.strip_prefix("models/").filter(|id| !id.is_empty()).ok_or_else(unknown)?;
            (Route::Model(percent_decoded(id).ok_or_else(unknown)?), "GET")
        }
    };
    if method == allowed { Ok(route) } else { Err(Refusal::MethodNotAllowed { allowed }) }
}

/// The `:path` to send upstream: the provider's prefix, then what the client's path has below `/v1`, query included.
/// `None` for a path outside `/v1`, which [`route`] has refused.
pub fn upstream_path(provider_prefix: &str, path: &str) -> Option<String> {
    let below = path.strip_prefix("/v1").filter(|below| below.starts_with('/'))?;
    Some(format!("{provider_prefix}{below}"))
}

/// `None` for a broken escape or bytes that are not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        decoded.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_paths() {
        assert_eq!(route("POST", "/v1/chat/completions"), Ok(Route::ChatCompletions));
        assert_eq!(route("POST", "/v1/chat/completions?a=/v1/models"), Ok(Route::ChatCompletions));
        assert_eq!(route("POST", "/v1/embeddings?"), Ok(Route::Embeddings));
        assert_eq!(route("GET", "/v1/models?limit=2"), Ok(Route::Models));
        assert_eq!(route("GET", "/v1/models/gpt-5"), Ok(Route::Model("gpt-5".into())));
        assert_eq!(route("GET", "/v1/models/openai%2Fgpt%205"), Ok(Route::Model("openai/gpt 5".into())));
        assert_eq!(route("GET", "/v1/models/openai/gpt-5?x"), Ok(Route::Model("openai/gpt-5".into())));
    }

    #[test]
    fn a_wrong_method_names_the_right_one() {
        assert_eq!(route("GET", "/v1/chat/completions"), Err(Refusal::MethodNotAllowed { allowed: "POST" }));
        assert_eq!(route("DELETE", "/v1/models/ft:x"), Err(Refusal::MethodNotAllowed { allowed: "GET" }));
        assert_eq!(route("post", "/v1/embeddings"), Err(Refusal::MethodNotAllowed { allowed: "POST" }));
    }

    #[test]
    fn nothing_else_exists() {
        for path in [
            "",
            "/",
            "*",
            "/chat/completions",
            "/v1",
            "/v1/",
            "/v1/chat/completions/",
            "/V1/embeddings",
            "/v1//embeddings",
            "/v1/chat%2Fcompletions",
            "/v1/models/",
            "/v1/models/%",
            "/v1/models/%4",
            "/v1/models/%zz",
            "/v1/models/%+1",
            "/v1/models/%ff",
            "/v1/modelsx",
            "/v1/responses",
            "/x/v1/embeddings",
        ] {
            let unknown = Refusal::UnknownRoute { method: "POST".into(), path: path.into() };
            assert_eq!(route("POST", path), Err(unknown), "{path}");
        }
    }

    #[test]
    fn a_query_is_not_repeated_in_a_refusal() {
        let error = route("GET", "/x?key=secret").unwrap_err();
        assert!(!error.message().contains("secret"));
    }

    #[test]
    fn upstream_paths_keep_their_query() {
        let path = |prefix, path| upstream_path(prefix, path).unwrap();
        assert_eq!(path("/v1", "/v1/chat/completions?a=b&c=%20"), "/v1/chat/completions?a=b&c=%20");
        assert_eq!(path("", "/v1/embeddings"), "/embeddings");
        assert_eq!(path("/openai/v1", "/v1/embeddings?"), "/openai/v1/embeddings?");
        assert_eq!(upstream_path("/v1", "/v1x/embeddings"), None);
        assert_eq!(upstream_path("/v1", "/other"), None);
    }
}
