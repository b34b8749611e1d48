//! `sluicegate doctor` passes a good Envoy and finds what is wrong with a bad one.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::envoy::{Envoy, EnvoyConfig};
use sluicegate_tests::{Stack, alone, eventually, tools};

/// What doctor says, and whether it is content.
async fn doctor(stack: &Stack, admin: SocketAddr) -> anyhow::Result<(bool, String)> {
    let output = stack.control.cli_output(&["doctor", "--envoy-admin", &format!("http://{admin}")]).await?;
    Ok((output.status.success(), String::from_utf8(output.stdout)?))
}

/// The good Envoy's configuration as a bootstrap of somebody who knew better: an access log with a credential header, the
/// admin port open to all. It has the good one's node id, too.
async fn spoilt(good: &Envoy) -> EnvoyConfig {
    let dump: Value = serde_json::from_str(&good.page("/config_dump").await.unwrap()).unwrap();
    let of = |name: &str| {
        let configs = dump["configs"].as_array().unwrap();
        configs.iter().find(|dump| dump["@type"].as_str().unwrap().ends_with(name)).unwrap().clone()
    };
    let mut bootstrap = of(".BootstrapConfigDump")["bootstrap"].take();
    let mut listener = of(".ListenersConfigDump")["dynamic_listeners"][0]["active_state"]["listener"].take();
    let (listen, admin) = (tools::free_port(), tools::free_port());
    listener.as_object_mut().unwrap().remove("@type");
    listener["address"]["socket_address"]["port_value"] = json!(listen);
    let format =
        "/filter_chains/0/filters/0/typed_config/access_log/0/typed_config/log_format/text_format_source/inline_string";
    let format = listener.pointer_mut(format).unwrap();
    *format = json!(format!("%REQ(AUTHORIZATION)% {}", format.as_str().unwrap()));
    // Its clusters come by xDS, after it.
    listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["validate_clusters"] = json!(false);
    let fields = bootstrap.as_object_mut().unwrap();
    fields.remove("node");
    bootstrap["dynamic_resources"].as_object_mut().unwrap().remove("lds_config");
    bootstrap["admin"]["address"]["socket_address"] = json!({"address": "0.0.0.0", "port_value": admin});
    bootstrap["static_resources"]["listeners"] = json!([listener]);
    // The dump hides even the name of the variable.
    bootstrap["static_resources"]["secrets"][0]["generic_secret"]["secret"] =
        json!({"environment_variable": "SLUICEGATE_NODE_TOKEN"});
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    EnvoyConfig {
        bootstrap: bootstrap.to_string(),
        listen: local(listen),
        admin: local(admin),
        ..good.config().clone()
    }
}

#[test]
fn what_is_good_passes_and_what_is_not_is_found() {
    alone(async {
        let stack = Stack::start().await;
        let good = stack.envoy.config().admin;
        eventually("doctor is content", Duration::from_secs(20), || async {
            let (content, told) = doctor(&stack, good).await?;
            ensure!(content && !told.contains("WARN") && told.matches("OK   Envoy http").count() > 12, "{told}");
            Ok(())
        })
        .await;

        let spoilt = spoilt(&stack.envoy).await;
        let admin = spoilt.admin;
        let envoy = Envoy::start(spoilt).await;
        envoy.ready().await;
        let loud = format!("http://{admin}/logging?level=debug");
        reqwest::Client::new().request(Method::POST, loud).send().await.unwrap().error_for_status().unwrap();
        let wanted = [
            format!(
                "FAIL Envoy http://{admin}: listener sluicegate: a log or trace shows the credential header authorization"
            ),
            format!("FAIL Envoy http://{admin}: has its admin port on 0.0.0.0"),
            format!("FAIL Envoy http://{admin}: logs at debug or trace"),
            "is one of several that live under this node id".to_owned(),
        ];
        eventually("doctor finds it all", Duration::from_secs(20), || async {
            let (content, told) = doctor(&stack, admin).await?;
            ensure!(!content && wanted.iter().all(|line| told.contains(line)), "{told}");
            // And nothing that is not there.
            ensure!(told.matches("FAIL Envoy http").count() == 3, "{told}");
            Ok(())
        })
        .await;
        assert!(stack.control.cli(&["nodes", "list"]).await.unwrap().contains("CLASH"));
        drop(envoy);
        // The process that is gone clashes with nobody.
        eventually("doctor is content again", Duration::from_secs(40), || async {
            let (content, told) = doctor(&stack, good).await?;
            ensure!(content, "{told}");
            Ok(())
        })
        .await;
    });
}
