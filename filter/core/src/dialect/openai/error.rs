//! Errors as OpenAI clients read them: `{"error":{"message","type","param","code"}}`.
//! Source: <https://platform.openai.com/docs/guides/error-codes>

use serde::Serialize;

use crate::refusal::Refusal;

#[derive(Serialize)]
struct Body<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

/// The whole reply body of a refusal. `request_id` ends the message, because clients show nothing else.
pub fn refusal_body(refusal: &Refusal, request_id: &str) -> Vec<u8> {
    let message = format!("{} (request id {request_id})", refusal.message());
    error_body(&message, kind(refusal.status()), refusal.param(), refusal.code())
}

/// An error body with free text.
pub fn error_body(message: &str, kind: &str, param: Option<&str>, code: &str) -> Vec<u8> {
    let body = Body { error: Error { message, r#type: kind, param, code } };
    // Serialising strings cannot fail.
    serde_json::to_vec(&body).unwrap_or_default()
}

fn kind(status: u32) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_the_sdks() {
        let body = refusal_body(&Refusal::UnknownModel { model: "gpt-\"9".into() }, "r-1");
        assert_eq!(
            String::from_utf8(body).unwrap(),
            r#"{"error":{"message":"The model `gpt-\"9` does not exist here. GET /v1/models lists those this key may use. (request id r-1)","type":"invalid_request_error","param":"model","code":"model_not_found"}}"#
        );
    }
}
