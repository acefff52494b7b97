//! The form in which the store keeps a spec.

use std::time::Duration;

use super::super::{CopySpec, Healthcheck, HostIds, Limits, Mount, Port, RestartPolicy, Service};
use super::*;

#[test]
fn the_stored_form_of_a_spec_is_frozen() {
    let limits = Limits { cpu_millis: Some(1500), memory: Some(1 << 30), disk: None };
    let healthcheck = Healthcheck {
        test: words(["CMD", "true"]),
        interval: Some(Duration::from_millis(1500)),
        timeout: None,
        retries: 3,
        start_period: None,
        start_interval: None,
    };
    let service = Service {
        name: "db".into(),
        image: "postgres".into(),
        envs: [("A".into(), "b".into())].into(),
        healthcheck: Some(healthcheck),
        post_start_on_primary: words(["psql"]),
        command: words(["postgres"]),
        cpu_limit: "1".into(),
        memory_limit: "1g".into(),
        disk_limit: "2g".into(),
        limits,
    };
    let spec = Spec {
        image: "host".into(),
        mounts: vec![Mount { source: "/a".into(), target: "/b".into(), writable: true }],
        copies: vec![CopySpec { source: "/a".into(), target: "/c".into(), exclude_patterns: words(["*.log"]) }],
        builtin_tools: words(["git"]),
        services: vec![service],
        labels: [("team".into(), "red".into())].into(),
        envs: [("LANG".into(), "C".into())].into(),
        idle_ttl: Some(Duration::from_secs(60)),
        ports: vec![Port { inside: 80, host: 8080 }],
        command: words(["sleep"]),
        limits,
        untrusted: true,
        caller: Some(HostIds { user: 1, group: 2 }),
        allow_unenforced_limits: true,
        restart: RestartPolicy::OnBoot,
        user: Some("user".into()),
        workdir: Some("/".into()),
        pids: Some(64),
    };
    let stored = include_str!("stored.json").trim_end();
    assert_eq!(serde_json::to_string(&spec).unwrap(), stored);
    assert_eq!(serde_json::from_str::<Spec>(stored).unwrap(), spec);
}
