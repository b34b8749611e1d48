//! The scripted provider as a process: demo provider of the quickstart, upstream of the bench.

use std::net::SocketAddr;

use anyhow::Result;
use clap::Parser;
use scripted_provider::{Answer, Chat, Content, Listen, Provider, Script};

/// Speaks OpenAI's API and answers every request with the same few words.
#[derive(Debug, Parser)]
struct Args {
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// How long an answer is.
    #[arg(long, default_value_t = 40)]
    tokens: usize,
    /// Streams this many tokens a second; at once without it.
    #[arg(long)]
    tokens_per_second: Option<u32>,
    /// Lets in only this bearer token.
    #[arg(long, env = "SCRIPTED_PROVIDER_KEY")]
    key: Option<String>,
    /// Answers everything with one prepared completion, without reading the request (for benches).
    #[arg(long)]
    canned: bool,
}

const WORDS: [&str; 8] = ["Water", " flows", " where", " the", " gate", " lets", " it", ". "];

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let words: Vec<&str> = WORDS.iter().copied().cycle().take(args.tokens).collect();
    let mut chat = Chat::text(&words);
    chat.usage.completion = args.tokens as u64;
    let mut script = if args.canned {
        Script::canned(chat.canned("scripted-1"))
    } else {
        let mut answer = Answer::from(chat);
        if let Some(rate) = args.tokens_per_second {
            answer = answer.per_second(rate);
        }
        Script::new()
            .rule(scripted_provider::Rule::any().path("/v1/chat/completions").answer(answer))
            .otherwise(Answer { content: Content::ByPath, ..Answer::default() })
    };
    if let Some(key) = &args.key {
        script = script.require_bearer(key);
    }
    let provider = Provider::start_on(Listen { addr: args.listen, tls: None }, script).await?;
    println!("scripted provider on {}", provider.base_url());
    provider.forever().await;
    Ok(())
}
