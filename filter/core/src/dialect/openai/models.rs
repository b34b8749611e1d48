//! The bodies of `GET /v1/models` and `GET /v1/models/{id}`.
//! Source: <https://platform.openai.com/docs/api-reference/models>

use serde::Serialize;

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Model<'a>>,
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    /// Required by SDKs; a gateway's models have no day of birth.
    created: u64,
    owned_by: &'static str,
}

impl<'a> Model<'a> {
    fn new(id: &'a str) -> Self {
        Self { id, object: "model", created: 0, owned_by: "sluicegate" }
    }
}

/// The list of models, in the order given.
pub fn list_body<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<u8> {
    let list = List { object: "list", data: names.into_iter().map(Model::new).collect() };
    // Serialising strings cannot fail.
    serde_json::to_vec(&list).unwrap_or_default()
}

/// One model.
pub fn model_body(name: &str) -> Vec<u8> {
    serde_json::to_vec(&Model::new(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_are_the_sdks() {
        assert_eq!(
            String::from_utf8(list_body(["gpt-5", "a\"b"])).unwrap(),
            r#"{"object":"list","data":[{"id":"gpt-5","object":"model","created":0,"owned_by":"sluicegate"},{"id":"a\"b","object":"model","created":0,"owned_by":"sluicegate"}]}"#
        );
        assert_eq!(list_body([]), br#"{"object":"list","data":[]}"#);
        assert_eq!(model_body("m"), br#"{"id":"m","object":"model","created":0,"owned_by":"sluicegate"}"#);
    }
}
