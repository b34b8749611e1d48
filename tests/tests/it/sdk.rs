//! openai-python, two major versions: what an application gets through Sluicegate is what it gets from the provider itself.

use std::path::{Path, PathBuf};

use scripted_provider::{Answer, Chat, Content, Provider, Rule, Script, Text, ToolCall};
use serde_json::json;
use sluicegate_tests::stack::{ALIAS, CHAT, EMBED, PROVIDER_SECRET};
use sluicegate_tests::{Scene, Stack, side_by_side, tools};
use tokio::process::Command;

/// The interpreter of a virtual environment with exactly the pinned packages; made once, kept beside the tools.
async fn interpreter(version: &str) -> PathBuf {
    let pins = tools::workspace().join(format!("tests/python/openai-{version}.txt"));
    let folder = tools::root().join(format!("venv-openai-{version}"));
    let (python, done) = (folder.join("bin/python"), folder.join("pins.txt"));
    let text = std::fs::read_to_string(&pins).unwrap();
    if std::fs::read_to_string(&done).ok().as_ref() != Some(&text) {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)).await;
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"];
        run(Command::new(&python).args(install).args(["--only-binary=:all:", "-r"]).arg(&pins)).await;
        std::fs::write(&done, &text).unwrap();
    }
    python
}

async fn run(command: &mut Command) -> String {
    let output = command.output().await.unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

async fn calls(python: &Path, base_url: &str, key: &str, project: &str) -> serde_json::Value {
    let script = tools::workspace().join("tests/python/openai_calls.py");
    let mut command = Command::new(python);
    // Nothing of this machine's environment: no proxy, no key, no base URL.
    command.env_clear().arg(script).args([base_url, key, CHAT, EMBED, project]);
    serde_json::from_str(&run(&mut command).await).unwrap()
}

/// The rules of both sides.
fn rules() -> Vec<Rule> {
    let call = |id: &str, city: &[&str]| ToolCall {
        id: id.into(),
        name: "weather".into(),
        arguments: city.iter().map(|s| (*s).to_owned()).collect(),
    };
    let tools = Chat {
        text: Text::Deltas(Vec::new()),
        tool_calls: vec![call("call_1", &["{\"city\":", "\"Köln\"}"]), call("call_2", &["{\"city\":\"東京\"}"])],
        ..Chat::default()
    };
    let mut unknown = json!({"error": {"message": "no", "type": "invalid_request_error", "param": "model"}});
    unknown["error"]["code"] = "model_not_found".into();
    let models =
        Answer { content: Content::Models([CHAT, EMBED, ALIAS].map(str::to_owned).into()), ..Answer::default() };
    vec![
        Rule::any().with_tools().answer(tools),
        Rule::any().model("no-such-model").answer(Answer::json(404, unknown.to_string())),
        Rule::any().path("/v1/models").answer(models),
    ]
}

async fn unchanged(version: &str) {
    let python = interpreter(version).await;
    let script = rules().into_iter().fold(Script::new().require_bearer(PROVIDER_SECRET), Script::rule);
    let provider = Provider::start(script).await.unwrap();
    let scene: Scene<'_> = Scene::new(Stack::shared().await, "sdk", json!({"models": [CHAT, EMBED, ALIAS]})).await;
    rules().into_iter().for_each(|rule| scene.rule(rule));
    let direct = calls(&python, &provider.base_url(), PROVIDER_SECRET, &scene.tag).await;
    let through = calls(&python, &scene.stack.envoy.base_url(), &scene.key.secret, &scene.tag).await;
    for (name, expected) in direct.as_object().unwrap() {
        assert_eq!(&through[name], expected, "openai-python {version}: {name}");
    }
    assert_eq!(direct["tools"]["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 2);
}

#[test]
fn openai_python_3_57_0() {
    side_by_side(unchanged("3.57.0"));
}

#[test]
fn openai_python_2_54_0() {
    side_by_side(unchanged("2.54.0"));
}
