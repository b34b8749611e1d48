//! The holder of a token (JWT) is an owner like the holder of a key: found, made on first use, limited and booked.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::issuer::{AUDIENCE, JwksServer, TokenIssuer};
use sluicegate_tests::stack::{CHAT, EMBED};
use sluicegate_tests::{Call, Http, Scene, Stack, alone, eventually, side_by_side};

use crate::refusals::check;

/// An issuer whose users are in the scene's org, in force.
pub(crate) async fn issuer(scene: &Scene<'_>, more: Value) -> TokenIssuer {
    let issuer = TokenIssuer::new(format!("https://{}.example", scene.tag));
    declare(scene, &issuer, json!({"jwks": issuer.jwks(), "org": scene.tag}), more).await;
    in_force(scene, &issuer).await;
    issuer
}

async fn declare(scene: &Scene<'_>, issuer: &TokenIssuer, base: Value, more: Value) {
    let mut body = json!({"name": scene.tag, "issuer": issuer.iss, "audiences": [AUDIENCE]});
    for fields in [base, more] {
        if let (Some(body), Value::Object(fields)) = (body.as_object_mut(), fields) {
            body.extend(fields);
        }
    }
    scene.stack.admin.post("/v1/issuers", body).await.unwrap();
}

/// Both channels have brought it: Envoy's own filter verifies its tokens, and every worker's policy knows it.
async fn in_force(scene: &Scene<'_>, issuer: &TokenIssuer) {
    eventually("tokens are verified", Duration::from_secs(15), || async {
        for _ in 0..8 {
            let call = Call::get("/v1/models").bearer(&issuer.token("", json!({})));
            let body = scene.send(Http::H1, call).await?.json().await?;
            let message = body["error"]["message"].as_str().unwrap_or_default();
            anyhow::ensure!(message.contains("`sub`"), "{body}");
        }
        Ok(())
    })
    .await;
}

pub(crate) fn chat(scene: &Scene<'_>, token: &str) -> Call {
    let mut call = scene.chat_call(json!({}));
    call.headers.retain(|(name, _)| name != "authorization");
    call.bearer(token)
}

async fn status(scene: &Scene<'_>, token: &str) -> u16 {
    scene.send(Http::H1, chat(scene, token)).await.unwrap().status
}

/// The scene's users, by name.
async fn users(scene: &Scene<'_>) -> Vec<Value> {
    let all = scene.stack.admin.get("/v1/users?limit=1000").await.unwrap();
    let mine = |user: &&Value| user["org"] == scene.tag;
    all["items"].as_array().unwrap().iter().filter(mine).cloned().collect()
}

#[test]
fn a_users_first_request_makes_the_user_and_is_booked_on_it() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("jwt").await;
        let issuer = issuer(&scene, json!({"user_claim": "email"})).await;
        let token = issuer.token("u-1", json!({"email": "ada@acme.example"}));
        for http in [Http::H1, Http::H2] {
            let reply = scene.send(http, chat(&scene, &token)).await.unwrap();
            assert_eq!(reply.status, 200);
        }
        let users = users(&scene).await;
        let [user] = users.as_slice() else { panic!("{users:?}") };
        assert_eq!(user["name"], "ada@acme.example");
        let id = user["id"].as_i64().unwrap();
        let rows = eventually("both are booked", Duration::from_secs(10), || async {
            let rows = scene.stack.ledger.of_user(i32::try_from(id)?).await?;
            anyhow::ensure!(rows.len() == 2, "{rows:?}");
            Ok(rows)
        })
        .await;
        assert!(rows.iter().all(|row| row.key_id.is_none() && row.cost_nano.is_some_and(|cost| cost > 0)), "{rows:?}");
        // The token itself goes nowhere.
        for seen in scene.provider_saw(2).await {
            assert!(
                seen.headers.iter().all(|(_, value)| !value.to_str().unwrap_or_default().contains(&token)),
                "{:?}",
                seen.headers
            );
        }
    });
}

#[test]
fn a_blocked_user_is_refused_and_a_deleted_issuers_tokens_are() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("jwt-block").await;
        let issuer = issuer(&scene, json!({})).await;
        let token = issuer.token("u-1", json!({}));
        assert_eq!(status(&scene, &token).await, 200);
        let user = users(&scene).await.remove(0)["id"].clone();
        scene.stack.admin.post(&format!("/v1/users/{user}/block"), json!({})).await.unwrap();
        becomes(&scene, &token, "owner_blocked").await;
        check(&scene, chat(&scene, &token), 403, "owner_blocked").await;
        scene.stack.admin.post(&format!("/v1/users/{user}/unblock"), json!({})).await.unwrap();
        eventually("unblocked", Duration::from_secs(5), || async {
            anyhow::ensure!(status(&scene, &token).await == 200);
            Ok(())
        })
        .await;
        scene.stack.admin.delete(&format!("/v1/issuers/{}", scene.tag)).await.unwrap();
        becomes(&scene, &token, "invalid_token").await;
        assert_eq!(users(&scene).await.len(), 1, "usage was booked on it");
    });
}

/// On every worker: each hears of it in its own time, so it has to be so several times on end.
async fn becomes(scene: &Scene<'_>, token: &str, code: &str) {
    eventually(code, Duration::from_secs(10), || async {
        for _ in 0..8 {
            let body = scene.send(Http::H1, Call::get("/v1/models").bearer(token)).await?.json().await?;
            anyhow::ensure!(body["error"]["code"] == code, "{body}");
        }
        Ok(())
    })
    .await;
}

#[test]
fn a_token_that_is_not_good_is_told_why() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("jwt-bad").await;
        let issuer = issuer(&scene, json!({})).await;
        let why = async |token: &str| {
            let body = check(&scene, chat(&scene, token), 401, "invalid_token").await;
            body["error"]["message"].as_str().unwrap().to_owned()
        };
        let hour_ago = chrono::Utc::now().timestamp() - 3600;
        assert!(why(&issuer.token("u", json!({"exp": hour_ago}))).await.contains("expired"));
        assert!(why(&issuer.token("u", json!({"aud": "others"}))).await.contains("udience"));
        let forged = TokenIssuer::new(issuer.iss.clone()).token("u", json!({}));
        assert!(why(&forged).await.contains("verification fails"));
        why(&TokenIssuer::new("https://nobody.example").token("u", json!({}))).await;
        assert!(why(&issuer.token("", json!({}))).await.contains("`sub`"));
        // A key beside it counts, as with any foreign credential.
        let both = chat(&scene, &forged).header("x-api-key", &scene.key.secret);
        assert_eq!(scene.send(Http::H1, both).await.unwrap().status, 200);
        assert!(users(&scene).await.is_empty(), "nobody was made of them");
    });
}

#[test]
fn the_rules_of_an_issuer_say_who_may_what() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("jwt-rules").await;
        scene.stack.admin.post("/v1/teams", json!({"org": scene.tag, "name": "research"})).await.unwrap();
        let roles =
            json!({"claim": ["realm", "roles"], "grants": [{"role": "chat", "models": [CHAT]}, {"role": "all"}]});
        let require = json!([{"claim": "hd", "values": ["acme.example"]}]);
        let rules = json!({"team_claim": "team", "require": require, "roles": roles, "models": [EMBED]});
        let issuer = issuer(&scene, rules).await;
        let token = |subject: &str, more: Value| {
            let mut claims = json!({"hd": "acme.example"});
            if let (Some(claims), Value::Object(more)) = (claims.as_object_mut(), more) {
                claims.extend(more);
            }
            issuer.token(subject, claims)
        };
        let models = async |token: &str| {
            let body = scene.send(Http::H1, Call::get("/v1/models").bearer(token)).await.unwrap().json().await.unwrap();
            let names = body["data"].as_array().unwrap_or_else(|| panic!("{body}")).iter();
            names.map(|model| model["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(models(&token("a", json!({}))).await, [EMBED]);
        assert_eq!(models(&token("a", json!({"realm": {"roles": ["chat", "none of ours"]}}))).await, [EMBED, CHAT]);
        assert!(models(&token("a", json!({"realm": {"roles": ["all"]}}))).await.len() > 2);
        check(&scene, chat(&scene, &token("a", json!({}))), 403, "model_not_allowed").await;
        assert_eq!(users(&scene).await.len(), 1, "one subject is one user, whatever its roles");

        check(&scene, chat(&scene, &issuer.token("b", json!({}))), 403, "identity_not_allowed").await;
        check(&scene, chat(&scene, &token("b", json!({"hd": "evil.example"}))), 403, "identity_not_allowed").await;
        check(&scene, chat(&scene, &token("b", json!({"team": "none"}))), 403, "identity_not_allowed").await;
        assert_eq!(models(&token("c", json!({"team": "research"}))).await, [EMBED]);
        let all = users(&scene).await;
        assert_eq!(all.iter().map(|user| &user["team"]).collect::<Vec<_>>(), [&Value::Null, &json!("research")]);

        // Other rules: who was known by the old ones is asked for again.
        let path = format!("/v1/issuers/{}", scene.tag);
        let patch = json!({"models": [CHAT], "roles": null});
        let (status, body) = scene.stack.admin.call(reqwest::Method::PATCH, &path, Some(&patch)).await.unwrap();
        assert_eq!(status, 200, "{body}");
        let a = token("a", json!({}));
        eventually("the new rules hold", Duration::from_secs(10), || async {
            let body = scene.send(Http::H1, Call::get("/v1/models").bearer(&a)).await?.json().await?;
            anyhow::ensure!(body["data"][0]["id"] == CHAT && body["data"][1].is_null(), "{body}");
            Ok(())
        })
        .await;
        assert_eq!(users(&scene).await.len(), 2, "the same subject is still the same user");
    });
}

#[test]
fn keys_that_are_fetched_and_an_issuer_that_is_away() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("jwt-fetch").await;
        let issuer = TokenIssuer::new(format!("https://{}.example", scene.tag));
        let server = JwksServer::start(issuer.jwks()).await;
        server.set_away(true);
        let place = json!({"jwks_uri": server.uri(), "allow_private": true, "org": scene.tag});
        declare(&scene, &issuer, place, json!({})).await;
        let token = issuer.token("u", json!({}));
        becomes(&scene, &token, "issuer_unavailable").await;
        check(&scene, chat(&scene, &token), 503, "issuer_unavailable").await;
        server.set_away(false);
        in_force(&scene, &issuer).await;
        assert_eq!(status(&scene, &token).await, 200);
    });
}

/// One user, new, a thousand times at once, while the answer who it is stays away; half of them leave.
#[test]
fn a_thousand_requests_of_a_new_user_wait_for_one_answer() {
    alone(async {
        let stack = Stack::start().await;
        let scene = stack.scene("jwt-flood").await;
        let issuer = issuer(&scene, json!({})).await;
        let token = issuer.token("u-new", json!({}));
        let mut hold = stack.database.pool().await.begin().await.unwrap();
        sqlx::query("select from issuer where name = $1 for update")
            .bind(&scene.tag)
            .execute(&mut *hold)
            .await
            .unwrap();

        let mut stay = tokio::task::JoinSet::new();
        let mut leave = tokio::task::JoinSet::new();
        for n in 0..1_000 {
            let http = if n % 4 < 2 { Http::H1 } else { Http::H2 };
            let (addr, call) = (scene.addr(), chat(&scene, &token));
            let request = async move { sluicegate_tests::send(http, addr, call).await.map(|reply| reply.status) };
            if n % 2 == 0 {
                stay.spawn(request)
            } else {
                leave.spawn(request)
            };
        }
        eventually("all wait", Duration::from_secs(3), || async {
            let active = stack.envoy.stat("http.sluicegate.downstream_rq_active").await?;
            anyhow::ensure!(active >= 1_000, "{active}");
            Ok(())
        })
        .await;
        leave.abort_all();
        while leave.join_next().await.is_some() {}
        hold.rollback().await.unwrap();
        let mut served = 0;
        while let Some(status) = stay.join_next().await {
            assert_eq!(status.unwrap().unwrap(), 200);
            served += 1;
        }
        assert_eq!(served, 500);
        assert_eq!(users(&scene).await.len(), 1);
        assert_eq!(status(&scene, &token).await, 200, "Envoy lives");
    });
}
